"""Operands that MMAs read in place, though elements may be out of bounds: windows of padded convolutions.

Elements out of bounds count as zero, so they need not be multiplied. Loops over filter taps run only where they are in
bounds, as far as that does not depend on the row; rows of a block that are out of bounds are left out, which is known
where the first and the last blocks of an image line are peeled off and the taps unrolled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.algebra.expr import ZERO, Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import Substitution, indices_in_bounds, linear_form
from tilewright.analysis.flat_memory import Size, linear_step
from tilewright.ir.core import Op, TileType, Value
from tilewright.ir.dtypes import DType
from tilewright.lower.block.accesses import may_leave
from tilewright.lower.block.arguments import ArgumentTensors
from tilewright.lower.block.lazy_tiles import Parts
from tilewright.lower.block.lowering import Lowering
from tilewright.plan.bound import BoundKernel
from tilewright.plan.computed import ComputedFactor, computed_factor
from tilewright.plan.microkernel import Axes, Microkernel, axes_in, types_of


def is_read_in_place(low: Lowering, op: Op) -> bool:
    """True if all users of the result of the read `op` can read memory in place, though elements may be out of bounds.

    Three kinds of users can:

    - an MMA by vectors with the result as operand A: it skips elements out of bounds;
    - an MMA that stages K steps in shared memory: elements out of bounds are zero there;
    - an operation that computes operand A of an MMA in registers, one K step at a time.

    False if nothing uses the result, if the value out of bounds is not 0, inside a conditional on data, and if any
    dimension of the program has a data-dependent end.
    """
    if op.attrs.get("otherwise", 0) != 0 or low.scope.masks or low.scope.ends:
        return False
    users, computing = low.users.get(op.result, ()), _computed_in_steps(low)
    return bool(users) and all(
        _is_skippable_a(low, x, op) or _is_staged(low.bound, x, op) or x in computing for x in users
    )


def is_only_operand_b(users_of: Mapping[Value, Sequence[Op]], op: Op) -> bool:
    """True if each user of the result of the read `op` is an MMA that has it as operand B, and not as operand A.

    `users_of` is {value: the operations that use it}. Also True if nothing uses the result.
    """
    users = users_of.get(op.result, ())
    return all(user.name == "mma" and user.operands[0] is not op.results[0] is user.operands[1] for user in users)


def _is_skippable_a(low: Lowering, user: Op, read: Op) -> bool:
    """True if the `read` is operand A of the MMA `user`, which can skip elements of A that are out of bounds.

    An MMA by vectors along a dimension that A, B and C share always can. Any other MMA must be by an atom of one row
    (vectors), and the read must have the atom's element type. If the atom takes groups of neighbours along K, three
    more conditions hold: the extent of K is a whole number of atoms, the read is contiguous in memory along K, and its
    K coordinate is in bounds.
    """
    if user in low.bound.lane_kernels:
        return user.operands[0] is read.results[0]
    kernel_and_axes = _kernel_with_a(low, user, read)
    if kernel_and_axes is None or kernel_and_axes[0].is_matrix_atom:
        return False
    kernel, axes = kernel_and_axes
    has_whole_atoms = low.scope.part(axes.k)[1] % kernel.atom.shape[2] in (0, ZERO)  # otherwise a panel ends in zeros
    return kernel.k_pack == 1 or (
        has_whole_atoms
        and _is_contiguous_along(read, axes.k)
        and not _may_be_out_of_bounds(low.arguments, read, axes.k)
    )


def microkernel_of(low: Lowering, op: Op) -> tuple[Microkernel, Axes, tuple[DType, DType, DType]] | None:
    """Return (Microkernel, axes, element types) of the MMA `op` for the current parts of its dimensions.

    The Microkernel is its atom and accumulator tile; `axes` names its M, N and K; the element types are those of A, B
    and C. None if scalar loops do the MMA, if no dimensions can be its M, N and K, or if an extent depends on data.
    """
    kernel, known = low.bound.products.get(op), all(low.scope.is_known(d) for v in op.operands for d in v.type.dims)
    axes = axes_in(op, low.scope.width) if known else ""
    if kernel is None or isinstance(axes, str):
        return None
    return kernel, kernel.oriented(axes), types_of(op, axes.swapped, low.machine)


def _kernel_with_a(low: Lowering, user: Op, read: Op) -> tuple[Microkernel, Axes] | None:
    """Return (Microkernel, axes) of the MMA `user`: its atom and accumulator tile, and the names of its M, N and K.

    None unless `user` is an MMA by an atom of which the read operation `read` gives operand A, in the atom's type. Also
    None if the accumulator comes from `read`.
    """
    kernel_of_product = (
        microkernel_of(low, user) if user.name == "mma" and user.operands[2] is not read.results[0] else None
    )
    if kernel_of_product is None:
        return None
    kernel, axes, types = kernel_of_product
    left = axes.operands(user)[0] is read.results[0]
    return (kernel, axes) if left and types[0] is kernel.atom.a.dtype else None


def rows_past_the_end(low: Lowering, op: Op, parts: Parts) -> dict[Expr, int]:
    """Return {M dimension: rows that whole atoms read past the current part}, for the MMAs with the read `op` as
    operand A.

    With atoms of 16 rows, a part of 40 rows gives 8, and a part whose extent is known only at the call gives 16. MMAs
    by atoms of one row are left out. `parts` is {dimension: (first index, extent)}.
    """
    past_of: dict[Expr, int] = {}
    for user in low.users.get(op.result, ()):
        left = _kernel_with_a(low, user, op)
        if left is not None and left[1].m is not None and left[0].is_matrix_atom:
            width = parts[left[1].m][1]
            past = -width % left[0].atom.shape[0] if isinstance(width, int) else left[0].atom.shape[0]
            past_of[left[1].m] = max(past_of.get(left[1].m, 0), past)
    return past_of


def _is_staged(bound: BoundKernel, user: Op, read: Op) -> bool:
    """True if `user` is an MMA whose atom reads K steps from shared memory, and `read` is not its accumulator operand
    C.
    """
    kernel = bound.products.get(user) if user.name == "mma" else None
    return kernel is not None and kernel.slab is not None and user.operands[2] is not read.results[0]


def _computed_in_steps(low: Lowering) -> set[Op]:
    """Return the operations that compute operand A of some MMA from arguments, one K step at a time in registers."""
    computing: set[Op] = set()
    for op, kernel in low.bound.products.items():
        if kernel is not None and kernel.a_in_registers and not kernel.all_of_k_at_once:
            axes = axes_in(op, low.scope.width)
            a = None if isinstance(axes, str) else kernel.oriented(axes).operands(op)[0]
            factor = None if a is None else computed_factor(low.program, a)
            computing |= set(factor.ops) if isinstance(factor, ComputedFactor) else set()
    return computing


def slides(low: Lowering, dim: Expr) -> bool:
    """True if a padded read of the program (otherwise=0) may be out of bounds in a coordinate that has the index of
    `dim` and something else.

    In `x[h + r]`, the index h of `dim` decides which filter taps r are in bounds. A coordinate that is the index of
    `dim` alone does not count.
    """
    for op in low.program.walk():
        if op.name != "read" or op.attrs.get("otherwise") != 0 or "at" not in op.attrs:
            continue
        if _may_be_out_of_bounds(low.arguments, op, dim):
            return True
    return False


def edge_blocks_match_interior(low: Lowering, dim: Expr) -> bool:
    """True if blocks at the edges of `dim` run the same operations as interior blocks, apart from predicates.

    That needs two things. In reads, each coordinate that depends on `dim` may have, besides it, only unrolled
    dimensions (filter taps). No MMA of the program may be by vectors along a dimension that A, B and C share.
    """
    unrolled = {d for d, loop in low.bound.summed.items() if loop.unrolled}
    for op in (op for op in low.program.walk() if op.name == "read" and "at" in op.attrs):
        dim_of = dict(zip(op.attrs["over"], op.results[0].type.dims, strict=True))
        for e in op.attrs["at"]:
            dims = {dim_of[s] for s in e.symbols if s in dim_of}
            if dim in dims and not dims - {dim} <= unrolled:
                return False
    return not low.bound.lane_kernels


def _is_contiguous_along(read: Op, dim: Expr) -> bool:
    """True if the elements of the `read` are contiguous in memory along the dimension `dim`."""
    *before, last = read.attrs.get("at") or read.operands[0].type.dims
    coordinate = dict(zip(read.results[0].type.dims, read.attrs.get("over", ()), strict=False)).get(dim, dim)
    return not any(coordinate in e.symbols for e in before) and linear_step(last, coordinate) == 1


def _may_be_out_of_bounds(arguments: ArgumentTensors, read: Op, dim: Expr) -> bool:
    """True if a coordinate of the `read` that depends on `dim`, and is not the index of `dim` alone, may be out of
    bounds.

    `arguments` has the extents of the argument that is read.
    """
    kind: TileType = read.results[0].type
    coordinate = dict(zip(kind.dims, read.attrs.get("over", ()), strict=False)).get(dim)
    for e, n in zip(read.attrs.get("at", ()), arguments.shapes[read.operands[0]], strict=False):
        if coordinate in e.symbols and e is not coordinate and may_leave(e, n):
            return True
    return False


def limits(
    at: tuple[Expr, ...],
    shape: tuple[Size, ...],
    marks: tuple[bool, ...],
    tap: Symbol,
    size: Size,
    known: Substitution,
    unknown: set[Symbol],
) -> tuple[Expr, Expr, tuple[bool, ...]]:
    """Return (first, end, marks): the range first..end-1 of a filter tap's index in which coordinates are in bounds,
    and `marks` for that range.

    `at` are the coordinates in a tensor of extents `shape`. `marks[n]` is True if coordinate n may be out of bounds; in
    the result it is False for coordinates that set a limit of the range. `tap` is the symbol of the tap's index, `size`
    its extent. `known` replaces symbols by their current values. A coordinate sets no limit if it is not linear in
    `tap`, or has a symbol in `unknown`, which changes within the loop over the tap.
    """
    first, end, remaining = as_expr(0), as_expr(size), list(marks)
    for n, e in enumerate(at):
        if not marks[n] or tap not in e.symbols or e.symbols & unknown:
            continue
        form = linear_form(known(e), [tap])
        factor = None if form is None else form[0].get(tap)
        if form is None or not isinstance(factor, Const):
            continue
        lowest, past = indices_in_bounds(factor.value, form[1], shape[n])
        first, end = maximum(first, lowest), minimum(end, past)
        remaining[n] = False
    return first, end, tuple(remaining)
