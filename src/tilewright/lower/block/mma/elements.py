"""MMAs without an atom: formulas of elements that multiply and add scalars.

    for k_K in 0..64 {
      map %acc = %acc + a*b + a*b + a*b + a*b        a few terms at a time

If each lane has a box of results, all terms are unrolled, so that indices in its window are constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.algebra.expr import ZERO, Expr
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tile_formulas import converted
from tilewright.lower.block.accesses import memory_step
from tilewright.lower.block.lazy_tiles import Tile, most, only_load, rewritten
from tilewright.lower.block.mma.accumulator import WholeSums
from tilewright.lower.block.mma.k_loops import KLoop, KRun, chunks
from tilewright.lower.block.mma.parts import ProductParts
from tilewright.lower.block.mma.product import TileProduct
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.mma.steps import TermStep
from tilewright.lower.block.mma.tiles import AccumulatorTile
from tilewright.lower.block.storage import Storage
from tilewright.lower.block.writer import word

AT_ONCE = 4
"""Terms (products of two elements) that one step adds."""


@dataclass
class Elements(OperandSource):
    """An operand given as the formula of an element."""

    element: Formula

    def formula(self, dim: Expr, further: int) -> Formula:
        """Return the formula of one element of this operand: at the current loop indices, with `further` added along
        `dim`.
        """
        p = self.product
        at = {d: p.parts[d][0] + e for d, e in p.at.items()}
        at[dim] = at[dim] + further
        return rewritten(self.element, Substitution({p.low.scope.coordinate(d): e for d, e in at.items()}))


def by_elements(product: TileProduct, a: Tile, b: Tile, total: Value) -> ProductParts:
    """Return the ProductParts (operand sources, loops, multiply step) of total += a * b without an atom: a scalar loop
    nest.

    `total` is the accumulator's tensor. If each lane has a box of results, all K loops are unrolled. Otherwise operands
    that are no plain loads of the accumulator's type, contiguous along the last dimension of C, are stored first, by
    code emitted here.
    """
    low, wide = product.low, total.type.dtype
    summed = [d for d in a.dims if d in b.dims and d not in product.c]
    if low.bound.lane_box:  # operands are narrow in registers: they are widened where they are multiplied
        left, right = (Elements(product, converted(t.formula, t.dtype, wide)) for t in (a, b))
        loops = [_unrolled_loop(product, d) for d in summed]
    else:
        last = product.c[-1] if product.c else None
        left, right = (Elements(product, _in_memory(low.storage, t, wide, last)) for t in (a, b))
        loops = _in_loops(product, summed)
    return ProductParts(
        product,
        left,
        right,
        WholeSums(total),
        tiles=lambda one: one(AccumulatorTile(ZERO, ZERO, *_sizes(product))),
        loops=lambda: loops,
        step=lambda tile, sums: TermStep(product, left, right, sums, summed[-1]),
    )


def _sizes(product: TileProduct) -> tuple[int, int]:
    """Return (rows, columns) of C as one tile: the extents of its last two dimensions, and 1 for a dimension that it
    lacks.
    """
    rows, columns = (1, 1, *(most(product.width(d)) for d in product.c))[-2:]
    return rows, columns


def _unrolled_loop(product: TileProduct, dim: Expr) -> KLoop:
    """Return a KLoop over all of `dim` that is fully unrolled: each iteration is emitted with a constant index."""
    return KLoop(dim, "", lambda: [KRun(most(product.width(dim)))], written=True)


def _in_loops(product: TileProduct, summed: Sequence[Expr]) -> list[KLoop]:
    """Return [KLoop, ...], one for each of the dimensions `summed`. The last loop goes in steps of 4 indices (AT_ONCE),
    the others in steps of 1.
    """

    def over(dim: Expr) -> KLoop:
        """Return the KLoop over `dim`."""
        at_once = AT_ONCE if dim is summed[-1] else 1
        return KLoop(dim, f"k_{word(dim)}", lambda: chunks(product.width(dim), at_once))

    return [over(d) for d in summed]


def _in_memory(storage: Storage, tile: Tile, wide: DType, last: Expr | None) -> Formula:
    """Return the formula of an MMA operand in the type `wide`, contiguous along the dimension `last`, which becomes the
    vectorised one.

    A plain load of that type that is contiguous is returned as it is; any other operand is first stored by emitted
    code. If `last` is None, or the operand lacks it, the operand need not be contiguous.
    """
    source = only_load(tile.formula)
    fits = source is not None and (
        last is None or last not in tile.dims or memory_step(storage.scope, source, last) == 1
    )
    if fits and tile.dtype is wide:
        return tile.formula
    dims = tuple(d for d in tile.dims if d is not last) + ((last,) if last in tile.dims else ())
    return storage.stored(tile, dims, (wide, converted(tile.formula, tile.dtype, wide)), "factor").formula
