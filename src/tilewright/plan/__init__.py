"""Plans (schedules) of kernels: facts of programs, the plan language, legality, cost models, and the search.

| file                | subject                                                                     |
|---------------------|-----------------------------------------------------------------------------|
| contraction         | a GEMM-like product: M, N, K and batch in digits (mixed-radix), operands    |
| contracted          | the contraction of a program, derived from its facts                        |
| sliding             | how a contraction reads A along M: a sliding window, or one stride          |
| schedule            | the schedule as data: axes, splits, grid, loops, values, products, pipeline |
| text                | the parser of plan texts, and its error messages                            |
| version1            | statements of version 1 of the plan language, translated to version 2       |
| unlowered           | statements of plans that the lowering does not support yet                  |
| kernel              | a program that becomes one kernel: sizes, machine, dimensions, loops, MMAs  |
| bind                | rules of a plan's lines for one kernel; statements that the plan leaves out |
| bound               | a kernel with its plan, as the lowering reads it                            |
| bind_axes           | rules of the axes of a plan: dimensions, tasks, loop tiles                  |
| bind_grid           | the plan of a grid program, bound                                           |
| bind_pipeline       | rules of producer and consumer waves, atoms and accumulator tiles           |
| pipelined           | programs that producer and consumer waves can do: the product and its atoms |
| chained             | programs whose values between products stay in registers                    |
| halo_windows        | sliding windows of a product, whose boxes of rows have halo tiles           |
| bind_contraction    | the plan of a contraction on a CPU, bound                                   |
| bind_products       | the atom and tile of products without a pipeline, bound                     |
| bind_lane_boxes     | rows of a plan as boxes of lanes, bound                                     |
| legality            | legality of plans with a pipeline: waves, registers, stages                 |
| refusals            | errors that quote the statements which break a rule                         |
| words               | the words of plans, and corrections of misspelt statements                  |
| blocking            | the numbers that a contraction's plan says: in tiles, by vectors or lanes   |
| facts               | facts of any program: values, accesses, products, loops, masks              |
| followed            | which constraints a plan does not follow, for `explain`                     |
| fixed               | tile sizes that the author's constraints give                               |
| block_list          | the blockings of a unit to try: tiles, tasks, loop orders, staging          |
| tile_registers      | tile registers (matrix unit): accumulator tiles and stagings to try         |
| vectors             | SIMD along N: accumulator tiles to try, cycles                              |
| lanes               | SIMD along a dimension that A, B and the result share                       |
| stepping            | MMAs around which a loop over K tiles can be put                            |
| task_shape          | the tasks of a blocking, and the accumulator tiles of the largest           |
| block_size          | instructions and scratch memory of a blocking                               |
| boxes               | dimensions that the grid may split, and task widths along them              |
| writes              | the elements that a write reaches, by digits of its indices                 |
| general             | plans of programs that are no single contraction                            |
| grids               | plans of grid programs: their constraints, and the K loops of their MMAs    |
| model               | the cost model: caches, copies, the roofline                                |
| validate            | legality of blockings on a CPU                                              |
| choice              | the plan that was chosen, its time, and what it was compared with           |
| computed            | MMA operands that are computed element by element from reads                |
| cutting             | a plan of blocks over the digits of its product                             |
| epilogue            | cycles of lanes for one element of an elementwise operation                 |
| limiting            | the bottleneck of a plan: the time of each resource alone                   |
| slow                | plans far above their roofline: when a plan is one, the cause, the way out  |
| microkernel         | the atom of an MMA, and its accumulator tile                                |
| pinned              | errors about given plans: the statement, other sizes, misspelt names        |
| addresses           | divisions that an address needs, elements that a load fetches               |
| rows                | task widths and waves of GPU programs without MMAs                          |
| kept_rows           | rows that a task reduces and uses again: where they stay in between         |
| search              | the one search of GPU kernels: rules, one cost, one ranking                 |
| accumulator_type    | the accumulator type of an MMA                                              |
| simt                | SIMT products: MMAs that lanes compute without atoms                        |
| simt_boxes          | SIMT products as data: the results and registers of a lane                  |
| tile_register_tasks | MMAs in tile registers: staged lines, K loops                               |
| tile_tasks          | tasks of several MMAs in tile registers, and the plan that states them      |
| bind_tile_tasks     | the plan of a task of several MMAs in tile registers, bound                 |
"""
