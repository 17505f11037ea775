"""Loop fusion on CPUs: maps and reductions over the same elements share a loop, and hand values on in registers.

map %w = exp(%s - %top)                    for each row, for each vector of it:
reduce %w -> %sum along 1 with sum           load, compute, add to the total, convert, store
map %p = bf16(%w)

An operation joins earlier ones if it reads their elements exactly where they write them, and if it may be moved before
all operations in between. Memory of the worker that no other operation reads is not written at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import PlacedMemory, PlacedView, TensorAddress, linear_step
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.tensors import TensorType
from tilewright.lower.cpu import elementwise, reduce
from tilewright.lower.cpu.elementwise_job import ElementwiseJob
from tilewright.lower.loop_lowering import LoopLowering
from tilewright.lower.partial_sums import accumulate

LONG = 24
"""The least number of steps in the formulas for which one vector at a time keeps the machine busy."""


@dataclass(eq=False)
class Member:
    """An operation that may share a loop with others: the tensors that it accesses, and the addresses over the loop's
    axes.
    """

    op: Op
    reads: frozenset[Value]
    writes: frozenset[Value]
    shape: tuple[int, ...] = ()
    """The extents of its loops that are not 1; () if it needs loops of its own."""
    dims: tuple[int | None, ...] = ()
    """For each dimension of its tensors: its index in `shape`; None for an extent of 1."""
    job: ElementwiseJob | None = None
    places: dict[int, TensorAddress] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[Value, ...]:
        """The operands that the operation reads: those after the result of a map, the first one of a reduction."""
        return self.op.operands[1:] if self.job is not None else self.op.operands[:1]

    @property
    def kind(self) -> DType:
        """The element type of the tensor that the operation writes."""
        dtype: DType = self.op.operands[0 if self.job is not None else 1].type.dtype
        return dtype

    def coordinates(self, axes: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the coordinates of an element in the operation's tensors. `axes` are the shared loops' coordinates,
        one for each dimension with an extent other than 1; dimensions of extent 1 get 0.
        """
        return tuple(as_expr(0) if n is None else axes[n] for n in self.dims)


@dataclass(eq=False)
class FusedMaps:
    """Operations that share one loop nest over `axes`."""

    axes: tuple[Symbol, ...]
    members: list[Member]

    @property
    def reads(self) -> set[Value]:
        """The tensors (below all views) that at least one operation of the group reads."""
        return {v for m in self.members for v in m.reads}

    @property
    def writes(self) -> set[Value]:
        """The tensors (below all views) that at least one operation of the group writes."""
        return {v for m in self.members for v in m.writes}


class MapFuser:
    """Collects operations of a block that may share loops, and emits them when no more can join."""

    def __init__(self, low: LoopLowering):
        self.low = low
        self.groups: list[FusedMaps] = []

    def take(self, op: Op) -> bool:
        """Collect `op` to be emitted later, perhaps in one loop with other collected operations, and return True.

        Return False if `op` must not be delayed: it is no map, reduction, copy or fill, an operand is in registers, it
        writes global memory, or the machine is a GPU. All collected operations are then emitted, and the caller lowers
        `op`.
        """
        member = _member(self.low, op)
        if member is None:
            self.flush()
            return False
        for number in reversed(range(len(self.groups))):
            group = self.groups[number]
            if self._joins(member, group):
                group.members.append(member)
                return True
            if not _is_independent(member, group):
                break
        axes = tuple(self.low.axis(f"j{n}", size) for n, size in enumerate(member.shape))
        self._set_places(member, axes)
        self.groups.append(FusedMaps(axes, [member]))
        return True

    def flush(self) -> None:
        """Emit all collected operations, one loop nest for each group of operations that share loops. Then forget the
        operations.
        """
        groups, self.groups = self.groups, []
        for group in groups:
            if len(group.members) == 1:
                self.low.op(group.members[0].op)
            else:
                outer_loc, self.low.loc = self.low.loc, group.members[0].op.loc
                emit_fused_loops(self.low, group)
                self.low.loc = outer_loc

    def _set_places(self, member: Member, axes: tuple[Symbol, ...]) -> None:
        """Set `member.places` to {operand number: address} of the member's elements, as expressions of `axes`, the axes
        of a shared loop. Set it to {} if `member.shape` is (), if an address needs bounds checks, if the target is not
        contiguous along the last axis, or if a source is neither contiguous nor constant along it.
        """
        member.places = {}
        if not member.shape:
            return
        coordinates = member.coordinates(axes)
        sides: dict[int, Any] = {}
        if member.job is not None:
            sides = {0: member.job.target, **member.job.sources}
        else:
            sides = {1: self.low.memory(member.op.operands[0]).at}
        places = {n: side(coordinates) for n, side in sides.items()}
        straight = all(not w.conditions and linear_step(w.offset, axes[-1]) in (0, 1) for w in places.values())
        along_target = linear_step(places[0].offset, axes[-1]) == 1 if 0 in places else True
        if straight and along_target:
            member.places = places

    def _joins(self, member: Member, group: FusedMaps) -> bool:
        """True if `member` can share the loops of `group`. It must have the same shape, and write no tensor that the
        group reads or writes. It must read at least one tensor that the group writes, each of these at the address and
        in the element type that the group writes.

        If the shapes are equal, `member.places` is set to the addresses over the axes of `group`, whatever the result.
        """
        first = group.members[0]
        if not member.shape or member.shape != first.shape or not first.places:
            return False
        self._set_places(member, group.axes)
        if not member.places or member.writes & (group.reads | group.writes):
            return False
        writer_of = {root: m for m in group.members if m.job is not None for root in m.writes}
        shared = [
            (writer_of.get(root), member.places[n], value.type.dtype)
            for n, value in enumerate(member.sources, 1)
            if (root := self.low.chain.root(value)) in group.writes
        ]
        same = all(m is not None and m.places[0] == place and m.kind is kind for m, place, kind in shared)
        return bool(shared) and same


def _is_independent(member: Member, group: FusedMaps) -> bool:
    """True if `member` may be emitted before the operations of `group`: it writes no tensor that they read or write,
    and reads none that they write.
    """
    return not (member.writes & (group.reads | group.writes) or member.reads & group.writes)


def _member(low: LoopLowering, op: Op) -> Member | None:
    """Return `op` as a Member (an operation with its reads and writes), or None if `op` must not be delayed. None
    unless `op` is a map, reduction, copy or fill of tensors that are all in memory, on a CPU, that writes no global
    memory.

    Member.shape is () if the operation may be delayed, but cannot share loops: a copy, a fill, a streaming map, a map
    with rows that are no multiple of full vectors, a reduction for which `reduces_full_vectors` is false, or extents
    that are open, 0 or all 1. It is also () while loops are forbidden (`low.straight`).
    """
    if op.name not in ("map", "reduce", "copy", "fill") or low.here.lanes is not None:
        return None
    handles = [low.handles[v] for v in op.operands]
    if not all(isinstance(h, PlacedMemory | PlacedView) for h in handles):
        return None
    roots = [low.chain.root(v) for v in op.operands]
    targets = {"map": 1, "fill": 1, "reduce": len(roots) // 2, "copy": 1}[op.name]
    written = roots[:targets] if op.name in ("map", "fill") else roots[-targets:]
    read = roots[targets:] if op.name in ("map", "fill") else roots[:-targets]
    member = Member(op, frozenset(read), frozenset(written))
    if any(v.type.space == "global" for v in written if isinstance(v.type, TensorType)):
        return None  # arguments may be one array
    shape = handles[0].shape
    if low.straight or not all(isinstance(n, int) for n in shape):
        return member
    loop_dims = [n for n, size in enumerate(shape) if size != 1]
    if not loop_dims or 0 in shape or low.vector_bytes < 8:
        return member
    if op.name == "map":
        job = elementwise.job_of_map(low, op)
        if job.stream or any(shape[loop_dims[-1]] % low.vector_lanes(t) for t in job.types.values()):
            return member
        member.job = job
    elif op.name != "reduce" or not reduce.reduces_full_vectors(low, op, loop_dims[-1]):
        return member
    member.shape = tuple(int(shape[n]) for n in loop_dims)
    member.dims = tuple(loop_dims.index(n) if n in loop_dims else None for n in range(len(shape)))
    return member


def emit_fused_loops(low: LoopLowering, group: FusedMaps) -> None:
    """Emit one loop nest for all maps and reductions of `group`: loops over rows, and vectors along each row. A result
    is not stored, and stays in registers, if no operation outside the group uses it.
    """
    members, axes = group.members, group.axes
    *rows, inner = members[0].shape
    kinds, formulas = {t for m in members for t in _types(m)}, [m.job.formula for m in members if m.job is not None]
    one_vector, wide = min(map(low.vector_lanes, kinds)), low.interleaved(kinds, formulas)
    reductions = [m for m in members if m.job is None]
    if reductions and sum(1 for f in formulas for _ in f.walk()) < LONG:
        wide = max(wide, low.here.limits.latency * one_vector)  # totals that do not wait for each other
    lanes = gcd(inner, wide)
    ops = {m.op for m in members}
    not_stored = {m for m in members if m.job is not None and all(low.is_used_only_by(v, ops) for v in m.writes)}

    def nest(depth: int, known: dict[Symbol, Expr]) -> None:
        if depth < len(rows):
            with low.loop(f"i{depth}", 0, rows[depth]) as i:
                nest(depth + 1, {**known, axes[depth]: i})
            return
        totals = {m: low.register(_types(m)[0], lanes) for m in reductions}
        for m, total in totals.items():
            low.emit("fill", (total,), value=reduce.identity(m.op.attrs["with"], total.type.dtype))

        def step(v: Expr, accumulators: list[Value]) -> None:
            lane, so_far = low.axis("l", lanes), dict(zip(reductions, accumulators, strict=True))
            _emit_vector(low, group, {**known, axes[-1]: lanes * v + lane}, lane, lanes, not_stored, so_far)

        accumulate(low, [(m.op, total) for m, total in totals.items()], (0, inner // lanes), step)
        for m, total in totals.items():
            total_of_row = reduce.halved(low, m.op, [total])
            target = low.memory(m.op.operands[1])
            outer = [e for n, e in enumerate(m.coordinates(axes)) if n != m.op.attrs["along"]]
            where = target.at(tuple(Substitution(known)(e) for e in outer))
            low.emit("store", (total_of_row, where.buffer), over=(low.axis("l", 1),), at=(where.offset,))

    nest(0, {})


def _types(member: Member) -> list[DType]:
    """Return the element types of `member` that decide the vector length: for a map those of the result and the
    operands, for a reduction the one of the source.
    """
    return [member.op.operands[0].type.dtype] if member.job is None else list(member.job.types.values())


def _emit_vector(
    low: LoopLowering,
    group: FusedMaps,
    known: dict[Symbol, Expr],
    lane: Symbol,
    lanes: int,
    not_stored: set[Member],
    totals: dict[Member, Value],
) -> None:
    """Emit the work of all operations of `group` for one vector of `lanes` elements; the symbol `lane` is the index of
    an element in the vector. `known` is {axis: expression of its value}. Each element is loaded once.

    Results of members in `not_stored` stay in registers. Reductions are combined into `totals`, {reduction: register}.
    """
    images = Substitution(known)
    register_at: dict[tuple[Value, Expr], Value] = {}

    def loaded(where: TensorAddress, dtype: DType) -> Value:
        key = (where.buffer, images(where.offset))
        if key not in register_at:
            register_at[key] = low.register(dtype, lanes)
            elementwise.load(low, register_at[key], (lane,), TensorAddress(*key, ()), None)
        return register_at[key]

    for m in group.members:
        if m.job is None:
            reduce.combined(low, m.op, [totals[m]], [loaded(m.places[1], m.op.operands[0].type.dtype)])
            continue
        used = sorted({f.value for f in m.job.formula.walk() if f.name == "operand"})
        registers = {n: loaded(m.places[n], m.job.types[n]) for n in used}
        coordinates = tuple(map(images, m.coordinates(group.axes)))
        result = elementwise.computed(low, m.job, coordinates, registers, None, (lane,), (lanes,))
        target = (m.places[0].buffer, images(m.places[0].offset))
        register_at[target] = result
        if m not in not_stored:
            elementwise.store(low, result, (lane,), TensorAddress(*target, ()), False)
