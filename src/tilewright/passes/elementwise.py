"""Copy, fill, map, broadcast: loops over elements, with vectors along one axis.

Conditions of a view that are linear in a loop's variable become limits of the loop: the padded edge of an image costs
no test where the image is. Other conditions become predicates of single loads and stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.algebra.expr import AtLeastZero, Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_conditions import conjuncts
from tilewright.algebra.expr_rules import all_of, maximum, minimum
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType, bf16
from tilewright.ir.formula import Formula
from tilewright.passes import transposing
from tilewright.passes.loop_lowering import LoopLowering
from tilewright.passes.places import PlacedMemory, PlacedView, Size, Where, linear_factor, linear_step
from tilewright.passes.storage import Tiles, Vectors
from tilewright.passes.tabulate import tabulated

At = Callable[[tuple[Expr, ...]], Where]


@dataclass
class ElementwiseJob:
    """Element-by-element work: target = formula of sources, over a shape.

    A memory operand is a function from coordinates to a place; a register operand is `Vectors`. `otherwise` is the
    value of a source that is out of bounds. The shape is numbers if registers take part.
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
    """Conditions, over the job's own axes, that the limits of the loops around see to."""
    identity: bool = field(init=False)

    def __post_init__(self) -> None:
        self.identity = self.formula.name == "operand"


# -- the operations ---------------------------------------------------------------------------------------


def fill(low: LoopLowering, op: Op) -> None:
    """Lower `fill`: every element becomes the number."""
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
    """Lower `copy`: elements go from one tensor to another; stores stream if the copy, or the atom that it names, says
    so.
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
        _side(target),
        Formula.operand(1),
        {1: _side(source)},
        {1: source.dtype},
        otherwise,
        stream=streams,
    )
    run(low, job)


def map_(low: LoopLowering, op: Op) -> None:
    """Lower `map`: a formula, element by element."""
    handles = [_without_tiles(low, low.handles[v]) for v in op.operands]
    target = low.handles[op.operands[0]]
    run(low, job_of_map(low, op, handles))
    if isinstance(target, Tiles):
        _copy_tiles(low, handles[0], target, None, False)


def job_of_map(low: LoopLowering, op: Op, handles: Sequence[Any] | None = None) -> ElementwiseJob:
    """Return the ElementwiseJob of a map on `handles` (the lowered operands); None: those that the lowering knows."""
    handles = [low.handles[v] for v in op.operands] if handles is None else handles
    return ElementwiseJob(
        handles[0].shape,
        handles[0].dtype,
        _side(handles[0]),
        op.attrs["formula"].mapped(low.expr),
        {i: _side(h) for i, h in enumerate(handles) if i},
        {i: h.dtype for i, h in enumerate(handles)},
        over=tuple(_renamed(low, s) for s in op.attrs.get("over", ())),
        stream=bool(op.attrs.get("stream") is not None and int(low.expr(op.attrs["stream"]))),
    )


def _renamed(low: LoopLowering, axis: Symbol) -> Symbol:
    """Return the symbol that stands for an axis of formulas in the loop program; the axis itself if there is none."""
    image = low.expr(axis)
    return image if isinstance(image, Symbol) else axis


def broadcast(low: LoopLowering, op: Op) -> None:
    """Lower `broadcast`: the source is repeated along a dimension."""
    source, target = (_without_tiles(low, low.handles[v]) for v in op.operands)
    along = op.attrs["along"]
    held = in_memory(low, source)

    def at(coordinates: tuple[Expr, ...]) -> Where:
        return held.at(coordinates[:along] + coordinates[along + 1 :])

    job = ElementwiseJob(target.shape, target.dtype, _side(target), Formula.operand(1), {1: at}, {1: source.dtype})
    run(low, job)
    if isinstance(low.handles[op.operands[1]], Tiles):
        _copy_tiles(low, target, low.handles[op.operands[1]], None, False)


def _side(handle: Any) -> At | Vectors:
    """Return an operand of an ElementwiseJob: Vectors as they are, memory as its function from coordinates to a
    place.
    """
    return handle if isinstance(handle, Vectors) else handle.at


def _without_tiles(low: LoopLowering, handle: Any) -> Any:
    """Return a copy in memory if the handle is Tiles (tile registers), whose elements cannot be addressed; else the
    handle.
    """
    if not isinstance(handle, Tiles):
        return handle
    copy = low.scratch(handle.dtype, handle.shape, "tile")
    _copy_tiles(low, handle, copy, None, False)
    return copy


def in_memory(low: LoopLowering, handle: Any) -> PlacedMemory | PlacedView:
    """Return a tensor's elements in memory: where they are, or a copy if they are in registers."""
    if isinstance(handle, PlacedMemory | PlacedView):
        return handle
    if isinstance(handle, Tiles):
        unpacked: PlacedMemory = _without_tiles(low, handle)
        return unpacked
    spilled = low.scratch(handle.dtype, handle.shape, "spill")
    run(low, ElementwiseJob(handle.shape, handle.dtype, spilled.at, Formula.operand(1), {1: handle}, {1: handle.dtype}))
    return spilled


def from_memory(low: LoopLowering, held: PlacedMemory | PlacedView, target: Any) -> None:
    """Emit the copy from memory to `target`; nothing if `held` is the target."""
    if held is target:
        return
    if isinstance(target, Tiles):
        _copy_tiles(low, held, target, None, False)
        return
    run(low, ElementwiseJob(held.shape, held.dtype, _side(target), Formula.operand(1), {1: held.at}, {1: held.dtype}))


# -- tiles ------------------------------------------------------------------------------------------------


def _copy_tiles(low: LoopLowering, source: Any, target: Any, otherwise: float | None, stream: bool) -> None:
    """Copy whole tile registers to or from memory if rows have a constant stride; else through a scratch buffer."""
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
    places = {key: _tile_where(low, tiles, memory, key, rows, elements) for key in tiles.registers}
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
    """Copy between packed memory and tile registers, element by element through a buffer of one tile's shape."""
    rows, elements = tiles.register_shape
    for key, value in tiles.registers.items():
        image = low.scratch(tiles.dtype, (rows, elements), "image")

        def at(coordinates: tuple[Expr, ...], key: tuple[int, int] = key) -> Where:
            return memory.at(tiles.coordinates(key, coordinates[0], coordinates[1]))

        row, element = low.axis("row", rows), low.axis("e", elements)
        where = image.at((row, element))
        if load:
            run(low, ElementwiseJob(image.shape, image.dtype, image.at, Formula.operand(1), {1: at}, {1: image.dtype}))
            low.emit("load", (value, where.buffer), over=(row, element), at=(where.offset,))
        else:
            low.emit("store", (value, where.buffer), over=(row, element), at=(where.offset,))
            run(low, ElementwiseJob(image.shape, image.dtype, at, Formula.operand(1), {1: image.at}, {1: image.dtype}))


def _tile_where(
    low: LoopLowering, tiles: Tiles, memory: Any, key: tuple[int, int], rows: int, elements: int
) -> tuple[tuple[Symbol, Symbol], Where] | None:
    """Return ((row symbol, element symbol), place) of a tile whose rows have a constant stride and contiguous elements.

    None if the tile does not lie so, or if parts of it may be out of bounds.
    """
    row, element = low.axis("row", rows), low.axis("e", elements)
    where = memory.at(tiles.coordinates(key, row, element))
    step = linear_factor(where.offset, row)
    if where.conditions or step is None or element in step.symbols or linear_step(where.offset, element) != 1:
        return None
    return (row, element), where


# -- the loops --------------------------------------------------------------------------------------------


def run(low: LoopLowering, job: ElementwiseJob) -> None:
    """Emit the loops of a job: over memory, or over registers if operands are in registers."""
    holders = [h for h in (job.target, *job.sources.values()) if isinstance(h, Vectors)]
    if holders and not all(h.alike(holders[0]) for h in holders[1:]):
        _through_memory(low, job)
    elif holders:
        _by_registers(low, job, holders[0])
    else:
        _by_loops(low, job)


def _through_memory(low: LoopLowering, job: ElementwiseJob) -> None:
    """Emit a job whose register operands have different shapes: they are copied to memory first."""
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
    """Emit one step of the job for each register of `holder`."""
    for key in holder.registers:
        lane = low.axis("l", holder.lanes)
        coordinates = holder.coordinates(key, lane)
        places = {n: side(coordinates) for n, side in _memory_operands(job).items()}
        _emit_step(low, job, coordinates, places, lane, holder.lanes, key)


def _memory_operands(job: ElementwiseJob) -> dict[int, At]:
    """Return {operand number: function from coordinates to a place} of the operands in memory; 0 is the target."""
    used = {f.value for f in job.formula.walk() if f.name == "operand"}
    operands = {0: job.target, **{n: s for n, s in job.sources.items() if n in used}}
    return {n: side for n, side in operands.items() if not isinstance(side, Vectors)}


class _Loops:
    """Loops over all axes of a job but one, vectors along that one."""

    def __init__(self, low: LoopLowering, job: ElementwiseJob):
        self.low, self.shape = low, job.shape
        self.axes = tuple(low.axis(f"i{n}", size) for n, size in enumerate(job.shape))
        self.places = {n: side(self.axes) for n, side in _memory_operands(job).items()}
        self.lanes = low.vector_lanes(job.dtype)
        self.most = max(self.lanes, low.interleaved((job.dtype, *job.types.values()), (job.formula,)))
        self.vector = self._vector_axis()

    def _vector_axis(self) -> int | None:
        """Return the axis along which the target is contiguous; preferably all sources are contiguous or constant along
        it too.

        None if there is none.
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

    def turn(self, job: ElementwiseJob) -> transposing.VectorTurn | None:
        """Return the VectorTurn (transpose in registers) of a copy that reads contiguously along another axis than it
        writes.

        None if the job is no plain copy in one type, if it streams, or if it cannot be transposed so.
        """
        if not job.identity or job.stream or self.low.straight or job.types[1] is not job.dtype:
            return None
        return transposing.turn_of(self.shape, self.axes, self.places[0], self.places[1], self.lanes)

    def run(self, job: ElementwiseJob, rest: list[int], known: dict[Symbol, Expr]) -> None:
        """Emit the loops over the axes in `rest`; `known` maps the axes outside to values."""
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
        steps: Size = size
        for m in inner:
            steps = steps * self.shape[m]
        if self.vector is not None:
            steps = steps * -(-self.shape[self.vector] // self.lanes)
        few = isinstance(steps, int) and steps <= 8
        spread = bool(self.low.straight) or (few and target is None and source is None)

        def rounds(lo: Expr, hi: Expr, what: ElementwiseJob) -> None:
            if (hi - lo).hi <= 0:
                return
            if spread and isinstance(lo, Const) and isinstance(hi, Const):
                for value in range(lo.value, hi.value):
                    self.run(what, inner, {**known, axis: as_expr(value)})
                return
            with self.low.loop(f"i{n}", lo, hi) as i:
                self.run(what, inner, {**known, axis: i})

        if target is not None:  # where the target is not, there is nothing to do
            lo, hi, seen = target
            rounds(lo, hi, replace(job, assumed=job.assumed | seen))
        elif source is not None:
            lo, hi, seen = source
            empty = replace(job, formula=Formula.number(job.otherwise or 0), sources={}, otherwise=None)
            rounds(as_expr(0), lo, empty)
            rounds(lo, hi, replace(job, assumed=job.assumed | seen))
            rounds(hi, as_expr(size), empty)
        else:
            inner_span = self._interior(job, axis, later, known, size)
            if inner_span is None:
                rounds(as_expr(0), as_expr(size), job)
                return
            lo, hi, seen = inner_span
            rounds(as_expr(0), lo, job)
            rounds(lo, hi, replace(job, assumed=job.assumed | seen))
            rounds(hi, as_expr(size), job)

    def _interior(
        self, job: ElementwiseJob, axis: Symbol, later: set[Symbol], known: dict[Symbol, Expr], size: Size
    ) -> tuple[Expr, Expr, frozenset[Expr]] | None:
        """Return (first, end, conditions) of the indices along `axis` for which `conditions` hold for all lanes: no
        mask there.

        None if there are no such conditions. `later` are axes inside this loop, `known` maps those outside to values.
        """
        if self.vector is None or self.low.straight:
            return None
        lane = self.axes[self.vector]
        images = Substitution(known)
        lo: Expr = as_expr(0)
        hi: Expr = as_expr(size)
        seen = []
        for where in self.places.values():
            for condition in where.conditions:
                c = images(condition)
                if condition in job.assumed or not {axis, lane} <= c.symbols or c.symbols & (later - {lane}):
                    continue
                step = linear_step(c.operand, lane) if isinstance(c, AtLeastZero) else None
                if step is None:
                    continue
                worst = Substitution({lane: 0 if step > 0 else self.shape[self.vector] - 1})(c.parts[0])
                limited = _at_least_zero(worst, axis, size, (lo, hi))
                if limited is not None:
                    seen.append(condition)
                    lo, hi = limited
        return (lo, maximum(lo, hi), frozenset(seen)) if seen else None

    def _span(
        self, place: int, job: ElementwiseJob, axis: Symbol, later: set[Symbol], known: dict[Symbol, Expr], size: Size
    ) -> tuple[Expr, Expr, frozenset[Expr]] | None:
        """Return (first, end, conditions) of the indices along `axis` at which operand `place` is in bounds; None: no
        limit.

        `later` are axes inside this loop, `known` maps those outside to values. Only a plain copy can be limited by its
        source: in other formulas the `otherwise` number takes part.
        """
        where = self.places.get(place)
        if where is None:
            return None
        images = Substitution(known)
        lo: Expr = as_expr(0)
        hi: Expr = as_expr(size)
        seen = []
        for condition in where.conditions:
            c = images(condition)
            if axis not in c.symbols or c.symbols & later or not isinstance(c, AtLeastZero):
                continue
            limited = _at_least_zero(c.operand, axis, size, (lo, hi))
            if limited is not None:
                seen.append(condition)
                lo, hi = limited
        return (lo, maximum(lo, hi), frozenset(seen)) if seen else None

    def _innermost(self, job: ElementwiseJob, known: dict[Symbol, Expr]) -> None:
        """Emit vectors along the vector axis: whole ones in a loop, then the rest."""
        if self.vector is None:
            self._step(job, known, None, 1)
            return
        axis, size = self.axes[self.vector], self.shape[self.vector]

        def step(start: Expr, count: int, there: int | Expr | None = None) -> None:
            lane = self.low.axis("l", count)
            self._step(job, {**known, axis: start + lane}, lane, count, () if there is None else (lane < there,))

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
            whole = count % self.lanes == 0 or not (job.identity and job.dtype is bf16)
            for part in [count] if whole else _whole_powers(count):
                step(start, part)
                start = start + part

    def _vectors(self, size: int) -> Iterator[tuple[Expr, int]]:
        """Yield (start, elements) along the vector axis: interleaved vectors, single vectors, the rest."""
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
        there: tuple[Expr, ...] = (),
    ) -> None:
        """Emit one vector of the job; `there` are conditions on the lanes that take part."""
        images = Substitution(known)
        places = {}
        for n, where in self.places.items():
            kept = [*there, *(images(c) for c in where.conditions if c not in job.assumed)]
            places[n] = Where(where.buffer, images(where.offset), conjuncts(kept))
        coordinates = tuple(known.get(a, as_expr(0)) for a in self.axes)
        _emit_step(self.low, job, coordinates, places, lane, lanes, None)


def _whole_powers(count: int) -> list[int]:
    """Return a number as a sum of powers of two: code generators move no other numbers of bf16 from memory to memory.

    >>> _whole_powers(13)
    [8, 4, 1]
    """
    return [1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1]


def _by_loops(low: LoopLowering, job: ElementwiseJob) -> None:
    """Emit loops over all axes of a job except the vector axis; or a transpose in registers."""
    if 0 in job.shape:
        return
    loops = _Loops(low, job)
    turn = loops.turn(job)
    if turn is not None:
        transposing.write(low, turn, job.dtype, job.shape, loops.axes, (loops.places[0], loops.places[1]))
        return
    alone = {axis: as_expr(0) for axis, size in zip(loops.axes, job.shape, strict=True) if size == 1}
    loops.run(job, [n for n, size in enumerate(job.shape) if n != loops.vector and size != 1], alone)


def _emit_step(
    low: LoopLowering,
    job: ElementwiseJob,
    coordinates: tuple[Expr, ...],
    places: dict[int, Where],
    lane: Symbol | None,
    lanes: int,
    key: tuple[int, ...] | None,
) -> None:
    """Emit one step: loads, a computation, a store."""
    over = () if lane is None else (lane,)
    shape = () if lane is None else (lanes,)
    target = job.target
    kept = target.registers[key] if isinstance(target, Vectors) and key is not None else None
    goal = None if kept is not None else tabulated(low, places[0], lane)
    if goal is not None and never(goal):
        return
    registers: dict[int, Value] = {}
    for n in sorted({f.value for f in job.formula.walk() if f.name == "operand"}):
        source = job.sources[n]
        if isinstance(source, Vectors):
            assert key is not None
            registers[n] = source.registers[key]
            continue
        into = kept if job.identity and kept is not None else low.register(job.types[n], *shape)
        registers[n] = into
        load(low, into, over, tabulated(low, places[n], lane), job.otherwise)
    result = registers[1] if job.identity else computed(low, job, coordinates, registers, kept, over, shape)
    if goal is not None:
        store(low, result, over, goal, job.stream)
    elif kept is not None and result is not kept:
        low.emit("compute", (kept, result), formula=Formula.operand(1))


def computed(
    low: LoopLowering,
    job: ElementwiseJob,
    coordinates: tuple[Expr, ...],
    registers: dict[int, Value],
    kept: Value | None,
    over: tuple[Symbol, ...],
    shape: tuple[int, ...],
) -> Value:
    """Return the register with the formula's value: the target's register `kept`, or a new one."""
    result = kept if kept is not None else low.register(job.dtype, *shape)
    if job.formula.name == "number":
        low.emit("fill", (result,), value=job.formula.value)
        return result
    order = {n: i + 1 for i, n in enumerate(registers)}
    meanings = dict(zip(job.over, coordinates, strict=False))
    formula = _renumbered(job.formula, order).mapped(Substitution(meanings) if meanings else lambda e: e)
    indexed = over if over and any(True for _ in formula.expressions()) else None
    low.emit("compute", (result, *registers.values()), formula=formula, over=indexed)
    return result


def never(where: Where) -> bool:
    """True if a place is known to be out of bounds."""
    return any(isinstance(c, Const) and not c.value for c in where.conditions)


def _renumbered(formula: Formula, order: dict[int, int]) -> Formula:
    """Return the formula with operand n replaced by operand order[n]."""
    value = order[formula.value] if formula.name == "operand" else formula.value
    return Formula(formula.name, tuple(_renumbered(p, order) for p in formula.parts), value)


def load(low: LoopLowering, register: Value, over: tuple[Symbol, ...], where: Where, otherwise: float | None) -> None:
    """Emit a load under the conditions of a place; a lane that is out of bounds gets `otherwise`."""
    if never(where):
        low.emit("fill", (register,), value=otherwise or 0)
        return
    when = all_of(*where.conditions) if where.conditions else None
    number = (otherwise or 0) if when is not None else None
    low.emit("load", (register, where.buffer), over=over, at=(where.offset,), when=when, otherwise=number)


def store(low: LoopLowering, register: Value, over: tuple[Symbol, ...], where: Where, stream: bool) -> None:
    """Emit a store under the conditions of a place."""
    if never(where):
        return
    when = all_of(*where.conditions) if where.conditions else None
    low.emit("store", (register, where.buffer), over=over, at=(where.offset,), when=when, stream=stream or None)


def _at_least_zero(e: Expr, axis: Symbol, size: Size, span: tuple[Expr, Expr]) -> tuple[Expr, Expr] | None:
    """Return (first, end) of the indices in `span` along `axis` at which `e` is at least 0; None if it is not linear.

    The axis has `size` indices.
    """
    form = linear_form(e, [axis])
    factor = None if form is None else form[0].get(axis)
    if form is None or not isinstance(factor, Const):
        return None
    lo, hi = span
    if factor.value > 0:
        return maximum(lo, minimum(-(form[1] // factor.value), size)), hi
    return lo, minimum(hi, maximum(form[1] // -factor.value + 1, 0))
