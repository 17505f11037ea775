"""Transforms from block programs to block programs with the same meaning: one file a transform. None names a machine.

| file                 | subject                                                                      |
|----------------------|------------------------------------------------------------------------------|
| delay_row_reduction  | loop-carried row sums, kept per lane until the loop ends                     |
| fuse_horizontal      | independent programs as one launch                                           |
| fuse_k_loops         | K loops over the same steps as one, which loads common operands once         |
| insert_barriers      | barriers between operations of a task that access the same argument          |
| launch_order         | when a launch starts: after the one before it, or while that one ends        |
| new_ops              | operations that a pass adds: inferred types, unused names                    |
| pipeline_mma         | software pipelining: an iteration's first MMA, started one iteration earlier |
| reuse_shared         | tensors that are never needed at the same time share shared memory           |
| scratch_memory       | shared memory that a program needs, with the scratch memory of operations    |
| skip_zero_iterations | loops without iterations that only multiply zeros                            |
| spill_shared         | shared tensors that do not fit, in workspaces                                |
| warp_specialize      | warp specialisation: a role that loads, a role that multiplies               |
"""
