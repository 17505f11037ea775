"""How a program is done: what a contraction is, the plans for it, and the choice between them.

| file        | subject                                                                        |
|-------------|--------------------------------------------------------------------------------|
| contraction | a product and sum recognised in a tile program by its accesses, in digits       |
| plans       | plans: cuts, staging, atoms; as text                                           |
| validate    | why a plan is impossible                                                       |
| planner     | all plans that fit, ranked by a model of their time                            |
"""
