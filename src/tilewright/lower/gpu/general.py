"""The general form of each operation: lanes take elements or rows in turn, and exchange data through shared memory.

Operands in registers are stored first, and results are loaded to registers; the waves synchronise in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import PlacedMemory, PlacedView, TensorAddress, sizes
from tilewright.errors import ProgramError
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import TensorType, packed
from tilewright.lower.cpu.reduce import arguments_as_operands
from tilewright.lower.gpu import copies
from tilewright.lower.gpu.register_tensors import RegisterTensor, conjunction
from tilewright.lower.gpu.wave_lowering import WaveLowering
from tilewright.lower.partial_sums import accumulate, accumulate_scan

InMemory = PlacedMemory | PlacedView
COMBINING = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "mul"}
FIRST = {"sum": 0, "prod": 1}


def scratch(low: WaveLowering, key: Any, dtype: DType, shape: tuple[int, ...]) -> PlacedMemory:
    """Return shared scratch memory of the workgroup as a packed tensor of this type and shape, allocated at the start
    of the program. Calls with the same `key` in one role return the same memory. Each half of a ping-pong role has its
    separate memory.
    """
    size = max(1, int(np.prod(shape, dtype=np.int64)))
    kind = TensorType("shared", dtype, (as_expr(size * low.group.halves),))
    buffer = low.scratch_buffer((*key, low.role, low.group.halves), kind)
    strides = tuple(int(e) for e in packed(tuple(map(as_expr, shape))))
    return PlacedMemory(buffer, dtype, shape, strides, None, low.group.side * size)


def in_memory(low: WaveLowering, op: Op, operand: int, filled: bool = True) -> InMemory:
    """Return operand number `operand` of `op` in memory. If it is in registers, return scratch memory instead; emit the
    stores of its elements there and a barrier of the waves, unless `filled` is False because the memory is for results.
    """
    handle = low.handles[op.operands[operand]]
    if not isinstance(handle, RegisterTensor):
        memory: InMemory = handle
        return memory
    scratch_memory = scratch(low, (op, operand), handle.dtype, handle.shape)
    if filled:
        for piece in handle.pieces:
            copies.store(low, copies.values_of(low, piece), piece, scratch_memory)
        low.sync_waves()
    return scratch_memory


def load_results(low: WaveLowering, op: Op, operands: range | tuple[int, ...], memories: list[InMemory]) -> None:
    """Emit the loads of results of `op` from `memories` to registers: memories[i] has the result of operand number
    operands[i]. Operands that are not in registers are skipped. A barrier of the waves is emitted before if any operand
    of `op` is in registers, and another one after if there are loads.
    """
    handles = [low.handles[op.operands[i]] for i in operands]
    if any(isinstance(h, RegisterTensor) for h in (low.handles[v] for v in op.operands)):
        low.sync_waves()
    for handle, memory in zip(handles, memories, strict=True):
        if isinstance(handle, RegisterTensor):
            for piece in handle.pieces:
                copies.load(low, memory, piece.fragment, piece, None)
    if any(isinstance(h, RegisterTensor) for h in handles):
        low.sync_waves()


def _scalar_fragment(low: WaveLowering, dtype: DType) -> Value:
    """Emit the allocation of a fragment with one value per lane, and return it."""
    return low.fragment(dtype, 1)


# -- along a dimension ------------------------------------------------------------------------------------------


class Rows:
    """The rows of a `reduce` or `scan`, each done by one lane, element after element."""

    def __init__(self, low: WaveLowering, op: Op):
        self.low, self.op, self.half = low, op, len(op.operands) // 2
        self.along = op.attrs["along"]
        self.targets = [in_memory(low, op, self.half + i, self._reads_targets()) for i in range(self.half)]
        self.sources = [self._unaliased_source(i) for i in range(self.half)]
        shape = self.sources[0].shape
        self.length, self.outer = shape[self.along], shape[: self.along] + shape[self.along + 1 :]
        wide = op.attrs["with"] in ("sum", "prod")
        self.kinds = [s.dtype.accumulator if wide else s.dtype for s in self.sources]

    def _reads_targets(self) -> bool:
        """True if the operation combines its results with the old elements of the targets: it has the attribute
        `accumulate`.
        """
        return bool(self.op.attrs.get("accumulate"))

    def _unaliased_source(self, number: int) -> InMemory:
        """Return source number `number` in memory that no target overwrites. If a target is in the same buffer, emit a
        copy of the source to scratch memory and a barrier of the waves, and return the scratch memory.
        """
        low, op = self.low, self.op
        source = in_memory(low, op, number)
        if all(t.root.buffer is not source.root.buffer for t in self.targets):
            return source
        copy = scratch(low, (op, number, "before"), source.dtype, source.extents)

        def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
            """Emit the copy of the elements at `at` to scratch memory."""
            copies.store_at(low, copies.load_at(low, source, lane, v, at, in_bounds, 0), copy, lane, v, at, in_bounds)

        copies.distribute_over_lanes(low, source.extents, source.dtype.numpy.itemsize, body)
        low.sync_waves()
        return copy

    def run(self) -> None:
        """Emit the reduction or scan of all rows, which lanes take in turn, and the loads of results for targets in
        registers. A barrier of the waves follows if a source is in shared memory.
        """
        copies.distribute_over_lanes(self.low, self.outer, 1, self._row, width=1)
        load_results(self.low, self.op, range(self.half, 2 * self.half), self.targets)
        if any(s.root.buffer in self.low.hoisted.values() for s in self.sources):
            self.low.sync_waves()

    def source_coordinates(self, at: tuple[Expr, ...], along: Expr) -> tuple[Expr, ...]:
        """Return the coordinates of an element of a source: `at` (the row's coordinates along the other dimensions)
        with the coordinate `along` inserted at the reduced dimension. Reducing dimension 1: (i, k) and r -> (i, r, k).
        """
        return (*at[: self.along], along, *at[self.along :])

    def items(self, lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> list[Value]:
        """Emit the load of one element per lane of each source, at the coordinates `at`, and return one fragment per
        source, converted to the type of the totals. `at` are expressions of the symbols `lane` and `v` (index of a
        lane's value). Lanes for which `in_bounds` fails get 0 (None: all lanes load).
        """
        items = []
        for source, kind in zip(self.sources, self.kinds, strict=True):
            raw = copies.load_at(self.low, source, lane, v, at, in_bounds, 0)
            items.append(self._cast(raw, kind))
        return items

    def _cast(self, value: Value, kind: DType) -> Value:
        """Emit the conversion of the fragment `value` to the element type `kind`, and return the new fragment. Return
        `value` itself if it has this type.
        """
        if value.type.dtype is kind:
            return value
        converted = _scalar_fragment(self.low, kind)
        self.low.emit("compute", (converted, value), formula=Formula.cast(kind, Formula.operand(1)))
        return converted

    def combine(self, totals: list[Value], items: list[Value]) -> None:
        """Emit code that combines the fragments `items` into the fragments `totals`, in place, by the function or the
        formulas of the reduction or scan. For a sum: totals = totals + items. A function has one total and one item.
        """
        function, low = self.op.attrs["with"], self.low
        if isinstance(function, str):
            formula = Formula(COMBINING[function], (Formula.operand(1), Formula.operand(2)))
            low.emit("compute", (totals[0], totals[0], items[0]), formula=formula)
            return
        results = []
        for total, formula in zip(totals, function, strict=True):
            results.append(_scalar_fragment(low, total.type.dtype))
            low.emit("compute", (results[-1], *totals, *items), formula=arguments_as_operands(formula, len(totals)))
        for total, result in zip(totals, results, strict=True):
            low.emit("compute", (total, result), formula=Formula.operand(1))

    def write(self, totals: list[Value], lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
        """Emit the stores of the fragments `totals` to the targets at the coordinates `at`, converted to their types,
        in lanes for which `in_bounds` holds (None: all). `at` are expressions of the symbols `lane` and `v` (index of a
        lane's value).
        """
        for total, target in zip(totals, self.targets, strict=True):
            copies.store_at(self.low, self._cast(total, target.dtype), target, lane, v, at, in_bounds)

    def begin(self, items: list[Value]) -> list[Value]:
        """Emit the allocation of one fragment per total, and its assignment from the fragment of the same index in
        `items`. Return the new fragments.
        """
        totals = [_scalar_fragment(self.low, kind) for kind in self.kinds]
        for total, item in zip(totals, items, strict=True):
            self.low.emit("compute", (total, item), formula=Formula.operand(1))
        return totals

    def _row(self, lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
        """Emit the reduction or scan of one row per lane, element after element, and the stores of its results. `at`
        are the row's coordinates, as expressions of the symbols `lane` and `v` (index of a lane's value); lanes work if
        `in_bounds` holds (None: always).
        """
        low, op = self.low, self.op
        if op.name == "scan":
            self._scan_row(lane, v, at, in_bounds)
            return
        first = 0
        if op.attrs.get("accumulate"):
            before = [
                self._cast(copies.load_at(low, t, lane, v, at, in_bounds, 0), kind)
                for t, kind in zip(self.targets, self.kinds, strict=True)
            ]
            totals = self.begin(before)
        else:
            totals = self.begin(self.items(lane, v, self.source_coordinates(at, as_expr(0)), in_bounds))
            first = 1
        if self.length != first:

            def step(i: Expr, accumulators: list[Value]) -> None:
                """Emit the combination of element `i` of the row into `accumulators`."""
                self.combine(accumulators, self.items(lane, v, self.source_coordinates(at, i), in_bounds))

            accumulate(low, [(op, total) for total in totals], (first, self.length), step)
        self.write(totals, lane, v, at, in_bounds)

    def _scan_row(self, lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
        """Emit the scan of one row per lane. Each element of the result is the running total up to and including that
        element.

        If the scan is `exclusive`, it is the total of the elements before it. `at` are the row's coordinates, as
        expressions of the symbols `lane` and `v` (index of a lane's value). Lanes work if `in_bounds` holds (None:
        always).
        """
        low, function = self.low, self.op.attrs["with"]
        if not isinstance(function, str):
            self._scan_by_formulas(lane, v, at, in_bounds)
            return
        first = _scalar_fragment(low, self.kinds[0])
        low.emit("fill", (first,), value=neutral(function, self.kinds[0]))

        def step(i: Expr, bases: Sequence[Value | None], totals: list[Value]) -> None:
            """Emit the combination of element `i` into `totals`, and the store of that element's result."""
            items = self.items(lane, v, self.source_coordinates(at, i), in_bounds)
            if self.op.attrs.get("exclusive"):
                self.write(self._with_base(bases[0], totals), lane, v, self.source_coordinates(at, i), in_bounds)
                self.combine(totals, items)
                return
            self.combine(totals, items)
            self.write(self._with_base(bases[0], totals), lane, v, self.source_coordinates(at, i), in_bounds)

        accumulate_scan(low, self.op, [first], self.length, step)

    def _with_base(self, base: Value | None, totals: list[Value]) -> list[Value]:
        """Emit the combination of the running `totals` with `base`, the total of all earlier blocks of a long scan;
        return new fragments. Return `totals` themselves if `base` is None.
        """
        if base is None:
            return totals
        total_so_far = self.begin(totals)
        self.combine(total_so_far, [base])
        return total_so_far

    def _scan_by_formulas(self, lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
        """Emit the scan of one row per lane for an operation that combines tuples by formulas. The first elements of
        the row are stored as they are, because formulas have no neutral element to start with. `at` are the row's
        coordinates, as expressions of the symbols `lane` and `v` (index of a lane's value); lanes work if `in_bounds`
        holds (None: always).
        """
        start = self.source_coordinates(at, as_expr(0))
        totals = self.begin(self.items(lane, v, start, in_bounds))
        self.write(totals, lane, v, start, in_bounds)
        if self.length != 1:
            with self.low.loop("along", 1, self.length) as i:
                self.combine(totals, self.items(lane, v, self.source_coordinates(at, i), in_bounds))
                self.write(totals, lane, v, self.source_coordinates(at, i), in_bounds)


def neutral(function: str, kind: DType) -> float:
    """Return the neutral element of a `function` (sum, prod, max or min) in the type `kind`: -128 for max of i8."""
    if function in FIRST:
        return FIRST[function]
    if kind.is_float:
        return float("-inf") if function == "max" else float("inf")
    limits = np.iinfo(kind.numpy)
    return int(limits.min if function == "max" else limits.max)


def along(low: WaveLowering, op: Op) -> None:
    """Lower `reduce` or `scan` for any operands: one lane does each row, element after element, in memory."""
    Rows(low, op).run()


def broadcast(low: WaveLowering, op: Op) -> None:
    """Lower `broadcast` for any operands: emit a loop that copies to each element of the target the source's element,
    which has the same coordinates without dimension `along`. Operands in registers go through shared memory.
    """
    source, target = in_memory(low, op, 0), in_memory(low, op, 1, filled=False)
    axis = op.attrs["along"]

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
        """Emit the load of the source's element and its store to the target's elements at `at`."""
        element = copies.load_at(low, source, lane, v, (*at[:axis], *at[axis + 1 :]), in_bounds, 0)
        copies.store_at(low, element, target, lane, v, at, in_bounds)

    copies.distribute_over_lanes(low, target.shape, target.dtype.numpy.itemsize, body)
    load_results(low, op, (1,), [target])


# -- places that are data ---------------------------------------------------------------------------------------


def _for_each_indexed_element(
    low: WaveLowering,
    op: Op,
    memory: InMemory,
    body: Callable[[Symbol, Symbol, tuple[Expr, ...], Expr | None, TensorAddress], None],
    in_order: bool = False,
) -> None:
    """Emit a loop over the elements of `op`, a gather, scatter or atomic. For each of them, the loop reads from index
    tensors (operands 2 and later) the coordinates of an element of `memory`.

    `body(lane, value, coordinates, condition, address)` emits the work for one element per lane. `address` is that of
    the element of `memory`, with its bounds conditions. Lanes take elements in turn; with `in_order`, one lane takes
    all, in row-major order.
    """
    indices = [in_memory(low, op, 2 + i) for i in range(len(op.operands) - 2)]
    shape = sizes(low.expr(s.upper + 1) for s in op.attrs["over"])

    def lower_element(lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None) -> None:
        """Emit the reads of the indices of the element at `at`, then the work of `body` on it."""
        meanings: dict[Symbol, Expr] = dict(zip(op.attrs["over"], at, strict=True))
        for (name, index_coordinates), source in zip(op.attrs.get("where", ()), indices, strict=True):
            images = Substitution({**low.meaning, **meanings})
            index_value = copies.load_at(
                low, source, lane, v, tuple(images(formula) for formula in index_coordinates), in_bounds, 0
            )
            number = low.unlimited("d")
            low.emit("read", (index_value,), symbol=number)
            meanings[name] = number
        images = Substitution({**low.meaning, **meanings})
        coordinates, conditions = [], []
        for (formula, may_leave), size in zip(op.attrs["at"], memory.shape, strict=True):
            coordinate = images(formula)
            if may_leave:
                conditions += [coordinate >= 0, coordinate < size]
            coordinates.append(coordinate)
        where = memory.at(tuple(coordinates))
        body(lane, v, at, in_bounds, TensorAddress(where.buffer, where.offset, (*conditions, *where.conditions)))

    if not in_order:
        copies.distribute_over_lanes(low, shape, 1, lower_element, width=1)
        return
    with low.one_wave(), low.loop("element", 0, prod(map(as_expr, shape), start=as_expr(1))) as number:
        lane, v = low.axes(1)
        lower_element(lane, v, copies.coordinates_of(number, shape), lane < 1)


def _condition_attrs(where: TensorAddress, in_bounds: Expr | None, otherwise: Any = None) -> dict[str, Any]:
    """Return the attributes of a load or store that happens under a condition: {"when": condition}, or {} if it always
    happens. If `otherwise`, the value of a load whose condition is false, is not None, {"otherwise": otherwise} is
    added to the condition.

    The condition is the conjunction of `in_bounds` (None: true) and the bounds conditions of the address `where`.
    """
    condition = conjunction((*(() if in_bounds is None else (in_bounds,)), *where.conditions))
    if condition is None:
        return {}
    return {"when": condition} if otherwise is None else {"when": condition, "otherwise": otherwise}


def gather(low: WaveLowering, op: Op) -> None:
    """Lower `gather` on a GPU: lanes load each element of the first operand from the second one, at the coordinates
    that index tensors give. Elements out of bounds become the attribute `otherwise` (default 0).
    """
    memory, tile = in_memory(low, op, 1), in_memory(low, op, 0, filled=False)

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None, where: TensorAddress) -> None:
        """Emit the load of the element at the address `where` and its store to the tile at `at`."""
        element = _scalar_fragment(low, tile.dtype)
        attrs = _condition_attrs(where, in_bounds, op.attrs.get("otherwise", 0))
        low.emit("load", (element, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
        copies.store_at(low, element, tile, lane, v, at, in_bounds)

    _for_each_indexed_element(low, op, memory, body)
    load_results(low, op, (0,), [tile])


def scatter(low: WaveLowering, op: Op) -> None:
    """Lower `scatter` on a GPU: store the elements of the first operand to the second one, at the coordinates that
    index tensors give. Each element is stored by a single lane. Of several elements with the same coordinates the last
    one stays; elements out of bounds are not stored.
    """
    memory, tile = in_memory(low, op, 1), in_memory(low, op, 0)

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None, where: TensorAddress) -> None:
        """Emit the load of the tile's element at `at` and its store to the address `where`."""
        element = copies.load_at(low, tile, lane, v, at, in_bounds, 0)
        attrs = _condition_attrs(where, in_bounds)
        low.emit("store", (element, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
        low.note_stored(memory)

    _for_each_indexed_element(low, op, memory, body, in_order=True)
    load_results(low, op, (), [])


def atomic(low: WaveLowering, op: Op) -> None:
    """Lower `atomic` on a GPU: lanes change each selected element of operand 1, a tensor in memory. It becomes the
    result of an atomic operation on its old value and an element of operand 0. Index tensors, the other operands, give
    its coordinates. Elements out of bounds are skipped. The attribute `how` names the operation (such as add).
    """
    memory, tile = in_memory(low, op, 1), in_memory(low, op, 0)

    def body(lane: Symbol, v: Symbol, at: tuple[Expr, ...], in_bounds: Expr | None, where: TensorAddress) -> None:
        """Emit the load of the tile's element at `at` and the atomic operation at the address `where`."""
        element = copies.load_at(low, tile, lane, v, at, in_bounds, 0)
        low.emit(
            "atomic",
            (element, where.buffer),
            over=(lane, v),
            how=op.attrs["how"],
            at=(where.offset,),
            **_condition_attrs(where, in_bounds),
        )
        low.note_stored(memory)

    _for_each_indexed_element(low, op, memory, body)
    load_results(low, op, (), [])


# -- the rest -----------------------------------------------------------------------------------------------------


def bitcast(low: WaveLowering, op: Op) -> None:
    """Lower `bitcast` on a GPU, and record its result. Memory gets another element type in place. A register tensor is
    stored to scratch memory and loaded from there in the other type. Raise a ProgramError for a view.
    """
    base, dtype = low.handles[op.operands[0]], op.attrs["dtype"]
    if isinstance(base, PlacedView):
        raise ProgramError("bitcast of a view: bitcast the tensor, then view it")
    if isinstance(base, RegisterTensor):
        memory = in_memory(low, op, 0)
        assert isinstance(memory, PlacedMemory)
        buffer = low.emit("bitcast", (memory.buffer,), dtype=dtype).results[0]
        retyped = PlacedMemory(buffer, dtype, memory.shape, memory.strides, None, memory.start)
        pieces = []
        for piece in base.pieces:
            fragment = low.fragment(dtype, len(piece.columns), op.results[0].name)
            new_piece = type(piece)(fragment, tuple(range(len(piece.columns))), piece.coordinates, piece.first)
            copies.load(low, retyped, fragment, new_piece, None)
            pieces.append(new_piece)
        low.sync_waves()
        low.handles[op.results[0]] = RegisterTensor(dtype, base.shape, tuple(pieces))
        return
    buffer = low.emit("bitcast", (base.buffer,), dtype=dtype).results[0]
    if base.buffer in low.origins:
        low.origins[buffer] = low.origins[base.buffer]
    low.handles[op.results[0]] = PlacedMemory(buffer, dtype, base.shape, base.strides, None, base.start)


def while_(low: WaveLowering, op: Op) -> None:
    """Lower `while` on a GPU: emit a loop that runs as long as the scalar in its operand, in registers with the same
    value in all lanes, is not zero. Raise a ProgramError for any other operand.
    """
    flag = low.handles[op.operands[0]]
    if not isinstance(flag, RegisterTensor) or len(flag.pieces) != 1 or flag.shape:
        raise ProgramError("while: the operand must be one number in registers")
    low.mmas_in_flight.wait_for_all()
    inner = Block(())
    before = low.meaning
    with low.writing(inner):
        low.block(op.blocks[0])
        low.mmas_in_flight.wait_for_all()
    low.meaning = before
    low.emit("while", (flag.pieces[0].fragment,), blocks=(inner,))
