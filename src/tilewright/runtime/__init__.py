"""What stands between a call and a program.

| file           | subject                                                                      |
|----------------|------------------------------------------------------------------------------|
| environment    | the variables that are read                                                  |
| arguments      | checks of what a kernel is called with; outputs that are left out            |
| sizes          | the values of open parameters, from the arguments' shapes                    |
| dlpack         | arrays of others, also of types that numpy does not have                     |
| outputs        | the pool of memory for outputs that calls make                               |
| arrays         | arrays that start at a cache line                                            |
| cache          | compiled programs that are kept                                              |
| codegen        | machine code from LLVM IR, made in a helper process (`codegen_server`)       |
| dump           | every level of a program, written to a folder                                |
| timing         | how long a launch takes                                                      |
| cache_folder   | the folder of compiled programs: marked as ours, written by no one else      |
| codegen_server | that helper: one child for a program, since LLVM may end the process         |
| toolchain      | what machine code depends on beside its program                              |
| calls          | by position, by name, with `out=`; the signature that says so                |
| scalars        | scalar arguments: numbers that an element type holds                         |
| traced         | arguments that torch or JAX traces: refused by name                          |
| eager          | calls that torch.compile leaves out of its graphs                            |
| tensors, exchange | arrays of other libraries; what those tell without going through Python   |
| device_arrays  | arrays on a device, taken as they are or moved; results there                |
| overlap        | whether arrays share memory, exactly                                         |
| scripts        | host programs for one set of sizes, bound to arrays                          |
| host           | the host executor: runs the host program of a module, on every device        |
"""
