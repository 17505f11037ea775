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
"""
