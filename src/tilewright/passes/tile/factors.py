"""A factor of a product as its blocks read it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, as_expr
from tilewright.ir.core import Value
from tilewright.passes.tile.atom_products import AtomProduct


@dataclass
class Factor:
    """A factor as blocks read it."""

    product: AtomProduct
    ragged: bool = field(default=False, init=False)
    """Whether the block's columns may end before its registers do."""

    @property
    def skips(self) -> bool:
        """Whether some of it may be out of bounds, and is left out."""
        return False

    def begin(self) -> None:
        """Another block begins: no loop has limits yet."""

    def limits(self, dim: Expr) -> tuple[Expr, Expr, bool]:
        """(first, end, whether it is written out) of a loop over a dimension that is summed beside K."""
        return as_expr(0), as_expr(self.product.width(dim)), False

    def slides(self, dim: Expr) -> bool:
        """Whether it depends on the row which elements are in bounds at a place along such a dimension."""
        return False

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """A's (rows, deep) from a row and a place along K on; rows past the `last` may be any."""
        raise NotImplementedError

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """B's (deep, columns) from a place along K and a column on."""
        raise NotImplementedError
