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
        """True if elements may be out of bounds, and MMAs on them are skipped; False by default, subclasses
        override it.
        """
        return False

    @property
    def unrolls(self) -> bool:
        """True if the index of a K step must be a number, so that the K loop is unrolled; False by default.

        Subclasses override it.
        """
        return False

    def begin(self) -> None:
        """Reset this operand's state before the K loops of another accumulator tile; by default there is no state.

        Subclasses with state override it.
        """

    def copy_for(self, dim: Expr) -> None:
        """Emit the copies that this operand needs at the start of each iteration of the K loop over `dim`; by default
        none.

        Subclasses that copy override it.
        """

    def loops(self) -> Sequence[ReductionLoop]:
        """Return the K loops that this operand needs, outermost first; by default (), as any order will do.

        Subclasses override it.
        """
        return ()

    def limits(self, dim: Expr) -> tuple[Expr, Expr, bool]:
        """Return (first, end, unrolled) of the loop over `dim`, a reduction dimension beside K such as a filter tap.

        Here the loop covers all indices, and `unrolled` is False. Subclasses override it to leave out indices for which
        elements are out of bounds.
        """
        return as_expr(0), as_expr(self.product.width(dim)), False

    def slides(self, dim: Expr) -> bool:
        """True if the row of C decides whether elements are in bounds at an index of `dim`, such as a filter tap.

        False by default; subclasses override it.
        """
        return False

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Return the tile of A, of shape (rows, deep), from row `row` and K index `k` on: a view, or registers.

        `last` is the index of A's last row if the tile may go past it, else None. Rows past it may have any elements,
        as their results are not stored. Subclasses for A implement it, and may emit copies; here it raises a
        NotImplementedError.
        """
        raise NotImplementedError

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Return the tile of B, of shape (deep, columns), from K index `k` and column `column` on: a view of memory.

        Subclasses for B implement it, and may emit copies; here it raises a NotImplementedError.
        """
        raise NotImplementedError

    def vectors(self) -> Value:
        """Return this operand over M and N of C, at the current indices of the K loops: a view of memory, or registers.

        Subclasses for MMAs by vectors implement it; here it raises a NotImplementedError.
        """
        raise NotImplementedError

    def formula(self, dim: Expr, further: int) -> Formula:
        """Return the formula of one element of this operand: at the current loop indices, with `further` added along
        `dim`.

        Subclasses for MMAs without an atom implement it; here it raises a NotImplementedError.
        """
        raise NotImplementedError
