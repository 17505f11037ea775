"""Emission of a host program as LLVM IR: functions with a C interface that launch the programs of a module.

| file     | subject                                                          |
|----------|------------------------------------------------------------------|
| abi      | the interface: its version, alignment, and error codes           |
| write    | all functions of a kernel as LLVM text                           |
| plan     | their input: launches, conditions, byte counts, error codes      |
| call     | the functions `NAME_bind` and `NAME`                             |
| table    | functions that fill tensors by an expression                     |
| decided  | removal of branches with constant conditions                     |
| sizes    | index arithmetic of sizes                                        |
| memory   | offsets of workspaces in the memory that a caller lends          |
| texts    | string constants                                                 |
| tvm_ffi  | the function that TVM-FFI calls                                  |
| programs | the programs' texts and the functions as one LLVM module         |
"""
