"""Plans of programs: recognised contractions, schedules, their legality and cost, and the choice between them.

| file        | subject                                                                     |
|-------------|-----------------------------------------------------------------------------|
| contraction | the index space of a product, in digits, with its operands                  |
| contracted  | that space, derived from the facts of a program                             |
| sliding     | how a contraction's rows lie: as sliding lines, at one stride, side by side |
| schedule    | the schedule as data: axes, splits, grid, loops, values, products, pipeline |
| text        | plans from their text, and what is wrong with one                           |
| version1    | statements of version 1 of the text, in words of version 2                  |
| unlowered   | what a plan can say, and the lowering lacks                                 |
| kernel      | a program that becomes one kernel: what planning and binding know of it     |
| bind        | rules of a plan's lines for one kernel; statements that the plan leaves out |
| bound       | a kernel with its plan, as the lowering reads it                            |
| bind_axes   | rules of the axes of a plan: dimensions, tasks, loop tiles                  |
| bind_grid   | the plan of a grid program, bound                                           |
| bind_pipeline | rules of producer and consumer waves, atoms and accumulator tiles         |
| pipelined   | programs that producer and consumer waves can do: the product and its atoms |
| chained     | programs whose values between products stay in registers                    |
| halo_windows | sliding windows of a product, whose boxes of rows have halo tiles          |
| bind_contraction | the plan of a contraction on a CPU, bound                              |
| bind_products | the atom and tile of products without a pipeline, bound                   |
| bind_lane_boxes | rows of a plan as boxes of lanes, bound                                |
| legality    | rules of plans with a pipeline: waves, registers, stages                    |
| refusals    | the lines that a rule speaks of                                             |
| words       | the words of plans, and the statement that a misspelt one is near to        |
| blocking    | the numbers that a contraction's plan says: in tiles, by vectors or lanes   |
| facts       | facts of any program: values, accesses, products, loops, masks              |
| followed    | which constraints a plan does not follow, for `explain`                     |
| fixed       | what an author's constraints fix                                            |
| block_list  | the blockings of a unit to try: tiles, tasks, loop orders, staging          |
| tiles       | tile registers as such a unit                                               |
| vectors     | vectors along N as such a unit                                              |
| lanes       | vectors along a dimension that A, B and the result share as such a unit     |
| stepping    | where a loop over K can be put around products                              |
| task_shape  | the tasks of a blocking, and the accumulator tiles of the largest           |
| block_size  | instructions and scratch memory of a blocking                               |
| boxes       | which dimensions of any program tasks may cut, and how finely               |
| written     | the elements that a write reaches, by digits of its indices                 |
| general     | plans of programs that are no single contraction                            |
| grids       | plans of grid programs: their constraints, and how products go over K       |
| model       | the cost model: caches, copies, the roofline                                |
| validate    | legality of blockings on a CPU                                              |
| planner     | ranked blockings of a product; what was refused, and why                    |
| computed    | MMA operands that are computed element by element from reads                |
| cutting     | a plan of blocks over the digits of its product                             |
| epilogue    | cycles of lanes for one element of an elementwise operation                 |
| limiting    | what limits a plan: the time of each resource alone                         |
| slow        | plans far above their roofline: when a plan is one, the cause, the way out  |
| microkernel | the atom of an MMA, and its accumulator tile                                |
| pinned      | plans that are given; the line, the size or the name that a refusal means   |
| addresses   | divisions that an address needs, elements that a load fetches               |
| rows        | task widths and waves of GPU programs without MMAs                          |
| kept_rows   | rows that a task goes over several times: who keeps them                    |
| search      | the one search of GPU kernels: rules, one cost, one ranking                 |
| sums        | the accumulator type of an MMA                                              |
| terms       | SIMT products: MMAs that lanes compute without atoms                        |
| term_boxes  | SIMT products as data: what a lane holds                                    |
| tiled       | a single MMA in tile registers: staged lines, K loops                       |
"""
