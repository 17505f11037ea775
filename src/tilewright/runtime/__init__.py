"""What stands between a call and a program.

| file           | subject                                                                      |
|----------------|------------------------------------------------------------------------------|
| environment    | the variables that are read                                                  |
| arguments      | checks of what a kernel is called with; outputs that are left out            |
| sizes          | the values of open parameters, from the arguments' shapes                    |
| dlpack         | arrays of others, also of types that numpy does not have                     |
| arrays         | arrays that start at a cache line                                            |
| cache          | compiled programs that are kept                                              |
| codegen        | machine code from LLVM IR, made in a helper process (`codegen_server`)       |
| dump           | every level of a program, written to a folder                                |
| timing         | how long a launch takes                                                      |
"""
