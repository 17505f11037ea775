"""Block to loop for workgroups of many waves: tensors over lanes, roles as branches, channels as barriers.

| file             | subject                                                                           |
|------------------|-----------------------------------------------------------------------------------|
| asynchronous     | which copies and MMAs are asynchronous, and the shared memory that they access    |
| cache_hints      | loads of data that is read once: evict first                                      |
| channels         | channels between roles as pairs of barrier arrays, `full` and `empty`             |
| common_loads     | elimination of common loads                                                       |
| control          | loops, branches and tasks; ping-pong halves of a role                             |
| copies           | allocations, views, fills and copies; asynchronous copies                         |
| distributed      | operations on tensors distributed over lanes: each lane computes its own elements |
| elementwise      | maps and reductions of register tensors; conversions between register layouts     |
| general          | the general form of each operation: lanes take elements or rows in turn           |
| lane_sync        | synchronisation between the lanes of one wave                                     |
| lower            | the walk over a block program                                                     |
| mma              | MMAs: one loop operation for each atom of the accumulator, over all of K          |
| mmas_in_flight   | asynchronous MMAs: who waits for which, and stages that are released then         |
| ordered_mmas     | groups of waves that start their MMAs one after the other                         |
| own_channels     | channels of a role to itself: groups of waves hand over their part of a stage     |
| register_tensors | register tensors: which fragment holds which elements                             |
| rings            | channels as rings of stages, and a wave's position in a ring                      |
| scans            | scans over a dimension that is distributed over lanes                             |
| transposing      | transposing maps and copies, through a tile in shared memory                      |
| wave_groups      | groups of waves that do collective operations together                            |
| wave_lowering    | the state of the lowering, which every rule gets                                  |
"""
