"""Where the values of a task lie: elements dealt out over the lanes of all its waves, in registers.

A block program keeps what one operation makes for the next in shared memory. Where every operation looks at such a
tensor element by element, or reduces it along a dimension, no other lane has to see an element: each lane keeps its own
in registers. What makes that possible is one rule: *equal dimensions are dealt out alike*. Dimensions are equal where
an operation has them as one axis; so maps move nothing, a reduction combines values, lanes and waves, and what it gives
is known to all lanes that share a row.

    %v = alloc shared f32 (4, 1024)         M: 4 waves, N: 32 lanes x 4 neighbours x 8 rounds
    reduce %v -> %sum along 1               %sum is over M: the same in all lanes of a wave
    map %w = %v/%sum_view                   everything is there

A dimension that lies side by side in global memory is dealt out in vectors of 16 bytes, neighbours to neighbouring
lanes. Extents need not divide: lanes past the end have nothing to load, and do not count. A tensor that is seen from
another place on (`shifted`) is not dealt out along there: every lane has all of it, if that is no more than a few
vectors where it lies side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import NamedTuple

import numpy as np

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, index
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.check.meetings import needless
from tilewright.check.places import Places
from tilewright.check.shifted import Seen, Shifted, composed, shifted_of
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.tensors import RegisterType, TensorType, numbers
from tilewright.machine import Machine

VECTORS = 3
"""Vectors of a row that a lane has at least, before lanes share the row: reductions are within lanes first."""


@dataclass(frozen=True, eq=False)
class Dim:
    """A dimension of a task: how many coordinates, in vectors of which width, over how many threads how far apart."""

    extent: int
    width: int
    threads: int
    stride: int

    @property
    def rounds(self) -> int:
        """How many vectors a lane has."""
        return -(-self.extent // (self.width * self.threads))

    @property
    def ragged(self) -> bool:
        """Whether some lanes have vectors past the end."""
        return self.extent % (self.width * self.threads) != 0

    def part(self, wave: Expr, lane: Expr, lanes: int) -> Expr:
        """Which of its threads a lane of a wave is."""
        if self.stride >= lanes:
            return wave // (self.stride // lanes) % self.threads
        here = lanes // self.stride
        if self.threads <= here:
            return lane // self.stride % self.threads
        return lane // self.stride + here * (wave % (self.threads // here))


Dims = tuple[Dim, ...]
"""The dimensions of a fragment's values: the first's rounds slowest; neighbours of a vector fastest."""


def held(dims: Dims) -> int:
    """How many values a lane has of a tensor."""
    return prod(d.rounds * d.width for d in dims)


def digits(dims: Dims) -> list[tuple[Dim, bool, int]]:
    """What a value's number counts, slowest first: rounds of each dimension, then neighbours, with how many of each."""
    return [*((d, False, d.rounds) for d in dims), *((d, True, d.width) for d in dims if d.width > 1)]


def columns(dims: Dims, of: Dims) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each value over `dims`, the number of the value over some of these that belongs to it.

    >>> rows, neighbours = Dim(2, 1, 1, 1), Dim(8, 2, 1, 1)
    >>> columns((rows, neighbours), (rows,)).tolist()
    [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    outer = digits(dims)
    count = held(dims)
    grid = np.indices([n for _, _, n in outer]).reshape(len(outer), count)
    found = np.zeros(count, np.int64)
    places = {(d, fast): row for (d, fast, _), row in zip(outer, grid, strict=True)}
    for d, fast, n in digits(of):
        found = found * n + places[d, fast]
    return found


@dataclass(frozen=True)
class Turn:
    """An operand that lies side by side along another axis than what is written."""

    operand: int
    source: int
    target: int


LEAST = 8
"""Elements along both axes from which on a tile is turned."""


class Frames:
    """Which tensors of a block program lie in registers, and over which dimensions each operation works."""

    def __init__(self, program: Program, chain: Places, threads: int, machine: Machine):
        self._chain, self.threads, self.lanes = chain, threads, machine.lanes or 1
        self.access, self._registers = machine.lane_access, machine.register_file
        self.tensors: dict[Value, tuple[Dim | None, ...]] = {}
        """By tensor: its dimensions; None for one that is a single coordinate."""
        self.axes: dict[Op, tuple[Dim | None, ...]] = {}
        """By operation: the dimensions of what it goes over; of a reduction, of its source."""
        self.turned: dict[Op, Turn] = {}
        """Operations on memory alone, whose source is turned."""
        self.followed: set[Op] = set()
        """Reductions over waves after which waves meet again anyway, before they are done the next time."""
        self.stored: set[Op] = set()
        """Reductions whose result goes to memory and nowhere else: only those who store it need it."""
        self.apart = False
        """Whether no lane has to see what another one stored: memory that is written is one operation's alone."""
        self.needless: set[Op] = set()
        """Barriers since which before no wave has touched what another one may write: registers need none."""
        if threads > 0 and threads & (threads - 1) == 0:
            self._place(program)
            self.needless = needless(program, chain, self.tensors)

    def _place(self, program: Program) -> None:
        as_bits = {self._chain.root(op.operands[0]) for op in program.walk() if op.name == "bitcast"}
        own = [
            op.results[0]
            for op in program.walk()
            if op.name == "alloc" and _is_plain(op.attrs["type"]) and op.results[0] not in as_bits
        ]
        ops = [op for op in program.walk() if op.name not in ("alloc", "view", "bitcast", "barrier", "let")]
        candidates = dict.fromkeys(own)
        for op in ops:
            for place, value in enumerate(op.operands):
                root = self._chain.root(value)
                if root in candidates and not self._is_seen(op, place):
                    del candidates[root]
        framed = [op for op in ops if is_framed(op)]
        known, dims = self._dealt_out(program, framed, candidates)
        for op in framed:
            axes = tuple(dims.get(known.find((op, i))) for i in range(len(box(op))))
            inside = any(self._chain.root(v) in self.tensors for v in op.operands)
            if op.name == "scan":
                if held(tuple(d for d in axes if d is not None)) <= self._registers.tensor_values:
                    self.axes[op] = axes
                continue
            if op.name == "reduce" and not inside:
                kept = tuple(d for i, d in enumerate(axes) if d is not None and i != op.attrs["along"])
                if held(kept) > self._registers.lane_values:  # no lane has registers for so many results
                    continue
            turn = None if inside or op.name not in ("map", "copy") else self._turn(op)
            if turn is not None:
                self.turned[op] = turn
            elif op.name == "reduce" or inside or known.is_together(op, axes):
                self.axes[op] = axes

        self.stored = {op for op in self.axes if op.name == "reduce" and self._is_stored(op, ops)}
        self.apart = self._is_apart(ops)
        self._follow(program.body)

    def _dealt_out(
        self, program: Program, framed: list[Op], candidates: dict[Value, None]
    ) -> tuple[_Classes, dict[Node, Dim]]:
        """Deals out tensors; those that cannot be, or have no room, are candidates no more, nor are operations framed
        that would have two of their axes dealt out alike."""
        while True:
            known = _Classes(self, framed, candidates)
            conflict, gone = known.conflict(), known.across()
            if conflict is not None:
                framed.remove(conflict)
                gone = {self._chain.root(v) for v in conflict.operands}
            elif not gone:
                dims = known.dims()
                self.tensors = {t: known.dims_of(t, dims) for t in candidates}
                self._keep_within_registers(program, known.windows)
                gone = {t for t in known.windows if t not in self.tensors}
                if not gone:
                    return known, dims
            for tensor in gone:
                candidates.pop(tensor, None)

    def _is_seen(self, op: Op, place: int) -> bool:
        """Whether an operation sees an operand so that lanes can hold it: element by element, or, what it only reads,
        from another place on, along axes of which every lane has all."""
        through = self.through(op.operands[place])
        if not is_framed(op) or through is None:
            return False
        shifts = [x for x in through if isinstance(x, Shifted)]
        if not shifts:
            return True
        if op.name not in ("map", "copy") or place == target_place(op):
            return False
        axes = [x for x in through if isinstance(x, int)] + [axis for x in shifts for axis, _ in x.steps]
        single = [i for i, e in enumerate(box(op)) if e is as_expr(1)]
        return {*axes, *single} == set(range(len(box(op))))  # nobody else reads the same

    def _follow(self, block: Block) -> None:
        """Notes reductions over waves of which a block has several: between rounds of one, waves meet for another."""
        mine = [op for op in block.ops if op.name == "reduce" and self.waves_between(op) > 1]
        self.followed |= set(mine) if len(mine) > 1 else set()
        for op in block.ops:
            for inner in op.blocks:
                self._follow(inner)

    def _is_stored(self, op: Op, ops: Sequence[Op]) -> bool:
        """Whether all who use the result of a reduction are maps and copies to memory, over nothing but its axes."""
        result = self._chain.root(op.operands[1])
        if op.attrs.get("accumulate"):
            return False
        if result not in self.tensors:
            return True
        kept = {d for i, d in enumerate(self.axes[op]) if d is not None and i != op.attrs["along"]}
        for user in ops:
            if user is op or result not in {self._chain.root(v) for v in user.operands}:
                continue
            target = self._chain.root(user.operands[target_place(user)])
            if user.name not in ("map", "copy") or user not in self.axes or target in self.tensors:
                return False
            if {d for d in self.axes[user] if d is not None} != kept:
                return False
        return True

    def waves_between(self, op: Op) -> int:
        """How many waves share a row that is reduced."""
        gone = self.axes[op][op.attrs["along"]] if op in self.axes else None
        return 1 if gone is None else gone.stride * gone.threads // max(self.lanes, gone.stride)

    def _turn(self, op: Op) -> Turn | None:
        """The first operand that lies side by side along another axis than the target, if both axes are long enough."""
        over = tuple(index(f"axis{i}", int(e)) for i, e in enumerate(box(op)))
        place = target_place(op)
        target = self.neighbours(op.operands[place], over)
        for i, value in enumerate(op.operands):
            source = self.neighbours(value, over) if i != place else None
            if source is None or target is None or source == target:
                continue
            if min(int(over[source].hi), int(over[target].hi)) + 1 >= LEAST:
                return Turn(i, source, target)
        return None

    def _is_apart(self, ops: Sequence[Op]) -> bool:
        memory = [v for op in ops for v in {self._chain.root(v) for v in op.operands} if isinstance(v.type, TensorType)]
        counted = Counter(v for v in memory if v not in self.tensors and v.type.role != "in")
        return all(n == 1 and v.type.role is not None for v, n in counted.items())

    def _keep_within_registers(self, program: Program, windows: Collection[Value]) -> None:
        sizes = {t: held(tuple(d for d in dims if d is not None)) for t, dims in self.tensors.items()}
        file = self._registers  # windows are held as they lie in memory, so that several values of theirs share one
        sizes |= {t: -(-sizes[t] * t.type.dtype.numpy.itemsize // file.word_bytes) for t in windows}
        together = min(file.lane_values, file.core_values // self.threads)

        def much() -> bool:
            most = max((n for t, n in sizes.items() if t not in windows), default=0)
            return most > min(file.tensor_values, together // 2) or _at_once(program.body, sizes) > together

        while sizes and much():
            largest = max(sizes, key=lambda t: sizes[t])
            del sizes[largest], self.tensors[largest]

    def is_argument(self, value: Value) -> bool:
        """Whether a value is an argument, or a view of one."""
        return self._chain.made.get(self._chain.root(value)) is None

    def root(self, value: Value) -> Value:
        """The tensor that a value is a view of."""
        return self._chain.root(value)

    def through(self, value: Value) -> tuple[Seen, ...] | None:
        """What each dimension of the tensor below is to those who look at a value; None where some is neither along an
        axis nor shifted.
        """
        op = self._chain.made.get(value)
        if op is None or op.name not in ("view", "bitcast"):
            return tuple(range(len(value.type.shape)))
        below = self.through(op.operands[0]) if op.name == "view" else None
        if below is None:
            return None
        over, shape, base = op.attrs["over"], value.type.shape, op.operands[0].type.shape
        mine: list[Seen] = []
        for (e, loose), size in zip(op.attrs["at"], base, strict=True):
            if isinstance(e, Symbol) and e in over and not loose and shape[over.index(e)] is size:
                mine.append(over.index(e))
            elif isinstance(e, Const) and e.value == 0 and size is as_expr(1):
                mine.append(None)
            elif not loose and (shift := shifted_of(e, over)) is not None:
                mine.append(shift)
            else:
                return None
        return tuple(composed(x, mine) for x in below)

    def neighbours(self, value: Value, axes: Sequence[Symbol], *, shared: bool = False) -> int | None:
        """The axis along which a view of an argument lies side by side in memory; None: along none.

        With `shared`, views of tensors in shared memory are looked at too.
        """
        at, below = self._coordinates(value, axes, shared)
        if below is None:
            return None
        for place, s in enumerate(axes):
            if _step(at[-1], s) == 1 and not any(s in e.symbols for e in at[:-1]):
                return place
        whole = _offset(at, below)  # rows may run on
        return next((place for place, s in enumerate(axes) if _step(whole, s) == 1), None)

    def steps(self, value: Value, axes: Sequence[Symbol]) -> list[int | None]:
        """How many elements of its argument a view moves along each axis; None: that is no number, or it is of none."""
        at, below = self._coordinates(value, axes, False)
        whole = None if below is None else _offset(at, below)
        return [None if whole is None else _step(whole, s) for s in axes]

    def axes_of(self, value: Value, axes: Sequence[Symbol]) -> set[Symbol]:
        """The axes that a view looks along; it is broadcast along the others."""
        at, _ = self._coordinates(value, axes, True)
        return {s for e in at for s in e.symbols if s in axes}

    def alignment(self, value: Value, axes: Sequence[Symbol], side: int) -> int:
        """At multiples of how many elements of its tensor a view's rows along an axis begin."""
        at, below = self._coordinates(value, axes, True)
        return 1 if below is None else Substitution({axes[side]: as_expr(0)})(_offset(at, below)).multiple

    def _coordinates(self, value: Value, axes: Sequence[Symbol], shared: bool) -> tuple[tuple[Expr, ...], Value | None]:
        """(where a view looks, the packed argument, or with `shared` tensor, that it is of; None: it is of none)."""
        at: tuple[Expr, ...] = tuple(axes)
        op = self._chain.made.get(value)
        while op is not None and op.name == "view":
            images = Substitution(dict(zip(op.attrs["over"], at, strict=True)))
            at = tuple(images(self._chain.expanded(e)) for e, _ in op.attrs["at"])
            value = op.operands[0]
            op = self._chain.made.get(value)
        is_memory = op is None or (shared and op.name == "alloc" and _is_plain(value.type))
        return at, value if is_memory and at and value.type.strides is None else None


def _offset(at: tuple[Expr, ...], argument: Value) -> Expr:
    """The number of an element, as a packed argument counts them."""
    shape = argument.type.shape
    rows = (e * prod(shape[n + 1 :], start=as_expr(1)) for n, e in enumerate(at))
    return sum(rows, start=as_expr(0))


def _at_once(block: Block, sizes: Mapping[Value, int]) -> int:
    """How many registers the tensors of a block take: of those that stand under conditions, the most of one."""
    found = sum(sizes.get(op.results[0], 0) for op in block.ops if op.name == "alloc")
    inner = [(op.name, _at_once(each, sizes)) for op in block.ops for each in op.blocks]
    return (
        found + sum(n for name, n in inner if name != "if") + max((n for name, n in inner if name == "if"), default=0)
    )


def frames_of(program: Program, chain: Places, machine: Machine) -> Frames:
    """The frames of a program for a machine; where roles share its work, nothing is dealt out by itself."""
    record, roles = program.record("waves"), any(op.name == "role" for op in program.body.ops)
    waves = 1 if record is None else numbers((record.attrs["count"],), "waves")[0]
    return Frames(program, chain, 0 if roles or machine.lanes is None else waves * machine.lanes, machine)


def _step(e: Expr, axis: Symbol) -> int | None:
    """How far an expression moves with an axis; None if that is no number."""
    form = linear_form(e, [axis]) if axis in e.symbols else None
    factor = None if form is None else form[0].get(axis)
    return factor.value if isinstance(factor, Const) else None


def box(op: Op) -> tuple[Expr, ...]:
    """The extents that an operation goes over: those of its target; of a reduction, of its source."""
    shape: tuple[Expr, ...] = op.operands[0].type.shape
    return shape


def target_place(op: Op) -> int:
    """Which operand of a map, a copy or a fill is written."""
    return 1 if op.name == "copy" else 0


def operand_axes(op: Op, place: int) -> tuple[int, ...]:
    """Which axes of the operation the dimensions of an operand are."""
    every = range(len(box(op)))
    return tuple(i for i in every if not (op.name == "reduce" and place == 1 and i == op.attrs["along"]))


def is_framed(op: Op) -> bool:
    """Whether an operation goes element by element, or combines along a dimension, over extents that are numbers."""
    if op.name not in ("map", "copy", "fill", "reduce", "scan") or "by" in op.attrs:
        return False
    if op.name in ("reduce", "scan") and (len(op.operands) != 2 or not isinstance(op.attrs["with"], str)):
        return False
    if any(isinstance(v.type, RegisterType) for v in op.operands):
        return False
    return all(isinstance(e, Const) and e.value > 0 for v in op.operands for e in v.type.shape)


def _is_plain(kind: object) -> bool:
    """Whether a tensor of this type might as well lie in registers."""
    if not isinstance(kind, TensorType) or kind.swizzle is not None:
        return False
    return all(isinstance(e, Const) and e.value > 0 for e in kind.shape)


Node = tuple[Op | Value, int]


class _Vote(NamedTuple):
    """Contiguous data along a dimension: bytes of arguments, and of tensors in shared memory; those of the
    smallest element, and at multiples of how many elements rows begin of what is written; 0: nothing is."""

    moved: int
    shared: int
    least: int
    alignment: int


class _Classes:
    """Axes of operations and dimensions of tensors, those together that must be dealt out alike."""

    def __init__(self, frames: Frames, ops: Sequence[Op], tensors: Iterable[Value]):
        self._frames, self._ops, self._above = frames, ops, dict[Node, Node]()
        self.windows: set[Value] = set()
        """Tensors that are seen from several places on."""
        own: set[Node] = set()
        self._inside = inside = set(tensors)
        for op in ops:
            for place, value in enumerate(op.operands):
                root = frames.root(value)
                axes, through = operand_axes(op, place), frames.through(value)
                if root in inside and through is not None:
                    for i, seen in enumerate(through):
                        if isinstance(seen, int):
                            self._join((root, i), (op, axes[seen]))
                        elif seen is not None:
                            self.windows.add(root)
                            own |= {(root, i), *((op, axes[axis]) for axis, _ in seen.steps)}
        self._own = {self.find(node) for node in own}
        """The classes of which every lane has all."""

    def find(self, node: Node) -> Node:
        """The class of an axis or a dimension."""
        while node in self._above:
            node = self._above[node]
        return node

    def _join(self, a: Node, b: Node) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self._above[a] = b

    def _of(self, op: Op) -> list[Node]:
        """The classes of an operation's axes, those of one coordinate aside."""
        return [self.find((op, i)) for i, e in enumerate(box(op)) if e is not as_expr(1)]

    def conflict(self) -> Op | None:
        """An operation with two axes of one class."""
        return next((op for op in self._ops if len(set(self._of(op))) < len(self._of(op))), None)

    def dims_of(self, tensor: Value, dims: Mapping[Node, Dim]) -> tuple[Dim | None, ...]:
        """How a tensor's dimensions are dealt out."""
        return tuple(dims.get(self.find((tensor, i))) for i in range(len(tensor.type.shape)))

    def across(self) -> set[Value]:
        """Tensors that are seen from several places on along what lies side by side in memory, too much for one lane:
        neighbours there are neighbouring lanes'. So they are where the next lane would begin too far behind."""
        votes, extents = self._votes(), self._extents()
        most, distances = self._frames.access.own_bytes, self._apart()
        whole_runs = {c for c in self._own if c in votes and extents.get(c, 1) * votes[c].least > most}
        whole_runs |= {c for c in self._own if distances.get(c, 0) > most}
        return {t for t in self.windows if any(self.find((t, i)) in whole_runs for i in range(len(t.type.shape)))}

    def _apart(self) -> dict[Node, int]:
        """By class along which arguments lie side by side: how many bytes lanes are apart that have all of it, at
        least; of the argument for which that is most."""
        found: dict[Node, int] = {}
        for op in self._ops:
            for place, value in enumerate(op.operands):
                over = tuple(index(f"axis{i}", int(e)) for i, e in enumerate(value.type.shape))
                side, steps = self._frames.neighbours(value, over), self._frames.steps(value, over)
                others = [n for i, n in enumerate(steps) if i != side and n and int(over[i].hi) > 0]
                if side is not None and others:
                    c = self.find((op, operand_axes(op, place)[side]))
                    found[c] = max(found.get(c, 0), min(others) * value.type.dtype.numpy.itemsize)
        return found

    def _extents(self) -> dict[Node, int]:
        """By class: how many coordinates."""
        sizes = ((self.find((op, i)), int(e)) for op in self._ops for i, e in enumerate(box(op)))
        return {c: n for c, n in sizes if n != 1}

    def dims(self) -> dict[Node, Dim]:
        """Every class as a dimension that is dealt out."""
        extents, together = self._extents(), dict[Node, set[Node]]()
        for op in self._ops:
            mine = self._of(op)
            for c in mine:
                together.setdefault(c, set()).update(set(mine) - {c})
        found: dict[Node, Dim] = {}
        votes = self._votes()
        for group in _components(extents, together):
            found |= self._dealt(group, extents, together, votes)
        return found

    def is_together(self, op: Op, axes: tuple[Dim | None, ...]) -> bool:
        """Whether a lane gains by having several values of an operation on memory at once: vectors, or single ones that
        lie side by side with those of its neighbours, many of them on their way before the first is needed."""
        own = tuple(d for d in axes if d is not None)
        if any(d.width > 1 for d in own):
            return True
        return held(own) > 1 and not set(self._of(op)).isdisjoint(self._votes())

    def _votes(self) -> dict[Node, _Vote]:
        """By class: what lies side by side along it."""
        found: dict[Node, _Vote] = {}
        for op in self._ops:
            for place, value in enumerate(op.operands):
                over = tuple(index(f"axis{i}", int(e)) for i, e in enumerate(value.type.shape))
                side = self._frames.neighbours(value, over, shared=self._frames.root(value) not in self._inside)
                if side is None:
                    continue
                read = self._frames.axes_of(value, over)
                c = self.find((op, operand_axes(op, place)[side]))
                size = value.type.dtype.numpy.itemsize
                moved, shared, least, alignment = found.get(c, _Vote(0, 0, size, 0))
                some = size * prod(int(e) for e, axis in zip(value.type.shape, over, strict=True) if axis in read)
                is_given = self._frames.is_argument(value)
                moved, shared = moved + some * is_given, shared + some * (not is_given)
                if op.name in ("map", "copy", "fill") and place == target_place(op):
                    alignment = gcd(alignment, self._frames.alignment(value, over, side))
                found[c] = _Vote(moved, shared, min(least, size), alignment)
        return found

    def _combined(self) -> set[Node]:
        """The classes along which something is combined."""
        return {self.find((op, op.attrs["along"])) for op in self._ops if op.name in ("reduce", "scan")}

    def _dealt(
        self,
        group: list[Node],
        extents: Mapping[Node, int],
        together: Mapping[Node, set[Node]],
        votes: Mapping[Node, _Vote],
    ) -> dict[Node, Dim]:
        """The classes of one group: those that never meet in an operation share threads."""
        vector = self._frames.access.vector_bytes
        own = {c: _width(extents[c], votes.get(c), vector) for c in group if c in self._own}
        found = {c: Dim(extents[c], width, 1, 1) for c, width in own.items()}
        group = [c for c in group if c not in found]
        slots: list[list[Node]] = []
        for c in group:
            free = [s for s in slots if together[c].isdisjoint(s)]
            free.sort(key=lambda s: extents[s[0]] != extents[c])
            if free:
                free[0].append(c)
            else:
                slots.append([c])
        if not slots:
            return found
        within, none = self._combined(), _Vote(0, 0, 0, 0)

        def rank(slot: list[Node]) -> tuple[int, bool, int]:
            """Lanes go along arguments first, and last along what is combined: within a lane that needs no shuffles."""
            moved, shared = (max(n) for n in zip(*(votes.get(c, none)[:2] for c in slot), strict=True))
            return -moved, not within.isdisjoint(slot), -shared

        slots.sort(key=rank)
        widths = {c: _width(extents[c], votes.get(c), vector) if c in slots[0] else 1 for c in group}
        if not found.keys().isdisjoint(votes):  # vectors lie in windows: no lane has several while others have none
            idle = self._frames.threads // prod(1 << (n - 1).bit_length() for n in _vectors(slots, extents, widths))
            widths = {c: width // gcd(width, max(1, idle)) for c, width in widths.items()}
        vectors = _vectors(slots, extents, widths)
        moved = max((widths[c] * votes[c].least for c in slots[0] if c in votes), default=vector)
        line = self._frames.access.line_bytes
        share = min(self._frames.lanes, line // 2 // moved)
        combined = not within.isdisjoint(slots[0])
        counts = _shared_out(self._frames.threads, vectors, combined, line // vector, share)
        stride = 1
        for slot, count in zip(slots, counts, strict=True):
            alike: dict[tuple[int, int], Dim] = {}
            for c in slot:
                key = extents[c], widths[c]
                found[c] = alike.setdefault(key, Dim(*key, count, stride))
            stride *= count
        return found


def _vectors(slots: Sequence[list[Node]], extents: Mapping[Node, int], widths: Mapping[Node, int]) -> list[int]:
    """The vectors along each slot: those of the class that has most."""
    return [max(-(-extents[c] // widths[c]) for c in slot) for slot in slots]


def _width(extent: int, vote: _Vote | None, vector: int) -> int:
    """Neighbours that a lane has together, up to so many bytes: as many as divide a row, and the alignment of rows that
    are written."""
    return 1 if vote is None else gcd(vector // vote.least, extent, vote.alignment)


def _shared_out(threads: int, vectors: list[int], combined: bool, line: int, share: int) -> list[int]:
    """How many threads go along each dimension, the one with neighbours first; a line of memory has `line` vectors.

    Where that one is combined and rows are many, `share` lanes have a row, fewer if they had less than a few vectors
    each: reductions are within lanes first. Otherwise as many lanes as possible lie side by side, unless fewer are less
    often past the end.

    >>> [_shared_out(256, each, True, 8, 8) for each in ([1024, 2], [64, 32], [3, 5])]
    [[128, 2], [8, 32], [32, 8]]
    >>> _shared_out(256, [127, 32], True, 8, 32), _shared_out(256, [33, 32], True, 8, 32)
    ([32, 8], [8, 32])
    >>> [_shared_out(256, each, False, 8, 8) for each in ([64, 32], [65, 32], [3, 5])]
    [[64, 4], [8, 32], [32, 8]]
    >>> _shared_out(4, [64, 32], False, 8, 4)
    [4, 1]
    """
    whole = [1 << (n - 1).bit_length() for n in vectors]
    rows = prod(whole[1:])
    first = min(line, whole[0], threads)
    while combined and first < share and vectors[0] >= 2 * first * VECTORS:
        first *= 2
    if not combined:
        choices = [first << n for n in range(threads.bit_length()) if first << n <= min(threads, whole[0])]
        first = min(reversed(choices), key=lambda n: -(-vectors[0] // n) * n)
    first = min(whole[0], max(first, threads // rows))
    found, left = [first], threads // first
    for n in whole[1:]:
        found.append(min(n, left))
        left //= found[-1]
    found[0] *= left
    return found


def _components(nodes: Iterable[Node], together: Mapping[Node, set[Node]]) -> list[list[Node]]:
    """Groups of classes that meet in operations, directly or by way of others."""
    found: list[list[Node]] = []
    seen: set[Node] = set()
    for start in nodes:
        if start in seen:
            continue
        group, open_ = [], [start]
        seen.add(start)
        while open_:
            node = open_.pop()
            group.append(node)
            more = [n for n in nodes if n in together[node] and n not in seen]
            seen.update(more)
            open_ += more
        found.append([n for n in nodes if n in group])
    return found
