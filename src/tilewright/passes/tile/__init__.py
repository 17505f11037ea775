"""Lowers tile programs to block programs: any tile program, for sizes that are numbers or known only at the call.

| file          | subject                                                                               |
|---------------|---------------------------------------------------------------------------------------|
| general       | the table of rules (one for each operation), and the entry point                      |
| lowering      | the state that rules share, and how they are looked up                                |
| tasks         | the tasks of a program, and loops over blocks of their dimensions                     |
| normal        | a contraction as a program over its digits                                            |
| values        | lazy tiles: a formula over named coordinates                                          |
| scope         | the current part of each dimension, the values of symbols                             |
| storage       | where values live: memory, registers, arguments                                       |
| arguments     | the arguments of the block program                                                    |
| keeping       | whether a value is stored or computed again                                           |
| writer        | emits block operations: memory, views, maps, loops                                    |
| reports       | run-time reports: faults, logs                                                        |
| accesses      | memory coordinates of a read or write: in bounds or not, dependent on data or not     |
| memory        | reads, writes, atomics, logs                                                          |
| writing       | the part, the coordinates and the conditions of a write or atomic                     |
| roles         | the role of an argument: read only, written completely, or neither                    |
| forming       | elementwise operations, casts, selects, changes of shape                              |
| combining     | reductions                                                                            |
| product/      | MMAs: one lowering, from sources, an accumulator, K loops and a multiply step         |
| scans         | running sums, products, maxima, minima; top-k                                         |
| loops         | `iterate`, while loops and `conditional`                                              |
| moving        | dimensions and loops with data-dependent limits                                       |
| grid          | the author's workgroups, and memory of their own                                      |
| opened        | sizes known only at the call                                                          |
| rewriting     | rewriters of programs: over other dimensions, or as two programs                      |
| empty         | removes operations on empty tiles                                                     |
| unit_rows     | a dimension of extent 1 for MMAs with an operand that lacks M or N                    |
| vector_products | sums instead of matrix-vector products, on GPUs                                     |
| fission       | splits loops over K whose accumulators are needed one after the other                 |
| dim_order     | one order of dimensions for all tiles and MMAs                                        |
| unit_taps     | windows of one element: coordinates without the index of a summed dimension           |
| merging       | merges neighbouring dimensions                                                        |
| equal_reads   | joins reads of the same elements                                                      |
| congruences   | operands that are zero unless a sum of indices is a multiple of a number              |
| phases        | splits MMAs on such operands into denser ones, by phases                              |
| digits        | flat dimensions as the digits into which accesses divide them                         |
| flat          | elementwise programs over one dimension, if rows are no whole vectors                 |
| apart         | two kernels with a value between MMAs in memory                                       |
| looping       | a loop over the dimension between chained MMAs                                        |
| softmax_loops | a softmax between two MMAs as a loop over its dimension                               |
| mask_values   | constants of masking selects, copied into the loops of the selects                    |
| dissolving    | a loop whose carried values can be merged, in one iteration                           |
| stepping      | a loop over the steps of a dimension that MMAs sum at once                            |
| splitting     | split-K: a program with one MMA as two                                                |
| parting       | a long reduction as two programs                                                      |
| loop_parts    | a loop whose carried values can be merged as two programs                             |
| patches       | tiles a flat dimension into boxes of its digits                                       |
| aligning      | copies operands to rows that bulk copies can read                                     |
| k_last        | copies of operands with a dimension of K as the last of memory                        |
| neighbours    | adjacent GEMMs: rows of A that begin right behind each other                          |
| diagonal      | such GEMMs as one, with a block-diagonal B                                            |
| copies        | copies of operands: accesses in numbers, the copying programs                         |
| inplace       | operands read in place, taps out of bounds skipped                                    |
| packing       | packs B in the order in which accumulator tiles read it                               |
| orders        | the packed orders of B                                                                |
| halo          | halo tiles: the part of a tensor that a padded read covers, copied once               |
| homes         | register layouts of values between MMAs                                               |
| masks         | masks on coordinates: true everywhere, or nowhere                                     |
| fusing        | operations along the same rows, a few rows at a time                                  |
| storing       | stores of accumulators through shared memory                                          |
| ordering      | barriers between operations of a task on one argument                                 |
"""
