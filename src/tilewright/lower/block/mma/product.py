"""An MMA as its lowering sees it: its dimensions, their current parts, and the indices of its loops."""

from __future__ import annotations

from math import prod

from tilewright.algebra.expr import ONE, Expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import Size
from tilewright.ir.core import Value
from tilewright.lower.block.lazy_tiles import Load, Parts, most
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.packed_orders import BlockOrder
from tilewright.plan.microkernel import Axes, Microkernel
from tilewright.plan.tile_register_tasks import ReductionLoop


class TileProduct:
    """One MMA, C += A * B, over the `parts` of its dimensions; `c` are the dimensions of C."""

    def __init__(self, low: Lowering, parts: Parts, c: tuple[Expr, ...]):
        self.low, self.w, self.parts, self.c = low, low.writer, parts, c
        self.at: dict[Expr, Expr] = {}
        """{dimension: the current index in the loops over it, relative to the start of its part}."""
        self.steps: dict[Expr, int] = {}
        """{summed dimension: number of its elements in the current iteration of the loops over it}."""

    def width(self, dim: Expr) -> Size:
        """Return the extent of the current part of the dimension `dim` of this MMA."""
        return self.parts[dim][1]


class MatrixProduct(TileProduct):
    """An MMA with one dimension each for M, N and K, named by `axes`; it may also have batch dimensions and filter
    taps.
    """

    def __init__(self, low: Lowering, axes: Axes, parts: Parts, c: tuple[Expr, ...]):
        super().__init__(low, parts, c)
        self.axes = axes

    @property
    def depth(self) -> tuple[ReductionLoop, ...]:
        """The loops over reduction dimensions (K and filter taps) that the plan states for this MMA, outermost first;
        () if it states none.
        """
        return tuple(s for s in self.low.bound.depth if s.dim in (self.axes.k, *self.axes.deep))


class AtomProduct(MatrixProduct):
    """An MMA by an atom; `microkernel` has the atom and the size of an accumulator tile."""

    def __init__(self, low: Lowering, microkernel: Microkernel, axes: Axes, parts: Parts, c: tuple[Expr, ...]):
        super().__init__(low, axes, parts, c)
        self.microkernel = microkernel
        self.masks: tuple[tuple[Expr, tuple[Expr, ...]], ...] = ()
        """Masks, as conditions on coordinates: where one is false, the MMA adds nothing (`masked`)."""
        self.packed: tuple[Value, BlockOrder] | None = None
        """Operand B, packed before this MMA for several accumulator tiles, and its order; None: it is not."""

    @property
    def taps(self) -> dict[Expr, int]:
        """{filter tap: number of its indices in one K step}, without taps of which a K step has one index; a tap is a
        reduction dimension beside K.
        """
        return {d: n for d, n in zip(self.axes.deep, self.microkernel.taps, strict=False) if n > 1}

    @property
    def deep(self) -> int:
        """The number of products that the current K step adds to an element of C: 16 elements of K at 3 taps are 48."""
        return prod(self.steps.values())

    def ends_in_zeros(self, source: Load) -> bool:
        """True if it is proved that the last K step reads only zeros of the operand `source` past the end of K.

        Also True if no K step goes past the end. False if the last step goes past the end of a part of K behind which K
        goes on: it then reads elements of the next part.
        """
        k, width = self.axes.k, most(self.width(self.axes.k))
        step = self.microkernel.k_step_elements(width)
        if width % step == 0 and k not in self.low.scope.past:
            return True
        size = self.low.scope.size(k)
        if width % step and (self.parts[k][0] + width >= size) is not ONE:
            return False
        past = Substitution({self.low.scope.coordinate(k): symbol("past", 0) + size})
        return any((past(e) >= n) is ONE for e, n in zip(source.at, source.tensor.type.shape, strict=True))
