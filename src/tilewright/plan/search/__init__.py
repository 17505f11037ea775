"""The one search: facts of any program, rules that propose schedules, one cost that ranks them.

| file               | subject                                                                |
|--------------------|------------------------------------------------------------------------|
| search             | states of the graph, bounds, the ranking                               |
| ranking            | candidates, what was rejected and why                                  |
| orientation        | rule: which side of each product lies on the unit's rows               |
| axes               | classes of dimensions: the axes of a schedule                          |
| tiles              | rule: grid, loop or whole; run or box                                  |
| tiling             | one choice of tiles                                                    |
| unit               | rule: the atom of each product                                         |
| halo               | halo tiles of sliding windows                                          |
| liveness           | registers that are live                                                |
| placement          | rule: where operands lie                                               |
| pipeline           | rule: stages, roles, overlap                                           |
| launch             | rule: raster and order of tasks                                        |
| uniform            | kernels whose waves all do the same: their work and plan               |
| uniform_kernel     | such a kernel: task widths, waves, loop tiles, microkernels            |
| resident           | tasks of such kernels that a core has at a time                        |
| walks              | rows that one lane walks alone                                         |
| blocked            | rule: one product on a CPU in accumulator tiles that stay in registers |
| block_choice       | the blockings of every unit, ranked                                    |
| block_work         | the work and time of a blocking                                        |
| core_tasks         | rule: such kernels on a CPU, whose cores run one thread each           |
| core_reads         | what such a task moves to and from caches and memory                   |
| core_rows          | its vectors where there are no products, and what it reads again       |
| product_tasks      | widths of tasks with products, by goals                                |
| uniform_loops      | loops around each product                                              |
| lanes              | rule: such kernels without products                                    |
| fragments          | rule: such kernels with products                                       |
| simt               | rule: products that lanes do term by term                              |
| term_plan          | the plan of such a kernel                                              |
| partition          | rule: a program as two kernels                                         |
| repack             | rule: operands copied first                                            |
| diagonal           | rule: several products of a batch as blocks on a diagonal              |
| paired_rows        | rule: neighbouring rows as one row of several products                 |
| parts              | rule: a loop of products split over tasks                              |
| partial_reductions | rule: a reduction in parts                                             |
| loop_splits        | rule: a loop without MMAs in parts                                     |
| row_copies         | copies of operands before a kernel                                     |
| candidates         | candidates of one kernel with atoms                                    |
| kernel             | one kernel with atoms: its schedule, its time, its key                 |
| counting           | from a tiling to counts of work                                        |
| lane_work          | cycles of lanes beside products                                        |
| empty_rounds       | iterations in which an operand is out of bounds as a whole             |
| work               | counts of work                                                         |
| cost               | from work to cycles, and the roofline                                  |
| lowered            | what today's lowering lacks                                            |
| kernel_plan        | one kernel with atoms as a plan                                        |
| as_plan            | a candidate as a plan, or what today's lowering lacks                  |
| rate               | the time of a plan that is given: the inverse of as_plan               |
| rate_kernel        | such a plan as a kernel with atoms                                     |
| rate_tiles         | its axes as tiles                                                      |
| rate_lanes         | such a plan as a kernel without a pipeline                             |
| plan_axes          | the axes of a plan, by the dimensions of its program                   |
| limiter            | what limits a candidate                                                |
| causes             | what makes a candidate slow                                            |
| explaining         | a ranking in words                                                     |
"""

from tilewright.plan.search.as_plan import as_plan
from tilewright.plan.search.blocked import BlockedKernelSchedule, blocking_of_plan, product_space
from tilewright.plan.search.causes import cause_of
from tilewright.plan.search.explaining import explain_ranking, refusals
from tilewright.plan.search.limiter import cycles_on, limits_of
from tilewright.plan.search.ranking import PlanCandidate, Ranking, Rejected, Rewrite
from tilewright.plan.search.rate import rate_plan
from tilewright.plan.search.search import lower_bound, search, search_facts

__all__ = [
    "BlockedKernelSchedule",
    "PlanCandidate",
    "Ranking",
    "Rejected",
    "Rewrite",
    "as_plan",
    "blocking_of_plan",
    "cause_of",
    "cycles_on",
    "explain_ranking",
    "limits_of",
    "lower_bound",
    "product_space",
    "rate_plan",
    "refusals",
    "search",
    "search_facts",
]
