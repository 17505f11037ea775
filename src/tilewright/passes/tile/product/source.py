"""A source: where an operand of an MMA comes from, what of it is copied when, and what a K step reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, as_expr
from tilewright.ir.core import Value
from tilewright.ir.formula import Formula
from tilewright.passes.tile.product.product import TileProduct
from tilewright.plan.tiled import Depth


@dataclass
class OperandSource:
    """An operand (A or B) of an MMA. A step by an atom asks for rows or columns, others for vectors or a formula."""

    product: TileProduct
    ragged: bool = field(default=False, init=False)
    """True if the columns of the accumulator tile may end before its registers do."""

    @property
    def skips(self) -> bool:
        """True if elements may be out of bounds, and their products are left out."""
        return False

    @property
    def unrolls(self) -> bool:
        """True if the index of a K step must be a number: the K loop is then unrolled."""
        return False

    def begin(self) -> None:
        """Begin another accumulator tile: no loop has limits yet."""

    def bring(self, dim: Expr) -> None:
        """Emit what is copied in each iteration of the K loop over `dim`, before the loops inside of it."""

    def loops(self) -> Sequence[Depth]:
        """Return the K loops that this operand needs, outermost first; empty: any will do."""
        return ()

    def limits(self, dim: Expr) -> tuple[Expr, Expr, bool]:
        """Return (first, end, True if it is unrolled) of the loop over a summed dimension beside K."""
        return as_expr(0), as_expr(self.product.width(dim)), False

    def slides(self, dim: Expr) -> bool:
        """True if the row decides which elements are in bounds at an index of `dim`, a summed dimension beside K."""
        return False

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Return A's tile of (rows, deep) from `row` and the K index `k` on; rows past `last` may have any elements."""
        raise NotImplementedError

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Return B's tile of (deep, columns) from the K index `k` and `column` on."""
        raise NotImplementedError

    def vectors(self) -> Value:
        """Return the operand over the rows and columns of C, at the current index of everything that is summed."""
        raise NotImplementedError

    def formula(self, dim: Expr, further: int) -> Formula:
        """Return the formula of an element at the current indices, `further` on along `dim`."""
        raise NotImplementedError
