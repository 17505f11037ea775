"""Lowering: tile to block (`block`), block to loop for CPUs (`cpu`) and for waves of many lanes (`gpu`).

| file          | subject                                                                 |
|---------------|-------------------------------------------------------------------------|
| block         | tile to block, for any program                                          |
| cpu           | block to loop on CPUs                                                   |
| gpu           | block to loop for workgroups of many waves                              |
| dynamic_tasks | tasks that a table assigns to workers                                   |
| loop_lowering | the state of a lowering from block to loop level, which every rule gets |
| partial_sums  | long sums of floats by blocks                                           |
"""
