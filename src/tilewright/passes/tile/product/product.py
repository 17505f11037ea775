"""An MMA by an atom as its operands see it: the parts of its dimensions, the indices of its loops, its accumulator."""

from __future__ import annotations

from tilewright.algebra.expr import ONE, Expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Value
from tilewright.passes.places import Size
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.values import Load, Parts, most
from tilewright.plan.microkernel import Axes, Microkernel


class AtomProduct:
    """One MMA, C += A * B, where the accumulator `total` is a tensor over the dimensions `c` and their parts."""

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
        """True if C starts from zero, and has not been written yet."""
        self.at: dict[Expr, Expr] = {}
        """By dimension: the current index of the loop over it, relative to the start of its part."""

    @property
    def taps(self) -> dict[Expr, int]:
        """{dimension beside K: number of its positions in a K step}, for those with several."""
        return {d: n for d, n in zip(self.axes.deep, self.how.taps, strict=False) if n > 1}

    def width(self, dim: Expr) -> Size:
        """Return the number of elements of a dimension that this MMA covers."""
        return self.parts[dim][1]

    def ends_in_zeros(self, source: Load) -> bool:
        """True if no K step goes past the end of K, or if what lies there is out of bounds of the argument, and read as
        zero.

        Past the end of a part of K that is not the last lie elements of the next part: then it is False.
        """
        k, width = self.axes.k, most(self.width(self.axes.k))
        step = self.how.k_step_elements(width)
        if width % step == 0 and k not in self.low.scope.past:
            return True
        size = self.low.scope.size(k)
        if width % step and (self.parts[k][0] + width >= size) is not ONE:
            return False
        past = Substitution({self.low.scope.coordinate(k): symbol("past", 0) + size})
        return any((past(e) >= n) is ONE for e, n in zip(source.at, source.tensor.type.shape, strict=True))

    def multiply(self, sums: Value, a: Value, b: Value, e: Expr) -> None:
        """Emit the MMA of slab number `e` of A and B; if they hold several diagonal blocks, one MMA for each block."""
        w, kernel = self.w, self.how
        if kernel.blocks == 1:
            w.emit("mma", (sums, a, b), atom=kernel.atom.name)
            return
        n, slab = kernel.atom.shape[1], kernel.slab or 1
        each = most(self.width(self.axes.k)) // kernel.blocks
        deep = min(each, slab)
        with w.loop("j", min(slab, each * kernel.blocks) // deep, unroll=True) as j:
            block = (slab * e + deep * j) // each
            i, c, f = w.axes((kernel.rows, deep, n))
            left = w.view(a, (i, c), [(i, False), (deep * j + c, False)])
            right = w.view(b, (c, f), [(deep * j + c, False), (n * block + f, False)])
            total = w.columns(sums, (i, f), i, n * block + f)
            w.emit("mma", (total, left, right), atom=kernel.atom.name)
