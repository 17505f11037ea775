"""Programs of all levels: nodes, printer, parser, verifier.

| file     | subject                                                                                   |
|----------|-------------------------------------------------------------------------------------------|
| dtypes   | element types                                                                             |
| core     | the nodes of programs of every level: types, values, operations, blocks, programs         |
| location | source locations of operations in the author's file                                       |
| attrs    | the kinds of attributes: how each is checked, printed and parsed                          |
| printer, parser, verifier | text from programs, programs from text, validity checks                  |
| tile     | the tile level: its operations and their types                                            |
| tile_formulas, tile_functions | the formula that each of its operations computes per element         |
| in_place | which output of a tile program may share an array with an input                          |
| written  | which arguments a tile program writes, and of which it writes every element              |
| block    | the block level: the program of one workgroup                                             |
| loop, loop_waves | the loop level of one wave; its operations for workgroups of many waves           |
| host, module | the host level: operations at bind and at every launch; modules                       |
| alone    | a host program that only launches one program                                             |
| tensors, loop_types | types of the block level, and of the loop level                                |
| formula  | scalars computed from scalars, for `map`, `reduce` and `scan`                             |
| builder, notation | programs built operation by operation; notations of operations                   |
| binding  | programs with parameters replaced by numbers                                              |
| compare, pickling | equality of programs; programs passed between processes                          |
"""
