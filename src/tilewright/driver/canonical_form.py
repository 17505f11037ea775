"""The pass that rewrites programs with the same meaning to the same form, so that they get the same plan."""

from __future__ import annotations

from dataclasses import replace

from tilewright.driver.request import Request, SizedProgram
from tilewright.ir.core import Op, Program
from tilewright.plan.general import WHOLE, dims_of, only_adds, tiling_attrs
from tilewright.plan.schedule import Schedule
from tilewright.rewrite.dim_order import in_dim_order
from tilewright.rewrite.join_reads import with_equal_reads_once
from tilewright.rewrite.loop_fission import with_separate_accumulators
from tilewright.rewrite.mask_values import with_mask_values_in_loops
from tilewright.rewrite.merge_dims import Sized, least_rows, merged
from tilewright.rewrite.phases import in_phases
from tilewright.rewrite.softmax_loop import with_divisions_last, with_softmax_loops
from tilewright.rewrite.unit_loops import without_unit_loops
from tilewright.rewrite.unit_taps import without_unit_taps


def canonical(request: Request) -> Request:
    """Return the request with its program in a canonical form, so that programs with the same meaning get the same
    plan.

    Grid programs (whose workgroups the author states) and programs with logs are returned unchanged. For others, these
    rewrites are made:

    - Equal reads are merged. In loops, constants of masks are copied to the selects that use them.
    - The dimensions of tiles get one order.
    - On a CPU, loops with one iteration are replaced by their bodies, and a softmax between two MMAs is divided after
      the second.
    - On a GPU, a softmax between two MMAs becomes a loop, K loops with accumulators of two kinds are split, and indices
      of filter taps of extent 1 are removed.
    - If all sizes are known before the call and no argument is longer than it says, strided transposed convolutions are
      split into phases without zeros, and dimensions that are contiguous in memory are merged. Dimensions that the
      author's plan names stay.
    """
    if request.logs or request.workgroups is not None:
        return request
    request = request.rewritten(*with_equal_reads_once(request.program, request.free))
    if request.machine.lanes is None:
        request = request.rewritten(*without_unit_loops(request.program, request.free, lambda op: _trips(request, op)))
        request = request.rewritten(*with_divisions_last(request.program, request.free))
    else:
        request = request.rewritten(*with_softmax_loops(request.program, request.free))
    request = request.rewritten(*with_mask_values_in_loops(request.program, request.free))
    is_sized = not request.opened and request.longer() is None
    if is_sized:
        request = _in_phases(request)
    along = request.machine.lanes is None  # vectors go along the last dimension of a tile
    request = request.rewritten(*in_dim_order(request.program, request.free, taps_first=along))
    if request.machine.lanes is not None:
        request = request.rewritten(*with_separate_accumulators(request.program, request.free))
        request = request.rewritten(*without_unit_taps(request.program, request.sized.extents, request.free))
    if not is_sized:
        return request
    shapes = {a: tuple(int(n) for n in shape) for a, shape in request.sized.shapes.items()}
    divides = request.machine.lanes is not None  # on CPUs dimensions that accesses divide are split into digits again
    rows = least_rows(request.machine)
    form = merged(Sized(request.program, request.sizes, shapes, request.free, rows), divides=divides)
    if request.pinned is not None and _names_dims(request.pinned, request.program, form.program):
        return request
    return replace(request, sized=SizedProgram(form.program, form.sizes, form.shapes, form.free))


def _trips(request: Request, loop: Op) -> int | None:
    """Return the number of iterations of `loop` on a CPU; None if it is not known, or if the author's plan splits its
    axis.

    With a stated tile size, the number follows from it. Without one, it is 1 if every plan takes the axis whole: the
    loop's result does not depend on the tile size, the axis is short, and the loop does more than add products to an
    accumulator. The number of a loop with a stated start or number of iterations counts as not known.
    """
    axis, size = loop.attrs["axis"], request.size
    stated = tiling_attrs(request.program, axis)
    is_known = axis.symbols <= request.sizes.keys() and axis.symbols.isdisjoint(request.open_extents)
    if loop.attrs.get("start") or not is_known or {"start", "iters"} & stated.keys():
        return None
    planned = None if request.pinned is None else next((a for a in request.pinned.axes if a.name == str(axis)), None)
    split = None if planned is None else planned.split("loop")
    if split is not None and split.size < size(axis):
        return None
    if "tile" in stated:
        return -(-size(axis) // size(stated["tile"])) if stated["tile"].symbols <= request.sizes.keys() else None
    if loop not in request.free and not loop.attrs.get("any_tile"):
        return None
    return 1 if 1 <= size(axis) <= WHOLE and not only_adds(loop) else None


def _in_phases(request: Request) -> Request:
    """Return the request with its program split into phases, so that MMAs skip zeros, as in a strided transposed
    convolution.

    It is split if an MMA operand is zero unless a sum of two indices, one of the result and one of filter taps, is a
    multiple of a number. On a CPU, all phases must have equally many taps. Dimensions of taps that the author's plan
    names are not split. A program without such an operand is unchanged.
    """
    named = set() if request.pinned is None else {axis.name for axis in request.pinned.axes}
    # A CPU's task packs operands that need bounds checks itself: phases with fewer taps cost more than they save.
    on_cpu = request.machine.lanes is None
    program, sizes, free = in_phases(request.program, request.sizes, request.free, named=named, only_even=on_cpu)
    return request.rewritten(program, free, sizes)


def _names_dims(plan: Schedule, program: Program, rewritten: Program) -> bool:
    """True if the author's `plan` names dimensions of the author's `program`, so that none of them may be merged.

    A plan without an atom names them if its axes include all dimensions of `program`. A CPU plan with an atom has the
    axes `rows`, `columns` and `depth`, made of digits (mixed-radix parts). It names them if `rewritten`, the program
    with dimensions merged, has merged dimensions, and no digit's name begins with the name of a merged dimension.
    """
    if plan.atom is None:
        named = {axis.name for axis in plan.axes}
        return bool(named) and {str(d) for d in dims_of(program)} <= named
    merged_names = tuple(f"{d}_".lower() for d in dims_of(rewritten) if d not in dims_of(program))
    digits = [digit.name for axis in plan.axes for digit in axis.digits]
    return bool(merged_names) and not any(digit.startswith(merged_names) for digit in digits)
