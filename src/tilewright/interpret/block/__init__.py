"""The interpreter of block programs: their meaning, and what is wrong with them.

| file      | subject                                                       |
|-----------|---------------------------------------------------------------|
| run       | a whole program on arrays, worker by worker                   |
| worker    | one workgroup: agents, their schedule, copies under way       |
| memory    | buffers, tensors, views                                       |
| registers | a wave's part of a register tensor                            |
| channels  | stages handed from role to role                               |
| clocks    | who has seen what: the order of steps                         |
| accesses  | what was touched by whom, to find races                       |
| moving    | alloc, view, fill, copy, gather, scatter, atomic              |
| computing | mma, map, reduce, scan, broadcast, convert_layout             |
| control   | loops, branches, tasks, channels, barriers                    |
| formulas  | what formulas compute                                         |
| multicast | copies that the workgroups of a cluster share                 |
"""
