"""Reduce and scan: one element after another along a dimension, vectors across the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_rules import all_of
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.passes.elementwise import ElementwiseJob, from_memory, in_memory, load, run
from tilewright.passes.loop_lowering import LoopLowering
from tilewright.passes.partial_sums import accumulated, running
from tilewright.passes.places import PlacedMemory, PlacedView, Size, Where, linear_step

_NAMES = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}
_PAIR = (Formula.operand(2), Formula.operand(1))


def combined(low: LoopLowering, op: Op, totals: list[Value], items: list[Value]) -> None:
    """Emit totals = combination of `totals` and `items` by the function or formulas that `op` (reduce or scan)
    names.
    """
    function = op.attrs["with"]
    if isinstance(function, str):
        # what is new comes first: what a maximum does about NaN does not make the chain of totals longer
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
    """Return the formula with its arguments replaced by operands: a0, a1, ... are operands 1 to `count`, b0, ...
    follow.
    """
    if formula.name == "argument":
        return Formula.operand(1 + int(formula.value[1:]) + (count if formula.value[0] == "b" else 0))
    return Formula(formula.name, tuple(arguments_as_operands(p, count) for p in formula.parts), formula.value)


def halved(low: LoopLowering, op: Op, totals: list[Value]) -> Value:
    """Return a vector of one total: the vectors `totals` combined, then halves of the vector until one lane is left."""
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


class _Walk:
    """The loops that `reduce` and `scan` share: over all dimensions but one, with vectors along the last of them."""

    chains = 4
    """Totals that do not wait for each other, in one loop."""

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
        """Return the memory of a source as it was before anything is written: a copy if a target lies in the same
        memory.

        A scan of a tensor onto itself needs no copy: it reads each element right before it writes it.
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
        """Emit the loops over all other dimensions, and move totals from memory to registers if the targets are
        registers.
        """
        if 0 not in self.outer:
            self._nest(0, ())
        for held, goal in zip(self.targets, self.goals, strict=True):
            from_memory(self.low, held, goal)

    def _nest(self, dim: int, known: tuple[Expr, ...]) -> None:
        """Emit the loops over the other dimensions from `dim` on; `known` are the coordinates of those outside."""
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
        """Emit vectors along a dimension whose size is known only at the call: whole ones in a loop, then a masked
        one.
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
        """True if sources are contiguous or constant, and targets contiguous, along the last other dimension, in
        bounds.
        """
        probe = tuple(self.low.axis("p", n) for n in self.outer)
        along = self.low.axis("p", self.length)
        for source in self.sources:
            where = source.at(self.full(probe, along))
            if linear_step(where.offset, probe[-1]) not in (0, 1) or where.conditions:
                return False
        for target in self.targets:
            at = self.full(probe, along) if self.op.name == "scan" else probe
            where = target.at(at)
            if linear_step(where.offset, probe[-1]) != 1 or where.conditions:
                return False
        last = self.outer[-1]
        return isinstance(last, Expr) or last > 1

    def full(self, outer: tuple[Expr, ...], along: Expr) -> tuple[Expr, ...]:
        """Return the coordinates `outer` with the coordinate `along` inserted at the reduced dimension."""
        return (*outer[: self.along], along, *outer[self.along :])

    def registers(self, kinds: list[DType], lanes: int, lane: Symbol | None) -> list[Value]:
        """Return a new register for each type in `kinds`: a vector of `lanes` elements, or a scalar if `lane` is
        None.
        """
        return [self.low.register(k, *(() if lane is None else (lanes,))) for k in kinds]

    def items(self, x: _Line, along: Expr, otherwise: float = 0) -> list[Value]:
        """Return registers with the elements of line `x` at the coordinate `along`, one for each source, in the type of
        totals.

        Lanes past the end of the line get `otherwise`.
        """
        raw = self.registers([s.dtype for s in self.sources], x.lanes, x.lane)
        items = []
        for source, value, kind in zip(self.sources, raw, self.carried, strict=True):
            load(self.low, value, x.over, x.part(source.at(self.full(x.outer, along))), otherwise)
            items.append(self.cast(value, kind))
        return items

    def cast(self, value: Value, kind: DType) -> Value:
        """Return a register with the value converted to `kind`; the same register if it has that type."""
        if value.type.dtype is kind:
            return value
        converted = self.low.register(kind, *(int(n) for n in value.type.shape))
        self.low.emit("compute", (converted, value), formula=Formula.cast(kind, Formula.operand(1)))
        return converted

    def put(self, target: PlacedMemory | PlacedView, value: Value, at: tuple[Expr, ...], x: _Line) -> None:
        """Emit the store of a total at the coordinates `at` of a target, in the target's type, for the lanes of `x`
        that count.
        """
        where = x.part(target.at(at))
        rounded = self.cast(value, target.dtype)
        when = all_of(*x.there) if x.there else None
        self.low.emit("store", (rounded, where.buffer), over=x.over, at=(where.offset,), when=when)

    def _is_contiguous(self) -> bool:
        """True if a line is contiguous in memory, at least two vectors long, and combined by a named function (sum,
        max, ...).
        """
        short = not isinstance(self.length, Expr) and self.length < 2 * self.lanes
        if not isinstance(self.op.attrs["with"], str) or short:
            return False
        probe = tuple(self.low.axis("p", n) for n in self.outer)
        along = self.low.axis("p", self.length)
        places = [self.sources[0].at(self.full(probe, along))]
        if self.op.name == "scan":
            places.append(self.targets[0].at(self.full(probe, along)))
        straight = all(not where.conditions and linear_step(where.offset, along) == 1 for where in places)
        return straight and self.lanes & (self.lanes - 1) == 0

    def lines(self, lines: list[_Line]) -> None:
        """Emit the reduction or scan of `lines`: each a single line or a vector of lines; there are at most
        `chains`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class _Line:
    """A line along the reduced dimension, or a vector of lines: other coordinates, lanes, and conditions on lanes that
    count.
    """

    outer: tuple[Expr, ...]
    lane: Symbol | None
    lanes: int
    there: tuple[Expr, ...] = ()

    @property
    def over(self) -> tuple[Symbol, ...]:
        """The lane symbol in a tuple; () for a single line."""
        return () if self.lane is None else (self.lane,)

    def part(self, where: Where) -> Where:
        """Return the place with the conditions of this line added."""
        return replace(where, conditions=(*where.conditions, *self.there))


class _Reduce(_Walk):
    """A reduction: up to `chains` totals are accumulated in one loop."""

    def lines(self, lines: list[_Line]) -> None:
        """Emit the reduction of `lines`, each with a total of its own."""
        if len(lines) == 1 and lines[0].lane is None and self._is_contiguous():
            self._store_totals(lines[0], [self._contiguous_total(lines[0])])
            return
        totals = [self.registers(self.carried, x.lanes, x.lane) for x in lines]
        for x, mine in zip(lines, totals, strict=True):
            for total, item in zip(mine, self.items(x, as_expr(0)), strict=True):
                self.low.emit("compute", (total, item), formula=Formula.operand(1))
        if self.length != 1:
            count = len(self.sources)

            def step(r: Expr, accumulators: list[Value]) -> None:
                for n, x in enumerate(lines):
                    combined(self.low, self.op, accumulators[count * n : count * (n + 1)], self.items(x, r))

            everything = [(self.op, total) for mine in totals for total in mine]
            accumulated(self.low, everything, (1, self.length), step)
        for x, mine in zip(lines, totals, strict=True):
            self._store_totals(x, mine)

    def _contiguous_total(self, x: _Line) -> Value:
        """Return the total of a contiguous line: up to `chains` vector totals along it, which `halved` then
        combines.
        """
        count, rest, lanes = self.length // self.lanes, self.length % self.lanes, self.lanes
        chains = 1 if isinstance(count, Expr) else min(self.chains, count)
        neutral = identity(self.op.attrs["with"], self.sources[0].dtype)

        def part(first: Expr | int, there: Size | None = None) -> Value:
            lane = self.low.axis("l", lanes)
            line = _Line(x.outer, lane, lanes, () if there is None else (lane < there,))
            return self.items(line, lanes * first + lane, neutral)[0]

        totals = [self.low.register(self.carried[0], lanes) for _ in range(chains)]
        for n, total in enumerate(totals):
            if isinstance(count, Expr):  # there may be no whole vector
                self.low.emit("fill", (total,), value=identity(self.op.attrs["with"], self.carried[0]))
            else:
                self.low.emit("compute", (total, part(n)), formula=Formula.operand(1))
        if isinstance(count, Expr) or count // chains > 1:

            def step(r: Expr, accumulators: list[Value]) -> None:
                for n, total in enumerate(accumulators):
                    combined(self.low, self.op, [total], [part(chains * r + n)])

            rounds = (0 if isinstance(count, Expr) else 1, count // chains)
            accumulated(self.low, [(self.op, total) for total in totals], rounds, step)
        if not isinstance(count, Expr):
            for n in range(count % chains):
                combined(self.low, self.op, [totals[n]], [part(count - count % chains + n)])
        if as_expr(rest) is not as_expr(0):
            combined(self.low, self.op, [totals[-1]], [part(count, rest)])
        return halved(self.low, self.op, totals)

    def _store_totals(self, x: _Line, totals: list[Value]) -> None:
        """Emit the stores of totals; if the reduction accumulates, combine them with the elements of the target
        first.
        """
        if x.lane is None and totals[0].type.shape:  # a vector of one
            x = replace(x, lane=self.low.axis("l", 1))
        if self.op.attrs.get("accumulate"):
            before = self.registers([t.dtype for t in self.targets], x.lanes, x.lane)
            for target, value in zip(self.targets, before, strict=True):
                load(self.low, value, x.over, x.part(target.at(x.outer)), 0)
            carried = [self.cast(v, k) for v, k in zip(before, self.carried, strict=True)]
            combined(self.low, self.op, carried, totals)
            totals = carried
        for target, total in zip(self.targets, totals, strict=True):
            self.put(target, total, x.outer, x)


class _Scan(_Walk):
    """A scan: the running total is stored at every element."""

    def lines(self, lines: list[_Line]) -> None:
        """Emit the scans of `lines`, each with a total of its own."""
        if not isinstance(self.op.attrs["with"], str):
            for x in lines:
                self._by_formulas(x)
        elif lines[0].lane is None and self._is_contiguous():
            self._along_vectors(lines[0])
        else:
            totals = [self._first(x.lanes, x.lane) for x in lines]

            def step(r: Expr, bases: Sequence[Value | None], totals: list[Value]) -> None:
                for x, base, total in zip(lines, bases, totals, strict=True):
                    self._one(x, r, base, total)

            running(self.low, self.op, totals, self.length, step)

    def _first(self, lanes: int, lane: Symbol | None) -> Value:
        """Return a register with the neutral element of the function: a vector, or a scalar if `lane` is None."""
        (total,) = self.registers(self.carried, lanes, lane)
        self.low.emit("fill", (total,), value=identity(self.op.attrs["with"], self.carried[0]))
        return total

    def _one(self, x: _Line, r: Expr, base: Value | None, total: Value) -> None:
        """Emit one element: it is combined with the total, which is stored, before that if `exclusive`."""
        (item,) = self.items(x, r)
        if self.op.attrs.get("exclusive"):
            self.put(self.targets[0], self._with(base, total), self.full(x.outer, r), x)
            combined(self.low, self.op, [total], [item])
            return
        combined(self.low, self.op, [total], [item])
        self.put(self.targets[0], self._with(base, total), self.full(x.outer, r), x)

    def _with(self, base: Value | None, total: Value) -> Value:
        """Return a register with the combination of a total and that of all blocks before, if there are some."""
        if base is None:
            return total
        both = self.low.emit("alloc", type=total.type).results[0]
        self.low.emit("compute", (both, total), formula=Formula.operand(1))
        combined(self.low, self.op, [both], [base])
        return both

    def _along_vectors(self, x: _Line) -> None:
        """Emit the scan of a contiguous line: whole vectors along it, then a masked one."""
        count, rest = self.length // self.lanes, self.length % self.lanes

        def step(r: Expr, bases: Sequence[Value | None], totals: list[Value]) -> None:
            self._vector(x, r, bases[0], totals[0])

        (total,) = running(self.low, self.op, [self._first(1, self.low.axis("l", 1))], count, step)
        if as_expr(rest) is not as_expr(0):
            self._vector(x, as_expr(count), None, total, rest)

    def _vector(self, x: _Line, r: Expr, base: Value | None, total: Value, there: Size | None = None) -> None:
        """Emit vector r of a contiguous line; `total` is the total of all before it in its block, then that after it.

        In each step a lane takes the total of a lane before it: of the neighbour, of the next but one, and so on. Only
        `total` waits for the vector before.
        """
        low, lanes, function = self.low, self.lanes, self.op.attrs["with"]
        lane = low.axis("l", lanes)
        line = _Line(x.outer, lane, lanes, () if there is None else (lane < there,))
        (part,) = self.items(line, lanes * r + lane, identity(function, self.sources[0].dtype))
        distance = 1
        while distance < lanes:
            part = self._shifted(part, distance, Formula(_NAMES[function], _PAIR), Formula.operand(1))
            distance *= 2
        last = self._picked(part, lanes - 1, 1)
        if self.op.attrs.get("exclusive"):
            first = Formula.number(identity(function, self.carried[0]))
            part = self._shifted(part, 1, Formula.operand(2), first)
        combined(low, self.op, [part], [self._picked(self._with(base, total), 0, lanes)])
        self.put(self.targets[0], part, self.full(x.outer, lanes * r + lane), line)
        combined(low, self.op, [total], [last])

    def _picked(self, source: Value, lane: int, lanes: int) -> Value:
        """Return a vector with one lane of another in all its lanes."""
        picked = self.low.register(source.type.dtype, lanes)
        self.low.emit("shuffle", (picked, source), over=(self.low.axis("l", lanes),), at=(as_expr(lane),))
        return picked

    def _shifted(self, part: Value, by: int, later: Formula, earlier: Formula) -> Value:
        """Return a register with a formula of each lane (operand 1) and of the lane `by` before it (operand 2).

        Lanes that have none get the formula `earlier`.
        """
        low, lanes = self.low, self.lanes
        shifted, result = (low.register(self.carried[0], lanes) for _ in range(2))
        lane = low.axis("l", lanes)
        low.emit("shuffle", (shifted, part), over=(lane,), at=((lane + lanes - by) % lanes,))
        lane = low.axis("l", lanes)
        has = Formula("ge", (Formula("index", (), lane), Formula.number(by)))
        low.emit("compute", (result, part, shifted), over=(lane,), formula=Formula("select", (has, later, earlier)))
        return result

    def _by_formulas(self, x: _Line) -> None:
        """Emit the scan by formulas of tuples: they have no neutral element, so the first elements are the first
        totals.
        """
        totals = self.registers(self.carried, x.lanes, x.lane)
        for total, item, target in zip(totals, self.items(x, as_expr(0)), self.targets, strict=True):
            self.low.emit("compute", (total, item), formula=Formula.operand(1))
            self.put(target, total, self.full(x.outer, as_expr(0)), x)
        if self.length != 1:
            with self.low.loop("r", 1, self.length) as r:
                combined(self.low, self.op, totals, self.items(x, r))
                for total, target in zip(totals, self.targets, strict=True):
                    self.put(target, total, self.full(x.outer, r), x)


def identity(how: str, kind: DType) -> Any:
    """Return the neutral element of `how` (sum, prod, max or min) in the type `kind`."""
    if how in ("sum", "prod"):
        return 0 if how == "sum" else 1
    if kind.is_float:
        return -float("inf") if how == "max" else float("inf")
    limits = np.iinfo(kind.numpy)
    return int(limits.min if how == "max" else limits.max)


def is_whole(low: LoopLowering, op: Op, dim: int) -> bool:
    """True if a reduction combines whole vectors along `dim` by a named function, in the type of its source.

    False if it accumulates, if source and target are the same memory, or if the dimension is no multiple of a vector.
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
    """Emit the loops of a `reduce`: one dimension is combined to a single element."""
    _Reduce(low, op).run()


def scan(low: LoopLowering, op: Op) -> None:
    """Emit the loops of a `scan`: the running combination along a dimension."""
    _Scan(low, op).run()
