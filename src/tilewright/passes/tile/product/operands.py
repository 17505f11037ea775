"""Which source an operand of an MMA by an atom has: in place, panel, packed, staged, in registers, computed, halo."""

from __future__ import annotations

from tilewright.algebra.expr import ZERO, Const, Expr, as_expr
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.ir.tile_formulas import converted
from tilewright.passes.places import Size, linear_step
from tilewright.passes.tile.accesses import apart_along, marked
from tilewright.passes.tile.packing import pack_before, pack_here
from tilewright.passes.tile.product.computed import Computed
from tilewright.passes.tile.product.halo_tile import halo_sources
from tilewright.passes.tile.product.in_place import InPlace, Stepped
from tilewright.passes.tile.product.in_registers import InRegisters
from tilewright.passes.tile.product.packed import Packed, PanelOfA
from tilewright.passes.tile.product.product import AtomProduct
from tilewright.passes.tile.product.source import OperandSource
from tilewright.passes.tile.product.staged import Staged, is_given
from tilewright.passes.tile.values import Load, Tile, loads, most, only_load, pieces
from tilewright.plan.model import element_bytes, l2, stays_in_l1

NEAR = 4
"""B is read where it lies if what a block reads of it spans no more than this part of the second cache."""


def sources_of(product: AtomProduct, a: Tile, b: Tile, in_task: bool) -> tuple[OperandSource, OperandSource]:
    """Return the sources of A and B; `in_task`: a task has registers for the MMA, and A is in place or staged."""
    if product.low.bound.halo_taps is not None:
        return halo_sources(product, a, b, product.low.bound.halo_taps)
    if product.how.slab is not None:
        return _staged_sources(product, a, b)
    return (_left_of_task(product, a) if in_task else _left(product, a)), _right(product, b)


def _staged_sources(product: AtomProduct, a: Tile, b: Tile) -> tuple[OperandSource, OperandSource]:
    """Return (A, B) of an atom that reads shared memory: staged there, or A in registers."""
    how, axes = product.how, product.axes
    left: OperandSource
    if not how.held_a or is_given(a, how.atom.a.dtype):
        left = Staged.of(product, a, axes.m)
    elif not how.at_once and all(x.is_given for x in loads(a.formula)):
        left = Computed.of(product, a)
    else:
        left = InRegisters.of(product, a)
    return left, Staged.of(product, b, axes.n)


def _left_of_task(product: AtomProduct, a: Tile) -> OperandSource:
    """Return operand A of a task, in place or staged; copied step by step if the block goes past the end."""
    low, how = product.low, product.how
    source = only_load(a.formula) if a.dtype is how.atom.a.dtype else None
    staged = {rows.tensor for rows in low.task.operands.values() if rows is not None}
    if source is None or not (source.is_given or source.tensor in staged):
        return _left(product, a)
    depth, width = how.atom.shape[2], product.width(product.axes.k)
    if source.is_given and width % depth not in (0, ZERO):
        raise ProgramError(f"operand A is read in place, but K = {width} ends within a step of {depth}: stage its rows")
    if not any(low.storage.loose.get(source, ())):
        return InPlace(product, source)
    return Stepped(product, source, product.w.alloc(how.atom.a.dtype, (how.rows, depth), "step"))


def _left(p: AtomProduct, a: Tile) -> OperandSource:
    """Return operand A, read in place, or copied to a panel with K contiguous and padded to whole atoms."""
    kernel, axes = p.how, p.axes
    m, _, k = kernel.atom.shape
    source = only_load(a.formula) if a.dtype is kernel.atom.a.dtype else None
    whole = source is not None and p.width(axes.k) % k in (0, ZERO) and _has_rows(p, source, a.dims, m)
    if source is not None and whole and (k == 1 or apart_along(p.low.scope, source, axes.k) == 1):
        return InPlace(p, source)
    outer = [d for d in (*axes.around, *axes.deep) if d in a.dims]
    tall = p.width(axes.m)
    unit = m if isinstance(tall, int) else kernel.rows  # where only a call tells, the last block is as large as others
    deep, rows = pieces(p.width(axes.k), k) * k, pieces(tall, unit) * unit
    panel = _panel(p, a, kernel.atom.a.dtype, outer, (axes.m, rows), (axes.k, deep))
    return PanelOfA(p, panel, outer)


def _has_rows(p: AtomProduct, source: Load, dims: tuple[Expr, ...], unit: int) -> bool:
    """True if a load's tensor has all rows that whole atoms read, also those past the end of the current part."""
    rows = p.width(p.axes.m)
    if rows % unit in (0, ZERO) or not isinstance(rows, int):
        return rows % unit in (0, ZERO)
    past = {p.axes.m: -(-rows // unit) * unit}
    over = p.w.axes([past.get(d) or p.width(d) for d in dims])
    images = p.low.scope.images(dims, p.parts, over)
    places = marked([images(e) for e in source.at], source.tensor.type.shape)
    return source.tensor.type.space == "shared" and not any(mark for _, mark in places)


def _panel(
    p: AtomProduct, a: Tile, dtype: DType, outer: list[Expr], rows: tuple[Expr, Size], deep: tuple[Expr, Size]
) -> Value:
    """Return operand A copied to [outer][rows][deep], with zeros past its ends."""
    sizes = [*(p.width(d) for d in outer), rows[1], deep[1]]
    held = p.w.alloc(dtype, sizes, "panel")
    dims = (*outer, rows[0], deep[0])
    over = p.w.axes([p.width(d) for d in dims])
    if sizes[-2:] != [p.width(rows[0]), p.width(deep[0])]:
        p.w.emit("fill", (p.w.part(held, sizes),), value=0)
    target = p.w.view(held, over, [(s, False) for s in over])
    formula = converted(a.formula, a.dtype, dtype)
    p.w.map(target, over, formula, p.low.scope.images(dims, p.parts, over))
    return held


def _right(p: AtomProduct, b: Tile) -> OperandSource:
    """Return operand B, read in place, packed before the program if other tasks read it too, or packed here."""
    kernel, axes = p.how, p.axes
    n = kernel.atom.shape[1]
    source = only_load(b.formula) if b.dtype is kernel.atom.b.dtype else None
    whole = kernel.group == 1 and not p.low.bound.packed
    is_direct = whole and source is not None and _lies_along_n(p, source) and _is_readable(p, source, n)
    if is_direct and source is not None and _is_near(p, source):
        return InPlace(p, source)
    outer = [d for d in (*axes.around, *axes.deep) if d in b.dims]
    before = pack_before(p.low, b, p.parts, axes, outer, kernel)
    if before is not None:
        return Packed(p, *before, outer, {d: p.parts[d][0] for d in (*outer, axes.k, axes.n)})
    if is_direct and source is not None:
        return InPlace(p, source)
    held, order = pack_here(p.low.storage, b, p.parts, axes, outer, kernel)
    return Packed(p, held, order, outer, dict.fromkeys((*outer, axes.k, axes.n), as_expr(0)))


def _lies_along_n(p: AtomProduct, source: Load) -> bool:
    """True if elements along N are contiguous."""
    return apart_along(p.low.scope, source, p.axes.n) == 1


def _is_readable(p: AtomProduct, source: Load, n: int) -> bool:
    """True if B's vectors of `n` columns can be read in place: N is a multiple of `n`.

    If N is known only at the call, True if B is an argument that is only read: it may end within a vector.
    """
    wide = p.width(p.axes.n)
    if isinstance(wide, Expr):
        return source.tensor.type.role == "in" and p.low.arguments.source(source.tensor) is not None
    return wide % n == 0


def _is_near(p: AtomProduct, source: Load) -> bool:
    """True if B need not be packed: what a block reads of it fits in a part of L2, and L1 keeps it as well as
    packed.

    Also True if there is only one block of rows, so that B is read once, or if a call or data decide the sizes.
    """
    low, m = p.low, p.axes.m
    if not m.symbols.isdisjoint(low.scope.bound):
        return True
    if most(low.scope.size(m)) <= p.how.rows:
        return True
    stride, between = 1, 0
    for e, n in reversed(list(zip(source.at, source.tensor.type.shape, strict=True))):
        between += stride * (linear_step(e, low.scope.coordinate(p.axes.k)) or 0)
        if not isinstance(n, Const):  # how far apart, only a call tells
            return True
        stride *= n.value
    limits, each, rows = low.machine.limits, element_bytes(source.tensor.type.dtype), most(p.width(p.axes.k))
    if between * rows * each > l2(limits) / NEAR:
        return False
    row = p.how.columns * each
    return stays_in_l1(limits, rows, row, between * each) or not stays_in_l1(limits, rows, row, row)
