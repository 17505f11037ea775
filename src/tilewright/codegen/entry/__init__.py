"""A host program as machine code: functions with a C interface that launch the programs of a module.

| file     | subject                                                          |
|----------|------------------------------------------------------------------|
| abi      | the interface: its version, alignment, and the codes it returns  |
| write    | the functions as LLVM text                                       |
| plan     | what they are made from: launches, conditions, bytes, codes      |
| call     | those that bind and call                                         |
| table    | those that fill tensors by an expression                         |
| decided  | branches that sizes do not decide, taken                         |
| sizes    | arithmetic of sizes                                              |
| memory   | where workspaces lie: kept from bind to bind, or a call's own    |
| texts    | constants that hold texts                                        |
| tvm_ffi  | the function that TVM-FFI calls, beside the others               |
| programs | the programs' texts and the functions as one LLVM module         |
"""
