"""Scans over a dimension that is dealt out over lanes: within vectors, over lanes, over waves, over rounds.

Elements of a row follow one another as neighbours of a vector, vectors of neighbouring lanes, waves, rounds. The
elements before one are those of earlier vectors, lanes and waves of its round, and all earlier rounds. Lanes combine
these with partners whose number differs in one bit: of a pair, the later lane takes the total of the earlier one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol
from tilewright.check.frames import Dim, Dims, columns, held
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.passes.waves import general, moving
from tilewright.passes.waves.framed import COMBINING, Spread, cast, fetched, masked, stored, to_type, window
from tilewright.passes.waves.held import place
from tilewright.passes.waves.waves import Waves

Array = np.ndarray[Any, np.dtype[Any]]


class Scan:
    """A scan of a distributed tensor; its fragments have one value for each row and round."""

    def __init__(self, low: Waves, op: Op):
        self.low, self.op = low, op
        self.axes = low.frames.axes[op]
        self.dims: Dims = tuple(d for d in self.axes if d is not None)
        self.gone: Dim | None = self.axes[op.attrs["along"]]
        function = op.attrs["with"]
        source = op.operands[0].type.dtype
        self.kind: DType = source.accumulator if function in ("sum", "prod") else source
        self.neutral = general.neutral(function, self.kind)
        self.together = Formula(COMBINING[function], (Formula.operand(1), Formula.operand(2)))

    def run(self) -> None:
        """Emit the whole scan."""
        low, op = self.low, self.op
        values = cast(low, fetched(low, op, op.operands[0], self.axes, window(self.dims)), self.kind)
        result = low.fragment(self.kind, held(self.dims))
        if self.gone is None:
            self._single(values, result)
        else:
            self._along(masked(low, values, window(self.dims), self.gone, self.neutral), result, self.gone)
        target = op.operands[1]
        into = low.handles[low.frames.root(target)]
        stored_values = into.fragment if isinstance(into, Spread) else low.fragment(target.type.dtype, held(self.dims))
        low.emit("compute", (stored_values, result), formula=to_type(target.type.dtype))
        if not isinstance(into, Spread):
            again = low.frames.root(op.operands[0]) is low.frames.root(target)
            stored(low, stored_values, low.handles[target], self.axes, window(self.dims), again)

    def _single(self, values: Value, result: Value) -> None:
        """Emit the scan of a dimension of one element."""
        if self.op.attrs.get("exclusive"):
            self.low.emit("fill", (result,), value=self.neutral)
        else:
            self.low.emit("compute", (result, values), formula=Formula.operand(1))

    def _along(self, values: Value, result: Value, gone: Dim) -> None:
        """Emit the scan of `values` along the distributed dimension `gone` into `result`."""
        numbers = np.arange(held(self.dims))
        turn, neighbour = self._digits(gone)
        groups = [numbers[neighbour == j] for j in range(gone.width)]
        count = len(groups[0])
        sums: list[Value] = []
        for mine in groups:
            part = self._picked(values, mine)
            sums.append(part if not sums else self._combined(sums[-1], part))
        before, total = self._filled(count), self._copied(sums[-1])
        self._over_lanes(before, total, gone)
        self._over_waves(before, total, gone)
        turns = turn[groups[0]]
        before = self._combined(before, self._earlier(total, turns, gone.rounds))
        exclusive = bool(self.op.attrs.get("exclusive"))
        ready: list[Value | None] = [None, *sums[:-1]] if exclusive else [*sums]
        totals = [before if part is None else self._combined(before, part) for part in ready]
        for j, part in enumerate(totals):
            self._place_neighbour(result, part, j, gone.width)

    def _digits(self, gone: Dim) -> tuple[Array, Array]:
        """Return for each value of a lane (its round along the dimension, its index within a vector)."""
        number = columns(self.dims, (gone,))
        return number // gone.width, number % gone.width

    # -- fragments --------------------------------------------------------------------------------------------------

    def _picked(self, source: Value, mine: Array) -> Value:
        """Return a fragment with the values `mine` of another."""
        picked = self.low.fragment(self.kind, len(mine))
        moving.pick(self.low, picked, source, mine)
        return picked

    def _copied(self, source: Value) -> Value:
        """Return a copy of a fragment."""
        copy = self.low.fragment(self.kind, int(source.type.shape[1]))
        self.low.emit("compute", (copy, source), formula=Formula.operand(1))
        return copy

    def _filled(self, count: int) -> Value:
        """Return a fragment of `count` neutral elements."""
        filled = self.low.fragment(self.kind, count)
        self.low.emit("fill", (filled,), value=self.neutral)
        return filled

    def _combined(self, a: Value, b: Value) -> Value:
        """Return a fragment with the combination of two."""
        combined = self.low.fragment(self.kind, int(a.type.shape[1]))
        self.low.emit("compute", (combined, a, b), formula=self.together)
        return combined

    def _combine_where(self, condition: Expr, lane: Symbol, v: Symbol, target: Value, other: Value) -> None:
        """Emit target = combination of target and other, where a condition on lane and wave holds."""
        holds = Formula("ne", (Formula("index", (), condition), Formula.number(0)))
        formula = Formula("select", (holds, self.together, Formula.operand(1)))
        self.low.emit("compute", (target, target, other), over=(lane, v), formula=formula)

    def _place_neighbour(self, target: Value, part: Value, neighbour: int, width: int) -> None:
        """Emit the copy of a part to element `neighbour` of each vector of the target; other elements stay."""
        count = int(target.type.shape[1])
        spread = self._picked(part, np.arange(count) // width)
        if neighbour == 0:
            self.low.emit("compute", (target, spread), formula=Formula.operand(1))
            return
        lane, v = self.low.axes(count)
        mark = Formula("eq", (Formula("index", (), v % width), Formula.number(neighbour)))
        formula = Formula("select", (mark, Formula.operand(2), Formula.operand(1)))
        self.low.emit("compute", (target, target, spread), over=(lane, v), formula=formula)

    # -- over lanes, waves, rounds ------------------------------------------------------------------------------------

    def _over_lanes(self, before: Value, total: Value, gone: Dim) -> None:
        """Emit the scan over lanes that share a row: `before` gets the total of earlier lanes, `total` that of all."""
        low, count, bit = self.low, int(total.type.shape[1]), gone.stride
        while bit < min(low.lanes, gone.stride * gone.threads):
            other = low.fragment(self.kind, count)
            moving.pick(low, other, total, np.arange(count), bit)
            lane, v = low.axes(count)
            self._combine_where(lane // bit % 2 >= 1, lane, v, before, other)
            low.emit("compute", (total, total, other), formula=self.together)
            bit *= 2

    def _over_waves(self, before: Value, total: Value, gone: Dim) -> None:
        """Emit the scan over waves that share a row: `before` gets the total of earlier waves, `total` that of all."""
        low, op = self.low, self.op
        waves = low.frames.waves_between(op)
        if waves <= 1:
            return
        stride, lanes = max(1, gone.stride // low.lanes), min(low.lanes, gone.stride)
        count, wave = int(total.type.shape[1]), low.group.wave
        scratch = general.scratch(low, (op, "waves"), self.kind, (low.group.waves, lanes, count))
        lane, v = low.axes(count)
        # any lane of the row in a wave has its total; the first stores it
        at = scratch.at((wave, lane % lanes, v)).offset
        low.emit("store", (total, scratch.buffer), over=(lane, v), at=(at,), when=lane < lanes)
        low.written(scratch)
        low.meet()
        mine = wave // stride % waves
        low.emit("fill", (total,), value=self.neutral)
        for n in range(waves):
            other = low.fragment(self.kind, count)
            lane, v = low.axes(count)
            at = scratch.at((wave - mine * stride + n * stride, lane % lanes, v)).offset
            low.emit("load", (other, scratch.buffer), over=(lane, v), at=(at,))
            lane, v = low.axes(count)
            self._combine_where(mine >= n + 1, lane, v, before, other)
            low.emit("compute", (total, total, other), formula=self.together)
        low.meet()

    def _earlier(self, total: Value, turns: Array, rounds: int) -> Value:
        """Return a fragment with the combination of all earlier rounds of each row."""
        count = len(turns)
        earlier = self._filled(count)
        for r in range(rounds - 1):
            # the value of the same row in round r, for every value of a later round
            rows = np.argsort(turns, kind="stable").reshape(rounds, -1)
            source = np.empty(count, np.int64)
            for k in range(rounds):
                source[rows[k]] = rows[r]
            other = self.low.fragment(self.kind, count)
            moving.pick(self.low, other, total, source)
            lane, v = self.low.axes(count)
            later = place(np.asarray([turns]), 1, lane, lane, v) >= r + 1
            self._combine_where(later, lane, v, earlier, other)
        return earlier


def scan(low: Waves, op: Op) -> None:
    """Lower `scan` of a tensor that is distributed over lanes."""
    Scan(low, op).run()
