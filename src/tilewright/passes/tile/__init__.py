"""Tile to block, the general way: any tile program, for sizes that are numbers or that only a call tells.

| file     | subject                                                                                    |
|----------|--------------------------------------------------------------------------------------------|
| general  | the walk over a program, and what each operation becomes                                   |
| normal   | a contraction as a program over its digits                                                 |
| values   | tiles that are not computed yet: a formula over named coordinates                          |
| writer   | the block program as it grows: memory, views, maps                                         |
| accesses | which elements a read or a write means: inside memory or not, by data or not               |
| memory   | reads, writes, atomics, logs                                                               |
| forming  | element by element; other dimensions, other types, choices                                 |
| combining| products, reductions, running sums, the largest few                                        |
| lanes    | products by vectors along a dimension that both factors keep                               |
| tiled    | one product in tile registers by a plan: blocks of sums, results stored a round later      |
| staging  | its rows of A, copied once for a task: halo tiles and im2col panels                        |
| loops    | `iterate`, while loops and `conditional`                                                   |
| moving   | dimensions that end where data say, loops that start there                                 |
| grid     | workgroups one after another, memory of their own                                          |
| opened   | sizes that only a call tells                                                               |
"""
