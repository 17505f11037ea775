"""Binding: a plan is replayed on a program. First the program is rewritten as the plan says; then its kernel is bound.

| line of the plan                                     | rewrite                                                     |
|------------------------------------------------------|-------------------------------------------------------------|
| `whole N`                                            | the author's loop over N in one iteration, before all others |
| `split kernel after mma`, `split kernel before mma`  | two kernels, with a value in memory between them            |
| `repack x: aligned rows`, `repack w: block-diagonal 4` | kernels that repack operands first, and the kernel on these |
| `parts K 4`                                          | a kernel over parts of K, and one that merges them          |
| `task p 8, task q 16`, `x halo at K`                 | rows as boxes of their digits                               |
| `unit q 4`                                           | rows as boxes of lanes                                      |
| `axis F: loop 64` between products                   | a loop over the dimension between two MMAs                  |
| `axis S: loop 128`, of a loop that merges            | the loop in the plan's tiles                                |
| `axis D: loop 32`, without a pipeline                | a loop around MMAs that sum all of D at once                |
| `axis K: whole`, on a CPU                            | MMAs without the loops that only add them                   |

Nothing is searched, except for kernels of which the plan says nothing: those that repack, those that merge parts, and
a second kernel without lines of its own. These are planned like any other program.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.driver.bind_blocks import bind_blocks
from tilewright.driver.bind_halo_tiles import bind_halo
from tilewright.driver.bind_simt import LaneRows
from tilewright.driver.bound_plan import ChoosePlan, Kernels, MergedParts, OneKernel, RequestForms
from tilewright.driver.repack import bind_repacked
from tilewright.driver.request import Request, SizedProgram
from tilewright.driver.two_kernels import bind_two, part_of
from tilewright.ir.core import Op, Program
from tilewright.lower.block.memory import is_ordered
from tilewright.plan.bind import bind
from tilewright.plan.bind_grid import bind_grid
from tilewright.plan.bind_lane_boxes import lane_box_of
from tilewright.plan.boxes import numbers_of
from tilewright.plan.chained import adds_products
from tilewright.plan.facts.loops import monoid_of
from tilewright.plan.general import dims_of
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.microkernel import mmas_by_name
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import LAUNCH, Schedule
from tilewright.plan.simt import match_simt_product
from tilewright.plan.stepping import unlooped_mmas
from tilewright.rewrite.drop_loop import with_loop_run_once
from tilewright.rewrite.join_reads import with_equal_reads_once
from tilewright.rewrite.k_loop import with_k_loops
from tilewright.rewrite.split_k import part_step, split_k_programs, splittable_mma
from tilewright.rewrite.split_loop import split_loop_programs
from tilewright.rewrite.split_reduction import split_reduction_programs
from tilewright.rewrite.tile_between_gemms import (
    has_only_tile,
    summed_between,
    with_loop_over,
    with_tile,
    without_k_loops,
)


def bind_plan(forms: RequestForms, plan: Schedule, choose: ChoosePlan) -> tuple[Request, Kernels]:
    """Apply ("bind") a plan to a request; return (the request, perhaps with its program rewritten, its kernels).

    `forms` has the same request in one or two forms: with dimensions split into digits (mixed-radix parts, such as
    image row and column), then with whole dimensions. The plan's lines decide which kernels there are: one; two with a
    value in memory between them; kernels that repack operands and one on the copies; or a kernel over parts of K and
    one that merges them. `choose` plans the kernels that the plan has no lines for. Raise an ArgumentError if the plan
    does not fit the program.
    """
    request = forms[0]
    if plan.whole is not None:
        return bind_plan((_without_loop(request, plan),), replace(plan, whole=None), choose)
    if plan.in_blocks:
        return request, bind_blocks(request, plan)
    plan = plan.with_open(()) if plan.split_at is not None else replace(plan.with_open(()), early=None)
    if request.workgroups is not None:
        kernel = replace(kernel_of(request, request.program, request.sizes, request.free), in_grid=True)
        return request, OneKernel(request.sized, bind_grid(kernel, plan))
    if plan.split_at is not None:
        return request, bind_two(request, plan, choose)
    if any(line.at == LAUNCH for line in plan.values):
        return request, bind_repacked(request, plan, choose)
    if plan.parts is not None:
        return request, _bind_parts(request, plan, choose, *plan.parts)
    if plan.pipeline is not None and plan.pipeline.halo_stages:
        return request, bind_halo(request, plan)
    return _bind_one(forms, plan)


def _without_loop(request: Request, plan: Schedule) -> Request:
    """Return the request with its program's loop replaced by one iteration, as the plan's line `whole` says.

    Raise an ArgumentError if the program has no loop that can be replaced, or if the loop is over another dimension
    than the line names.
    """
    program = with_loop_run_once(request.program)
    if isinstance(program, str):
        raise refused(f"whole {plan.whole}", program)
    loop = next(op for op in request.program.walk() if op.name == "iterate")
    if str(loop.attrs["axis"]) != plan.whole:
        raise refused(f"whole {plan.whole}", f"the loop is over {loop.attrs['axis']}")
    return request.rewritten(program, ())


def kernel_of(request: Request, program: Program, sizes: Mapping[Symbol, int], free: Collection[Op]) -> KernelProgram:
    """Return a KernelProgram: `program` with its extents, and everything else that binding a plan needs.

    `sizes` is {dimension: extent}. `free` are the loops with the same result for every tile size. The machine, the
    sizes known only at the call, and the option to record logs come from `request`.
    """
    opened, typical = request.open_extents, request.typical
    return KernelProgram(program, sizes, request.machine, free, opened, typical, request.logs, is_ordered(program))


def _bind_parts(request: Request, plan: Schedule, choose: ChoosePlan, name: str, count: int) -> MergedParts:
    """Bind (apply) a plan that splits a reduction over the dimension `name` into `count` parts, as split-K does.

    Return a MergedParts: the kernel that reduces the parts, bound to the plan, and the plan of the kernel that merges
    the partial results, which `choose` makes. Raise an ArgumentError if the program has no such reduction or loop, if
    it cannot be split into `count` parts of whole K steps, or if the plan's axes of the parts are wrong.
    """
    line, program, machine = f"parts {name} {count}", request.program, request.machine
    part = next((a for a in plan.axes if a.name == f"{name}_part"), None)
    loop = None if part is None else part.split("loop")
    reduction = splittable_mma(program, request.free, request.sizes) if mmas_by_name(program) else "it has no product"
    if not mmas_by_name(program) and loop is None:
        split = split_reduction_programs(program, request.sizes, count, machine)
    elif isinstance(reduction, str):
        if loop is None:
            raise refused(line, reduction)
        split = split_loop_programs(program, request.sizes, count, loop.size)
    else:
        axis = next((d for d in reduction.axes if str(d) == name), None)
        if axis is None:
            raise refused(line, f"the reduced dimensions are {', '.join(map(str, reduction.axes))}")
        split = split_k_programs(program, request.sizes, request.free, axis, count, part_step(program, machine))
    if isinstance(split, str):
        raise refused(line, split)
    if split.parts != count:
        raise refused(line, f"in whole steps there are {split.parts} parts")
    parts = [a for a in plan.axes if a.name == f"{name}_split"]
    if [x.extent for a in parts for x in a.digits] != [count]:
        expected = f"`axis {name}_split = ({name}_split {count}): task 1` and `axis {name}_part`"
        raise refused((line, *parts), f"its axes are {expected}")
    merge = choose((part_of(request, split, split.second),))
    sizes, shapes = {**request.sizes, **split.sizes}, {**request.sized.shapes, **split.memories}
    bound = bind(kernel_of(request, split.first, sizes, ()), replace(plan, parts=None))
    return MergedParts(OneKernel(SizedProgram(split.first, sizes, shapes), bound), merge)


def _bind_one(forms: RequestForms, plan: Schedule) -> tuple[Request, OneKernel]:
    """Bind (apply) a plan of one kernel; return (the request, perhaps with its program rewritten, the kernel).

    `forms` is the request over digits (mixed-radix parts) of its dimensions, then over whole dimensions. Loops that the
    plan has and the program lacks are inserted first. If the plan has no pipeline and no MMA has an atom, each lane may
    compute a box (rectangle) of results: the kernel's program is then over boxes of M. Raise an ArgumentError if the
    plan does not fit the program.
    """
    request = _named_form(forms, plan)
    if plan.pipeline is not None:
        program = _with_loop_tiles(request, plan, _with_loop_between(request, plan))
        bound = bind(kernel_of(request, program, request.sizes, request.free), plan)
        return request, OneKernel(replace(request.sized, program=program), bound)
    if request.machine.lanes is None and not request.opened:
        is_whole = partial(_is_whole, request, plan)
        program, free = without_k_loops(request.program, request.free, is_whole)
        request = request if program is request.program else request.rewritten(*with_equal_reads_once(program, free))
    request = _with_k_loops(request, plan)
    by_lanes = _bind_lanes(request, (request, *forms[1:])[-1], plan)
    if by_lanes is not None:
        return request, by_lanes
    bound = bind(kernel_of(request, request.program, request.sizes, request.free), plan)
    return request, OneKernel(request.sized, bound)


def _is_whole(request: Request, plan: Schedule, dim: Expr) -> bool:
    """True if a loop of the request over `dim` has one iteration in `plan`: its axis states no shorter loop tile."""
    axis = next((axis for axis in plan.axes if axis.name == str(dim)), None)
    loop = None if axis is None else axis.split("loop")
    return axis is not None and (loop is None or loop.size >= request.size(dim))


def _named_form(forms: RequestForms, plan: Schedule) -> Request:
    """Return the form of a request that has the dimensions which the plan's axes name.

    `forms[0]` is the request with dimensions split into digits (mixed-radix parts, such as image row and column).
    `forms[-1]` is the request with whole dimensions. `forms[-1]` is returned if some axis has the name of a dimension
    that only this form has, and no axis has the name of one that only `forms[0]` has. Otherwise `forms[0]` is returned.
    """
    over_digits, over_whole = forms[0], forms[-1]
    names = {axis.name for axis in plan.axes}
    whole_names, digit_names = ({str(d) for d in dims_of(form.program)} for form in (over_whole, over_digits))
    return (
        over_whole if names & (whole_names - digit_names) and not names & (digit_names - whole_names) else over_digits
    )


def _with_k_loops(request: Request, plan: Schedule) -> Request:
    """Return the request with a K loop inserted around MMAs for each axis of the plan that asks for one.

    An axis asks for a K loop if it has a `loop` with a tile smaller than the dimension, and the program has MMAs that
    reduce the whole dimension at once, and no loop over it. Each iteration of the new loop reduces one tile. Raise an
    ArgumentError if an MMA cannot be computed in such steps.
    """
    for axis in plan.axes:
        program = request.program
        d = next((d for d in dims_of(program) if str(d) == axis.name), None)
        loop = axis.split("loop")
        if d is None or loop is None or loop.size >= request.size(d) or not unlooped_mmas(program, d):
            continue
        if any(op.name == "iterate" and op.attrs["axis"] is d for op in program.walk()):
            continue  # it is the tile of that loop
        stepped = with_k_loops(program, request.free, d)
        if isinstance(stepped, str):
            raise refused(axis, stepped)
        request = request.rewritten(*stepped)
    return request


def _bind_lanes(request: Request, whole_form: Request, plan: Schedule) -> OneKernel | None:
    """Apply ("bind") a plan in which lanes compute the only MMA without an atom; return its kernel, or None.

    Each lane computes one result at a time, or a box (rectangle) of results if the plan says so. Boxes are made from
    `whole_form`, the request over whole dimensions. Return None if the plan has no MMA or names an atom, if the machine
    has no lanes (a CPU), if sizes are known only at the call, if the program logs or must run in order, or if lanes
    cannot compute its MMA. Raise an ArgumentError if the plan asks for boxes that are impossible, or does not fit
    otherwise.
    """
    program, machine = request.program, request.machine
    by_loops = bool(plan.products) and all(line.atom is None for line in plan.products)
    if machine.lanes is None or request.opened or request.logs or not by_loops or is_ordered(program):
        return None
    sizes = request.sizes
    product = match_simt_product(program, request.free, numbers_of(sizes), Substitution(sizes), machine)
    if isinstance(product, str):
        return None
    box = lane_box_of(plan, str(product.rows[0])) if len(product.rows) == 1 else None
    if box is None:
        kernel = replace(kernel_of(request, program, sizes, request.free), simt=product.terms)
        return OneKernel(request.sized, bind(kernel, plan))
    rows = LaneRows.of(whole_form, product)
    if isinstance(rows, str):
        raise refused(plan.axis(str(product.rows[0])), rows)
    terms, boxes, inner = rows.bound(plan, box)
    kernel = replace(kernel_of(request, boxes.program, boxes.sizes, boxes.free), simt=terms)
    sized = SizedProgram(boxes.program, {**sizes, **boxes.sizes}, request.sized.shapes, boxes.free)
    return OneKernel(sized, bind(kernel, inner), in_boxes=True)


def _with_loop_between(request: Request, plan: Schedule) -> Program:
    """Return the request's program, with a loop over the dimension that links two MMAs if the plan has such a loop.

    The dimension is N of the first MMA and K of the second. A `loop` in the plan is such a loop if its tile is as wide
    as the first MMA's tile of N. A shorter one is a K step of the second MMA, and nothing is inserted. Raise an
    ArgumentError if the program cannot have that loop.
    """
    for d in summed_between(request.program):
        axis = next((a for a in plan.axes if a.name == str(d)), None)
        loop = None if axis is None else axis.split("loop")
        looped = any(op.name == "iterate" and op.attrs["axis"] is d for op in request.program.walk())
        if axis is None or loop is None or looped or loop.size not in _columns_along(request, plan, d):
            continue  # else it is a K step of the second product
        program = with_loop_over(request.program, d, loop.size)
        if isinstance(program, str):
            raise refused(axis, program)
        return program
    return request.program


def _with_loop_tiles(request: Request, plan: Schedule, program: Program) -> Program:
    """Return `program` with the tile size of each loop set to the one that the plan states for the loop's axis.

    A loop is unchanged if its result depends on the tile size, if it only adds MMAs to an accumulator (the plan's tile
    is then its K step), if the plan states no tile for it, or if a constraint of the author states more than a tile
    size.
    """
    for loop in [op for op in program.walk() if op.name == "iterate"]:
        dim = loop.attrs["axis"]
        axis = next((a for a in plan.axes if a.name == str(dim)), None)
        split = None if axis is None else axis.split("loop")
        is_free = not adds_products(loop) if loop in request.free else monoid_of(loop) is not None
        if split is not None and is_free and has_only_tile(program, dim):
            program = with_tile(program, dim, split.size)
    return program


def _columns_along(request: Request, plan: Schedule, d: Expr) -> list[int]:
    """Return the list of the N tile sizes, in elements, that the plan's `mma` lines give to MMAs with the dimension `d`
    as N.

    N is the last dimension of an MMA's accumulator.
    """
    products = mmas_by_name(request.program)
    lines = [(line, products[line.name]) for line in plan.products if line.name in products]
    return [line.columns for line, op in lines if op.result.type.dims[-1:] == (d,)]
