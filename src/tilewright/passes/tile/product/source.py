"""An operand of an MMA as its blocks of the accumulator read it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, as_expr
from tilewright.ir.core import Value
from tilewright.passes.tile.product.product import AtomProduct


@dataclass
class Factor:
    """An operand (A or B) of an MMA by atoms, as blocks of the accumulator read it."""

    product: AtomProduct
    ragged: bool = field(default=False, init=False)
    """True if the block's columns may end before its registers do."""

    @property
    def skips(self) -> bool:
        """True if elements may be out of bounds, and their products are left out."""
        return False

    def begin(self) -> None:
        """Begin another block: no loop has limits yet."""

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
