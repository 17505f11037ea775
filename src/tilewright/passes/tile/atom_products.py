"""A product by an atom as its factors see it: the parts of its dimensions, where its loops are, what it sums in."""

from __future__ import annotations

from tilewright.algebra.expr import ONE, Expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Value
from tilewright.passes.places import Size
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.values import Load, Parts, most
from tilewright.plan.microkernel import Axes, Microkernel


class AtomProduct:
    """One product: C += A * B, where C is a tensor over these dimensions and parts."""

    def __init__(
        self, low: Lowering, how: Microkernel, axes: Axes, parts: Parts, total: Value, c: tuple[Expr, ...], zero: bool
    ):
        self.low, self.w, self.how, self.axes, self.parts, self.total, self.c = (
            low,
            low.writer,
            how,
            axes,
            parts,
            total,
            c,
        )
        self.zero = zero
        """Whether C starts from zero, and has nothing in it yet."""
        self.at: dict[Expr, Expr] = {}
        """Where the loops around are, from the start of each dimension's part."""

    @property
    def taps(self) -> dict[Expr, int]:
        """The dimensions beside K of which a step has several places, and how many."""
        return {d: n for d, n in zip(self.axes.deep, self.how.taps, strict=False) if n > 1}

    def width(self, dim: Expr) -> Size:
        """How wide a dimension is here."""
        return self.parts[dim][1]

    def ends_in_zeros(self, there: Load) -> bool:
        """Whether what lies past the end of K lies outside an argument, where steps of K go past it: zeros are read.

        What lies past the end of a part of K that ends before is there, and belongs to the next part.
        """
        k, width = self.axes.k, most(self.width(self.axes.k))
        step = self.how.k_step_elements(width)
        if width % step == 0 and k not in self.low.scope.past:
            return True
        size = self.low.scope.size(k)
        if width % step and (self.parts[k][0] + width >= size) is not ONE:
            return False
        past = Substitution({self.low.scope.coordinate(k): symbol("past", 0) + size})
        return any((past(e) >= n) is ONE for e, n in zip(there.at, there.tensor.type.shape, strict=True))

    def multiply(self, sums: Value, a: Value, b: Value, e: Expr) -> None:
        """The product of a slab of A by one of B, the e-th; where these hold several blocks, each by itself."""
        w, how = self.w, self.how
        if how.blocks == 1:
            w.emit("mma", (sums, a, b), atom=how.atom.name)
            return
        n, slab = how.atom.shape[1], how.slab or 1
        each = most(self.width(self.axes.k)) // how.blocks
        deep = min(each, slab)
        with w.loop("j", min(slab, each * how.blocks) // deep, unroll=True) as j:
            block = (slab * e + deep * j) // each
            i, c, f = w.axes((how.rows, deep, n))
            left = w.view(a, (i, c), [(i, False), (deep * j + c, False)])
            right = w.view(b, (c, f), [(deep * j + c, False), (n * block + f, False)])
            total = w.columns(sums, (i, f), i, n * block + f)
            w.emit("mma", (total, left, right), atom=how.atom.name)
