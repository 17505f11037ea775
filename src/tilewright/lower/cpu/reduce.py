"""Reduce and scan on CPUs: one element after another along a dimension, vectors across the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import all_of
from tilewright.analysis.flat_memory import PlacedMemory, PlacedView, Size, TensorAddress, linear_step
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.lower.cpu.elementwise import from_memory, in_memory, load, run
from tilewright.lower.cpu.elementwise_job import ElementwiseJob
from tilewright.lower.loop_lowering import LoopLowering
from tilewright.lower.partial_sums import accumulate, accumulate_scan

_NAMES = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
_PAIR = (Formula.operand(2), Formula.operand(1))


def combined(low: LoopLowering, op: Op, totals: list[Value], items: list[Value]) -> None:
    """Emit code that combines the registers `items` into the registers `totals`, in place, by the function or the
    formulas of `op`, a reduction or scan. For a sum: totals = totals + items. A function has one total and one item.
    Formulas, one per register, may use all totals and all items.
    """
    function = op.attrs["with"]
    if isinstance(function, str):
        # the new element is operand 1: the NaN handling of a maximum is then not part of the dependency chain
        formula = Formula(_NAMES[function], _PAIR)
        low.emit("compute", (totals[0], totals[0], items[0]), formula=formula)
        return
    count = len(totals)
    results = []
    for place, formula in enumerate(function):
        shape = totals[place].type.shape
        results.append(low.register(totals[place].type.dtype, *(int(n) for n in shape)))
        low.emit("compute", (results[-1], *totals, *items), formula=arguments_as_operands(formula, count))
    for total, result in zip(totals, results, strict=True):
        low.emit("compute", (total, result), formula=Formula.operand(1))


def arguments_as_operands(formula: Formula, count: int) -> Formula:
    """Return the formula of a reduction over tuples with its arguments as operand numbers: a0, a1, ... (the totals)
    become operands 1 to `count`, and b0, b1, ... (the new elements) the operands after these. With `count` 2, b0 ->
    operand 3.
    """
    if formula.name == "argument":
        return Formula.operand(1 + int(formula.value[1:]) + (count if formula.value[0] == "b" else 0))
    return Formula(formula.name, tuple(arguments_as_operands(p, count) for p in formula.parts), formula.value)


def halved(low: LoopLowering, op: Op, totals: list[Value]) -> Value:
    """Emit the combination of all lanes of the vector registers `totals` by the function of the reduction `op`, and
    return a vector register of one lane with the result. totals[0] is overwritten. The number of lanes must be a power
    of two.
    """
    total_so_far = totals[0]
    for total in totals[1:]:
        combined(low, op, [total_so_far], [total])
    lanes = int(total_so_far.type.shape[0])
    while lanes > 1:
        lanes //= 2
        halves = []
        for start in (0, lanes):
            lane = low.axis("l", lanes)
            halves.append(low.register(total_so_far.type.dtype, lanes))
            low.emit("shuffle", (halves[-1], total_so_far), over=(lane,), at=(start + lane,))
        combined(low, op, halves[:1], halves[1:])
        total_so_far = halves[0]
    return total_so_far


class _ReduceLoops:
    """The loops that `reduce` and `scan` share: over all dimensions but the reduced one, with vectors along the last of
    them.
    """

    chains = 4
    """The number of independent totals that are accumulated in one loop."""

    def __init__(self, low: LoopLowering, op: Op):
        self.low, self.op = low, op
        half = len(op.operands) // 2
        self.goals = [low.handles[v] for v in op.operands[half:]]
        self.targets = [in_memory(low, g) for g in self.goals]
        self.sources = [self._source_before_writes(v) for v in op.operands[:half]]
        self.along = op.attrs["along"]
        shape = self.sources[0].shape
        self.length = shape[self.along]
        self.outer = shape[: self.along] + shape[self.along + 1 :]
        wide = op.attrs["with"] in ("sum", "prod")
        self.carried = [s.dtype.accumulator if wide else s.dtype for s in self.sources]
        self.lanes = low.vector_lanes(self.carried[0])
        """The number of elements of a vector register in the type of totals."""

    def _source_before_writes(self, value: Value) -> PlacedMemory | PlacedView:
        """Return the memory of the source `value`. If a target is the same memory, emit a copy to scratch memory and
        return that: targets are written before all elements are read. A scan onto its own source needs no copy, because
        it reads each element before it writes it.
        """
        low, source = self.low, in_memory(self.low, self.low.handles[value])
        for goal, target in zip(self.op.operands[len(self.op.operands) // 2 :], self.targets, strict=True):
            same = low.chain.root(goal) is low.chain.root(value) or target.root.buffer is source.root.buffer
            if same and not (self.op.name == "scan" and goal is value):
                copy = low.scratch(source.dtype, source.extents, "before")
                run(
                    low,
                    ElementwiseJob(
                        copy.shape, copy.dtype, copy.at, Formula.operand(1), {1: source.at}, {1: copy.dtype}
                    ),
                )
                return copy
        return source

    def run(self) -> None:
        """Emit the whole reduction or scan. The result for a target in registers is computed in scratch memory, and
        then copied.
        """
        if 0 not in self.outer:
            self._nest(0, ())
        for memory, goal in zip(self.targets, self.goals, strict=True):
            from_memory(self.low, memory, goal)

    def _nest(self, dim: int, known: tuple[Expr, ...]) -> None:
        """Emit the loops over the dimensions that are not reduced, from number `dim` on, and inside them the reduction
        or scan. `known` are the coordinates along the dimensions before `dim`. Vectors go along the last dimension if
        `_vectorises` is true.
        """
        if dim == len(self.outer):
            self.lines([_Line(known, None, 1)])
            return
        if dim == len(self.outer) - 1 and self._vectorises():
            size = self.outer[dim]
            if isinstance(size, Expr):
                self._open_vectors(known, size)
                return
            for start, count in self.low.vectors(size, self.lanes * self.chains):
                lines = []
                for first in range(0, count, self.lanes):
                    lane = self.low.axis("l", min(self.lanes, count - first))
                    lines.append(_Line((*known, start + first + lane), lane, min(self.lanes, count - first)))
                self.lines(lines)
            return
        with self.low.loop("i", 0, self.outer[dim]) as i:
            self._nest(dim + 1, (*known, i))

    def _open_vectors(self, known: tuple[Expr, ...], size: Expr) -> None:
        """Emit the reduction or scan of vectors of lines (a line is all elements along the reduced dimension). They go
        along the last other dimension, with the extent `size` known only at the call: full vectors in a loop, then a
        masked one. `known` are the coordinates along earlier dimensions.
        """
        lanes, left = self.lanes, size % self.lanes
        with self.low.loop("v", 0, size // lanes) as i:
            lane = self.low.axis("l", lanes)
            self.lines([_Line((*known, lanes * i + lane), lane, lanes)])
        if left is not as_expr(0):
            lane = self.low.axis("l", lanes)
            with self.low.when(left >= 1):
                self.lines([_Line((*known, size - left + lane), lane, lanes, (lane < left,))])

    def _vectorises(self) -> bool:
        """True if vectors can go along the last dimension that is not reduced. Along this dimension, sources must be
        contiguous or constant, and targets contiguous. No access may need a bounds check, and the extent must not be 1.
        """
        probe = tuple(self.low.axis("p", n) for n in self.outer)
        along = self.low.axis("p", self.length)
        for source in self.sources:
            where = source.at(self.source_coordinates(probe, along))
            if linear_step(where.offset, probe[-1]) not in (0, 1) or where.conditions:
                return False
        for target in self.targets:
            at = self.source_coordinates(probe, along) if self.op.name == "scan" else probe
            where = target.at(at)
            if linear_step(where.offset, probe[-1]) != 1 or where.conditions:
                return False
        last = self.outer[-1]
        return isinstance(last, Expr) or last > 1

    def source_coordinates(self, outer: tuple[Expr, ...], along: Expr) -> tuple[Expr, ...]:
        """Return the coordinates of an element of a source: `outer` (along the other dimensions) with the coordinate
        `along` inserted at the reduced dimension. Reducing dimension 1: (i, k) and r -> (i, r, k).
        """
        return (*outer[: self.along], along, *outer[self.along :])

    def registers(self, kinds: list[DType], lanes: int, lane: Symbol | None) -> list[Value]:
        """Emit the allocation of one register for each element type in `kinds`, and return them: vectors of `lanes`
        elements, or scalars if the lane symbol `lane` is None.
        """
        return [self.low.register(k, *(() if lane is None else (lanes,))) for k in kinds]

    def items(self, line: _Line, along: Expr, otherwise: float = 0) -> list[Value]:
        """Emit the loads of one element of each source in `line`, at the coordinate `along` of the reduced dimension.
        Return one register per source, converted to the type of the totals. Lanes past the end of a dimension get
        `otherwise`.
        """
        raw = self.registers([s.dtype for s in self.sources], line.lanes, line.lane)
        items = []
        for source, value, kind in zip(self.sources, raw, self.carried, strict=True):
            load(
                self.low,
                value,
                line.over,
                line.masked(source.at(self.source_coordinates(line.outer, along))),
                otherwise,
            )
            items.append(self.cast(value, kind))
        return items

    def cast(self, value: Value, kind: DType) -> Value:
        """Emit the conversion of the register `value` to the element type `kind`, and return the new register. Return
        `value` itself if it has this type.
        """
        if value.type.dtype is kind:
            return value
        converted = self.low.register(kind, *(int(n) for n in value.type.shape))
        self.low.emit("compute", (converted, value), formula=Formula.cast(kind, Formula.operand(1)))
        return converted

    def store(self, target: PlacedMemory | PlacedView, value: Value, at: tuple[Expr, ...], line: _Line) -> None:
        """Emit the store of the register `value` to `target` at the coordinates `at`, converted to the target's type.
        Lanes in which a bounds condition of `line` fails are not stored.
        """
        where = line.masked(target.at(at))
        rounded = self.cast(value, target.dtype)
        when = all_of(*line.in_bounds) if line.in_bounds else None
        self.low.emit("store", (rounded, where.buffer), over=line.over, at=(where.offset,), when=when)

    def _is_contiguous(self) -> bool:
        """True if a line (all elements along the reduced dimension) can be done in vectors along it. The line must be
        contiguous in the first source (in a scan also in the target), need no bounds check, and have at least two
        vectors. The operation must have a named function (sum, max, ...). The number of lanes must be a power of two.
        """
        short = not isinstance(self.length, Expr) and self.length < 2 * self.lanes
        if not isinstance(self.op.attrs["with"], str) or short:
            return False
        probe = tuple(self.low.axis("p", n) for n in self.outer)
        along = self.low.axis("p", self.length)
        places = [self.sources[0].at(self.source_coordinates(probe, along))]
        if self.op.name == "scan":
            places.append(self.targets[0].at(self.source_coordinates(probe, along)))
        straight = all(not where.conditions and linear_step(where.offset, along) == 1 for where in places)
        return straight and self.lanes & (self.lanes - 1) == 0

    def lines(self, lines: list[_Line]) -> None:
        """Emit the reduction or scan of `lines`, each a line (all elements along the reduced dimension) or a vector of
        adjacent lines. Subclasses implement this; here it raises NotImplementedError.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class _Line:
    """A line along the reduced dimension, or a vector of such lines: its other coordinates, its lanes, and the
    conditions under which a lane is in bounds.
    """

    outer: tuple[Expr, ...]
    lane: Symbol | None
    lanes: int
    in_bounds: tuple[Expr, ...] = ()

    @property
    def over(self) -> tuple[Symbol, ...]:
        """The lane symbol as a tuple of one; () for a single line."""
        return () if self.lane is None else (self.lane,)

    def masked(self, address: TensorAddress) -> TensorAddress:
        """Return `address` with the bounds conditions of this line's lanes added to its conditions."""
        return replace(address, conditions=(*address.conditions, *self.in_bounds))


class _Reduce(_ReduceLoops):
    """A reduction: up to `chains` totals are accumulated in one loop."""

    def lines(self, lines: list[_Line]) -> None:
        """Emit the reduction of `lines`, each a line (all elements along the reduced dimension) or a vector of adjacent
        lines, and store the totals. A single line that is contiguous is reduced in vectors along the line. Otherwise
        one loop iterates over the reduced dimension, with a total for each of `lines`.
        """
        if len(lines) == 1 and lines[0].lane is None and self._is_contiguous():
            self._store_totals(lines[0], [self._contiguous_total(lines[0])])
            return
        totals = [self.registers(self.carried, line.lanes, line.lane) for line in lines]
        for line, totals_of_line in zip(lines, totals, strict=True):
            for total, item in zip(totals_of_line, self.items(line, as_expr(0)), strict=True):
                self.low.emit("compute", (total, item), formula=Formula.operand(1))
        if self.length != 1:
            count = len(self.sources)

            def step(r: Expr, accumulators: list[Value]) -> None:
                for n, line in enumerate(lines):
                    combined(self.low, self.op, accumulators[count * n : count * (n + 1)], self.items(line, r))

            accumulators_of_ops = [(self.op, total) for totals_of_line in totals for total in totals_of_line]
            accumulate(self.low, accumulators_of_ops, (1, self.length), step)
        for line, totals_of_line in zip(lines, totals, strict=True):
            self._store_totals(line, totals_of_line)

    def _contiguous_total(self, row: _Line) -> Value:
        """Emit the reduction of `row`, a line that is contiguous in memory, and return a vector register of one lane
        with its total. Up to 4 vectors of partial totals are accumulated along the line; then all their lanes are
        combined. If full vectors do not cover the line, a masked vector has the rest.
        """
        count, rest, lanes = self.length // self.lanes, self.length % self.lanes, self.lanes
        chains = 1 if isinstance(count, Expr) else min(self.chains, count)
        neutral = identity(self.op.attrs["with"], self.sources[0].dtype)

        def part(first: Expr | int, in_bounds: Size | None = None) -> Value:
            lane = self.low.axis("l", lanes)
            line = _Line(row.outer, lane, lanes, () if in_bounds is None else (lane < in_bounds,))
            return self.items(line, lanes * first + lane, neutral)[0]

        totals = [self.low.register(self.carried[0], lanes) for _ in range(chains)]
        for n, total in enumerate(totals):
            if isinstance(count, Expr):  # there may be no full vector
                self.low.emit("fill", (total,), value=identity(self.op.attrs["with"], self.carried[0]))
            else:
                self.low.emit("compute", (total, part(n)), formula=Formula.operand(1))
        if isinstance(count, Expr) or count // chains > 1:

            def step(r: Expr, accumulators: list[Value]) -> None:
                for n, total in enumerate(accumulators):
                    combined(self.low, self.op, [total], [part(chains * r + n)])

            limits = (0 if isinstance(count, Expr) else 1, count // chains)
            accumulate(self.low, [(self.op, total) for total in totals], limits, step)
        if not isinstance(count, Expr):
            for n in range(count % chains):
                combined(self.low, self.op, [totals[n]], [part(count - count % chains + n)])
        if as_expr(rest) is not as_expr(0):
            combined(self.low, self.op, [totals[-1]], [part(count, rest)])
        return halved(self.low, self.op, totals)

    def _store_totals(self, line: _Line, totals: list[Value]) -> None:
        """Emit the stores of `totals`, the registers with the results of `line`, one for each target. If the operation
        has the attribute `accumulate`, emit first their combination with the old elements of the targets.
        """
        if line.lane is None and totals[0].type.shape:  # a vector of one
            line = replace(line, lane=self.low.axis("l", 1))
        if self.op.attrs.get("accumulate"):
            old = self.registers([t.dtype for t in self.targets], line.lanes, line.lane)
            for target, value in zip(self.targets, old, strict=True):
                load(self.low, value, line.over, line.masked(target.at(line.outer)), 0)
            carried = [self.cast(v, k) for v, k in zip(old, self.carried, strict=True)]
            combined(self.low, self.op, carried, totals)
            totals = carried
        for target, total in zip(self.targets, totals, strict=True):
            self.store(target, total, line.outer, line)


class _Scan(_ReduceLoops):
    """A scan: the running total is stored at every element."""

    def lines(self, lines: list[_Line]) -> None:
        """Emit the scan of `lines`, each a line (all elements along the scanned dimension) or a vector of adjacent
        lines: the running total is stored at each element. A single line that is contiguous is scanned in vectors along
        the line.
        """
        if not isinstance(self.op.attrs["with"], str):
            for x in lines:
                self._by_formulas(x)
        elif lines[0].lane is None and self._is_contiguous():
            self._along_vectors(lines[0])
        else:
            totals = [self._neutral_total(x.lanes, x.lane) for x in lines]

            def step(r: Expr, bases: Sequence[Value | None], totals: list[Value]) -> None:
                for x, base, total in zip(lines, bases, totals, strict=True):
                    self._scan_element(x, r, base, total)

            accumulate_scan(self.low, self.op, totals, self.length, step)

    def _neutral_total(self, lanes: int, lane: Symbol | None) -> Value:
        """Emit a register filled with the neutral element of the scan's function, and return it: a vector of `lanes`
        elements, or a scalar if the lane symbol `lane` is None.
        """
        (total,) = self.registers(self.carried, lanes, lane)
        self.low.emit("fill", (total,), value=identity(self.op.attrs["with"], self.carried[0]))
        return total

    def _scan_element(self, line: _Line, r: Expr, base: Value | None, total: Value) -> None:
        """Emit the scan of element number `r` of `line`: combine the element into the register `total`, and store the
        running total. An exclusive scan stores before it combines. `base` is the total of all earlier blocks of a long
        scan, which is added to the stored value (None: there are no blocks).
        """
        (item,) = self.items(line, r)
        if self.op.attrs.get("exclusive"):
            self.store(self.targets[0], self._with_base(base, total), self.source_coordinates(line.outer, r), line)
            combined(self.low, self.op, [total], [item])
            return
        combined(self.low, self.op, [total], [item])
        self.store(self.targets[0], self._with_base(base, total), self.source_coordinates(line.outer, r), line)

    def _with_base(self, base: Value | None, total: Value) -> Value:
        """Emit the combination of `total` and `base`, the total of all earlier blocks of a long scan, into a new
        register; return it. Return `total` itself if `base` is None.
        """
        if base is None:
            return total
        total_so_far = self.low.emit("alloc", type=total.type).results[0]
        self.low.emit("compute", (total_so_far, total), formula=Formula.operand(1))
        combined(self.low, self.op, [total_so_far], [base])
        return total_so_far

    def _along_vectors(self, line: _Line) -> None:
        """Emit the scan of a line that is contiguous in memory: vectors along it in a loop, then a masked vector for
        the rest.
        """
        count, rest = self.length // self.lanes, self.length % self.lanes

        def step(r: Expr, bases: Sequence[Value | None], totals: list[Value]) -> None:
            self._vector(line, r, bases[0], totals[0])

        (total,) = accumulate_scan(self.low, self.op, [self._neutral_total(1, self.low.axis("l", 1))], count, step)
        if as_expr(rest) is not as_expr(0):
            self._vector(line, as_expr(count), None, total, rest)

    def _vector(self, row: _Line, r: Expr, base: Value | None, total: Value, in_bounds: Size | None = None) -> None:
        """Emit the loads, the scan and the stores of vector number `r` of `row`, a line that is contiguous in memory.
        Emit also the update of `total`, the register with the running total. `base` is the total of all earlier blocks
        of a long scan (None: there are no blocks). Only the first `in_bounds` lanes exist (None: all).

        In steps of 1, 2, 4, ... each lane is combined with the lane that far before it. Only the last step waits for
        `total`, so that vectors overlap.
        """
        low, lanes, function = self.low, self.lanes, self.op.attrs["with"]
        lane = low.axis("l", lanes)
        line = _Line(row.outer, lane, lanes, () if in_bounds is None else (lane < in_bounds,))
        (part,) = self.items(line, lanes * r + lane, identity(function, self.sources[0].dtype))
        distance = 1
        while distance < lanes:
            part = self._shifted(part, distance, Formula(_NAMES[function], _PAIR), Formula.operand(1))
            distance *= 2
        last = self._picked(part, lanes - 1, 1)
        if self.op.attrs.get("exclusive"):
            first = Formula.number(identity(function, self.carried[0]))
            part = self._shifted(part, 1, Formula.operand(2), first)
        combined(low, self.op, [part], [self._picked(self._with_base(base, total), 0, lanes)])
        self.store(self.targets[0], part, self.source_coordinates(row.outer, lanes * r + lane), line)
        combined(low, self.op, [total], [last])

    def _picked(self, source: Value, lane: int, lanes: int) -> Value:
        """Emit a shuffle that repeats element `lane` of the register `source` in all `lanes` elements of a new
        register; return it.
        """
        picked = self.low.register(source.type.dtype, lanes)
        self.low.emit("shuffle", (picked, source), over=(self.low.axis("l", lanes),), at=(as_expr(lane),))
        return picked

    def _shifted(self, part: Value, distance: int, later: Formula, earlier: Formula) -> Value:
        """Emit a vector in which each lane combines two lanes of the register `part`, and return it. In the formula
        `later`, operand 1 is the element of the same lane, and operand 2 the element `distance` lanes before. Lanes
        below `distance` get the formula `earlier` instead.
        """
        low, lanes = self.low, self.lanes
        shifted, result = (low.register(self.carried[0], lanes) for _ in range(2))
        lane = low.axis("l", lanes)
        low.emit("shuffle", (shifted, part), over=(lane,), at=((lane + lanes - distance) % lanes,))
        lane = low.axis("l", lanes)
        has = Formula("ge", (Formula("index", (), lane), Formula.number(distance)))
        low.emit("compute", (result, part, shifted), over=(lane,), formula=Formula("select", (has, later, earlier)))
        return result

    def _by_formulas(self, line: _Line) -> None:
        """Emit the scan of `line` for an operation that combines tuples by formulas. Formulas have no neutral element,
        so the running totals start with the first elements, which are stored as they are.
        """
        totals = self.registers(self.carried, line.lanes, line.lane)
        for total, item, target in zip(totals, self.items(line, as_expr(0)), self.targets, strict=True):
            self.low.emit("compute", (total, item), formula=Formula.operand(1))
            self.store(target, total, self.source_coordinates(line.outer, as_expr(0)), line)
        if self.length != 1:
            with self.low.loop("r", 1, self.length) as r:
                combined(self.low, self.op, totals, self.items(line, r))
                for total, target in zip(totals, self.targets, strict=True):
                    self.store(target, total, self.source_coordinates(line.outer, r), line)


def identity(function: str, kind: DType) -> Any:
    """Return the neutral element of a `function` (sum, prod, max or min) in the type `kind`.

    >>> from tilewright.ir.dtypes import f32, i8
    >>> identity("max", i8), identity("min", f32), identity("prod", f32)
    (-128, inf, 1)
    """
    if function in ("sum", "prod"):
        return 0 if function == "sum" else 1
    if kind.is_float:
        return -float("inf") if function == "max" else float("inf")
    limits = np.iinfo(kind.numpy)
    return int(limits.min if function == "max" else limits.max)


def reduces_full_vectors(low: LoopLowering, op: Op, dim: int) -> bool:
    """True if full vectors along dimension `dim` can do the reduction `op`. `op` must go along `dim`, and have one
    source, a named function (sum, max, ...) and no `accumulate`. The result and the totals must have the source's type,
    the extent must be a multiple of a vector, and source and target must be different tensors.
    """
    kind, length = op.operands[0].type.dtype, low.memory(op.operands[0]).extents[dim]
    known = len(op.operands) == 2 and isinstance(op.attrs["with"], str) and not op.attrs.get("accumulate")
    if not known or op.attrs["along"] != dim or op.operands[1].type.dtype is not kind:
        return False
    if low.chain.root(op.operands[0]) is low.chain.root(op.operands[1]):
        return False
    same = kind.accumulator is kind or op.attrs["with"] in ("max", "min")
    return same and length % low.vector_lanes(kind) == 0


def reduce(low: LoopLowering, op: Op) -> None:
    """Lower `reduce` on a CPU: emit loops that combine all elements along one dimension, and store one result for each
    position along the other dimensions. With the attribute `accumulate`, the old element of the target is combined too.
    """
    _Reduce(low, op).run()


def scan(low: LoopLowering, op: Op) -> None:
    """Lower `scan` on a CPU: emit loops that store at each element the combination of all elements up to it along one
    dimension (without itself, if `exclusive`).
    """
    _Scan(low, op).run()
