"""The part of the back end that all CPUs share: machine code from loop programs, loader, worker pool, the CPU at hand.

| file          | subject                                                                             |
|---------------|-------------------------------------------------------------------------------------|
| family        | the description of a family of CPUs (x86, AArch64, any other)                       |
| families      | all families, and their machines by name                                            |
| portable      | the fallback family: LLVM's generic vectors of 128 bits                              |
| costs         | costs and rates that all CPU machines share                                          |
| host          | the CPU at hand: its family, features, caches and cores                              |
| caches        | sizes of caches and of their lines, as the system reports them                       |
| target        | a machine to compile for: the CPU at hand, or a named one                            |
| emit          | loop programs as LLVM IR                                                             |
| dynamic_tasks | how workers divide the tasks of a launch: static tasks, then dynamic ones            |
| memory, tails | loads and stores; vectors that are partly out of bounds                              |
| products      | multiplication atoms in generic LLVM instructions                                    |
| vectors       | vector copies as atoms                                                               |
| vector_atoms  | multiply-adds of vector registers as atoms                                           |
| conversions   | 16-bit floats where the CPU has no instruction for them                              |
| native        | loop programs as machine code                                                        |
| entry         | the entry of a module: its functions in this process, and calls of them               |
| workspaces    | memory that launches need while they run, shared where they take turns               |
| entry_object  | the object of a module's entry: from the cache, or compiled                           |
| entry_executor | entries bound to arrays                                                              |
| calling       | entries called by machine code: on bound arrays, or on those of a call                |
| launch_cache  | remembered calls of executables: their copies, outputs and launches                  |
| operator_cache | remembered calls of torch's operators, from arguments to results                   |
| load          | linking of object code into this process                                             |
| exported      | a host program and its programs as one object file                                   |
| support       | functions that LLVM calls by itself, for objects that need no library                |
| objects       | ELF objects, read, and linked to a shared library                                    |
| relocation    | relocations: addresses within machine code                                           |
| openmp        | the threads of PyTorch, on which launches run where it is loaded                     |
| own_pool      | the worker pool inside an exported object                                            |
| pool, waiting | the threads that run tasks, and how they wait                                        |
| vector_views  | conditions of vector copies between views                                           |
"""
