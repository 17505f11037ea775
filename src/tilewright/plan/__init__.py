"""How a program is done: what a contraction is, plans, and the choice between them.

| file        | subject                                                                        |
|-------------|--------------------------------------------------------------------------------|
| contraction | a product and sum recognised in a tile program by its accesses, in digits       |
| sliding     | how a contraction's rows lie: as sliding lines, or at one stride                |
| plan        | the plan: axes, cuts, order, operands, atom; its text                          |
| forms       | what the passes read off a plan: by tiles, or by vectors                       |
| fixed       | what an author's constraints fix                                               |
| tiles       | forms by tiles, and what they cost                                             |
| vectors     | forms by vectors, and what they cost                                           |
| model       | the cost model: caches, copies, the roofline                                   |
| validate    | why a plan is impossible                                                       |
| planner     | all plans that fit, ranked; what was refused, and why                          |
"""
