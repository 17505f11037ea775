"""Copy, fill, map and broadcast on CPUs: loops over elements, with vectors along one axis.

A bounds condition of a view that is linear in a loop's variable becomes a limit of the loop, so that the interior of a
padded image needs no tests. Other conditions become predicates of single loads and stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.algebra.expr import AtLeastZero, Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_conditions import conjuncts
from tilewright.algebra.expr_rules import all_of, maximum, minimum
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.analysis.flat_memory import PlacedMemory, PlacedView, Size, TensorAddress, linear_factor, linear_step
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType, bf16
from tilewright.ir.formula import Formula
from tilewright.lower.cpu import transposing
from tilewright.lower.cpu.address_tables import tabulated
from tilewright.lower.cpu.register_forms import Tiles, Vectors
from tilewright.lower.loop_lowering import LoopLowering

At = Callable[[tuple[Expr, ...]], TensorAddress]


@dataclass
class ElementwiseJob:
    """Element-by-element work: target = formula of sources, over a shape.

    An operand in memory is a function from coordinates to an address, an operand in registers is `Vectors`. `otherwise`
    is the value of a source that is out of bounds. If operands are in registers, the shape consists of ints.
    """

    shape: tuple[Size, ...]
    dtype: DType
    target: At | Vectors
    formula: Formula
    sources: dict[int, At | Vectors]
    types: dict[int, DType]
    otherwise: float | None = None
    over: tuple[Symbol, ...] = ()
    stream: bool = False
    assumed: frozenset[Expr] = frozenset()
    """Conditions over the job's axes that the limits of the enclosing loops guarantee."""
    identity: bool = field(init=False)

    def __post_init__(self) -> None:
        self.identity = self.formula.name == "operand"


# -- the operations ---------------------------------------------------------------------------------------


def fill(low: LoopLowering, op: Op) -> None:
    """Lower `fill` on a CPU: every element of the target becomes the same number."""
    target = low.handles[op.operands[0]]
    if isinstance(target, Tiles) and op.attrs["value"] != 0:  # only zero has an instruction of its own
        image = low.scratch(target.dtype, target.shape, "tile")
        run(low, ElementwiseJob(image.shape, image.dtype, image.at, Formula.number(op.attrs["value"]), {}, {}))
        _copy_tiles(low, image, target, None, False)
        return
    if isinstance(target, Tiles | Vectors):
        for value in target.registers.values():
            low.emit("fill", (value,), value=op.attrs["value"])
        return
    dtype = target.dtype
    run(low, ElementwiseJob(target.shape, dtype, target.at, Formula.number(op.attrs["value"]), {}, {}))


def copy(low: LoopLowering, op: Op) -> None:
    """Lower `copy` on a CPU: elements go from one tensor to another. Stores stream (bypass caches) if the copy, or the
    atom that it names, says so.
    """
    source, target = (low.handles[v] for v in op.operands)
    stream, answer = op.attrs.get("stream"), low.answer(op)
    streams = (stream is not None and bool(int(low.expr(stream)))) or (
        answer is not None and answer.atom.hint == "stream"
    )
    otherwise = op.attrs.get("otherwise")
    if isinstance(target, Tiles) or isinstance(source, Tiles):
        _copy_tiles(low, source, target, otherwise, streams)
        return
    job = ElementwiseJob(
        source.shape,
        source.dtype,
        _job_operand(target),
        Formula.operand(1),
        {1: _job_operand(source)},
        {1: source.dtype},
        otherwise,
        stream=streams,
    )
    run(low, job)


def map_(low: LoopLowering, op: Op) -> None:
    """Lower `map` on a CPU: compute a formula element by element."""
    handles = [_without_tiles(low, low.handles[v]) for v in op.operands]
    target = low.handles[op.operands[0]]
    run(low, job_of_map(low, op, handles))
    if isinstance(target, Tiles):
        _copy_tiles(low, handles[0], target, None, False)


def job_of_map(low: LoopLowering, op: Op, handles: Sequence[Any] | None = None) -> ElementwiseJob:
    """Return the ElementwiseJob of the map `op` on `handles`, its lowered operands with the result first; None: those
    that the lowering has for the operands.
    """
    handles = [low.handles[v] for v in op.operands] if handles is None else handles
    return ElementwiseJob(
        handles[0].shape,
        handles[0].dtype,
        _job_operand(handles[0]),
        op.attrs["formula"].mapped(low.expr),
        {i: _job_operand(h) for i, h in enumerate(handles) if i},
        {i: h.dtype for i, h in enumerate(handles)},
        over=tuple(_renamed(low, s) for s in op.attrs.get("over", ())),
        stream=bool(op.attrs.get("stream") is not None and int(low.expr(op.attrs["stream"]))),
    )


def _renamed(low: LoopLowering, axis: Symbol) -> Symbol:
    """Return the symbol that an axis of a formula has in the loop program; `axis` itself if it has none."""
    image = low.expr(axis)
    return image if isinstance(image, Symbol) else axis


def broadcast(low: LoopLowering, op: Op) -> None:
    """Lower `broadcast` on a CPU: repeat the source along a dimension of the target."""
    source, target = (_without_tiles(low, low.handles[v]) for v in op.operands)
    along = op.attrs["along"]
    memory = in_memory(low, source)

    def at(coordinates: tuple[Expr, ...]) -> TensorAddress:
        return memory.at(coordinates[:along] + coordinates[along + 1 :])

    job = ElementwiseJob(
        target.shape, target.dtype, _job_operand(target), Formula.operand(1), {1: at}, {1: source.dtype}
    )
    run(low, job)
    if isinstance(low.handles[op.operands[1]], Tiles):
        _copy_tiles(low, target, low.handles[op.operands[1]], None, False)


def _job_operand(handle: Any) -> At | Vectors:
    """Return the operand of an ElementwiseJob for a lowered tensor: `Vectors` as they are, and for memory the function
    from coordinates to an address.
    """
    return handle if isinstance(handle, Vectors) else handle.at


def _without_tiles(low: LoopLowering, handle: Any) -> Any:
    """Return a copy in memory if `handle` is in tile registers, whose elements cannot be addressed; otherwise `handle`
    itself.
    """
    if not isinstance(handle, Tiles):
        return handle
    copy = low.scratch(handle.dtype, handle.shape, "tile")
    _copy_tiles(low, handle, copy, None, False)
    return copy


def in_memory(low: LoopLowering, handle: Any) -> PlacedMemory | PlacedView:
    """Return a lowered tensor in memory: itself, or a copy in scratch memory if it is in registers."""
    if isinstance(handle, PlacedMemory | PlacedView):
        return handle
    if isinstance(handle, Tiles):
        unpacked: PlacedMemory = _without_tiles(low, handle)
        return unpacked
    spilled = low.scratch(handle.dtype, handle.shape, "spill")
    run(low, ElementwiseJob(handle.shape, handle.dtype, spilled.at, Formula.operand(1), {1: handle}, {1: handle.dtype}))
    return spilled


def from_memory(low: LoopLowering, memory: PlacedMemory | PlacedView, target: Any) -> None:
    """Emit the copy of a tensor in memory to `target`; nothing if they are the same."""
    if memory is target:
        return
    if isinstance(target, Tiles):
        _copy_tiles(low, memory, target, None, False)
        return
    run(
        low,
        ElementwiseJob(
            memory.shape, memory.dtype, _job_operand(target), Formula.operand(1), {1: memory.at}, {1: memory.dtype}
        ),
    )


# -- tiles ------------------------------------------------------------------------------------------------


def _copy_tiles(low: LoopLowering, source: Any, target: Any, otherwise: float | None, stream: bool) -> None:
    """Emit the copy of whole tile registers from or to memory if rows have a constant stride, otherwise through a
    scratch buffer. At least one of `source` and `target` is in tile registers; elements out of bounds become
    `otherwise`.
    """
    tiles: Tiles = target if isinstance(target, Tiles) else source
    memory = source if isinstance(target, Tiles) else target
    if isinstance(memory, Tiles):
        between = _without_tiles(low, source)
        _copy_tiles(low, between, target, None, False)
        return
    if isinstance(memory, Vectors):
        between = low.scratch(tiles.dtype, tiles.shape, "tile")
        if isinstance(target, Tiles):
            from_memory(low, in_memory(low, source), between)
            _copy_tiles(low, between, target, None, False)
        else:
            _copy_tiles(low, source, between, None, False)
            from_memory(low, between, target)
        return
    rows, elements = tiles.register_shape
    places = {key: _tile_address(low, tiles, memory, key, rows, elements) for key in tiles.registers}
    if None in places.values():
        between = low.scratch(tiles.dtype, tiles.shape, "tile")
        if isinstance(target, Tiles):
            run(
                low,
                ElementwiseJob(
                    memory.shape,
                    memory.dtype,
                    between.at,
                    Formula.operand(1),
                    {1: memory.at},
                    {1: memory.dtype},
                    otherwise,
                ),
            )
            _copy_packed(low, between, target, True)
        else:
            _copy_packed(low, between, source, False)
            run(
                low,
                ElementwiseJob(
                    memory.shape, memory.dtype, memory.at, Formula.operand(1), {1: between.at}, {1: memory.dtype}
                ),
            )
        return
    for key, value in tiles.registers.items():
        place = places[key]
        assert place is not None
        (row, element), where = place
        if isinstance(target, Tiles):
            low.emit("load", (value, where.buffer), over=(row, element), at=(where.offset,), stream=stream or None)
        else:
            low.emit("store", (value, where.buffer), over=(row, element), at=(where.offset,))


def _copy_packed(low: LoopLowering, memory: PlacedMemory, tiles: Tiles, load: bool) -> None:
    """Emit the copy between packed memory and tile registers, element by element through a buffer of one tile's size.
    With `load` it goes from memory to the registers, else back.
    """
    rows, elements = tiles.register_shape
    for key, value in tiles.registers.items():
        image = low.scratch(tiles.dtype, (rows, elements), "image")

        def at(coordinates: tuple[Expr, ...], key: tuple[int, int] = key) -> TensorAddress:
            return memory.at(tiles.coordinates(key, coordinates[0], coordinates[1]))

        row, element = low.axis("row", rows), low.axis("e", elements)
        where = image.at((row, element))
        if load:
            run(low, ElementwiseJob(image.shape, image.dtype, image.at, Formula.operand(1), {1: at}, {1: image.dtype}))
            low.emit("load", (value, where.buffer), over=(row, element), at=(where.offset,))
        else:
            low.emit("store", (value, where.buffer), over=(row, element), at=(where.offset,))
            run(low, ElementwiseJob(image.shape, image.dtype, at, Formula.operand(1), {1: image.at}, {1: image.dtype}))


def _tile_address(
    low: LoopLowering, tiles: Tiles, memory: Any, key: tuple[int, int], rows: int, elements: int
) -> tuple[tuple[Symbol, Symbol], TensorAddress] | None:
    """Return ((row symbol, element symbol), address) of the tile with index `key` in memory, if its rows have a
    constant stride and contiguous elements. None if they do not, or if parts of the tile may be out of bounds. A tile
    has `rows` rows of `elements` elements.
    """
    row, element = low.axis("row", rows), low.axis("e", elements)
    where = memory.at(tiles.coordinates(key, row, element))
    step = linear_factor(where.offset, row)
    if where.conditions or step is None or element in step.symbols or linear_step(where.offset, element) != 1:
        return None
    return (row, element), where


# -- the loops --------------------------------------------------------------------------------------------


def run(low: LoopLowering, job: ElementwiseJob) -> None:
    """Emit the loops of an elementwise job: over registers if operands are in registers, else over memory. Register
    operands of different layouts go through memory first.
    """
    holders = [h for h in (job.target, *job.sources.values()) if isinstance(h, Vectors)]
    if holders and not all(h.has_same_layout(holders[0]) for h in holders[1:]):
        _through_memory(low, job)
    elif holders:
        _by_registers(low, job, holders[0])
    else:
        _by_loops(low, job)


def _through_memory(low: LoopLowering, job: ElementwiseJob) -> None:
    """Emit an elementwise job whose register operands have different layouts: they are copied to memory first."""
    sources: dict[int, At | Vectors] = {
        i: in_memory(low, s).at if isinstance(s, Vectors) else s for i, s in job.sources.items()
    }
    target = job.target
    if isinstance(target, Vectors):
        spilled = low.scratch(job.dtype, target.shape, "spill")
        run(
            low,
            ElementwiseJob(job.shape, job.dtype, spilled.at, job.formula, sources, job.types, job.otherwise, job.over),
        )
        from_memory(low, spilled, target)
        return
    run(
        low,
        ElementwiseJob(
            job.shape, job.dtype, target, job.formula, sources, job.types, job.otherwise, job.over, job.stream
        ),
    )


def _by_registers(low: LoopLowering, job: ElementwiseJob, holder: Vectors) -> None:
    """Emit an elementwise job one register of `holder` after the other; all register operands have the same layout as
    `holder`.
    """
    for key in holder.registers:
        lane = low.axis("l", holder.lanes)
        coordinates = holder.coordinates(key, lane)
        places = {n: side(coordinates) for n, side in _memory_operands(job).items()}
        _emit_step(low, job, coordinates, places, lane, holder.lanes, key)


def _memory_operands(job: ElementwiseJob) -> dict[int, At]:
    """Return {operand number: function from coordinates to an address} of the operands of a job that are in memory;
    number 0 is the target.
    """
    used = {f.value for f in job.formula.walk() if f.name == "operand"}
    operands = {0: job.target, **{n: s for n, s in job.sources.items() if n in used}}
    return {n: side for n, side in operands.items() if not isinstance(side, Vectors)}


class _Loops:
    """The loops over all axes of a job but one, with vectors along that one."""

    def __init__(self, low: LoopLowering, job: ElementwiseJob):
        self.low, self.shape = low, job.shape
        self.axes = tuple(low.axis(f"i{n}", size) for n, size in enumerate(job.shape))
        self.places = {n: side(self.axes) for n, side in _memory_operands(job).items()}
        self.lanes = low.vector_lanes(job.dtype)
        self.most = max(self.lanes, low.interleaved((job.dtype, *job.types.values()), (job.formula,)))
        self.vector = self._vector_axis()

    def _vector_axis(self) -> int | None:
        """Return the axis for vectors: one along which the target is contiguous, and preferably each source contiguous
        or constant. None if there is no such axis.
        """
        best = None
        for n in reversed(range(len(self.axes))):
            if self.shape[n] == 1:
                continue
            steps = {place: linear_step(w.offset, self.axes[n]) for place, w in self.places.items()}
            if steps[0] == 1 and all(s in (0, 1) for s in steps.values()):
                return n
            if best is None and steps[0] == 1 and None not in steps.values():
                best = n
        return best

    def transpose(self, job: ElementwiseJob) -> transposing.VectorTranspose | None:
        """Return the VectorTranspose (transpose in registers) of a copy whose source is contiguous along another axis
        than its target. None if the job is no plain copy in one type, if it streams, or if it cannot be transposed in
        registers.
        """
        if not job.identity or job.stream or self.low.straight or job.types[1] is not job.dtype:
            return None
        return transposing.transpose_of(self.shape, self.axes, self.places[0], self.places[1], self.lanes)

    def run(self, job: ElementwiseJob, rest: list[int], known: dict[Symbol, Expr]) -> None:
        """Emit the loops over the axes numbered in `rest`, and the job inside them; `known` maps axes of enclosing
        loops to values.
        """
        if not rest:
            self._innermost(job, known)
            return
        n, inner = rest[0], rest[1:]
        axis, size = self.axes[n], self.shape[n]
        later = {self.axes[m] for m in inner}
        if self.vector is not None:
            later.add(self.axes[self.vector])
        target = self._span(0, job, axis, later, known, size)
        source = self._span(1, job, axis, later, known, size) if job.identity and target is None else None
        step_count: Size = size
        for m in inner:
            step_count = step_count * self.shape[m]
        if self.vector is not None:
            step_count = step_count * -(-self.shape[self.vector] // self.lanes)
        has_few_steps = isinstance(step_count, int) and step_count <= 8
        is_unrolled = bool(self.low.straight) or (has_few_steps and target is None and source is None)

        def emit_range(lo: Expr, hi: Expr, job_of_range: ElementwiseJob) -> None:
            if (hi - lo).hi <= 0:
                return
            if is_unrolled and isinstance(lo, Const) and isinstance(hi, Const):
                for value in range(lo.value, hi.value):
                    self.run(job_of_range, inner, {**known, axis: as_expr(value)})
                return
            with self.low.loop(f"i{n}", lo, hi) as i:
                self.run(job_of_range, inner, {**known, axis: i})

        if target is not None:  # out of the target's bounds there is nothing to do
            lo, hi, conditions = target
            emit_range(lo, hi, replace(job, assumed=job.assumed | conditions))
        elif source is not None:
            lo, hi, conditions = source
            empty = replace(job, formula=Formula.number(job.otherwise or 0), sources={}, otherwise=None)
            emit_range(as_expr(0), lo, empty)
            emit_range(lo, hi, replace(job, assumed=job.assumed | conditions))
            emit_range(hi, as_expr(size), empty)
        else:
            interior = self._interior(job, axis, later, known, size)
            if interior is None:
                emit_range(as_expr(0), as_expr(size), job)
                return
            lo, hi, conditions = interior
            emit_range(as_expr(0), lo, job)
            emit_range(lo, hi, replace(job, assumed=job.assumed | conditions))
            emit_range(hi, as_expr(size), job)

    def _interior(
        self, job: ElementwiseJob, axis: Symbol, later: set[Symbol], known: dict[Symbol, Expr], size: Size
    ) -> tuple[Expr, Expr, frozenset[Expr]] | None:
        """Return (first, end, conditions): the range of indices along `axis` in which `conditions` hold for all lanes,
        so that no masks are needed. None if there are no such conditions. `later` are the axes of inner loops, `known`
        maps axes of outer loops to values.
        """
        if self.vector is None or self.low.straight:
            return None
        lane = self.axes[self.vector]
        images = Substitution(known)
        lo: Expr = as_expr(0)
        hi: Expr = as_expr(size)
        conditions = []
        for where in self.places.values():
            for condition in where.conditions:
                current = images(condition)
                if (
                    condition in job.assumed
                    or not {axis, lane} <= current.symbols
                    or current.symbols & (later - {lane})
                ):
                    continue
                step = linear_step(current.operand, lane) if isinstance(current, AtLeastZero) else None
                if step is None:
                    continue
                least = Substitution({lane: 0 if step > 0 else self.shape[self.vector] - 1})(current.parts[0])
                limited = _at_least_zero(least, axis, size, (lo, hi))
                if limited is not None:
                    conditions.append(condition)
                    lo, hi = limited
        return (lo, maximum(lo, hi), frozenset(conditions)) if conditions else None

    def _span(
        self, place: int, job: ElementwiseJob, axis: Symbol, later: set[Symbol], known: dict[Symbol, Expr], size: Size
    ) -> tuple[Expr, Expr, frozenset[Expr]] | None:
        """Return (first, end, conditions): the range of indices along `axis` in which operand number `place` is in
        bounds, as `conditions` require; None if there is no limit. `later` are the axes of inner loops, `known` maps
        axes of outer loops to values.

        Only a plain copy can be limited by its source: in other formulas the `otherwise` number takes part.
        """
        where = self.places.get(place)
        if where is None:
            return None
        images = Substitution(known)
        lo: Expr = as_expr(0)
        hi: Expr = as_expr(size)
        conditions = []
        for condition in where.conditions:
            current = images(condition)
            if axis not in current.symbols or current.symbols & later or not isinstance(current, AtLeastZero):
                continue
            limited = _at_least_zero(current.operand, axis, size, (lo, hi))
            if limited is not None:
                conditions.append(condition)
                lo, hi = limited
        return (lo, maximum(lo, hi), frozenset(conditions)) if conditions else None

    def _innermost(self, job: ElementwiseJob, known: dict[Symbol, Expr]) -> None:
        """Emit the job along the vector axis: full vectors in a loop, then the rest. `known` maps the other axes to
        values.
        """
        if self.vector is None:
            self._step(job, known, None, 1)
            return
        axis, size = self.axes[self.vector], self.shape[self.vector]

        def step(start: Expr, count: int, in_bounds: int | Expr | None = None) -> None:
            lane = self.low.axis("l", count)
            self._step(
                job, {**known, axis: start + lane}, lane, count, () if in_bounds is None else (lane < in_bounds,)
            )

        if isinstance(size, Expr):
            done: Expr = as_expr(0)
            for lanes in sorted({self.most, self.lanes}, reverse=True):
                with self.low.loop("v", done // lanes, size // lanes) as i:
                    step(lanes * i, lanes)
                done = size // lanes * lanes
            left = size % self.lanes
            if left is not as_expr(0):
                with self.low.when(left >= 1):
                    step(size - left, self.lanes, left)
            return
        for start, count in self._vectors(size):
            is_one_part = count % self.lanes == 0 or not (job.identity and job.dtype is bf16)
            for part in [count] if is_one_part else _powers_of_two(count):
                step(start, part)
                start = start + part

    def _vectors(self, size: int) -> Iterator[tuple[Expr, int]]:
        """Yield (start, elements) of the vectors along an axis with `size` elements: interleaved vectors, single
        vectors, then the rest.
        """
        wide = size - size % self.most
        yield from self.low.vectors(wide, self.most, few=4 * self.lanes // self.most)
        for start, count in self.low.vectors(size - wide, self.lanes, few=4):
            yield wide + start, count

    def _step(
        self,
        job: ElementwiseJob,
        known: dict[Symbol, Expr],
        lane: Symbol | None,
        lanes: int,
        in_bounds: tuple[Expr, ...] = (),
    ) -> None:
        """Emit one vector of the job: `lanes` elements along the lane symbol `lane` (None: one element). `known` maps
        axes to values; lanes for which a condition in `in_bounds` fails take no part.
        """
        images = Substitution(known)
        places = {}
        for n, where in self.places.items():
            conditions = [*in_bounds, *(images(c) for c in where.conditions if c not in job.assumed)]
            places[n] = TensorAddress(where.buffer, images(where.offset), conjuncts(conditions))
        coordinates = tuple(known.get(a, as_expr(0)) for a in self.axes)
        _emit_step(self.low, job, coordinates, places, lane, lanes, None)


def _powers_of_two(count: int) -> list[int]:
    """Return the powers of two that add up to `count`, largest first. Code generators move no other numbers of bf16
    elements from memory to memory.

    >>> _powers_of_two(13)
    [8, 4, 1]
    """
    return [1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1]


def _by_loops(low: LoopLowering, job: ElementwiseJob) -> None:
    """Emit an elementwise job on memory: loops over all axes except the vector axis, or a transpose in registers."""
    if 0 in job.shape:
        return
    loops = _Loops(low, job)
    transpose = loops.transpose(job)
    if transpose is not None:
        transposing.emit_transpose(low, transpose, job.dtype, job.shape, loops.axes, (loops.places[0], loops.places[1]))
        return
    alone = {axis: as_expr(0) for axis, size in zip(loops.axes, job.shape, strict=True) if size == 1}
    loops.run(job, [n for n, size in enumerate(job.shape) if n != loops.vector and size != 1], alone)


def _emit_step(
    low: LoopLowering,
    job: ElementwiseJob,
    coordinates: tuple[Expr, ...],
    addresses: dict[int, TensorAddress],
    lane: Symbol | None,
    lanes: int,
    key: tuple[int, ...] | None,
) -> None:
    """Emit the loads, the computation and the store of one vector of a job. `addresses` is {operand number: address} of
    operands in memory, `lane` the symbol of its `lanes` elements (None: one element), and `key` the index of the
    register in operands that are `Vectors`.
    """
    over = () if lane is None else (lane,)
    shape = () if lane is None else (lanes,)
    target = job.target
    target_register = target.registers[key] if isinstance(target, Vectors) and key is not None else None
    target_address = None if target_register is not None else tabulated(low, addresses[0], lane)
    if target_address is not None and is_out_of_bounds(target_address):
        return
    registers: dict[int, Value] = {}
    for n in sorted({f.value for f in job.formula.walk() if f.name == "operand"}):
        source = job.sources[n]
        if isinstance(source, Vectors):
            assert key is not None
            registers[n] = source.registers[key]
            continue
        register = (
            target_register if job.identity and target_register is not None else low.register(job.types[n], *shape)
        )
        registers[n] = register
        load(low, register, over, tabulated(low, addresses[n], lane), job.otherwise)
    result = registers[1] if job.identity else computed(low, job, coordinates, registers, target_register, over, shape)
    if target_address is not None:
        store(low, result, over, target_address, job.stream)
    elif target_register is not None and result is not target_register:
        low.emit("compute", (target_register, result), formula=Formula.operand(1))


def computed(
    low: LoopLowering,
    job: ElementwiseJob,
    coordinates: tuple[Expr, ...],
    registers: dict[int, Value],
    target: Value | None,
    over: tuple[Symbol, ...],
    shape: tuple[int, ...],
) -> Value:
    """Return a register with the value of the job's formula at these coordinates: `target` if that is not None, else a
    new register of this shape. `registers` is {operand number: register}; `over` are the lane symbols.
    """
    result = target if target is not None else low.register(job.dtype, *shape)
    if job.formula.name == "number":
        low.emit("fill", (result,), value=job.formula.value)
        return result
    order = {n: i + 1 for i, n in enumerate(registers)}
    meanings = dict(zip(job.over, coordinates, strict=False))
    formula = _renumbered(job.formula, order).mapped(Substitution(meanings) if meanings else lambda e: e)
    indexed = over if over and any(True for _ in formula.expressions()) else None
    low.emit("compute", (result, *registers.values()), formula=formula, over=indexed)
    return result


def is_out_of_bounds(where: TensorAddress) -> bool:
    """True if an address is known to be out of bounds."""
    return any(isinstance(c, Const) and not c.value for c in where.conditions)


def _renumbered(formula: Formula, order: dict[int, int]) -> Formula:
    """Return the formula with each operand n replaced by operand order[n]."""
    value = order[formula.value] if formula.name == "operand" else formula.value
    return Formula(formula.name, tuple(_renumbered(p, order) for p in formula.parts), value)


def load(
    low: LoopLowering, register: Value, over: tuple[Symbol, ...], where: TensorAddress, otherwise: float | None
) -> None:
    """Emit the load of a register from an address, under its bounds conditions; lanes out of bounds get `otherwise`
    (None: 0). `over` are the lane symbols.
    """
    if is_out_of_bounds(where):
        low.emit("fill", (register,), value=otherwise or 0)
        return
    when = all_of(*where.conditions) if where.conditions else None
    number = (otherwise or 0) if when is not None else None
    low.emit("load", (register, where.buffer), over=over, at=(where.offset,), when=when, otherwise=number)


def store(low: LoopLowering, register: Value, over: tuple[Symbol, ...], where: TensorAddress, stream: bool) -> None:
    """Emit the store of a register to an address, under its bounds conditions. `over` are the lane symbols; `stream`
    asks for a store that bypasses caches.
    """
    if is_out_of_bounds(where):
        return
    when = all_of(*where.conditions) if where.conditions else None
    low.emit("store", (register, where.buffer), over=over, at=(where.offset,), when=when, stream=stream or None)


def _at_least_zero(e: Expr, axis: Symbol, size: Size, span: tuple[Expr, Expr]) -> tuple[Expr, Expr] | None:
    """Return (first, end) of the indices in the range `span` at which the expression `e` is at least 0; None if `e` is
    not linear in `axis` with a constant coefficient. The axis has `size` indices.
    """
    form = linear_form(e, [axis])
    coefficient = None if form is None else form[0].get(axis)
    if form is None or not isinstance(coefficient, Const):
        return None
    lo, hi = span
    if coefficient.value > 0:
        return maximum(lo, minimum(-(form[1] // coefficient.value), size)), hi
    return lo, minimum(hi, maximum(form[1] // -coefficient.value + 1, 0))
