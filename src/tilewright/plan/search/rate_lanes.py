"""Turn a given plan without a pipeline into a kernel: waves that all run the same code, or SIMT products."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.algebra.expr import Expr
from tilewright.machine import Machine
from tilewright.plan.facts import Facts
from tilewright.plan.microkernel import Microkernel
from tilewright.plan.schedule import REVERSED, Schedule
from tilewright.plan.search.partial_reductions import candidate_in_parts
from tilewright.plan.search.plan_axes import PlanAxes
from tilewright.plan.search.ranking import PlanCandidate
from tilewright.plan.search.simt import SimtKernelSchedule, SimtProgram, simt_candidate, terms_of_box, with_box_dims
from tilewright.plan.search.simt_plan import name_of_k_axis
from tilewright.plan.search.tile_tasks import tile_task_of
from tilewright.plan.search.uniform import loop_tiles, microkernels, uniform_candidate
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule
from tilewright.plan.tile_tasks import states_tile_task


def rate_uniform(facts: Facts, machine: Machine, plan: Schedule, axes: PlanAxes) -> PlanCandidate | str:
    """Predict the time of a plan without a pipeline; return a PlanCandidate with cycles.

    All waves of such a kernel run the same code. `facts` is the analysed program, `axes` has the plan's axis of each
    program dimension. Return text if an `mma` statement of the plan names an atom that the machine lacks.
    """
    size = facts.number_of
    widths, blocks = dict[Expr, int](), dict[Expr, int]()
    for d in sorted(facts.cut, key=lambda d: _grid_position(plan, axes, d)):
        task, loop = axes.task(d), axes.loop(d)
        if task is not None:
            widths[d] = task if loop is not None or d in facts.opened else min(task, max(1, size(d)))
        if loop is not None:
            blocks[d] = loop
    loops = {d: axes.loop(d) or max(n, size(d)) for d, n in loop_tiles(facts).items()}

    def width(d: Expr) -> int:
        """Return the extent of `d` in the innermost tile, in elements.

        It is per workgroup if the grid splits `d`; else per iteration if the kernel loops over `d`; else all of `d`.
        """
        return widths.get(d) or loops.get(d) or size(d)

    products = microkernels(facts, machine, width)
    lines = {line.name: line for line in plan.products}
    for p in facts.products:
        line, op = lines.get(p.name), facts.nodes[p.node].source
        assert op is not None
        if line is not None and line.atom is not None and line.atom not in machine.multiply:
            return f"`{line}`: {machine.name} has no such atom"
        if line is not None:
            products[op] = _microkernel(machine, line.atom, line.rows, line.columns, line.transposed)
    kernel = UniformKernelSchedule(
        facts, machine, widths, plan.waves, loops, products, blocks, backward=plan.order == REVERSED
    )
    if states_tile_task(plan):
        tile_task = tile_task_of(facts, machine)
        if isinstance(tile_task, str):
            return tile_task
        kernel = replace(kernel, loops={}, tile_task=tile_task, staged=any(line.at == "task" for line in plan.values))
    if axes.parts is None:
        return uniform_candidate(kernel)
    return candidate_in_parts(replace(kernel, parts=axes.parts, parts_of_task=axes.parts_of_task), axes.parts)


def _grid_position(plan: Schedule, axes: PlanAxes, d: Expr) -> int:
    """Return the index of the axis of `d` among the plan's grid axes; the number of grid axes if `d` is none of them.

    `axes` has the plan's axis of each program dimension.
    """
    name = axes.axes[d].name if d in axes.axes else ""
    return plan.grid.index(name) if name in plan.grid else len(plan.grid)


def _microkernel(machine: Machine, atom: str | None, rows: int, columns: int, transposed: bool) -> Microkernel | None:
    """Return a Microkernel: the machine's atom named `atom`, with its accumulator tile; None if `atom` is None.

    `rows` and `columns` are the extents of the tile of C, in elements; `transposed` says that N lies on the atom's
    rows.
    """
    if atom is None:
        return None
    rows, columns = (columns, rows) if transposed else (rows, columns)
    return Microkernel(machine.multiply[atom], rows, columns, transposed=transposed)


def is_simt_plan(program: SimtProgram, plan: Schedule) -> bool:
    """True if a plan computes the program's MMA without atoms (SIMT: lanes multiply), with all of K as one axis.

    That is so if no `mma` statement of the plan has an atom, and the plan has an axis with the name of the flattened K.
    `program` is the MMA, as lanes can compute it.
    """
    names = {axis.name for axis in plan.axes}
    return all(line.atom is None for line in plan.products) and name_of_k_axis(program) in names


def rate_simt(program: SimtProgram, plan: Schedule) -> PlanCandidate | str:
    """Predict the time of a plan with a SIMT product (lanes multiply, no atoms); return a PlanCandidate with cycles.

    `program` is the MMA and its analysed program. Return text if the plan does not say how many elements a workgroup
    has of a dimension that the grid must split.
    """
    facts = program.facts
    named = {axis.name: axis for axis in plan.axes}
    loop = named[name_of_k_axis(program)].split("loop")
    tile = program.k_elements if loop is None else loop.size
    tasks: dict[Expr, int] = {}
    for d in facts.cut:
        axis = named.get(str(d))
        split = None if axis is None else axis.split("task")
        if split is None:
            return f"no task of the plan splits {d}"
        tasks[d] = split.size
    units = {s.digit: s.size for s in named[str(program.row)].splits if s.level == "unit" and s.digit is not None}
    if not units:
        terms = terms_of_box(program, {}, tile)
        return simt_candidate(SimtKernelSchedule(program, terms, tasks, plan.waves))
    box = {d: units.get(d, 1) for d in program.digits}
    terms, outer, inner = with_box_dims(program, terms_of_box(program, box, tile), box)
    rows = {outer: max(1, tasks[program.row] // prod(box.values())), **inner}
    widths = {x: n for d in facts.cut for x, n in (rows.items() if d is program.row else ((d, tasks[d]),))}
    return simt_candidate(SimtKernelSchedule(program, terms, widths, plan.waves, outer, box))
