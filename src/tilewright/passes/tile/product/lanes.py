"""Products by vectors along a dimension that both factors and the sum keep: the channels of a depthwise convolution.

    %sums = alloc register f32 (14, 16) by (16,(14,1)):(14,(1,224))      14 rows, a vector of neighbours for each
    for k_1 in max(-m_1 + 1, 0)..min(-m_1 + 15, 3) {                     where the tensor is
      for k_0 in 0..3 unroll {                                           rows share what they load
        map %sums = fma(%x_view, %packed_view, %sums)

A block of sums stays in registers over all that is summed. Taps that slide along the rows are written out; what falls
outside is read as zero.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from tilewright.algebra import Layout
from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tile_formulas import converted
from tilewright.passes.tile.inplace import limits
from tilewright.passes.tile.lowering import Lowering
from tilewright.passes.tile.orders import LaneOrder
from tilewright.passes.tile.packing import packed_before
from tilewright.passes.tile.values import Load, Parts, Tile, most, only_load
from tilewright.plan.microkernel import LaneKernel


@dataclass
class LaneProduct:
    """An MMA by vectors along a dimension that A, B and C share (depthwise convolution), over these parts."""

    low: Lowering
    how: LaneKernel
    parts: Parts
    wide: DType

    def write(self, a: Tile, b: Tile, c: tuple[Expr, ...], start: Formula) -> Value:
        """Emit the product and return the accumulator's registers; `start` is its initial value."""
        low, kernel = self.low, self.how
        source = only_load(a.formula)
        if source is None:
            raise ProgramError("products by lanes read their factors where they lie")
        sums = self._registers(self.wide, "sums")
        low.storage.sums[sums] = kernel.rows, kernel.along
        if start == formulas.number(0, self.wide):
            low.writer.emit("fill", (sums,), value=0)
        else:
            low.storage.put(sums, c, self.parts, start)
        summed = [s.dim for s in low.cuts.depth]
        packed = self._packed(b, c, summed)
        marks = low.storage.loose.get(source, (False,) * len(source.at))
        at = {d: self.parts[d][0] for d in (*a.dims, *b.dims) if d not in (*summed, kernel.rows, kernel.along)}
        with ExitStack() as loops:
            for n, d in enumerate(summed):
                written = low.cuts.depth[n].unrolled
                first, end = as_expr(0), as_expr(self.parts[d][1])
                if not written:
                    first, end, marks = self._limits(source, marks, d, at, summed[n + 1 :])
                at[d] = loops.enter_context(low.writer.loop(f"k_{d}", end, first, unroll=written))
            self._tap(source, marks, a.dtype, packed, at, sums)
        return sums

    def _registers(self, dtype: DType, name: str) -> Value:
        """Return registers for a block: vectors along the lanes, one after another."""
        rows, width = (most(self.parts[d][1]) for d in (self.how.rows, self.how.along))
        lanes = self.how.lanes
        layout = Layout((lanes, (rows, width // lanes)), (rows, (1, rows * lanes)))
        return self.low.writer.vectors(dtype, (rows, width), layout, name)

    def _limits(
        self, there: Load, marks: tuple[bool, ...], tap: Expr, at: dict[Expr, Expr], inner: list[Expr]
    ) -> tuple[Expr, Expr, tuple[bool, ...]]:
        """Return (first, end, remaining marks) of a loop over a filter tap: the indices at which A is in bounds."""
        low = self.low
        known = Substitution({low.scope.coordinate(d): e for d, e in at.items()})
        unknown = {low.scope.coordinate(d) for d in (*inner, self.how.rows, self.how.along)}
        shape = there.tensor.type.shape
        return limits(there.at, shape, marks, low.scope.coordinate(tap), self.parts[tap][1], known, unknown)

    def _packed(self, b: Tile, c: tuple[Expr, ...], summed: list[Expr]) -> tuple[Value, list[Expr]]:
        """Return (B packed before the program, its dimensions without the vectorised one): those of C, then the summed
        ones.
        """
        low, along = self.low, self.how.along
        dims = [*(d for d in b.dims if d in c and d is not along), *summed]
        order = LaneOrder(
            self.wide, tuple(map(low.scope.number, dims)), low.scope.number(along), low.cuts.blocks[along]
        )
        packed = packed_before(low, b, (*dims, along), order)
        if packed is None:
            raise ProgramError("products by lanes pack a factor before the program; this one is no argument alone")
        return packed, dims

    def _tap(
        self,
        there: Load,
        marks: tuple[bool, ...],
        dtype: DType,
        packed: tuple[Value, list[Expr]],
        at: dict[Expr, Expr],
        sums: Value,
    ) -> None:
        """Emit the multiply-adds of one filter tap."""
        low, kernel, w = self.low, self.how, self.low.writer
        (first, rows), (begin, width) = self.parts[kernel.rows], self.parts[kernel.along]
        i, j = w.axes((rows, width))
        images = Substitution(
            {low.scope.coordinate(d): e for d, e in {**at, kernel.rows: first + i, kernel.along: begin + j}.items()}
        )
        taps = w.view(there.tensor, (i, j), list(zip(map(images, there.at), marks, strict=True)))
        if any(marks):
            held = self._registers(dtype, "held")
            w.emit("copy", (taps, held), otherwise=0)
            taps = held
        tensor, dims = packed
        places = [begin // low.cuts.blocks[kernel.along], *(at[d] for d in dims), j]
        filters = w.view(tensor, (i, j), [(e, False) for e in places])
        factors = converted(Formula.operand(1), dtype, self.wide), Formula.operand(2)
        w.emit("map", (sums, taps, filters, sums), formula=Formula("fma", (*factors, Formula.operand(3))))
