"""Reduce and scan: one element after another along a dimension, vectors across the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.passes.elementwise import Job, from_memory, in_memory, load, run
from tilewright.passes.places import Memory, MemoryView, Where, linear_step

if TYPE_CHECKING:
    from tilewright.passes.lower import Lowering

_NAMES = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def _combined(low: Lowering, op: Op, totals: list[Value], items: list[Value]) -> None:
    """totals = combination of totals and items."""
    how = op.attrs["with"]
    if isinstance(how, str):
        formula = Formula(_NAMES[how], (Formula.operand(1), Formula.operand(2)))
        low.emit("compute", (totals[0], totals[0], items[0]), formula=formula)
        return
    count = len(totals)
    results = []
    for place, formula in enumerate(how):
        shape = totals[place].type.shape
        results.append(low.register(totals[place].type.dtype, *(int(n) for n in shape)))
        low.emit("compute", (results[-1], *totals, *items), formula=_bound(formula, count))
    for total, result in zip(totals, results, strict=True):
        low.emit("compute", (total, result), formula=Formula.operand(1))


def _bound(formula: Formula, count: int) -> Formula:
    """Arguments a0, b0, ... as operands: the totals come first, then the items."""
    if formula.name == "argument":
        return Formula.operand(1 + int(formula.value[1:]) + (count if formula.value[0] == "b" else 0))
    return Formula(formula.name, tuple(_bound(p, count) for p in formula.parts), formula.value)


class _Walk:
    """The loops that `reduce` and `scan` share: over all dimensions but one, with vectors along the last of them."""

    def __init__(self, low: Lowering, op: Op):
        self.low, self.op = low, op
        half = len(op.operands) // 2
        self.goals = [low.handles[v] for v in op.operands[half:]]
        self.targets = [in_memory(low, g) for g in self.goals]
        self.sources = [self._kept(v) for v in op.operands[:half]]
        self.along = op.attrs["along"]
        shape = self.sources[0].extents
        self.length = shape[self.along]
        self.outer = shape[: self.along] + shape[self.along + 1 :]
        wide = op.attrs["with"] in ("sum", "prod")
        self.carried = [s.dtype.accumulator if wide else s.dtype for s in self.sources]

    def _kept(self, value: Value) -> Memory | MemoryView:
        """A source as it was before anything is written: a copy of it, where a target lies in the same memory.

        A scan of a tensor onto itself reads each element right before it writes it, and needs none.
        """
        low, source = self.low, in_memory(self.low, self.low.handles[value])
        for goal, target in zip(self.op.operands[len(self.op.operands) // 2 :], self.targets, strict=True):
            same = low.chain.root(goal) is low.chain.root(value) or target.root.buffer is source.root.buffer
            if same and not (self.op.name == "scan" and goal is value):
                made = low.scratch(source.dtype, source.extents, "before")
                run(low, Job(made.shape, made.dtype, made.at, Formula.operand(1), {1: source.at}, {1: made.dtype}))
                return made
        return source

    def run(self) -> None:
        """All loops."""
        if 0 not in self.outer:
            self._nest(0, ())
        for held, goal in zip(self.targets, self.goals, strict=True):
            from_memory(self.low, held, goal)

    def _nest(self, dim: int, known: tuple[Expr, ...]) -> None:
        if dim == len(self.outer):
            self.line(known, None, 1)
            return
        if dim == len(self.outer) - 1 and self._vectorises():
            size = self.outer[dim]
            lanes = max(1, self.low.vector_bytes // self.carried[0].numpy.itemsize)
            for start in range(0, size, lanes):
                count = min(lanes, size - start)
                lane = self.low.axis("l", count)
                self.line((*known, start + lane), lane, count)
            return
        with self.low.loop("i", 0, self.outer[dim]) as i:
            self._nest(dim + 1, (*known, i))

    def _vectorises(self) -> bool:
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
        return self.outer[-1] > 1

    def full(self, outer: tuple[Expr, ...], along: Expr) -> tuple[Expr, ...]:
        """Coordinates with the one along the dimension put in."""
        return (*outer[: self.along], along, *outer[self.along :])

    def registers(self, kinds: list[DType], lanes: int, lane: Symbol | None) -> list[Value]:
        """A register for each tensor."""
        return [self.low.register(k, *(() if lane is None else (lanes,))) for k in kinds]

    def items(self, outer: tuple[Expr, ...], along: Expr, lane: Symbol | None, lanes: int) -> list[Value]:
        """The elements at one place, in the type in which they are combined."""
        raw = self.registers([s.dtype for s in self.sources], lanes, lane)
        over = () if lane is None else (lane,)
        found = []
        for source, value, kind in zip(self.sources, raw, self.carried, strict=True):
            load(self.low, value, over, source.at(self.full(outer, along)), 0)
            found.append(self.cast(value, kind))
        return found

    def cast(self, value: Value, kind: DType) -> Value:
        """The value in another type."""
        if value.type.dtype is kind:
            return value
        made = self.low.register(kind, *(int(n) for n in value.type.shape))
        self.low.emit("compute", (made, value), formula=Formula.cast(kind, Formula.operand(1)))
        return made

    def put(self, target: Memory | MemoryView, value: Value, at: tuple[Expr, ...], lane: Symbol | None) -> None:
        """A total into its place."""
        where: Where = target.at(at)
        rounded = self.cast(value, target.dtype)
        over = () if lane is None else (lane,)
        self.low.emit("store", (rounded, where.buffer), over=over, at=(where.offset,))

    def line(self, outer: tuple[Expr, ...], lane: Symbol | None, lanes: int) -> None:
        """One line (or a vector of lines) along the dimension."""
        raise NotImplementedError


class _Reduce(_Walk):
    def line(self, outer: tuple[Expr, ...], lane: Symbol | None, lanes: int) -> None:
        totals = self.registers(self.carried, lanes, lane)
        first = self.items(outer, as_expr(0), lane, lanes)
        for total, item in zip(totals, first, strict=True):
            self.low.emit("compute", (total, item), formula=Formula.operand(1))
        if self.length > 1:
            with self.low.loop("r", 1, self.length) as r:
                _combined(self.low, self.op, totals, self.items(outer, r, lane, lanes))
        if self.op.attrs.get("accumulate"):
            before = self.registers([t.dtype for t in self.targets], lanes, lane)
            over = () if lane is None else (lane,)
            for target, value in zip(self.targets, before, strict=True):
                load(self.low, value, over, target.at(outer), 0)
            carried = [self.cast(v, k) for v, k in zip(before, self.carried, strict=True)]
            _combined(self.low, self.op, carried, totals)
            totals = carried
        for target, total in zip(self.targets, totals, strict=True):
            self.put(target, total, outer, lane)


class _Scan(_Walk):
    def line(self, outer: tuple[Expr, ...], lane: Symbol | None, lanes: int) -> None:
        totals = self.registers(self.carried, lanes, lane)
        exclusive = bool(self.op.attrs.get("exclusive"))
        if exclusive:
            self.low.emit("fill", (totals[0],), value=identity(self.op.attrs["with"], self.carried[0]))
            with self.low.loop("r", 0, self.length) as r:
                items = self.items(outer, r, lane, lanes)
                self.put(self.targets[0], totals[0], self.full(outer, r), lane)
                _combined(self.low, self.op, totals, items)
            return
        first = self.items(outer, as_expr(0), lane, lanes)
        for total, item, target in zip(totals, first, self.targets, strict=True):
            self.low.emit("compute", (total, item), formula=Formula.operand(1))
            self.put(target, total, self.full(outer, as_expr(0)), lane)
        if self.length > 1:
            with self.low.loop("r", 1, self.length) as r:
                _combined(self.low, self.op, totals, self.items(outer, r, lane, lanes))
                for total, target in zip(totals, self.targets, strict=True):
                    self.put(target, total, self.full(outer, r), lane)


def identity(how: str, kind: DType) -> Any:
    """What changes nothing when it is combined."""
    if how in ("sum", "prod"):
        return 0 if how == "sum" else 1
    if kind.is_float:
        return -float("inf") if how == "max" else float("inf")
    limits = np.iinfo(kind.numpy)
    return int(limits.min if how == "max" else limits.max)


def reduce(low: Lowering, op: Op) -> None:
    """Combines a dimension."""
    _Reduce(low, op).run()


def scan(low: Lowering, op: Op) -> None:
    """Running combination along a dimension."""
    _Scan(low, op).run()
