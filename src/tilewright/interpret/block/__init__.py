"""The interpreter of block programs, which defines what they mean and reports their faults.

| file      | subject                                                        |
|-----------|----------------------------------------------------------------|
| run       | a whole program on arrays, worker by worker                    |
| worker    | one workgroup: its waves as agents, their schedule, its copies |
| memory    | buffers, tensors, views                                        |
| places    | places of elements that are kept between iterations            |
| holding   | which element each register of a wave holds                    |
| registers | the part of a register tensor that a wave holds                |
| channels  | stages handed from role to role                                |
| clocks    | vector clocks: which steps are ordered                         |
| accesses  | who accessed which element, to find races                      |
| moving    | alloc, view, fill, copy, gather, scatter, atomic               |
| computing | mma, map, reduce, scan, broadcast, convert_layout              |
| control   | loops, branches, tasks, channels, barriers                     |
| formulas  | values of formulas                                             |
| multicast | copies that the workgroups of a cluster share                  |
"""
