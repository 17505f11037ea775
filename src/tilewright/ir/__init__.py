"""Programs of all levels: nodes, printer, parser, verifier.

| file     | subject                                                                                   |
|----------|-------------------------------------------------------------------------------------------|
| dtypes   | element types                                                                             |
| core     | what a program is made of, on every level: types, values, operations, blocks, programs    |
| location | where in the author's file an operation was written                                       |
| attrs    | the kinds of attributes: how each is checked, printed and read                            |
| printer, parser, verifier | text from programs, programs from text, and what must hold of them       |
| tile     | the tile level: its operations and their types                                            |
| tile_formulas, tile_functions | what its operations compute of one element, as formulas              |
| in_place | which output of a tile program may be the same array as an input                         |
| written  | which arguments a tile program writes, and of which it writes every element              |
| block    | the block level: where things live and who does them, the program of one workgroup        |
| loop, loop_waves | the loop level of one wave; its words for workgroups of many waves                |
| host, module | the host level: what happens at bind and at every launch; it and what it launches     |
| alone    | the host program that launches one program and does nothing else                          |
| tensors, loop_types | types of the block level, and of the loop level                                |
| formula  | scalars computed from scalars, for `map`, `reduce` and `scan`                             |
| builder, notation | programs written operation by operation; how an operation is written             |
| binding  | parameters become numbers                                                                 |
| compare, pickling | whether two programs are the same; programs between processes                    |
"""
