"""Operations by elements or rows that lanes take in turn, through shared memory: the general form of each.

Operands in registers are stored first, and results are loaded to registers; the waves meet in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import TensorType, packed
from tilewright.passes.along import arguments_as_operands
from tilewright.passes.partial_sums import accumulated, running
from tilewright.passes.places import PlacedMemory, PlacedView, Where, sizes
from tilewright.passes.waves import moving
from tilewright.passes.waves.held import Held, both
from tilewright.passes.waves.waves import Waves

InMemory = PlacedMemory | PlacedView
COMBINING = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}
FIRST = {"sum": 0, "prod": 1}


def scratch(low: Waves, key: Any, dtype: DType, shape: tuple[int, ...]) -> PlacedMemory:
    """Return shared memory of the group for an operation, the same for the same key."""
    room = max(1, int(np.prod(shape, dtype=np.int64)))
    kind = TensorType("shared", dtype, (as_expr(room * low.group.halves),))
    buffer = low.room_for((*key, low.role, low.group.halves), kind)
    strides = tuple(int(e) for e in packed(tuple(map(as_expr, shape))))
    return PlacedMemory(buffer, dtype, shape, strides, None, low.group.side * room)


def in_memory(low: Waves, op: Op, operand: int, filled: bool = True) -> InMemory:
    """Return an operand in memory; one in registers is stored first, unless it is only a place for results (not
    `filled`).
    """
    handle = low.handles[op.operands[operand]]
    if not isinstance(handle, Held):
        memory: InMemory = handle
        return memory
    scratch_memory = scratch(low, (op, operand), handle.dtype, handle.shape)
    if filled:
        for piece in handle.pieces:
            moving.store(low, moving.values_of(low, piece), piece, scratch_memory)
        low.meet()
    return scratch_memory


def back(low: Waves, op: Op, operands: range | tuple[int, ...], memories: list[InMemory]) -> None:
    """Emit the loads of results from scratch memory to register operands; the waves meet before and after."""
    handles = [low.handles[op.operands[i]] for i in operands]
    if any(isinstance(h, Held) for h in (low.handles[v] for v in op.operands)):
        low.meet()
    for handle, memory in zip(handles, memories, strict=True):
        if isinstance(handle, Held):
            for piece in handle.pieces:
                moving.load(low, memory, piece.fragment, piece, None)
    if any(isinstance(h, Held) for h in handles):
        low.meet()


def _one(low: Waves, dtype: DType) -> Value:
    """Return a fresh fragment with one value per lane."""
    return low.fragment(dtype, 1)


# -- along a dimension ------------------------------------------------------------------------------------------


class Rows:
    """The rows of reduce and scan, each done by one lane, element after element."""

    def __init__(self, low: Waves, op: Op):
        self.low, self.op, self.half = low, op, len(op.operands) // 2
        self.along = op.attrs["along"]
        self.targets = [in_memory(low, op, self.half + i, self._kept_before()) for i in range(self.half)]
        self.sources = [self._unaliased_source(i) for i in range(self.half)]
        shape = self.sources[0].shape
        self.length, self.outer = shape[self.along], shape[: self.along] + shape[self.along + 1 :]
        wide = op.attrs["with"] in ("sum", "prod")
        self.kinds = [s.dtype.accumulator if wide else s.dtype for s in self.sources]

    def _kept_before(self) -> bool:
        """True if the targets' old elements are needed: the reduction accumulates."""
        return bool(self.op.attrs.get("accumulate"))

    def _unaliased_source(self, place_: int) -> InMemory:
        """Return a source that no target overwrites while others read it: a copy if they share memory."""
        low, op = self.low, self.op
        source = in_memory(low, op, place_)
        if all(t.root.buffer is not source.root.buffer for t in self.targets):
            return source
        copy = scratch(low, (op, place_, "before"), source.dtype, source.extents)

        def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
            moving.put(low, moving.get(low, source, lane, v, at, inside, 0), copy, lane, v, at, inside)

        moving.over_lanes(low, source.extents, source.dtype.numpy.itemsize, body)
        low.meet()
        return copy

    def run(self) -> None:
        """Emit all rows."""
        moving.over_lanes(self.low, self.outer, 1, self._row, width=1)
        back(self.low, self.op, range(self.half, 2 * self.half), self.targets)
        if any(s.root.buffer in self.low.hoisted.values() for s in self.sources):
            self.low.meet()

    def full(self, at: tuple[Expr, ...], along: Expr) -> tuple[Expr, ...]:
        """Return the coordinates `at` with `along` inserted at the reduced dimension."""
        return (*at[: self.along], along, *at[self.along :])

    def items(self, lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> list[Value]:
        """Return the elements of all sources at `at`, in the type in which they are combined."""
        items = []
        for source, kind in zip(self.sources, self.kinds, strict=True):
            raw = moving.get(self.low, source, lane, v, at, inside, 0)
            items.append(self._cast(raw, kind))
        return items

    def _cast(self, value: Value, kind: DType) -> Value:
        """Return the value in another type; the same value if it has this type."""
        if value.type.dtype is kind:
            return value
        converted = _one(self.low, kind)
        self.low.emit("compute", (converted, value), formula=Formula.cast(kind, Formula.operand(1)))
        return converted

    def combine(self, totals: list[Value], items: list[Value]) -> None:
        """Emit totals = combination of totals and items."""
        function, low = self.op.attrs["with"], self.low
        if isinstance(function, str):
            formula = Formula(COMBINING[function], (Formula.operand(1), Formula.operand(2)))
            low.emit("compute", (totals[0], totals[0], items[0]), formula=formula)
            return
        results = []
        for total, formula in zip(totals, function, strict=True):
            results.append(_one(low, total.type.dtype))
            low.emit("compute", (results[-1], *totals, *items), formula=arguments_as_operands(formula, len(totals)))
        for total, result in zip(totals, results, strict=True):
            low.emit("compute", (total, result), formula=Formula.operand(1))

    def write(self, totals: list[Value], lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
        """Emit the stores of totals to the targets."""
        for total, target in zip(totals, self.targets, strict=True):
            moving.put(self.low, self._cast(total, target.dtype), target, lane, v, at, inside)

    def begin(self, items: list[Value]) -> list[Value]:
        """Return new totals that start with `items`."""
        totals = [_one(self.low, kind) for kind in self.kinds]
        for total, item in zip(totals, items, strict=True):
            self.low.emit("compute", (total, item), formula=Formula.operand(1))
        return totals

    def _row(self, lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
        """Emit the reduction or scan of one row."""
        low, op = self.low, self.op
        if op.name == "scan":
            self._scan_row(lane, v, at, inside)
            return
        first = 0
        if op.attrs.get("accumulate"):
            before = [
                self._cast(moving.get(low, t, lane, v, at, inside, 0), kind)
                for t, kind in zip(self.targets, self.kinds, strict=True)
            ]
            totals = self.begin(before)
        else:
            totals = self.begin(self.items(lane, v, self.full(at, as_expr(0)), inside))
            first = 1
        if self.length != first:

            def step(i: Expr, accumulators: list[Value]) -> None:
                self.combine(accumulators, self.items(lane, v, self.full(at, i), inside))

            accumulated(low, [(op, total) for total in totals], (first, self.length), step)
        self.write(totals, lane, v, at, inside)

    def _scan_row(self, lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
        """Emit a scan of a row: the total so far is stored at every element, before it counts if `exclusive`, else
        after.
        """
        low, function = self.low, self.op.attrs["with"]
        if not isinstance(function, str):
            self._scan_by_formulas(lane, v, at, inside)
            return
        first = _one(low, self.kinds[0])
        low.emit("fill", (first,), value=neutral(function, self.kinds[0]))

        def step(i: Expr, bases: Sequence[Value | None], totals: list[Value]) -> None:
            items = self.items(lane, v, self.full(at, i), inside)
            if self.op.attrs.get("exclusive"):
                self.write(self._with(bases[0], totals), lane, v, self.full(at, i), inside)
                self.combine(totals, items)
                return
            self.combine(totals, items)
            self.write(self._with(bases[0], totals), lane, v, self.full(at, i), inside)

        running(low, self.op, [first], self.length, step)

    def _with(self, base: Value | None, totals: list[Value]) -> list[Value]:
        """Return the total so far, combined with that of all blocks before, if there are some."""
        if base is None:
            return totals
        both = self.begin(totals)
        self.combine(both, [base])
        return both

    def _scan_by_formulas(self, lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
        """Emit a scan of a row by formulas, which have no neutral element: the first elements are the first totals."""
        start = self.full(at, as_expr(0))
        totals = self.begin(self.items(lane, v, start, inside))
        self.write(totals, lane, v, start, inside)
        if self.length != 1:
            with self.low.loop("along", 1, self.length) as i:
                self.combine(totals, self.items(lane, v, self.full(at, i), inside))
                self.write(totals, lane, v, self.full(at, i), inside)


def neutral(how: str, kind: DType) -> float:
    """Return the neutral element of `how` (sum, prod, max or min) in the type `kind`."""
    if how in FIRST:
        return FIRST[how]
    if kind.is_float:
        return float("-inf") if how == "max" else float("inf")
    limits = np.iinfo(kind.numpy)
    return int(limits.min if how == "max" else limits.max)


def along(low: Waves, op: Op) -> None:
    """Lower reduce or scan with each row done by one lane."""
    Rows(low, op).run()


def broadcast(low: Waves, op: Op) -> None:
    """Lower `broadcast` through memory: each element of the target loads its row's."""
    source, target = in_memory(low, op, 0), in_memory(low, op, 1, filled=False)
    axis = op.attrs["along"]

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
        element = moving.get(low, source, lane, v, (*at[:axis], *at[axis + 1 :]), inside, 0)
        moving.put(low, element, target, lane, v, at, inside)

    moving.over_lanes(low, target.shape, target.dtype.numpy.itemsize, body)
    back(low, op, (1,), [target])


# -- places that are data ---------------------------------------------------------------------------------------


def _elements(
    low: Waves,
    op: Op,
    memory: InMemory,
    body: Callable[[Symbol, Symbol, tuple[Expr, ...], Expr | None, Where], None],
    in_order: bool = False,
) -> None:
    """Emit `body` for each element of a tile, with the place in memory that index data give.

    With `in_order`, one lane does all elements, one after another.
    """
    indices = [in_memory(low, op, 2 + i) for i in range(len(op.operands) - 2)]
    shape = sizes(low.expr(s.upper + 1) for s in op.attrs["over"])

    def one(lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None) -> None:
        meanings: dict[Symbol, Expr] = dict(zip(op.attrs["over"], at, strict=True))
        for (name, place_), source in zip(op.attrs.get("where", ()), indices, strict=True):
            images = Substitution({**low.meaning, **meanings})
            index_value = moving.get(low, source, lane, v, tuple(images(e) for e in place_), inside, 0)
            number = low.unlimited("d")
            low.emit("read", (index_value,), symbol=number)
            meanings[name] = number
        images = Substitution({**low.meaning, **meanings})
        coordinates, conditions = [], []
        for (e, loose), size in zip(op.attrs["at"], memory.shape, strict=True):
            c = images(e)
            if loose:
                conditions += [c >= 0, c < size]
            coordinates.append(c)
        where = memory.at(tuple(coordinates))
        body(lane, v, at, inside, Where(where.buffer, where.offset, (*conditions, *where.conditions)))

    if not in_order:
        moving.over_lanes(low, shape, 1, one, width=1)
        return
    with low.one_wave(), low.loop("element", 0, prod(map(as_expr, shape), start=as_expr(1))) as number:
        lane, v = low.axes(1)
        one(lane, v, moving.unravelled(number, shape), lane < 1)


def _attrs(where: Where, inside: Expr | None, otherwise: Any = None) -> dict[str, Any]:
    """Return the `when` (and `otherwise`) attributes of a load or store at a place, under the condition `inside`."""
    condition = both((*(() if inside is None else (inside,)), *where.conditions))
    if condition is None:
        return {}
    return {"when": condition} if otherwise is None else {"when": condition, "otherwise": otherwise}


def gather(low: Waves, op: Op) -> None:
    """Lower `gather`: load elements at places that are data."""
    memory, tile = in_memory(low, op, 1), in_memory(low, op, 0, filled=False)

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None, where: Where) -> None:
        element = _one(low, tile.dtype)
        attrs = _attrs(where, inside, op.attrs.get("otherwise", 0))
        low.emit("load", (element, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
        moving.put(low, element, tile, lane, v, at, inside)

    _elements(low, op, memory, body)
    back(low, op, (0,), [tile])


def scatter(low: Waves, op: Op) -> None:
    """Lower `scatter` with one lane, element after element: of several elements at one place, the last one stays."""
    memory, tile = in_memory(low, op, 1), in_memory(low, op, 0)

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None, where: Where) -> None:
        element = moving.get(low, tile, lane, v, at, inside, 0)
        attrs = _attrs(where, inside)
        low.emit("store", (element, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
        low.written(memory)

    _elements(low, op, memory, body, in_order=True)
    back(low, op, (), [])


def atomic(low: Waves, op: Op) -> None:
    """Lower `atomic`: combine elements into places that are data."""
    memory, tile = in_memory(low, op, 1), in_memory(low, op, 0)

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], inside: Expr | None, where: Where) -> None:
        element = moving.get(low, tile, lane, v, at, inside, 0)
        low.emit(
            "atomic",
            (element, where.buffer),
            over=(lane, v),
            how=op.attrs["how"],
            at=(where.offset,),
            **_attrs(where, inside),
        )
        low.written(memory)

    _elements(low, op, memory, body)
    back(low, op, (), [])


# -- the rest -----------------------------------------------------------------------------------------------------


def bitcast(low: Waves, op: Op) -> None:
    """Lower `bitcast`: memory gets another type; registers go through memory."""
    base, to = low.handles[op.operands[0]], op.attrs["dtype"]
    if isinstance(base, PlacedView):
        raise ProgramError("bitcast of a view: bitcast the tensor, then view it")
    if isinstance(base, Held):
        stored = in_memory(low, op, 0)
        assert isinstance(stored, PlacedMemory)
        buffer = low.emit("bitcast", (stored.buffer,), dtype=to).results[0]
        turned = PlacedMemory(buffer, to, stored.shape, stored.strides, None, stored.start)
        pieces = []
        for piece in base.pieces:
            fragment = low.fragment(to, len(piece.columns), op.results[0].name)
            whole = type(piece)(fragment, tuple(range(len(piece.columns))), piece.coordinates, piece.first)
            moving.load(low, turned, fragment, whole, None)
            pieces.append(whole)
        low.meet()
        low.handles[op.results[0]] = Held(to, base.shape, tuple(pieces))
        return
    buffer = low.emit("bitcast", (base.buffer,), dtype=to).results[0]
    if base.buffer in low.origins:
        low.origins[buffer] = low.origins[base.buffer]
    low.handles[op.results[0]] = PlacedMemory(buffer, to, base.shape, base.strides, None, base.start)


def while_(low: Waves, op: Op) -> None:
    """Lower a loop that runs while a number in a register, the same in all lanes, is not zero."""
    flag = low.handles[op.operands[0]]
    if not isinstance(flag, Held) or len(flag.pieces) != 1 or flag.shape:
        raise ProgramError("while looks at one number in registers")
    low.flying.settle_all()
    inner = Block(())
    before = low.meaning
    with low.writing(inner):
        low.block(op.blocks[0])
        low.flying.settle_all()
    low.meaning = before
    low.emit("while", (flag.pieces[0].fragment,), blocks=(inner,))
