"""The accumulator tiles of an MMA: blocks of C that registers hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from tilewright.algebra.expr import ONE, Expr, as_expr
from tilewright.analysis.flat_memory import Size
from tilewright.lower.block.lazy_tiles import divided, most, pieces
from tilewright.lower.block.mma.product import AtomProduct
from tilewright.lower.block.writer import word


@dataclass(frozen=True)
class Span:
    """Blocks of equal size along M or N: their number, size, and first index; `ragged`: the last one goes past the end.

    `in_bounds` is the condition under which the blocks exist.
    """

    count: Size
    size: int
    first: Size
    ragged: bool
    in_bounds: Expr = ONE


def spans(width: Size, block: int, unit: int) -> Iterator[Span]:
    """Yield one or two Spans (blocks of equal size) that cover `width` elements: full blocks of `block`, then the rest,
    rounded up to a multiple of `unit`.

    If `width` is known only at the call, the Span of the rest has the largest size of the rest, and the condition that
    there is a rest.

    >>> [(s.count, s.size, s.first, s.ragged) for s in spans(70, 32, 16)]
    [(2, 32, 0, False), (1, 16, 64, True)]

    >>> from tilewright.algebra.expr import symbol
    >>> [(s.count, s.size, s.first, s.ragged) for s in spans(symbol("M", 1, 99), 32, 16)]
    [(<M//32>, 32, 0, False), (1, 32, <32*(M//32)>, True)]
    """
    full, tail = divided(width, block)
    if full != 0:
        yield Span(full, block, 0, False)
    if tail != 0:
        size = int(pieces(most(tail), unit)) * unit
        yield Span(1, size, full * block, size != tail, as_expr(tail) >= 1)


@dataclass(frozen=True)
class AccumulatorTile:
    """A tile of C: `rows` x `columns` elements from (`row`, `column`) on; ragged ones go past the end of C."""

    row: Expr
    column: Expr
    rows: int
    columns: int
    ragged_rows: bool = False
    ragged_columns: bool = False


def over_tiles(product: AtomProduct, peels_ends: Callable[[], bool], one: Callable[[AccumulatorTile], None]) -> None:
    """Emit loops over the batch, N and M of C, and call `one(tile)` in them to emit the code of an accumulator tile.

    Full tiles share a loop; ragged tiles at the ends of M and N have calls of their own. If `peels_ends()` is True
    (some elements are out of bounds), the first and last of several iterations along M are peeled, as these lie at the
    tensor's edges. In the loops, `product.at` has the index along each batch dimension.
    """
    kernel, axes, w = product.microkernel, product.axes, product.w
    m, n, _ = kernel.atom.shape
    with ExitStack() as loops:
        for d in axes.around:
            product.at[d] = loops.enter_context(w.loop(f"o_{word(d)}", product.width(d)))
        for across in spans(product.width(axes.n), kernel.columns, n):
            for down in spans(product.width(axes.m), kernel.rows, m):
                ends = (1, 1) if peels_ends() and down.count != 1 else None
                in_range = product.low.branch(across.in_bounds * down.in_bounds)
                with in_range, w.loop("f", across.count) as f, w.loop("m", down.count, peel=ends) as i:
                    row, column = down.first + down.size * i, across.first + across.size * f
                    one(AccumulatorTile(row, column, down.size, across.size, down.ragged, across.ragged))
