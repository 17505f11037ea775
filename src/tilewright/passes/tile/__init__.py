"""Tile to block, the general way: any tile program, for sizes that are numbers or that only a call tells.

| file          | subject                                                                               |
|---------------|---------------------------------------------------------------------------------------|
| general       | the walk over a program, and what each operation becomes                              |
| lowering      | what rules share, and the table by which they are found                               |
| tasks         | the tasks of a program, and the pieces by which each goes over its dimensions         |
| normal        | a contraction as a program over its digits                                            |
| values        | tiles that are not computed yet: a formula over named coordinates                     |
| scope         | which part of each dimension is current, what symbols mean                            |
| storage       | where values live: formulas of what lies in memory, registers, arguments              |
| arguments     | what stands for the arguments of a tile program                                       |
| keeping       | whether a value is computed again or kept                                             |
| writer        | the block program as it grows: memory, views, maps                                    |
| reports       | what a program tells of its run: faults, logs                                         |
| accesses      | which elements a read or a write means: inside memory or not, by data or not          |
| memory        | reads, writes, atomics, logs                                                          |
| writing       | what writes and atomics share: the part, where it goes, under which conditions        |
| roles         | what a program does with an argument: reads it, writes all of it                      |
| forming       | element by element; other dimensions, other types, choices                            |
| combining     | reductions                                                                            |
| product/      | products: one lowering, from sources, an accumulator, K loops and a multiply step     |
| scans         | running sums, products, maxima, minima; the largest few                               |
| loops         | `iterate`, while loops and `conditional`                                              |
| moving        | dimensions that end where data say, loops that start there                            |
| grid          | workgroups one after another, memory of their own                                     |
| opened        | sizes that only a call tells                                                          |
| rewriting     | programs written again: over other dimensions, or as two                              |
| empty         | what has no elements is not computed                                                  |
| unit_rows     | a dimension of extent 1 for products whose operand has no free dimension              |
| vector_products | sums instead of products without rows or without columns, on GPUs                     |
| fission       | loops over K as several, where a product needs some of their sums first                |
| dim_order     | tiles and products whose dimensions have one order                                    |
| unit_taps     | windows of one element: coordinates without the index of a summed dimension           |
| merging       | dimensions that lie behind each other as one                                          |
| equal_reads   | reads of the same elements as one                                                     |
| congruences   | operands that are zero but where a sum of indices is a multiple of a number           |
| phases        | products over such operands as denser ones, over phases                               |
| digits        | flat dimensions as the digits that accesses divide them into                          |
| flat          | functions of elements over one dimension, where rows are no whole vectors             |
| apart         | a program as two, where a value between products goes through memory                  |
| looping       | chained products as a loop over what lies between them                                |
| dissolving    | a loop whose carried values merge, in one iteration                                   |
| stepping      | products that sum a dimension at once, in a loop over its steps                       |
| splitting     | split-K: a program with one product as two                                            |
| parting       | a long reduction as two programs                                                      |
| loop_parts    | a loop whose carried values merge as two programs: parts of it, and their merge       |
| patches       | a dimension in boxes of digits instead of runs                                        |
| aligning      | factors in rows that a machine's copies can read, and what copies them so             |
| k_last        | reads of factors with a dimension of K as the last of memory, and what copies them so |
| neighbours    | products that lie side by side: rows of A that begin behind each other                |
| diagonal      | such products as one, with B in blocks on a diagonal                                  |
| copies        | what copies of factors share: accesses in numbers, the programs that copy             |
| inplace       | factors read where they lie, taps out of bounds left out                              |
| packing       | B in the order in which blocks of sums read it                                        |
| orders        | the orders in which B is packed                                                       |
| halo          | the part of a tensor that a padded read looks at, copied once                         |
| homes         | values between products in registers, dealt out to lanes                              |
| masks         | conditions on coordinates: where they hold everywhere, or nowhere                     |
| fusing        | operations along the same rows, a few rows at a time                                  |
| storing       | results that leave through shared memory                                              |
| ordering      | barriers between operations of a task on one argument                                 |
"""
