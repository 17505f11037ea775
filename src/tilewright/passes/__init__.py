"""From level to level, a plain list of passes: one pass, one file. No pass names a machine.

| file        | subject                                                                       |
|-------------|-------------------------------------------------------------------------------|
| pipeline    | tile to block: the passes, each a function of what the one before returned    |
| request     | what is asked: a program with its sizes, a machine, a pinned plan             |
| bound_plan  | what passes hand on: a plan with its kernels, and what a compile comes to     |
| choosing    | the pass that chooses the plan                                                |
| realising   | the best plan of the search that binding and lowering do                      |
| given       | plans that are pinned: bound and lowered as they say, or refused               |
| binding     | a plan replayed on a program: its rewrites, then its kernel                   |
| bind_blocks | plans of one product in accumulator tiles that stay in registers, bound        |
| request_facts | the facts of a request's program                                            |
| empty_rounds | loops without rounds that only multiply zeros                                |
| halo_tiles  | plans with halo tiles, bound: rows as boxes of their digits                   |
| lane_rows   | plans with boxes of lanes, bound: rows as boxes of their digits               |
| repacking   | plans with repacked operands, bound: kernels that copy, and one on the copies |
| rating      | what a bound plan should take                                                 |
| notes       | the notes of `explain` on a bound plan                                        |
| canonical   | the one writing of programs that mean the same                                |
| tile/       | tile to block, the general way: any program, operation by operation           |
| lower       | block to loop: the table of what each operation becomes                       |
| loop_lowering | the walk over a program, which every rule of block to loop is handed        |
| places      | views as flat places: an offset and conditions, as expressions of coordinates |
| storage     | what a register tensor becomes: vectors, tiles or memory                      |
| elementwise | copy, fill, map, broadcast: loops over elements, vectors along one axis       |
| products    | mma: atoms on registers, or loops with the same meaning                       |
| along       | reduce and scan                                                               |
| partial_sums | long sums of floats by blocks                                                |
| indirect    | gather, scatter, atomic                                                       |
| control     | for, tasks, if, while; unrolling, peeling, channels of one role               |
| clone       | a body once more, with numbers put in                                         |
| defer       | the end of a round, woven into the beginning of the next                      |
| tabulate    | places that need division, decoded into tables                                |
| kernels     | the block programs of a bound plan: one kernel, or several                    |
| parts       | a program as two, with a value in memory between                              |
| launching   | when a program's launch begins: after the one before it, or while that ends   |
| reusing     | tensors that are never needed at once, at one place of shared memory          |
| loop_fusion | K loops over the same steps as one, which loads what they share once            |
| outside     | what shared memory does not hold, in workspaces                               |
| abreast     | programs that need nothing of each other, as one launch                       |
| host        | the pass that writes the host program                                         |
| roles       | copies ahead of the products that use them, in waves of their own             |
| lane_sums   | sums of rows that a loop carries, kept lane by lane until it is over          |
| ahead       | the first product of a round, started in the round before                     |
| inserting   | operations that a pass adds: types that follow, names that are free           |
| waves/      | block to loop for workgroups of many threads                                  |
| joined      | maps and reductions over the same elements as one loop                        |
| transposing | copies across: small matrices turned in registers                             |
| dealing     | tasks that a table deals out to workers                                       |
"""
