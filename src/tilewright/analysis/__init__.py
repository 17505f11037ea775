"""Facts about block programs that several passes use: thread layouts, addresses, lifetimes, bounds.

| file              | subject                                                                        |
|-------------------|--------------------------------------------------------------------------------|
| distribution      | which thread holds which element of a register tensor                          |
| flat_memory       | tensors in flat memory: offsets and bounds conditions as expressions           |
| in_bounds         | proofs that a coordinate is in bounds for every value of open parameters       |
| lifetimes         | lifetime of shared memory, which the next task uses again                      |
| needless_barriers | workgroup barriers that are not needed                                         |
| shifted           | shifted coordinates: windows of a lane's own values, read at an offset         |
| thread_layout     | tensors in registers, and their elements over the lanes of all waves of a task |
| views             | views and bitcasts, followed down to the tensor below them                     |
"""
