"""Passes from level to level: one pass, one file. No pass names a machine.

| file        | subject                                                                       |
|-------------|-------------------------------------------------------------------------------|
| pipeline    | tile to block: the list of passes, each a function of the previous result     |
| request     | a request: a program with its sizes, a machine, a pinned plan                 |
| bound_plan  | values that passes return: a bound plan with its kernels, a compile's result  |
| choosing    | the pass that chooses the plan                                                |
| realising   | the best plan of the search that can be bound and lowered                     |
| given       | pinned plans: bound and lowered as they say, or refused                       |
| binding     | a plan replayed on a program: its rewrites, then its kernel                   |
| bind_blocks | CPU plans of one MMA with accumulator tiles in registers, bound               |
| request_facts | the facts of a request's program                                              |
| empty_rounds | loops without iterations that only multiply zeros                             |
| halo_tiles  | plans with halo tiles, bound: M in boxes of output pixels                     |
| lane_rows   | SIMT plans, bound: each lane computes a box of M                              |
| repacking   | plans with repacked operands, bound: kernels that copy, a kernel on the copies |
| rating      | the predicted time of a bound plan                                            |
| notes       | the notes of `explain` on a bound plan                                        |
| canonical   | one form for programs with the same meaning                                   |
| tile/       | tile to block for any program, operation by operation                         |
| lower       | block to loop on CPUs: the table of lowering rules                            |
| loop_lowering | the state of a lowering, which every rule of block to loop gets               |
| places      | tensors in flat memory: offsets and bounds conditions as expressions          |
| storage     | forms of a register tensor: vectors, tiles or memory                          |
| elementwise | copy, fill, map, broadcast: loops over elements, vectors along one axis       |
| products    | mma: atoms on registers, or loops with the same meaning                       |
| along       | reduce and scan                                                               |
| partial_sums | long sums of floats by blocks                                                 |
| indirect    | gather, scatter, atomic                                                       |
| control     | for, tasks, if, while; unrolling, peeling, channels of one role               |
| clone       | clones of operations with other meanings for their symbols                    |
| defer       | delayed epilogues: the end of an iteration interleaved with the next one      |
| tabulate    | offsets that need division, looked up in tables                               |
| kernels     | the block programs of a bound plan: one kernel, or several                    |
| parts       | a program as two kernels, with a value in memory between                      |
| launching   | when a launch starts: after the one before it, or while that one ends         |
| scratch     | shared memory with the scratch memory of operations, before a plan is taken   |
| reusing     | tensors that are never needed at the same time share shared memory            |
| loop_fusion | K loops over the same steps as one, which loads common operands once          |
| outside     | shared tensors that do not fit, in workspaces                                 |
| abreast     | independent programs as one launch                                            |
| host        | the pass that writes the host program                                         |
| roles       | warp specialisation: a role that loads, a role that multiplies                |
| lane_sums   | loop-carried row sums, kept per lane until the loop ends                      |
| ahead       | software pipelining: an iteration's first MMA, started one iteration earlier  |
| inserting   | operations that a pass adds: inferred types, unused names                     |
| waves/      | block to loop for workgroups of many threads                                  |
| joined      | maps and reductions over the same elements as one loop                        |
| transposing | transposing copies: small matrices transposed in registers                    |
| dealing     | tasks that a table assigns to workers                                         |
"""
