"""How a program is done: what a contraction is, plans, and the choice between them.

| file        | subject                                                                        |
|-------------|--------------------------------------------------------------------------------|
| contraction | a product and sum recognised in a tile program by its accesses, in digits       |
| sliding     | how a contraction's rows lie: as sliding lines, at one stride, side by side      |
| plan        | the plan: axes, cuts, order, operands, atom; its text                          |
| forms       | what the passes read off a plan: by tiles, vectors or lanes                     |
| opening     | contractions whose batches are known only when they run                         |
| fixed       | what an author's constraints fix                                               |
| tiles       | forms by tiles, and what they cost                                             |
| vectors     | forms by vectors, and what they cost                                           |
| lanes       | forms by lanes, and what they cost                                             |
| boxes       | which dimensions of any program tasks may cut, and how finely                   |
| general     | plans of programs that are no single contraction                                |
| model       | the cost model: caches, copies, the roofline                                   |
| validate    | why a plan is impossible                                                       |
| planner     | all plans that fit, ranked; what was refused, and why                          |
"""
