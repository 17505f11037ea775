"""Copy, fill, map and broadcast on CPUs: loops over elements, with vectors along one axis.

A bounds condition of a view that is linear in a loop's variable becomes a limit of the loop, so that the interior of a
padded image needs no tests. Other conditions become predicates of single loads and stores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tilewright.algebra.expr import AtLeastZero, Const, Expr, Symbol, as_expr
from tilewright.algebra.expr_conditions import conjuncts
from tilewright.algebra.expr_rules import all_of, maximum, minimum
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.analysis.flat_memory import PlacedMemory, PlacedView, Size, TensorAddress, linear_factor, linear_step
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import bf16
from tilewright.ir.formula import Formula
from tilewright.lower.cpu import transposing
from tilewright.lower.cpu.address_tables import tabulated
from tilewright.lower.cpu.elementwise_job import At, ElementwiseJob, memory_operands
from tilewright.lower.cpu.merged_axes import with_full_vectors
from tilewright.lower.cpu.register_forms import Tiles, Vectors
from tilewright.lower.loop_lowering import LoopLowering

# -- the operations ---------------------------------------------------------------------------------------


def fill(low: LoopLowering, op: Op) -> None:
    """Lower `fill` on a CPU: emit code that sets every element of the target tensor to the attribute `value`. Tile
    registers can only be set to zero; any other number is stored to scratch memory, and the tile registers are loaded
    from there.
    """
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
    """Lower `copy` on a CPU: emit code that copies all elements of the source to the target. Source elements out of
    bounds become the attribute `otherwise`. Stores bypass the caches if the attribute `stream` is not 0, or if the copy
    atom in the attribute `by` has the hint `stream`.
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
    """Lower `map` on a CPU: emit loops that compute the formula for each element. Operands in tile registers are copied
    to scratch memory first, and a result for tile registers is copied from there.
    """
    target = low.handles[op.operands[0]]
    result = low.scratch(target.dtype, target.shape, "tile") if isinstance(target, Tiles) else target
    handles = [result, *(_without_tiles(low, low.handles[v]) for v in op.operands[1:])]
    run(low, job_of_map(low, op, handles))
    if isinstance(target, Tiles):
        _copy_tiles(low, handles[0], target, None, False)


def job_of_map(low: LoopLowering, op: Op, handles: Sequence[Any] | None = None) -> ElementwiseJob:
    """Return the ElementwiseJob (shape, formula, target, sources) of the map `op`. `handles` are its operands as
    vectors or memory, the result first; None stands for those in `low.handles`. Nothing is emitted.
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
    """Return the symbol that `low.expr` gives for `axis`, an axis symbol in a formula of the block program. Return
    `axis` itself if the result is no symbol.
    """
    image = low.expr(axis)
    return image if isinstance(image, Symbol) else axis


def broadcast(low: LoopLowering, op: Op) -> None:
    """Lower `broadcast` on a CPU: emit loops that copy the source to the target, once for each index along the target's
    dimension `along`. The source lacks this dimension.
    """
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
    """Return the tensor `handle` as an operand of an ElementwiseJob: vector registers (`Vectors`) unchanged, memory as
    a function from coordinates to an address.
    """
    return handle if isinstance(handle, Vectors) else handle.at


def _without_tiles(low: LoopLowering, handle: Any) -> Any:
    """Return the tensor `handle` unchanged if it is in memory or in vector registers. If it is in tile registers, emit
    its copy to scratch memory, where single elements have addresses, and return that memory.
    """
    if not isinstance(handle, Tiles):
        return handle
    copy = low.scratch(handle.dtype, handle.shape, "tile")
    _copy_tiles(low, handle, copy, None, False)
    return copy


def in_memory(low: LoopLowering, handle: Any) -> PlacedMemory | PlacedView:
    """Return the tensor `handle` unchanged if it is in memory. If it is in registers, emit its copy to new scratch
    memory and return that memory.
    """
    if isinstance(handle, PlacedMemory | PlacedView):
        return handle
    if isinstance(handle, Tiles):
        unpacked: PlacedMemory = _without_tiles(low, handle)
        return unpacked
    spilled = low.scratch(handle.dtype, handle.shape, "spill")
    run(low, ElementwiseJob(handle.shape, handle.dtype, spilled.at, Formula.operand(1), {1: handle}, {1: handle.dtype}))
    return spilled


def from_memory(low: LoopLowering, memory: PlacedMemory | PlacedView, target: Any) -> None:
    """Emit the copy of the tensor `memory` to the tensor `target`, which is in memory or registers. Emit nothing if
    both are the same object.
    """
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
    """Emit the copy from `source` to `target`; at least one of them is in tile registers. Whole tiles are loaded or
    stored if rows in memory have a constant stride; otherwise elements go through scratch memory. Source elements out
    of bounds become `otherwise` (None: 0). With `stream`, loads of whole tiles bypass the caches.
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
    """Emit the copy between `memory`, a matrix in scratch memory, and the tile registers `tiles`: to the registers if
    `load`, from them if not. Each tile goes element by element through a buffer of the tile's size.
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
    """Return ((row symbol, element symbol), address) of the tile with index `key` of `tiles` in `memory`. The two
    symbols are new, and the address is an expression of them. A tile has `rows` rows of `elements` elements.

    Return None unless rows have a constant stride, the elements of a row are contiguous, and the tile needs no bounds
    check.
    """
    row, element = low.axis("row", rows), low.axis("e", elements)
    where = memory.at(tiles.coordinates(key, row, element))
    step = linear_factor(where.offset, row)
    if where.conditions or step is None or element in step.symbols or linear_step(where.offset, element) != 1:
        return None
    return (row, element), where


# -- the loops --------------------------------------------------------------------------------------------


def run(low: LoopLowering, job: ElementwiseJob) -> None:
    """Emit the elementwise job. If operands are in registers, it is done one register after the other; otherwise by
    loops over memory. Register operands with different layouts are copied to memory first.
    """
    holders = [h for h in (job.target, *job.sources.values()) if isinstance(h, Vectors)]
    if holders and not all(h.has_same_layout(holders[0]) for h in holders[1:]):
        _through_memory(low, job)
    elif holders:
        _by_registers(low, job, holders[0])
    else:
        _by_loops(low, job)


def _through_memory(low: LoopLowering, job: ElementwiseJob) -> None:
    """Emit an elementwise job with register operands that have different layouts: they are copied to scratch memory
    first. A result for registers is computed in scratch memory and then loaded.
    """
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
    """Emit an elementwise job one register after the other. `holder` is one of the operands in registers. All of them
    must have the same layout, so that registers with equal indices hold the same elements.
    """
    for key in holder.registers:
        lane = low.axis("l", holder.lanes)
        coordinates = holder.coordinates(key, lane)
        places = {n: side(coordinates) for n, side in memory_operands(job).items()}
        _emit_step(low, job, coordinates, places, lane, holder.lanes, key)


class _Loops:
    """The loops over all axes of a job but one, with vectors along that one."""

    def __init__(self, low: LoopLowering, job: ElementwiseJob):
        self.low, self.shape, self.repeats = low, job.shape, job.repeats
        self.axes = tuple(low.axis(f"i{n}", size) for n, size in enumerate(job.shape))
        self.places = {n: side(self.axes) for n, side in memory_operands(job).items()}
        self.lanes = low.vector_lanes(job.dtype)
        self.most = max(self.lanes, low.interleaved((job.dtype, *job.types.values()), (job.formula,)))
        self.vector = self._vector_axis()

    def _vector_axis(self) -> int | None:
        """Return the number of the axis along which vectors go. The target must be contiguous along this axis. An axis
        is preferred along which every source is contiguous or constant; along any other, sources must have constant
        strides.

        Return None if there is no such axis. If the job repeats elements of a source (`repeats`), return the last axis
        of an extent above 1.
        """
        best = None
        for n in reversed(range(len(self.axes))):
            if self.shape[n] == 1:
                continue
            if self.repeats:
                return n
            steps = {place: linear_step(w.offset, self.axes[n]) for place, w in self.places.items()}
            if steps[0] == 1 and all(s in (0, 1) for s in steps.values()):
                return n
            if best is None and steps[0] == 1 and None not in steps.values():
                best = n
        return best

    def transpose(self, job: ElementwiseJob) -> transposing.VectorTranspose | None:
        """Return the VectorTranspose (axes and tile size) for a copy from a source that is contiguous along another
        axis than its target; emit nothing.

        Return None if the job computes or converts, if it streams, if loops are forbidden (`low.straight`), or if
        `transpose_of` returns None.
        """
        if not job.identity or job.stream or self.low.straight or job.types[1] is not job.dtype:
            return None
        return transposing.transpose_of(self.shape, self.axes, self.places[0], self.places[1], self.lanes)

    def run(self, job: ElementwiseJob, rest: list[int], known: dict[Symbol, Expr]) -> None:
        """Emit the loops over the axes numbered in `rest`, with the job inside them. `known` is {axis: expression of
        its value} for the axes of enclosing loops. A nest of at most 8 steps without bounds checks is unrolled; with
        `low.straight`, every nest with constant limits is.

        Indices at which the target is out of bounds are left out. If the source of a copy may be out of bounds, three
        loops are emitted: before, within and past the source's bounds. The first and the last one fill in `otherwise`.
        Any other job is divided in the same way if the middle loop then needs no masks.
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
        """Return (first, end, conditions): at the indices from `first` to `end` (exclusive) along `axis`, all
        `conditions` hold for every lane of every vector, so that vectors need no mask for them.

        `conditions` are the bounds checks that depend on `axis` and on the vector axis, but not on axes of inner loops
        (`later`), and that limit `axis` to a range. `job` has the checks that are known to hold; these are left out.
        `known` is {axis of an outer loop: value}, and `size` is the extent of `axis`. Return None if there are no such
        conditions, if there is no vector axis, or if loops are forbidden (`low.straight`).
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
        self, operand: int, job: ElementwiseJob, axis: Symbol, later: set[Symbol], known: dict[Symbol, Expr], size: Size
    ) -> tuple[Expr, Expr, frozenset[Expr]] | None:
        """Return (first, end, conditions): at the indices from `first` to `end` (exclusive) along `axis`, all
        `conditions` hold. These are the bounds checks of operand number `operand` that depend on `axis` and on no axis
        in `later` (axes of inner loops).

        `known` is {axis of an outer loop: value}, and `size` is the extent of `axis`. Return None if no check limits
        the axis, or if the operand is in registers.
        """
        where = self.places.get(operand)
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
        """Emit the job along the vector axis: full vectors, in a loop if there are many, then a vector for the rest.
        Emit one element if there is no vector axis. `known` is {axis: value} for all other axes.

        The vector for the rest is masked if the extent is known only at the call, else it is shorter. If the job copies
        bf16, the shorter vector is divided into powers of two.
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
        """Yield (start index, number of elements) of vectors that cover an axis of `size` elements: first groups of
        `self.most` elements that are computed at once, then single vectors of `self.lanes` elements, then a shorter
        one.

        Groups with more than 4 vectors in all, and more than 4 single vectors, are yielded once, within an emitted
        loop. The start index is then an expression of the loop variable, and the code that the caller emits until the
        next yield is the loop body.
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
        """Emit one vector of the job, with `lanes` elements; the symbol `lane` is the index of an element in the vector
        (None: a single element). `known` is {axis: expression of its value}. Lanes for which a condition in `in_bounds`
        fails are masked.
        """
        images = Substitution(known)
        places = {}
        for n, where in self.places.items():
            conditions = [*in_bounds, *(images(c) for c in where.conditions if c not in job.assumed)]
            places[n] = TensorAddress(where.buffer, images(where.offset), conjuncts(conditions))
        coordinates = tuple(known.get(a, as_expr(0)) for a in self.axes)
        _emit_step(self.low, job, coordinates, places, lane, lanes, None)


def _powers_of_two(count: int) -> list[int]:
    """Return the powers of two that add up to `count`, largest first: the lengths of the vectors into which a copy of
    `count` elements of bf16 is divided.

        >>> _powers_of_two(13)
        [8, 4, 1]
    """
    return [1 << bit for bit in reversed(range(count.bit_length())) if count >> bit & 1]


def _by_loops(low: LoopLowering, job: ElementwiseJob) -> None:
    """Emit an elementwise job with all operands in memory: a transpose in registers if the job allows one, otherwise
    loops with vectors along one axis. A short last axis is merged with the one before. Nothing is emitted for an empty
    shape.
    """
    if 0 in job.shape:
        return
    job = with_full_vectors(low, job)
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
    """Emit the loads, the computation and the store of one vector of a job, at `coordinates`. `addresses` is {operand
    number: address} of the operands in memory; the target is operand 0. Nothing is emitted if the target is out of
    bounds.

    The vector has `lanes` elements, and the symbol `lane` is the index of an element in it (None: one element). `key`
    is the index of the register in operands that are `Vectors` (None: there are none).
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
        if n in job.repeats and lane is not None:
            _load_repeated(low, register, addresses[n], lane, job.repeats[n], job.otherwise)
        else:
            load(low, register, over, tabulated(low, addresses[n], lane), job.otherwise)
    result = registers[1] if job.identity else computed(low, job, coordinates, registers, target_register, over, shape)
    if target_address is not None:
        store(low, result, over, target_address, job.stream)
    elif target_register is not None and result is not target_register:
        low.emit("compute", (target_register, result), formula=Formula.operand(1))


def _load_repeated(
    low: LoopLowering, register: Value, where: TensorAddress, lane: Symbol, repeat: int, otherwise: float | None
) -> None:
    """Emit the load of the vector `register`, in which each group of `repeat` neighbouring lanes has the same element.
    With several groups, it is a load and a shuffle; with one, a scalar load and a broadcast.

    `where` is the address for the lane symbol `lane`; its bounds conditions must not depend on the lane. Elements out
    of bounds become `otherwise` (None: 0).
    """
    element_count = int(register.type.shape[0]) // repeat
    element_lane = low.axis("l", element_count)
    shape, over = ((element_count,), (element_lane,)) if element_count > 1 else ((), ())
    elements = low.register(register.type.dtype, *shape)
    images = Substitution({lane: repeat * element_lane if over else 0})
    load(low, elements, over, replace(where, offset=images(where.offset)), otherwise)
    if over:
        low.emit("shuffle", (register, elements), over=(lane,), at=(lane // repeat,))
    else:
        low.emit("compute", (register, elements), formula=Formula.operand(1))


def computed(
    low: LoopLowering,
    job: ElementwiseJob,
    coordinates: tuple[Expr, ...],
    registers: dict[int, Value],
    target: Value | None,
    over: tuple[Symbol, ...],
    shape: tuple[int, ...],
) -> Value:
    """Emit the job's formula on `registers` ({operand number: register}), and return the register with the result:
    `target`, or a new register of this shape if `target` is None. `coordinates` are the values of the formula's index
    symbols. `over` are the lane symbols; () for one element.
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
    """True if one of the bounds conditions of the address `where` is the constant 0 (false)."""
    return any(isinstance(c, Const) and not c.value for c in where.conditions)


def _renumbered(formula: Formula, order: dict[int, int]) -> Formula:
    """Return the formula with operand number n replaced by operand number order[n]."""
    value = order[formula.value] if formula.name == "operand" else formula.value
    return Formula(formula.name, tuple(_renumbered(p, order) for p in formula.parts), value)


def load(
    low: LoopLowering, register: Value, over: tuple[Symbol, ...], where: TensorAddress, otherwise: float | None
) -> None:
    """Emit the load of `register` from the address `where`, under its bounds conditions. `over` are the lane symbols;
    lanes out of bounds get `otherwise` (None: 0). If the address is always out of bounds, emit a fill instead.
    """
    if is_out_of_bounds(where):
        low.emit("fill", (register,), value=otherwise or 0)
        return
    when = all_of(*where.conditions) if where.conditions else None
    number = (otherwise or 0) if when is not None else None
    low.emit("load", (register, where.buffer), over=over, at=(where.offset,), when=when, otherwise=number)


def store(low: LoopLowering, register: Value, over: tuple[Symbol, ...], where: TensorAddress, stream: bool) -> None:
    """Emit the store of `register` to the address `where`, under its bounds conditions. `over` are the lane symbols;
    with `stream` the store bypasses the caches. If the address is always out of bounds, emit nothing.
    """
    if is_out_of_bounds(where):
        return
    when = all_of(*where.conditions) if where.conditions else None
    low.emit("store", (register, where.buffer), over=over, at=(where.offset,), when=when, stream=stream or None)


def _at_least_zero(e: Expr, axis: Symbol, size: Size, span: tuple[Expr, Expr]) -> tuple[Expr, Expr] | None:
    """Return (first, end): the indices within the range `span` = (first, end) at which the expression `e` is at least
    0. `e` depends on the symbol `axis`, which has `size` indices. The result may be empty, with `first` above `end`.
    Return None if `e` is not linear in `axis` with a constant coefficient.

    Example: e = 2*i - 3, span (0, 10) -> (2, 10).
    """
    form = linear_form(e, [axis])
    coefficient = None if form is None else form[0].get(axis)
    if form is None or not isinstance(coefficient, Const):
        return None
    lo, hi = span
    if coefficient.value > 0:
        return maximum(lo, minimum(-(form[1] // coefficient.value), size)), hi
    return lo, minimum(hi, maximum(form[1] // -coefficient.value + 1, 0))
