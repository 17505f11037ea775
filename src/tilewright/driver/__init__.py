"""From a request to a module: rewrite, plan, bind, lower, transform. No file names a machine.

| file            | subject                                                                        |
|-----------------|--------------------------------------------------------------------------------|
| pipeline        | tile to block: the list of passes, each a function of the previous result      |
| request         | a request: a program with its sizes, a machine, a pinned plan                  |
| bound_plan      | values that passes return: a bound plan with its kernels, a compile's result   |
| choose_plan     | the pass that chooses the plan                                                 |
| realise         | the best plan of the search that can be bound and lowered                      |
| pinned_plans    | pinned plans: bound and lowered as they say, or refused                        |
| bind            | a plan replayed on a program: its rewrites, then its kernel                    |
| bind_blocks     | CPU plans of one MMA with accumulator tiles in registers, bound                |
| request_facts   | the facts of a request's program                                               |
| bind_halo_tiles | plans with halo tiles, bound: M in boxes of output pixels                      |
| bind_simt       | SIMT plans, bound: each lane computes a box of M                               |
| repack          | plans with repacked operands, bound: kernels that copy, a kernel on the copies |
| rating          | the predicted time of a bound plan                                             |
| notes           | the notes of `explain` on a bound plan                                         |
| canonical_form  | one form for programs with the same meaning                                    |
| kernels         | the block programs of a bound plan: one kernel, or several                     |
| two_kernels     | a program as two kernels, with a value in memory between                       |
| quotients       | quotients of sizes among a program's integers, checked to be whole             |
| host            | the pass that writes the host program                                          |
"""
