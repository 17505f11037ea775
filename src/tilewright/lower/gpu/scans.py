"""Scans over a dimension that is distributed over lanes.

The elements of a row follow each other as elements of a vector, vectors of adjacent lanes, waves, and then the next
vector of each lane. The elements before one are those of earlier vectors, lanes and waves in the same round (vector of
a lane), and all earlier rounds. Lanes combine totals with partners whose number differs in one bit: in each pair, the
later lane takes the total of the earlier one.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol
from tilewright.analysis.thread_layout import Dim, Dims, held, matching_values
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.lower.gpu import copies, general
from tilewright.lower.gpu.distributed import (
    COMBINING,
    DistributedTensor,
    cast,
    load_window,
    masked,
    store_window,
    to_type,
    window,
)
from tilewright.lower.gpu.register_tensors import table_expression
from tilewright.lower.gpu.wave_lowering import WaveLowering

Array = np.ndarray[Any, np.dtype[Any]]


class Scan:
    """A scan of a tensor that is distributed over lanes. A fragment of totals has one value for each row and each
    vector that a lane has along the scanned dimension.
    """

    def __init__(self, low: WaveLowering, op: Op):
        self.low, self.op = low, op
        self.axes = low.frames.axes[op]
        self.dims: Dims = tuple(d for d in self.axes if d is not None)
        self.scanned: Dim | None = self.axes[op.attrs["along"]]
        function = op.attrs["with"]
        source = op.operands[0].type.dtype
        self.kind: DType = source.accumulator if function in ("sum", "prod") else source
        self.neutral = general.neutral(function, self.kind)
        self.combination = Formula(COMBINING[function], (Formula.operand(1), Formula.operand(2)))

    def run(self) -> None:
        """Emit the whole scan: load the source or take it from registers, scan it, convert it to the target's type, and
        store the result, or keep it in registers if the target is there.
        """
        low, op = self.low, self.op
        values = cast(low, load_window(low, op, op.operands[0], self.axes, window(self.dims)), self.kind)
        result = low.fragment(self.kind, held(self.dims))
        if self.scanned is None:
            self._single(values, result)
        else:
            self._along(masked(low, values, window(self.dims), self.scanned, self.neutral), result, self.scanned)
        target = op.operands[1]
        into = low.handles[low.frames.root(target)]
        stored_values = (
            into.fragment if isinstance(into, DistributedTensor) else low.fragment(target.type.dtype, held(self.dims))
        )
        low.emit("compute", (stored_values, result), formula=to_type(target.type.dtype))
        if not isinstance(into, DistributedTensor):
            reads_target = low.frames.root(op.operands[0]) is low.frames.root(target)
            store_window(low, stored_values, low.handles[target], self.axes, window(self.dims), reads_target)

    def _single(self, values: Value, result: Value) -> None:
        """Emit the scan of a dimension of extent 1: the fragment `result` gets `values`, or the neutral element if the
        scan is exclusive.
        """
        if self.op.attrs.get("exclusive"):
            self.low.emit("fill", (result,), value=self.neutral)
        else:
            self.low.emit("compute", (result, values), formula=Formula.operand(1))

    def _along(self, values: Value, result: Value, scanned: Dim) -> None:
        """Emit the scan of the fragment `values` along the dimension `scanned`, which is divided among lanes: within
        each lane's vectors, then over lanes, waves, and vectors of a lane. The results are written to the fragment
        `result`.
        """
        numbers = np.arange(held(self.dims))
        round_of, element_of = self._digits(scanned)
        groups = [numbers[element_of == j] for j in range(scanned.width)]
        count = len(groups[0])
        sums: list[Value] = []
        for columns_of_element in groups:
            partial = self._picked(values, columns_of_element)
            sums.append(partial if not sums else self._combined(sums[-1], partial))
        before, total = self._filled(count), self._copied(sums[-1])
        self._over_lanes(before, total, scanned)
        self._over_waves(before, total, scanned)
        vector_numbers = round_of[groups[0]]
        before = self._combined(before, self._earlier(total, vector_numbers, scanned.vectors))
        exclusive = bool(self.op.attrs.get("exclusive"))
        parts: list[Value | None] = [None, *sums[:-1]] if exclusive else [*sums]
        totals = [before if partial is None else self._combined(before, partial) for partial in parts]
        for j, partial in enumerate(totals):
            self._set_vector_element(result, partial, j, scanned.width)

    def _digits(self, scanned: Dim) -> tuple[Array, Array]:
        """Return two int arrays with an entry for each value of a lane: the number of the vector, along the dimension
        `scanned`, that has the value, and the index of the value in this vector.
        """
        number = matching_values(self.dims, (scanned,))
        return number // scanned.width, number % scanned.width

    # -- fragments --------------------------------------------------------------------------------------------------

    def _picked(self, source: Value, columns: Array) -> Value:
        """Emit a shuffle within lanes to a new fragment with the values of `source` at the indices `columns`; return
        it.
        """
        picked = self.low.fragment(self.kind, len(columns))
        copies.shuffle(self.low, picked, source, columns)
        return picked

    def _copied(self, source: Value) -> Value:
        """Emit a copy of the fragment `source` to a new fragment; return it."""
        copy = self.low.fragment(self.kind, int(source.type.shape[1]))
        self.low.emit("compute", (copy, source), formula=Formula.operand(1))
        return copy

    def _filled(self, count: int) -> Value:
        """Emit a new fragment of `count` values per lane, filled with the neutral element; return it."""
        filled = self.low.fragment(self.kind, count)
        self.low.emit("fill", (filled,), value=self.neutral)
        return filled

    def _combined(self, a: Value, b: Value) -> Value:
        """Emit the combination, value by value, of the fragments `a` and `b` to a new fragment; return it."""
        combined = self.low.fragment(self.kind, int(a.type.shape[1]))
        self.low.emit("compute", (combined, a, b), formula=self.combination)
        return combined

    def _combine_where(self, condition: Expr, lane: Symbol, v: Symbol, target: Value, other: Value) -> None:
        """Emit target = combination of the fragments `target` and `other`, only for the lanes and values for which
        `condition` holds. `condition` is an expression of the symbols `lane` and `v` (index of a lane's value).
        """
        holds = Formula("ne", (Formula("index", (), condition), Formula.number(0)))
        formula = Formula("select", (holds, self.combination, Formula.operand(1)))
        self.low.emit("compute", (target, target, other), over=(lane, v), formula=formula)

    def _set_vector_element(self, target: Value, part: Value, element: int, width: int) -> None:
        """Emit the copy of the fragment `part`, which has one value per vector, to element number `element` of each
        vector of the fragment `target`. A vector has `width` elements. For `element` 0, all elements of the vector are
        overwritten.
        """
        count = int(target.type.shape[1])
        spread = self._picked(part, np.arange(count) // width)
        if element == 0:
            self.low.emit("compute", (target, spread), formula=Formula.operand(1))
            return
        lane, v = self.low.axes(count)
        mark = Formula("eq", (Formula("index", (), v % width), Formula.number(element)))
        formula = Formula("select", (mark, Formula.operand(2), Formula.operand(1)))
        self.low.emit("compute", (target, target, spread), over=(lane, v), formula=formula)

    # -- over lanes, waves, rounds ------------------------------------------------------------------------------------

    def _over_lanes(self, before: Value, total: Value, scanned: Dim) -> None:
        """Emit the scan over the lanes of a wave that share a row, by shuffles. The fragment `total` becomes the total
        of all these lanes. The totals of earlier lanes are combined into the fragment `before`. `scanned` is the
        dimension that is divided among lanes.
        """
        low, count, bit = self.low, int(total.type.shape[1]), scanned.stride
        while bit < min(low.lanes, scanned.stride * scanned.threads):
            other = low.fragment(self.kind, count)
            copies.shuffle(low, other, total, np.arange(count), bit)
            lane, v = low.axes(count)
            self._combine_where(lane // bit % 2 >= 1, lane, v, before, other)
            low.emit("compute", (total, total, other), formula=self.combination)
            bit *= 2

    def _over_waves(self, before: Value, total: Value, scanned: Dim) -> None:
        """Emit the scan over the waves that share a row, through shared memory. The fragment `total` becomes the total
        of all these waves. The totals of earlier waves are combined into the fragment `before`. `scanned` is the
        dimension that is divided among waves. Nothing is emitted if each row is in one wave.
        """
        low, op = self.low, self.op
        waves = low.frames.waves_per_row(op)
        if waves <= 1:
            return
        stride, lanes = max(1, scanned.stride // low.lanes), min(low.lanes, scanned.stride)
        count, wave = int(total.type.shape[1]), low.group.wave
        scratch = general.scratch(low, (op, "waves"), self.kind, (low.group.waves, lanes, count))
        lane, v = low.axes(count)
        # any lane of the row in a wave has its total; the first stores it
        at = scratch.at((wave, lane % lanes, v)).offset
        low.emit("store", (total, scratch.buffer), over=(lane, v), at=(at,), when=lane < lanes)
        low.note_stored(scratch)
        low.sync_waves()
        own_number = wave // stride % waves
        low.emit("fill", (total,), value=self.neutral)
        for n in range(waves):
            other = low.fragment(self.kind, count)
            lane, v = low.axes(count)
            at = scratch.at((wave - own_number * stride + n * stride, lane % lanes, v)).offset
            low.emit("load", (other, scratch.buffer), over=(lane, v), at=(at,))
            lane, v = low.axes(count)
            self._combine_where(own_number >= n + 1, lane, v, before, other)
            low.emit("compute", (total, total, other), formula=self.combination)
        low.sync_waves()

    def _earlier(self, total: Value, round_of: Array, vectors: int) -> Value:
        """Emit, for each value of the fragment `total`, the combination of the values of the same row in earlier
        vectors of the lane. Return the fragment of these combinations; values of vector 0 get the neutral element.

        A lane has `vectors` vectors of each row. round_of[i] is the number of the vector, from 0 to `vectors` - 1, that
        has value i.
        """
        count = len(round_of)
        earlier = self._filled(count)
        for r in range(vectors - 1):
            # the value of the same row in round r, for every value of a later round
            rows = np.argsort(round_of, kind="stable").reshape(vectors, -1)
            source = np.empty(count, np.int64)
            for k in range(vectors):
                source[rows[k]] = rows[r]
            other = self.low.fragment(self.kind, count)
            copies.shuffle(self.low, other, total, source)
            lane, v = self.low.axes(count)
            later = table_expression(np.asarray([round_of]), 1, lane, lane, v) >= r + 1
            self._combine_where(later, lane, v, earlier, other)
        return earlier


def scan(low: WaveLowering, op: Op) -> None:
    """Lower `scan` of a tensor that is distributed over lanes: emit the scan along the distributed dimension by all
    lanes.
    """
    Scan(low, op).run()
