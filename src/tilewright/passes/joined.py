"""Maps and reductions over the same elements as one loop: what one makes, the next takes from its register.

map %w = exp(%s - %top)                    for each row, for each vector of it:
reduce %w -> %sum along 1 with sum           load, compute, add to the total, convert, store
map %p = bf16(%w)

An operation joins earlier ones if it reads an element of theirs at the very place where they write it, and if it may
pass all that stands between. Memory of the worker's own that nothing else looks at is not written at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Value
from tilewright.ir.dtypes import DType
from tilewright.ir.tensors import TensorType
from tilewright.passes import along, elementwise
from tilewright.passes.elementwise import ElementwiseJob
from tilewright.passes.loop_lowering import LoopLowering
from tilewright.passes.partial_sums import accumulated
from tilewright.passes.places import PlacedMemory, PlacedView, Where, linear_step

LONG = 24
"""Steps of a formula from which on each vector has enough to do while another waits."""


@dataclass(eq=False)
class Member:
    """An operation that may share its loop: what it touches, and where, over the axes of the group."""

    op: Op
    reads: frozenset[Value]
    writes: frozenset[Value]
    shape: tuple[int, ...] = ()
    """The extents of its loops, those of one left out; none: it has loops of its own."""
    dims: tuple[int | None, ...] = ()
    """Its own dimensions as places in that shape."""
    job: ElementwiseJob | None = None
    places: dict[int, Where] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[Value, ...]:
        """The values that the operation reads."""
        return self.op.operands[1:] if self.job is not None else self.op.operands[:1]

    @property
    def kind(self) -> DType:
        """The element type that it writes."""
        dtype: DType = self.op.operands[0 if self.job is not None else 1].type.dtype
        return dtype

    def coordinates(self, axes: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the coordinates of the operation's own tensors, from the axes of the group."""
        return tuple(as_expr(0) if n is None else axes[n] for n in self.dims)


@dataclass(eq=False)
class JoinedMaps:
    """Operations that share one loop nest over `axes`."""

    axes: tuple[Symbol, ...]
    members: list[Member]

    @property
    def reads(self) -> set[Value]:
        """The tensors that any member reads."""
        return {v for m in self.members for v in m.reads}

    @property
    def writes(self) -> set[Value]:
        """The tensors that any member writes."""
        return {v for m in self.members for v in m.writes}


class Joiner:
    """The operations of a block, kept back while others may still join them."""

    def __init__(self, low: LoopLowering):
        self.low = low
        self.groups: list[JoinedMaps] = []

    def take(self, op: Op) -> bool:
        """Hold back an operation and return True; False if it cannot be held back: then everything held back is emitted
        first.
        """
        member = _member(self.low, op)
        if member is None:
            self.flush()
            return False
        for place in reversed(range(len(self.groups))):
            group = self.groups[place]
            if self._joins(member, group):
                group.members.append(member)
                return True
            if not _is_independent(member, group):
                break
        axes = tuple(self.low.axis(f"j{n}", size) for n, size in enumerate(member.shape))
        self._set_places(member, axes)
        self.groups.append(JoinedMaps(axes, [member]))
        return True

    def flush(self) -> None:
        """Emit all operations that are held back."""
        groups, self.groups = self.groups, []
        for group in groups:
            if len(group.members) == 1:
                self.low.op(group.members[0].op)
            else:
                around, self.low.loc = self.low.loc, group.members[0].op.loc
                write(self.low, group)
                self.low.loc = around

    def _set_places(self, member: Member, axes: tuple[Symbol, ...]) -> None:
        """Set the places of a member's elements over the axes of a group; none if they are not contiguous or
        constant.
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

    def _joins(self, member: Member, group: JoinedMaps) -> bool:
        """True if a member reads elements of the group exactly where the group writes them, and changes nothing it
        uses.
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


def _is_independent(member: Member, group: JoinedMaps) -> bool:
    """True if an operation may run before the group: it writes nothing that the group uses, and reads nothing it
    writes.
    """
    return not (member.writes & (group.reads | group.writes) or member.reads & group.writes)


def _member(low: LoopLowering, op: Op) -> Member | None:
    """Return a Member if the operation can be held back; None if it cannot.

    A Member without a shape can be held back but not join others.
    """
    if op.name not in ("map", "reduce", "copy", "fill") or low.here.lanes is not None:
        return None
    handles = [low.handles[v] for v in op.operands]
    if not all(isinstance(h, PlacedMemory | PlacedView) for h in handles):
        return None
    roots = [low.chain.root(v) for v in op.operands]
    targets = {"map": 1, "fill": 1, "reduce": len(roots) // 2, "copy": 1}[op.name]
    ends = roots[:targets] if op.name in ("map", "fill") else roots[-targets:]
    starts = roots[targets:] if op.name in ("map", "fill") else roots[:-targets]
    member = Member(op, frozenset(starts), frozenset(ends))
    if any(v.type.space == "global" for v in ends if isinstance(v.type, TensorType)):
        return None  # arguments may be one array
    shape = handles[0].shape
    if low.straight or not all(isinstance(n, int) for n in shape):
        return member
    kept = [n for n, size in enumerate(shape) if size != 1]
    if not kept or 0 in shape or low.vector_bytes < 8:
        return member
    if op.name == "map":
        job = elementwise.job_of_map(low, op)
        if job.stream or any(shape[kept[-1]] % low.vector_lanes(t) for t in job.types.values()):
            return member
        member.job = job
    elif op.name != "reduce" or not along.is_whole(low, op, kept[-1]):
        return member
    member.shape = tuple(int(shape[n]) for n in kept)
    member.dims = tuple(kept.index(n) if n in kept else None for n in range(len(shape)))
    return member


def write(low: LoopLowering, group: JoinedMaps) -> None:
    """Emit the loop nest of a group: loops over rows, and vectors along them."""
    members, axes = group.members, group.axes
    *rows, inner = members[0].shape
    kinds, formulas = {t for m in members for t in _types(m)}, [m.job.formula for m in members if m.job is not None]
    single, wide = min(map(low.vector_lanes, kinds)), low.interleaved(kinds, formulas)
    reductions = [m for m in members if m.job is None]
    if reductions and sum(1 for f in formulas for _ in f.walk()) < LONG:
        wide = max(wide, low.here.limits.latency * single)  # totals that do not wait for each other
    lanes = gcd(inner, wide)
    ops = {m.op for m in members}
    dead = {m for m in members if m.job is not None and all(low.is_own(v, ops) for v in m.writes)}

    def nest(place: int, known: dict[Symbol, Expr]) -> None:
        if place < len(rows):
            with low.loop(f"i{place}", 0, rows[place]) as i:
                nest(place + 1, {**known, axes[place]: i})
            return
        totals = {m: low.register(_types(m)[0], lanes) for m in reductions}
        for m, total in totals.items():
            low.emit("fill", (total,), value=along.identity(m.op.attrs["with"], total.type.dtype))

        def step(v: Expr, accumulators: list[Value]) -> None:
            lane, so_far = low.axis("l", lanes), dict(zip(reductions, accumulators, strict=True))
            _step(low, group, {**known, axes[-1]: lanes * v + lane}, lane, lanes, dead, so_far)

        accumulated(low, [(m.op, total) for m, total in totals.items()], (0, inner // lanes), step)
        for m, total in totals.items():
            total_of_row = along.halved(low, m.op, [total])
            target = low.memory(m.op.operands[1])
            outer = [e for n, e in enumerate(m.coordinates(axes)) if n != m.op.attrs["along"]]
            where = target.at(tuple(Substitution(known)(e) for e in outer))
            low.emit("store", (total_of_row, where.buffer), over=(low.axis("l", 1),), at=(where.offset,))

    nest(0, {})


def _types(member: Member) -> list[DType]:
    """Return the element types of a map's operands and result, or of a reduction's source."""
    return [member.op.operands[0].type.dtype] if member.job is None else list(member.job.types.values())


def _step(
    low: LoopLowering,
    group: JoinedMaps,
    known: dict[Symbol, Expr],
    lane: Symbol,
    lanes: int,
    dead: set[Member],
    totals: dict[Member, Value],
) -> None:
    """Emit one vector of the group through all members; `dead` members store nothing, `totals` holds reductions."""
    images = Substitution(known)
    held: dict[tuple[Value, Expr], Value] = {}

    def taken(where: Where, dtype: DType) -> Value:
        key = (where.buffer, images(where.offset))
        if key not in held:
            held[key] = low.register(dtype, lanes)
            elementwise.load(low, held[key], (lane,), Where(*key, ()), None)
        return held[key]

    for m in group.members:
        if m.job is None:
            along.combined(low, m.op, [totals[m]], [taken(m.places[1], m.op.operands[0].type.dtype)])
            continue
        used = sorted({f.value for f in m.job.formula.walk() if f.name == "operand"})
        registers = {n: taken(m.places[n], m.job.types[n]) for n in used}
        coordinates = tuple(map(images, m.coordinates(group.axes)))
        result = elementwise.computed(low, m.job, coordinates, registers, None, (lane,), (lanes,))
        goal = (m.places[0].buffer, images(m.places[0].offset))
        held[goal] = result
        if m not in dead:
            elementwise.store(low, result, (lane,), Where(*goal, ()), False)
