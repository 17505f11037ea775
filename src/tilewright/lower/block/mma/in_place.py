"""Operands that are read in place, with elements out of bounds skipped or read as zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import minimum
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Value
from tilewright.lower.block.in_place import limits
from tilewright.lower.block.lazy_tiles import Load
from tilewright.lower.block.mma.product import MatrixProduct
from tilewright.lower.block.mma.source import OperandSource
from tilewright.plan.tile_register_tasks import ReductionLoop


@dataclass
class InPlace(OperandSource):
    """An operand that is read in place, from the memory of its load."""

    product: MatrixProduct
    operand_load: Load

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Set `self.marks` for a new accumulator tile: for each coordinate of the operand, True if it may be out of
        bounds.

        The values are those that were recorded when the operand's read was lowered; all False if none were. The method
        `limits` changes them inside K loops.
        """
        self.marks = self.product.low.storage.marks_of_load.get(self.operand_load, (False,) * len(self.operand_load.at))

    @property
    def skips(self) -> bool:
        """True if elements may be out of bounds, so that MMAs on them are skipped."""
        return self.ragged or any(self.marks)

    def limits(self, dim: Expr) -> tuple[Expr, Expr, bool]:
        """Return (first, end, unrolled): the loop over the filter tap `dim`, limited to the indices first..end-1 that
        are in bounds.

        `unrolled` is True if the row still decides which of these are in bounds. `self.marks` is also updated:
        coordinates that set a limit are no longer marked. Return (0, extent, False) if nothing may be out of bounds, if
        the operand is no argument, or if the part of `dim` does not start at 0.
        """
        p, full_range = self.product, super().limits(dim)
        if not self.skips:
            return full_range
        tap = p.low.scope.coordinate(dim)
        known = {d: p.parts[d][0] + e for d, e in p.at.items()}
        inner = {p.low.scope.coordinate(d) for d in (p.axes.m, p.axes.n, p.axes.k, *p.axes.deep) if d not in known}
        source = p.low.arguments.source(self.operand_load.tensor)
        if source is None or p.parts[dim][0] is not as_expr(0):
            return full_range
        images = Substitution({p.low.scope.coordinate(d): e for d, e in known.items()})
        shape = p.low.arguments.shapes[source]
        first, end, self.marks = limits(
            self.operand_load.at, shape, self.marks, tap, p.width(dim), images, inner - {tap}
        )
        return first, end, self.slides(dim)

    def slides(self, dim: Expr) -> bool:
        """True if the row of C decides whether elements are in bounds at an index of the filter tap `dim`."""
        p = self.product
        both = {p.low.scope.coordinate(dim), p.low.scope.coordinate(p.axes.m)}
        return any(m and both <= e.symbols for m, e in zip(self.marks, self.operand_load.at, strict=True))

    def _view(self, over: tuple[Symbol, ...], at: dict[Expr, Expr]) -> Value:
        """Emit a view of this operand's memory over the iterators `over`, and return the view.

        `at` is {dimension: index}, relative to the current part; a dimension that `at` lacks has the current index of
        the loop over it.
        """
        p = self.product
        known = {**p.at, **at}
        images = Substitution({p.low.scope.coordinate(d): p.parts[d][0] + e for d, e in known.items()})
        places = [images(e) for e in self.operand_load.at]
        marks = [*self.marks[:-1], self.marks[-1] or self.ragged]
        return p.w.view(self.operand_load.tensor, over, list(zip(places, marks, strict=True)))

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Emit a view of the tile of A, of shape (rows, deep), from row `row` and K index `k` on; return the view.

        Rows past index `last` read row `last` again; None: the tile does not go past the last row.
        """
        i, e = self.product.w.axes((rows, deep))
        place = row + i if last is None else minimum(row + i, last)
        return self._view((i, e), {self.product.axes.m: place, self.product.axes.k: k + e})

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Emit a view of the tile of B, of shape (deep, columns), from K index `k` and column `column` on; return the
        view.
        """
        e, j = self.product.w.axes((deep, columns))
        return self._view((e, j), {self.product.axes.k: k + e, self.product.axes.n: column + j})


@dataclass
class Stepped(InPlace):
    """Operand A of a block that goes past its end: each K step is copied to `room` first, with zeros past the end."""

    room: Value

    def loops(self) -> Sequence[ReductionLoop]:
        """Return the plan's K loops, one for each summed dimension, none of them unrolled.

        Of several loops over one dimension (blocks, then steps), only the last counts.
        """
        return [replace(s, unrolled=False) for s in {s.dim: s for s in self.product.depth}.values()]

    def limits(self, dim: Expr) -> tuple[Expr, Expr, bool]:
        """Return (first, end, unrolled) of the loop over the filter tap `dim`: all indices, and False.

        Elements out of bounds are zero in the copies, so that no index is left out.
        """
        return OperandSource.limits(self, dim)

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Emit the copy of a tile of A to the tensor `self.room`, and return this tensor.

        The tile has the shape (rows, deep), from row `row` and K index `k` on. Elements out of bounds are zero in the
        copy. Rows past index `last` are copies of row `last`; None: the tile does not go past the last row.
        """
        self.product.w.emit("copy", (super().rows(rows, deep, row, k, last), self.room), otherwise=0)
        return self.room
