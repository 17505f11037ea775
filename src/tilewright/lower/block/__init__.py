"""Lowers tile programs to block programs: any tile program, for sizes that are numbers or known only at the call.

| file                | subject                                                                           |
|---------------------|-----------------------------------------------------------------------------------|
| lower               | the table of rules (one for each operation), and the entry point                  |
| lowering            | the state that rules share, and how they are looked up                            |
| tasks               | the tasks of a program, and loops over blocks of their dimensions                 |
| lazy_tiles          | lazy tiles: a formula over named coordinates                                      |
| scope               | the current part of each dimension, the values of symbols                         |
| storage             | where values live: memory, registers, arguments                                   |
| arguments           | the arguments of the block program                                                |
| materialise         | whether a value is stored or computed again                                       |
| writer              | emits block operations: memory, views, maps, loops                                |
| reports             | run-time reports: faults, logs                                                    |
| accesses            | memory coordinates of a read or write: in bounds or not, dependent on data or not |
| memory              | reads, writes, atomics, logs                                                      |
| stores              | the part, the coordinates and the conditions of a write or atomic                 |
| argument_roles      | the role of an argument: read only, written completely, or neither                |
| elementwise         | elementwise operations, casts, selects, changes of shape                          |
| reduce              | reductions                                                                        |
| scans               | running sums, products, maxima, minima; top-k                                     |
| loops               | `iterate`, while loops and `conditional`                                          |
| dynamic_bounds      | dimensions and loops with data-dependent limits                                   |
| grid                | the author's workgroups, and memory of their own                                  |
| symbolic_shapes     | sizes known only at the call                                                      |
| in_place            | operands read in place, taps out of bounds skipped                                |
| packing             | packs B in the order in which accumulator tiles read it                           |
| packed_orders       | the packed orders of B                                                            |
| halo                | halo tiles: the part of a tensor that a padded read covers, copied once           |
| register_layouts    | register layouts of values between MMAs                                           |
| masks               | masks on coordinates: true everywhere, or nowhere                                 |
| row_fusion          | operations along the same rows, a few rows at a time                              |
| streamed_reductions | reductions over a dimension that is not contiguous, a part at a time              |
| staged_stores       | stores of accumulators through shared memory                                      |
| mma                 | MMAs: parts that a plan chooses one by one                                        |
"""
