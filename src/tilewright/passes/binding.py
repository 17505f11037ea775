"""Binding: a plan is replayed on a job's program. Rewrites that the plan names come first; then its kernel is bound.

| line of the plan                                     | rewrite                                                     |
|------------------------------------------------------|-------------------------------------------------------------|
| `split kernel after mma`, `split kernel before mma`  | two kernels, with a value in memory between them            |
| `repack x: aligned rows`, `repack w: block-diagonal 4` | kernels that repack operands first, and the kernel on these |
| `parts K 4`                                          | a kernel over parts of K, and one that merges them          |
| `task p 8, task q 16`, `x halo at K`                 | rows as boxes of their digits                               |
| `unit q 4`                                           | rows as boxes of lanes                                      |
| `axis F: loop 64` between products                   | a loop over what lies between two MMAs                      |
| `axis D: loop 32`, without a pipeline                | a loop around products that sum all of D at once            |

Nothing is searched, but for kernels of which a plan says nothing: those that repack, those that merge parts, and a
second kernel without lines of its own. These are planned as any other program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program
from tilewright.passes.bind_blocks import bind_blocks
from tilewright.passes.halo_tiles import bind_halo
from tilewright.passes.job import InRows, Job, Pass
from tilewright.passes.lane_rows import LaneRows
from tilewright.passes.parts import bound_apart, parts_of
from tilewright.passes.repacking import repacked
from tilewright.passes.tile.loop_parts import loop_halves
from tilewright.passes.tile.looping import has_only_tile, in_a_loop, summed_between, with_tile
from tilewright.passes.tile.memory import is_ordered
from tilewright.passes.tile.parting import parted
from tilewright.passes.tile.splitting import halves, step_of, sum_of
from tilewright.passes.tile.stepping import in_steps, products_over
from tilewright.plan.bind import bind
from tilewright.plan.bind_grid import bind_grid
from tilewright.plan.bind_lane_boxes import lane_box_of
from tilewright.plan.boxes import numbers_of
from tilewright.plan.chained import adds_products
from tilewright.plan.facts.loops import monoid_of
from tilewright.plan.general import dims_of
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.microkernel import names_of
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import LAUNCH, Schedule
from tilewright.plan.terms import product_by_terms


def bind_plan(job: Job, plan: Schedule, choose: Pass, planned: object = None) -> None:
    """Set the fields of a job that the lowering reads: rewritten programs, and the parameters of its kernel.

    `planned` are the jobs of several kernels, if they are planned already; otherwise `choose` plans them.
    """
    job.parts = job.aligned = job.split = job.merge = job.patched = job.looped = job.blocked = None
    if plan.atom is not None and plan.split_at is None:
        bind_blocks(job, plan)
        return
    plan = plan.with_open(()) if plan.split_at is not None else replace(plan.with_open(()), early=None)
    if job.workgroups is not None:
        job.cuts = bind_grid(job.program, job.sizes, job.machine, job.free, job.open_extents, plan)
    elif plan.split_at is not None:
        job.parts = planned if isinstance(planned, tuple) else bound_apart(job, plan, choose)
    elif any(line.at == LAUNCH for line in plan.values):
        job.aligned = planned if isinstance(planned, InRows) else repacked(job, plan, choose)
    elif plan.parts is not None:
        _bind_split(job, plan, choose, *plan.parts)
    elif plan.pipeline is not None and plan.pipeline.halo_stages:
        job.patched, job.cuts = bind_halo(job, plan)
    else:
        _bind_one(job, plan)


def kernel_of(job: Job, program: Program, sizes: Mapping[Symbol, int], free: Collection[Op]) -> KernelProgram:
    """Return a KernelProgram of `program` with the machine, the open sizes and the logs of a job."""
    opened = job.open_extents
    return KernelProgram(program, sizes, job.machine, free, opened, job.typical, job.logs, is_ordered(program))


def _bind_split(job: Job, plan: Schedule, choose: Pass, name: str, count: int) -> None:
    """Bind a plan that splits a reduction into `count` parts (split K), and plan the kernel that merges the parts.

    `name` is the split dimension. Raise a refusal of the plan's line if the program cannot be split so.
    """
    line = f"parts {name} {count}"
    if not names_of(job.program):
        split = parted(job.program, job.sizes, count, job.machine)
    elif isinstance(whole := sum_of(job.program, job.free, job.sizes), str):
        part = next((a for a in plan.axes if a.name == f"{name}_part"), None)
        loop = None if part is None else part.split("loop")
        if loop is None:
            raise refused(line, whole)
        split = loop_halves(job.program, job.sizes, count, loop.size)
    else:
        axis = next((d for d in whole.axes if str(d) == name), None)
        if axis is None:
            raise refused(line, f"the reduced dimensions are {', '.join(map(str, whole.axes))}")
        split = halves(job.program, job.sizes, job.free, axis, count, step_of(job.program, job.machine))
    if isinstance(split, str):
        raise refused(line, split)
    if split.parts != count:
        raise refused(line, f"in whole steps there are {split.parts} parts")
    parts = [a for a in plan.axes if a.name == f"{name}_split"]
    if [x.extent for a in parts for x in a.digits] != [count]:
        expected = f"`axis {name}_split = ({name}_split {count}): task 1` and `axis {name}_part`"
        raise refused((line, *parts), f"its axes are {expected}")
    job.split = split
    _, job.merge = parts_of(job, split)
    choose(job.merge)
    job.cuts = bind(kernel_of(job, split.first, {**job.sizes, **split.sizes}, ()), replace(plan, parts=None))


def _bind_one(job: Job, plan: Schedule) -> None:
    """Bind a plan of one kernel: the program as it is, over boxes of rows per lane, or with a loop between two MMAs."""
    _take_program(job, plan)
    if plan.pipeline is None:
        _take_steps(job, plan)
    if plan.pipeline is None and _bind_lanes(job, plan):
        return
    program = job.program
    if plan.pipeline is not None:
        program = _with_loop_tiles(job, plan, _with_loop_between(job, plan))
        job.looped = None if program is job.program else program
    job.cuts = bind(kernel_of(job, program, job.sizes, job.free), plan)


def _take_program(job: Job, plan: Schedule) -> None:
    """Set the job's program to the one over flat dimensions if the plan's axes name those and not their digits
    (mixed-radix parts).
    """
    if job.undivided is None:
        return
    names = {axis.name for axis in plan.axes}
    flat, digits = ({str(d) for d in dims_of(program)} for program in (job.undivided[0], job.program))
    if names & (flat - digits) and not names & (digits - flat):
        job.program, job.free = job.undivided


def _take_steps(job: Job, plan: Schedule) -> None:
    """Set the job's program to one with a loop around MMAs that sum a whole dimension, for each loop that the plan has
    there.
    """
    for axis in plan.axes:
        d = next((d for d in dims_of(job.program) if str(d) == axis.name), None)
        loop = axis.split("loop")
        if d is None or loop is None or loop.size >= job.size(d) or not products_over(job.program, d):
            continue
        if any(op.name == "iterate" and op.attrs["axis"] is d for op in job.program.walk()):
            continue  # it is the tile of that loop
        stepped = in_steps(job.program, job.free, d)
        if isinstance(stepped, str):
            raise refused(axis, stepped)
        job.program, job.free = stepped


def _bind_lanes(job: Job, plan: Schedule) -> bool:
    """Bind a plan in which lanes compute the only MMA without an atom (SIMT); return True if it did.

    A lane computes single results, or a box (rectangle) of results if the plan says so.
    """
    by_loops = bool(plan.products) and all(line.atom is None for line in plan.products)
    if job.machine.lanes is None or job.opened or job.logs or not by_loops or is_ordered(job.program):
        return False
    size = numbers_of(job.sizes)
    product = product_by_terms(job.program, job.free, size, Substitution(job.sizes), job.machine)
    if isinstance(product, str):
        return False
    box = lane_box_of(plan, str(product.rows[0])) if len(product.rows) == 1 else None
    if box is None:
        job.cuts = bind(kernel_of(job, job.program, job.sizes, job.free), plan, product.terms)
        return True
    rows = LaneRows.of(job, product)
    if isinstance(rows, str):
        raise refused(plan.axis(str(product.rows[0])), rows)
    terms, patched, inner = rows.bound(plan, box)
    job.patched = patched
    job.cuts = bind(kernel_of(job, patched.program, patched.sizes, patched.free), inner, terms)
    return True


def _with_loop_between(job: Job, plan: Schedule) -> Program:
    """Return the program with a loop over the dimension between two MMAs, if the plan has such a loop; else the
    program.
    """
    for d in summed_between(job.program):
        axis = next((a for a in plan.axes if a.name == str(d)), None)
        loop = None if axis is None else axis.split("loop")
        looped = any(op.name == "iterate" and op.attrs["axis"] is d for op in job.program.walk())
        if axis is None or loop is None or looped or loop.size not in _columns_along(job, plan, d):
            continue  # else it is a K step of the second product
        program = in_a_loop(job.program, d, loop.size)
        if isinstance(program, str):
            raise refused(axis, program)
        return program
    return job.program


def _with_loop_tiles(job: Job, plan: Schedule, program: Program) -> Program:
    """Return `program` with the plan's tiles of loops whose results are the same for every tile.

    Those are loops that merge (the carried values of their parts merge), and the loops in `job.free`, unless they only
    add MMAs: then the tile is a K step of the plan.
    """
    for loop in [op for op in program.walk() if op.name == "iterate"]:
        dim = loop.attrs["axis"]
        axis = next((a for a in plan.axes if a.name == str(dim)), None)
        split = None if axis is None else axis.split("loop")
        is_free = not adds_products(loop) if loop in job.free else monoid_of(loop) is not None
        if split is not None and is_free and has_only_tile(program, dim):
            program = with_tile(program, dim, split.size)
    return program


def _columns_along(job: Job, plan: Schedule, d: Expr) -> list[int]:
    """Return the numbers of columns that the plan gives the MMAs whose accumulator has `d` as its last dimension."""
    products = names_of(job.program)
    lines = [(line, products[line.name]) for line in plan.products if line.name in products]
    return [line.columns for line, op in lines if op.result.type.dims[-1:] == (d,)]
