"""The interface of operand sources: where an operand of an MMA comes from, what is copied when, what a K step reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.algebra.expr import Expr, as_expr
from tilewright.ir.core import Value
from tilewright.ir.formula import Formula
from tilewright.lower.block.mma.product import TileProduct
from tilewright.plan.tile_register_tasks import ReductionLoop


@dataclass
class OperandSource:
    """An operand (A or B) of an MMA. An atom asks it for `rows` (A) or `columns` (B), other steps for `vectors` or
    `formula`.
    """

    product: TileProduct
    ragged: bool = field(default=False, init=False)
    """True if the accumulator tile has fewer columns than its registers, at the end of N."""

    @property
    def skips(self) -> bool:
        """True if elements may be out of bounds, and MMAs on them are skipped."""
        return False

    @property
    def unrolls(self) -> bool:
        """True if the index of a K step must be a number, so that the K loop is unrolled."""
        return False

    def begin(self) -> None:
        """Reset the state for another accumulator tile, before its K loops: no loop has limits yet."""

    def bring(self, dim: Expr) -> None:
        """Emit the copies at the start of each iteration of the K loop over `dim`, before the loops inside."""

    def loops(self) -> Sequence[ReductionLoop]:
        """Return the K loops that this operand needs, outermost first; (): any order will do."""
        return ()

    def limits(self, dim: Expr) -> tuple[Expr, Expr, bool]:
        """Return (first, end, True if unrolled) of the loop over `dim`, a summed dimension beside K."""
        return as_expr(0), as_expr(self.product.width(dim)), False

    def slides(self, dim: Expr) -> bool:
        """True if the row decides whether elements are in bounds at an index of `dim`, a summed dimension beside K."""
        return False

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Return the tile of A, of shape (rows, deep), from row `row` and K index `k` on.

        Rows past index `last` (None: none) are not stored, and may have any elements.
        """
        raise NotImplementedError

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Return the tile of B, of shape (deep, columns), from K index `k` and column `column` on."""
        raise NotImplementedError

    def vectors(self) -> Value:
        """Return the operand over M and N of C, at the current indices of all summed dimensions."""
        raise NotImplementedError

    def formula(self, dim: Expr, further: int) -> Formula:
        """Return the formula of an element at the current indices, plus `further` along `dim`."""
        raise NotImplementedError
