"""The search for schedules: facts of a program, rules that propose schedules, and one cost model that ranks them.

A candidate is one way to run the program; a task is one workgroup's tile of the grid (on a CPU one thread's).

| file               | subject                                                            |
|--------------------|--------------------------------------------------------------------|
| search             | rules tried in order, lower bounds, the ranking                    |
| ranking            | candidates, and rejected choices with their reasons                |
| orientation        | rule: M or N of each MMA on the atom's rows                        |
| axes               | classes of dimensions: one axis of the schedule each               |
| tiles              | rule: tile of a class: split by grid, loop or not; run or box      |
| tiling             | the tiles of all classes, and the loops around each value          |
| unit               | rule: the atom of each MMA, and its tile padded to atoms           |
| halo               | halo tiles: input patches of sliding windows                       |
| liveness           | live registers of a lane                                           |
| placement          | rule: where operands lie: stages, resident, registers              |
| pipeline           | rule: stages, producer and consumer waves, overlap                 |
| launch             | rule: raster, and the order in which cores take tasks              |
| uniform            | kernels whose waves all run the same code: work and plan           |
| uniform_kernel     | schedule of such a kernel: tiles, waves, microkernels              |
| resident           | such kernels: several workgroups on a core at a time               |
| single_lane_scans  | scans and topk whose rows one lane processes alone                 |
| blocked            | rule: one MMA on a CPU in accumulator tiles that stay in registers |
| tile_tasks         | rule: several MMAs with the same M and N in tile registers         |
| block_choice       | the blockings of every CPU unit, ranked                            |
| ranked_blocks      | ranked blockings; what was refused, and why                        |
| block_work         | the work and time of a blocking                                    |
| core_tasks         | rule: any program on a CPU, whose cores run one thread each        |
| core_reads         | traffic of such a task to and from caches and memory               |
| core_shares        | which part of the data along each axis of the grid a core reads    |
| core_rows          | vector cycles of such a task without MMAs                          |
| product_tasks      | task widths of kernels with MMAs and no pipeline                   |
| uniform_loops      | the loops around each MMA of a program                             |
| lanes              | rule: GPU kernels without MMAs                                     |
| fragments          | rule: GPU kernels with MMAs and no pipeline                        |
| simt               | rule: SIMT products: lanes multiply, without atoms                 |
| simt_plan          | the plan of a SIMT kernel                                          |
| partition          | rule: split a program into two kernels                             |
| repack             | rule: copy operands to another layout first                        |
| diagonal           | rule: several GEMMs of a batch as one, with block-diagonal B       |
| paired_rows        | rule: neighbouring rows as one row of several GEMMs                |
| split_k            | rule: split-K                                                      |
| partial_reductions | rule: split a reduction over tasks                                 |
| loop_splits        | rule: split a loop without MMAs over tasks                         |
| row_copies         | copies of operands before a kernel, and their cost                 |
| candidates         | candidates of one kernel with a pipeline                           |
| kernel             | one kernel with a pipeline: schedule, time, sort key               |
| counting           | the work of a tiling                                               |
| lane_work          | cycles of lanes beside MMAs                                        |
| empty_rounds       | K iterations skipped: an operand is all out of bounds              |
| work               | data types: counts of work                                         |
| cost               | from work to cycles; the roofline                                  |
| lowered            | what the lowering (code generator) cannot do                       |
| kernel_plan        | the plan of a kernel with a pipeline                               |
| as_plan            | from a candidate to its plan                                       |
| rate               | the time of a given plan: the inverse of as_plan                   |
| rate_kernel        | a given plan with a pipeline, as a kernel                          |
| rate_tiles         | the tiles of a given plan                                          |
| rate_lanes         | a given plan without a pipeline, as a kernel                       |
| plan_axes          | the axes of a given plan, by dimensions of its program             |
| limiter            | which resource limits a candidate                                  |
| causes             | the cause of a candidate's time, and a way out                     |
| explaining         | text of a ranking                                                  |
| chosen             | the choice of a candidate: its plan, time, and other candidates    |
"""

from tilewright.plan.search.as_plan import as_plan
from tilewright.plan.search.blocked import blocking_of_plan, product_space
from tilewright.plan.search.chosen import choice_of
from tilewright.plan.search.explaining import explain_ranking
from tilewright.plan.search.limiter import cycles_on, limits_of
from tilewright.plan.search.ranking import PlanCandidate, Ranking, Rejected, Rewrite
from tilewright.plan.search.rate import rate_plan
from tilewright.plan.search.search import lower_bound, search, search_facts

__all__ = [
    "PlanCandidate",
    "Ranking",
    "Rejected",
    "Rewrite",
    "as_plan",
    "blocking_of_plan",
    "choice_of",
    "cycles_on",
    "explain_ranking",
    "limits_of",
    "lower_bound",
    "product_space",
    "rate_plan",
    "search",
    "search_facts",
]
