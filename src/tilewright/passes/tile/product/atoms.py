"""Products of tiles by the machine's atoms, wherever they stand: in loops, in grid programs, under conditions.

    %s = mma %q, %k, %zero                for f in 0..2 {            blocks of N
                                            for m in 0..4 {          blocks of M
                                              %sums = alloc register f32 (13, 32) as ATOM.c
                                              copy %acc_view -> %sums
                                              for e in 0..16 { mma %sums += %q_view * %packed_view ... }
                                              copy %sums -> %acc_view

C lies in memory of the worker's own between operations, one block of it at a time in registers. A is read where it lies
if the atom can, otherwise from a panel; B likewise, packed as the atom reads it. Edges of C are blocks of their own, as
small as the atom allows; what a panel holds past the ends is zero.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from tilewright.algebra.expr import ZERO, Const, Expr, as_expr
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.ir.tile_formulas import converted
from tilewright.passes.places import Size, linear_step
from tilewright.passes.tile.accesses import apart_along, marked
from tilewright.passes.tile.packing import pack_before, pack_here
from tilewright.passes.tile.product.accumulator import TiledSums, WholeSums
from tilewright.passes.tile.product.computed import Computed
from tilewright.passes.tile.product.halo_tile import halo_loops, halo_sources
from tilewright.passes.tile.product.in_place import InPlace, Stepped
from tilewright.passes.tile.product.in_registers import InRegisters
from tilewright.passes.tile.product.lowered import ProductParts
from tilewright.passes.tile.product.nest import KLoop, Run, chunks, over_taps
from tilewright.passes.tile.product.packed import Packed, Panel
from tilewright.passes.tile.product.product import AtomProduct
from tilewright.passes.tile.product.registers import TaskRegisters
from tilewright.passes.tile.product.source import Source
from tilewright.passes.tile.product.staged import Staged, is_given
from tilewright.passes.tile.product.steps import AtomStep
from tilewright.passes.tile.product.tiles import AccumulatorTile, over_tiles
from tilewright.passes.tile.values import Load, Tile, loads, most, only_load, pieces
from tilewright.plan.model import element_bytes, l2, stays_in_l1
from tilewright.plan.tiled import Depth

NEAR = 4
"""B is read where it lies if what a block reads of it spans no more than this part of the second cache."""
STEPS = 4
"""Products of vectors along K that are written out, at most, unless the atom picks from more."""


def by_atom(product: AtomProduct, a: Tile, b: Tile, total: Value, zero: bool) -> ProductParts:
    """Return the parts of total += a * b by an atom; `zero`: the accumulator starts from zero, not written yet."""
    low, how = product.low, product.how
    whole = total in low.storage.sums  # all of C is in registers
    if low.cuts.halo is not None:
        return _around_halo(product, a, b, total, low.cuts.halo)
    left, right = _staged_sources(product, a, b) if how.slab is not None else (_left(product, a), _right(product, b))
    return ProductParts(
        product,
        left,
        right,
        WholeSums(total) if whole else TiledSums(product, total, zero),
        tiles=partial(over_tiles, product, lambda: left.skips),
        loops=lambda: _loops(product, left),
        step=lambda tile, sums: AtomStep(product, left, right, tile, sums),
    )


def _around_halo(product: AtomProduct, a: Tile, b: Tile, total: Value, offsets: int) -> ProductParts:
    """Return the parts of total += a * b around a halo tile of A."""
    if total not in product.low.storage.sums:
        raise ProgramError("the sums of a task do not stay in registers")
    left, right = halo_sources(product, a, b, offsets)
    tile = AccumulatorTile(ZERO, ZERO, product.how.rows, product.how.columns)
    return ProductParts(
        product,
        left,
        right,
        WholeSums(total),
        tiles=lambda one: one(tile),
        loops=lambda: halo_loops(product, left, right),
        step=lambda tile, sums: AtomStep(product, left, right, tile, sums),
    )


def in_task(product: AtomProduct, a: Tile, b: Tile, task: TaskRegisters) -> ProductParts:
    """Return the parts of an MMA in the tile registers of a task, whose blocks of C are its accumulator tiles."""
    left, right = _left_of_task(product, a), _right(product, b)
    return ProductParts(
        product,
        left,
        right,
        WholeSums(task.sums, product.w),
        tiles=partial(over_tiles, product, lambda: left.skips),
        loops=lambda: _planned_loops(product, left, task.late),
        step=lambda tile, sums: AtomStep(product, left, right, tile, sums, task.operands),
    )


# -- K loops ----------------------------------------------------------------------------------------------


def _loops(product: AtomProduct, left: Source) -> list[KLoop]:
    """Return the K loops of an accumulator tile: the summed dimensions beside K, then K.

    Dimensions that are unrolled only because rows at an edge differ are outermost: otherwise elements of A that taps
    share would be kept in registers.
    """
    cuts, axes = product.low.cuts, product.axes
    order = [s.dim for s in cuts.depth if s.dim in axes.deep] or axes.deep
    written = {d for d, loop in cuts.summed.items() if loop.unrolled}
    peeled = [d for d in order if cuts.depth and d not in written and product.low.task.edge and left.slides(d)]
    dims = *peeled, *(d for d in order if d not in peeled)
    taps = [over_taps(product, left, d, d in written or d in peeled, product.taps.get(d, 1)) for d in dims]
    return [*taps, KLoop(axes.k, "e", lambda: _k_steps(product, left))]


def _k_steps(product: AtomProduct, left: Source) -> list[Run]:
    """Return the runs along K: one atom's depth per step in registers, several by vectors, a K step from shared
    memory.
    """
    how, k = product.how, product.axes.k
    depth, width = how.atom.shape[2], product.width(k)
    if how.slab is not None:
        step = how.k_step_elements(most(width))
        return [Run(pieces(width, step), step, unroll=left.unrolls or how.blocks > 1)]
    if how.whole:
        return [Run(pieces(width, depth), depth)]
    k_loop = product.low.cuts.summed.get(k)
    most_at_once = max(STEPS, how.atom.picks) if k_loop is None else k_loop.size // depth  # at least one load of A
    return chunks(pieces(width, depth), most_at_once, depth)


def _planned_loops(product: AtomProduct, left: Source, late: bool) -> list[KLoop]:
    """Return the K loops of the plan, in its order; K may have two.

    The outermost iteration over K is peeled if the results of the previous block are stored meanwhile (`late`).
    """
    depth, k = product.how.atom.shape[2], product.axes.k
    steps = product.low.cuts.depth
    count = int(pieces(product.width(k), depth))
    loops: list[KLoop] = []
    if isinstance(left, Stepped):  # one block of many: its loops stay loops
        steps = tuple(replace(s, unrolled=False) for s in {s.dim: s for s in steps}.values())
    elif steps[0].dim is k and any(s.dim is k for s in steps[1:]):
        per, steps = steps[0].size // depth, steps[1:]
        whole, first = count // per, int(late)
        runs = [Run(1, per * depth)] * first + [Run(whole, per * depth, first)] * (whole > first)
        loops, count = [KLoop(k, "k", lambda: runs)], per

    def over(step: Depth) -> KLoop:
        if step.dim is not k:
            return over_taps(product, left, step.dim, step.unrolled)
        return KLoop(k, "e", lambda: [Run(count, depth, unroll=step.unrolled)])

    return [*loops, *(over(s) for s in steps)]


# -- sources ----------------------------------------------------------------------------------------------


def _staged_sources(product: AtomProduct, a: Tile, b: Tile) -> tuple[Source, Source]:
    """Return (A, B) of an atom that reads shared memory: staged there, or A in registers."""
    how, axes = product.how, product.axes
    left: Source
    if not how.held_a or is_given(a, how.atom.a.dtype):
        left = Staged.of(product, a, axes.m)
    elif not how.at_once and all(x.is_given for x in loads(a.formula)):
        left = Computed.of(product, a)
    else:
        left = InRegisters.of(product, a)
    return left, Staged.of(product, b, axes.n)


def _left_of_task(product: AtomProduct, a: Tile) -> Source:
    """Return operand A of a task, in place or staged; copied step by step if the block goes past the end."""
    source = only_load(a.formula)
    if source is None:
        raise ProgramError("products in tile registers read A where it lies")
    if not any(product.low.storage.loose.get(source, ())):
        return InPlace(product, source)
    how = product.how
    return Stepped(product, source, product.w.alloc(how.atom.a.dtype, (how.rows, how.atom.shape[2]), "step"))


def _left(p: AtomProduct, a: Tile) -> Source:
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
    return Panel(p, panel, outer)


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


def _right(p: AtomProduct, b: Tile) -> Source:
    """Return operand B, read in place, packed before the program if other tasks read it too, or packed here."""
    kernel, axes = p.how, p.axes
    n = kernel.atom.shape[1]
    source = only_load(b.formula) if b.dtype is kernel.atom.b.dtype else None
    whole = kernel.group == 1 and not p.low.cuts.packed
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
