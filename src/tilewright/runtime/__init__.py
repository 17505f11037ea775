"""The runtime: argument checks, memory, launches, code generation and caches between a Python call and machine code.

| file           | subject                                                                      |
|----------------|------------------------------------------------------------------------------|
| environment    | the environment variables that are read                                      |
| arguments      | checks of a kernel's arguments; allocation of outputs that are left out      |
| sizes          | the values of open parameters, from the arguments' shapes                    |
| dlpack         | arrays of other libraries, also of types that numpy does not have            |
| outputs        | the pool of memory for outputs that calls make                               |
| arrays         | arrays that start at a cache line                                            |
| cache          | compiled programs on disk                                                    |
| codegen        | machine code from LLVM IR, made in a helper process (`codegen_server`)       |
| dump           | the text of a program after every pass, written to a folder                  |
| timing         | how long a launch takes                                                      |
| cache_folder   | ownership and permissions of the folder of compiled programs                 |
| codegen_server | the helper process: one child for a program, since LLVM may abort            |
| toolchain      | versions of the compiler, llvmlite and LLVM, for cache keys                  |
| calls          | arguments by position, by name, with `out=`; signatures                      |
| scalars        | scalar arguments: numbers that an element type can represent                 |
| traced         | refusal of arguments that torch or JAX traces                                |
| eager          | calls that torch.compile leaves out of its graphs                            |
| tensors, exchange | arrays of other libraries; their C functions for DLPack                   |
| device_arrays  | arrays in device memory                                                      |
| overlap        | whether arrays share memory, exactly                                         |
| scripts        | host programs for one set of sizes, as lists of steps bound to arrays        |
| host           | the host executor: runs the host program of a module, on every device        |
"""
