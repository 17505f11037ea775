"""Operands that were copied to the order in which accumulator tiles read them: panels of A, packed B."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Value
from tilewright.lower.block.mma.product import MatrixProduct
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.packed_orders import BlockOrder


@dataclass
class PanelOfA(OperandSource):
    """Operand A, copied to a panel [outer dimensions][rows][K]."""

    product: MatrixProduct
    tensor: Value
    outer: list[Expr]

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Emit a view of the panel with the tile of A, of shape (rows, deep), from row `row` and K index `k` on; return
        the view.

        `last` is not used: the panel has all rows.
        """
        p = self.product
        i, e = p.w.axes((rows, deep))
        return p.w.view(self.tensor, (i, e), [(x, False) for x in (*(p.at[d] for d in self.outer), row + i, k + e)])


@dataclass
class Packed(OperandSource):
    """Operand B, packed in the order in which it is read. `starts` maps each dimension to the index in the packed B at
    which the current part begins.
    """

    product: MatrixProduct
    tensor: Value
    order: BlockOrder
    outer: list[Expr]
    starts: dict[Expr, Expr]

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Emit a view of packed B with the tile of shape (deep, columns), from K index `k` and column `column` on;
        return the view.
        """
        p = self.product
        e, j = p.w.axes((deep, columns))
        k, column = self.starts[p.axes.k] + k, self.starts[p.axes.n] + column
        first = [self.starts[d] + p.at[d] for d in self.outer]
        at = self.order.places(first, k + e, column, j)
        return p.w.view(self.tensor, (e, j), [(x, False) for x in at])
