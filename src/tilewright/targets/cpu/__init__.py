"""What all CPUs share: machine code from loop programs, its loader, the worker pool, and the CPU at hand.

| file          | subject                                                                             |
|---------------|-------------------------------------------------------------------------------------|
| family        | what a family of CPUs (x86, AArch64, any other) tells of itself                     |
| families      | all families, and machines of them by name                                          |
| portable      | the family of last resort: LLVM's own vectors of 128 bits                            |
| costs         | costs and rates that rows of CPUs have alike                                         |
| host          | the CPU at hand: its family, features, caches and cores                              |
| caches        | sizes of caches and of their lines, as the system tells them                         |
| target        | a machine that code is made for: the CPU at hand, or a named one                     |
| emit          | loop programs as LLVM IR                                                             |
| memory, tails | loads and stores; vectors of which only a part is there                              |
| products      | multiplication atoms that LLVM has instructions for by itself                        |
| vectors       | vector copies as atoms                                                               |
| vector_atoms  | multiply-adds of vector registers as atoms                                           |
| conversions   | 16-bit floats where the CPU has no instruction for them                              |
| native        | loop programs as machine code                                                        |
| entry         | the entry of a module: its functions in this process, and calls of them               |
| entry_object  | the object of a module's entry: from the cache, or made                               |
| entry_executor | entries bound to arrays                                                              |
| calling       | entries called by machine code: on arrays as they are, or on those of a call          |
| launch_cache  | what is learnt from a call: copies, outputs and launches of others like it           |
| operator_cache | the same for an operator of torch: from its arguments to its results               |
| load          | object code into this process                                                        |
| exported      | a host program and its programs as one object file                                   |
| support       | functions that LLVM calls by itself, for objects that need no library                |
| objects       | ELF objects, read, and linked to a shared library                                    |
| relocation    | places in machine code that hold addresses                                           |
| openmp        | the threads of PyTorch, on which launches run where it is loaded                     |
| own_pool      | the worker pool inside an exported object                                            |
| pool, waiting | the threads that run tasks, and how they wait                                        |
| vector_views  | when a vector copy can move elements between views                                  |
"""
