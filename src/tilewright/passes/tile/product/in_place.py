"""An operand that is read where it lies in memory, with taps out of bounds left out or read as zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import minimum
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Value
from tilewright.passes.tile.inplace import limits
from tilewright.passes.tile.product.product import MatrixProduct
from tilewright.passes.tile.product.source import OperandSource
from tilewright.passes.tile.values import Load
from tilewright.plan.tiled import Depth


@dataclass
class InPlace(OperandSource):
    """An operand that is read where it lies in memory."""

    product: MatrixProduct
    operand_load: Load

    def __post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin another accumulator tile: coordinates may be out of bounds until loops are limited."""
        self.marks = self.product.low.storage.loose.get(self.operand_load, (False,) * len(self.operand_load.at))

    @property
    def skips(self) -> bool:
        """True if elements may be out of bounds, and their products are left out."""
        return self.ragged or any(self.marks)

    def limits(self, dim: Expr) -> tuple[Expr, Expr, bool]:
        """Return (first, end, True if it is unrolled) of a loop over a filter tap, limited to indices that are in
        bounds.

        A tap along which rows differ in what is in bounds is unrolled.
        """
        p, whole = self.product, super().limits(dim)
        if not self.skips:
            return whole
        tap = p.low.scope.coordinate(dim)
        known = {d: p.parts[d][0] + e for d, e in p.at.items()}
        inner = {p.low.scope.coordinate(d) for d in (p.axes.m, p.axes.n, p.axes.k, *p.axes.deep) if d not in known}
        source = p.low.arguments.source(self.operand_load.tensor)
        if source is None or p.parts[dim][0] is not as_expr(0):
            return whole
        images = Substitution({p.low.scope.coordinate(d): e for d, e in known.items()})
        shape = p.low.arguments.shapes[source]
        first, end, self.marks = limits(
            self.operand_load.at, shape, self.marks, tap, p.width(dim), images, inner - {tap}
        )
        return first, end, self.slides(dim)

    def slides(self, dim: Expr) -> bool:
        """True if the row decides which elements are in bounds at an index of the summed dimension `dim`."""
        p = self.product
        both = {p.low.scope.coordinate(dim), p.low.scope.coordinate(p.axes.m)}
        return any(m and both <= e.symbols for m, e in zip(self.marks, self.operand_load.at, strict=True))

    def _view(self, over: tuple[Symbol, ...], at: dict[Expr, Expr]) -> Value:
        """Return a view of the operand over the axes, at the given indices and the current ones of other loops."""
        p = self.product
        known = {**p.at, **at}
        images = Substitution({p.low.scope.coordinate(d): p.parts[d][0] + e for d, e in known.items()})
        places = [images(e) for e in self.operand_load.at]
        marks = [*self.marks[:-1], self.marks[-1] or self.ragged]
        return p.w.view(self.operand_load.tensor, over, list(zip(places, marks, strict=True)))

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Return a view of A's block."""
        i, e = self.product.w.axes((rows, deep))
        place = row + i if last is None else minimum(row + i, last)
        return self._view((i, e), {self.product.axes.m: place, self.product.axes.k: k + e})

    def columns(self, deep: int, columns: int, k: Expr, column: Expr) -> Value:
        """Return a view of B's block."""
        e, j = self.product.w.axes((deep, columns))
        return self._view((e, j), {self.product.axes.k: k + e, self.product.axes.n: column + j})


@dataclass
class Stepped(InPlace):
    """Operand A in place, for a block that goes past its end: each step is copied first, with zeros past the end."""

    room: Value

    def loops(self) -> Sequence[Depth]:
        """Return one loop for each dimension, none unrolled: this is one block of many."""
        return [replace(s, unrolled=False) for s in {s.dim: s for s in self.product.depth}.values()]

    def limits(self, dim: Expr) -> tuple[Expr, Expr, bool]:
        """Return (first, end, False) of the loop over a filter tap: all of it, as what is out of bounds is zero."""
        return OperandSource.limits(self, dim)

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Emit the copy of A's block, and return the copy."""
        self.product.w.emit("copy", (super().rows(rows, deep, row, k, last), self.room), otherwise=0)
        return self.room
