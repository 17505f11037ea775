"""Block programs in a normal form, and where two of them differ: for comparing a text with what a plan gives.

`normal(program, params)` binds parameters, inlines definitions, composes chains of views down to the tensor that they
look at, makes the numbers of tasks one flat number, and leaves out loops of one round. What is left of names are
numbers in order of use.

`differences(a, b)` walks two normal forms together. Numbers that expressions give are compared, not how they are
written: where two expressions are not the same object, they are evaluated at every point of the loops around them. An
access is where it goes in memory, and which of its elements lie outside: a mark `?` on a coordinate that never leaves
its tensor says nothing, nor do `else` and `skip` where nothing is outside.

An allocation declares memory: of registers what counts is their type and in which role they are used, of shared memory
also in which body it is declared. The order of declarations does not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from math import prod
from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution, evaluate
from tilewright.analysis.distribution import placement
from tilewright.ir.attrs import Range, kind_of
from tilewright.ir.binding import bind, inlined
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import RegisterType, TensorType
from tilewright.machine import Machine

MOST = 1 << 26
"""Points at which two expressions are compared, at most."""


@dataclass(frozen=True)
class Memory:
    """A tensor that a program declares or is given."""

    name: str
    text: str
    """What is compared of its type."""
    scope: str
    steps: tuple[Expr, ...] | None
    """Strides of a tensor in memory; None: registers, whose coordinates are compared one by one."""


@dataclass(frozen=True)
class Access:
    """An operand: a tensor, coordinates of it by those of the operand, and which of these lie in 0..extent-1."""

    memory: Memory
    over: tuple[Symbol, ...]
    at: tuple[Expr, ...]
    inside: tuple[tuple[Expr, Expr], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the operand."""
        return tuple(int(s.upper) + 1 for s in self.over)

    @property
    def places(self) -> tuple[Expr, ...]:
        """The offset in memory, or the coordinates in registers."""
        if self.memory.steps is None:
            return self.at
        return (sum((e * s for e, s in zip(self.at, self.memory.steps, strict=True)), as_expr(0)),)

    def through(self, images: Substitution) -> Access:
        """With symbols replaced."""
        within = tuple((images(e), n) for e, n in self.inside)
        return replace(self, at=tuple(map(images, self.at)), inside=within)


@dataclass
class Node:
    """An operation: its name, what is compared as it is, operands, ranges of a loop, and its bodies."""

    name: str
    said: dict[str, Any] = field(default_factory=dict)
    operands: tuple[Access | str, ...] = ()
    formula: Formula | None = None
    over: tuple[Symbol, ...] = ()
    ranges: tuple[Range, ...] = ()
    blocks: tuple[list[Node], ...] = ()


@dataclass
class Normal:
    """A program in normal form."""

    header: dict[str, str]
    body: list[Node]
    declared: list[Memory]
    """In order of use."""


def normal(
    program: Program, params: Mapping[str, int] | None = None, called: Mapping[str, str] | None = None
) -> Normal:
    """The normal form of a program; `called` are other names for its arguments."""
    return _Normaliser(inlined(bind(program, params)), called or {}).run()


class _Normaliser:
    def __init__(self, program: Program, called: Mapping[str, str]):
        self.program, self.called = program, called
        self.values: dict[Value, Access] = {}
        """Tensors by what they are views of."""
        self.declared: dict[Value, tuple[Any, str, str]] = {}
        """Allocations: their type, the role they are in, and the body they stand in."""
        self.used: dict[tuple[Value, int], Memory] = {}
        self.channels: dict[Value, tuple[Op, str]] = {}
        self.names: dict[Value, str] = {}
        self.roles: dict[str, str] = {}
        self.role, self.scope, self.depth = "", "program", 0
        cluster = program.record("cluster")
        self.clustered = cluster is not None and int(cluster.attrs["count"]) > 1

    def run(self) -> Normal:
        header = {r.name: str(r.attrs) for r in self.program.records if r.name != "cluster" or self.clustered}
        for arg in self.program.args:
            kind, name = arg.type, self.called.get(arg.name or "", arg.name or "")
            header[f"%{name}"] = f"{kind.role} {kind.dtype} of {kind.cosize()}"
            self._declare(arg, 0, Memory(f"%{name}", "", "", kind.steps))
        for n, op in enumerate(op for op in self.program.walk() if op.name == "role"):
            self.roles[op.attrs["name"]] = f"role {n}"
        body = self._block(self.program.body, Substitution({}))
        return Normal(header, body, [m for m in self.used.values() if m.text])

    def _declare(self, value: Value, place: int, memory: Memory, shape: Sequence[Expr] | None = None) -> None:
        self.used[value, place] = memory
        shape = value.type.shape if shape is None else shape
        over = tuple(symbol(f"x{n}", 0, e - 1) for n, e in enumerate(shape))
        self.values.setdefault(value, Access(memory, over, over))

    # -- operations ---------------------------------------------------------------------------------------

    def _block(self, block: Block, images: Substitution) -> list[Node]:
        found: list[Node] = []
        for op in block.ops:
            found += self._op(op, images)
        return found

    def _op(self, op: Op, images: Substitution) -> Iterator[Node]:
        if op.name == "alloc":
            self.declared[op.result] = op.attrs["type"].mapped(images), self.role, self.scope
        elif op.name == "view":
            self.values[op.result] = self._viewed(op, images)
        elif op.name == "channel":
            self.channels[op.result] = op, self.scope
        elif op.name in ("acquire", "wait"):
            channel = self._channel(op.operands[0])
            yield Node(op.name, {"channel": channel})
            for n, value in enumerate(op.results):
                self._stage(value, op.operands[0], n)
        elif op.name in ("commit", "release"):
            yield Node(op.name, {"channel": self._channel(op.operands[0])})
        elif op.name in ("for", "tasks"):
            yield from self._loop(op, images)
        elif op.name == "role":
            said = {"waves": str(op.attrs["waves"]), "registers": str(op.attrs.get("registers"))}
            self.role, self.scope = self.roles[op.attrs["name"]], f"{self.roles[op.attrs['name']]}"
            yield Node(self.role, said, blocks=(self._block(op.blocks[0], images),))
            self.role, self.scope = "", "program"
        else:
            yield self._plain(op, images)

    def _viewed(self, op: Op, images: Substitution) -> Access:
        parent = self._access(op.operands[0])
        over = tuple(symbol(f"x{n}", 0, images(s.upper)) for n, s in enumerate(op.attrs["over"]))
        own = Substitution({**images.by_symbol, **dict(zip(op.attrs["over"], over, strict=True))})
        at = [own(e) for e, _ in op.attrs["at"]]
        composed = parent.through(Substitution(dict(zip(parent.over, at, strict=True))))
        extents = [s.upper + 1 for s in parent.over]
        marked = tuple((e, n) for e, n, (_, loose) in zip(at, extents, op.attrs["at"], strict=True) if loose)
        return replace(composed, over=over, inside=(*composed.inside, *marked))

    def _access(self, value: Value) -> Access:
        if value not in self.values:
            kind, role, scope = self.declared[value]
            name = f"memory {len(self.used)}"
            if isinstance(kind, TensorType):
                text = f"shared {kind.dtype}, {kind.cosize()} elements, swizzle {kind.swizzle}"
                self._declare(value, 0, Memory(name, text, scope, kind.steps))
            else:
                text = str(kind).removesuffix(" waves (1, 1)")  # as is meant where nothing is said
                self._declare(value, 0, Memory(name, text, role, None))
        return self.values[value]

    def _channel(self, value: Value) -> str:
        return self.names.setdefault(value, f"channel {len(self.names)}")

    def _stage(self, value: Value, channel: Value, place: int) -> None:
        """What a stage of a channel has of one of its tensors."""
        op, scope = self.channels[channel]
        kind, _, within = self.declared[op.operands[place]]
        ends = [self.roles[op.attrs[end]] for end in ("producer", "consumer")]
        stages = f"{op.attrs['stages']} stages {kind.steps[0]} apart from {ends[0]} to {ends[1]}"
        text = f"shared {kind.dtype}, {kind.cosize()} elements, swizzle {kind.swizzle}, {stages}"
        filled = self.used.get((op.operands[place], 0))  # where something is done to all stages before
        text += f", of {filled.name}" if filled is not None else ""
        memory = Memory(f"{self._channel(channel)}.{place}", text, f"{within}, {scope}", kind.steps[1:])
        if len({kind.shape[0], op.attrs["stages"]}) != 1:
            raise AssertionError("a channel's stages are its tensors' first dimension")
        self.used.pop((channel, place), None)
        self.used[channel, place] = memory
        over = tuple(symbol(f"x{n}", 0, e - 1) for n, e in enumerate(kind.shape[1:]))
        self.values[value] = Access(memory, over, over)

    def _plain(self, op: Op, images: Substitution) -> Node:
        said = {}
        for name, value in op.attrs.items():
            if name in ("formula", "over") or (name == "multicast" and not self.clustered):
                continue
            mapped = kind_of(op.spec.attrs[name]).mapped(value, images)
            if name == "stream" and mapped == as_expr(0):
                continue
            said[name] = mapped if isinstance(mapped, (int, float)) else str(mapped)
        formula = op.attrs["formula"].mapped(images) if "formula" in op.attrs else None
        operands = tuple(self._access(v) for v in op.operands)
        over = op.attrs.get("over") or (operands[0].over if operands else ())
        return Node(op.name, said, operands, formula, over)

    # -- loops --------------------------------------------------------------------------------------------

    def _loop(self, op: Op, images: Substitution) -> Iterator[Node]:
        said = {k: str(v) for k, v in op.attrs.items() if k in ("unroll", "peel", "overlap", "schedule")}
        before, self.scope = self.scope, f"{self.scope}, {op.name}"
        known, ranges = dict(images.by_symbol), []
        if op.name == "tasks":
            counts = [int(r.trip_count or 0) for r in op.attrs["ranges"]]
            flat = symbol("t", 0, prod(counts) - 1) if prod(counts) > 1 else as_expr(0)
            for n, r in enumerate(op.attrs["ranges"]):
                known[r.symbol] = r.lo + r.step * (flat // prod(counts[n + 1 :]) % counts[n])
            ranges = [Range.of("t", 0, prod(counts))]
        else:
            for r in op.attrs["ranges"]:
                inner = Substitution(known)
                lo, hi = inner(r.lo), inner(r.hi)
                if (hi - lo) is as_expr(1) and r.step == 1:
                    known[r.symbol] = lo
                    continue
                self.depth += 1
                ranges.append(Range.of(f"v{self.depth}", lo, hi, r.step))
                known[r.symbol] = ranges[-1].symbol
        inner = Substitution(known)
        blocks = []
        for b, scope in zip(op.blocks, ("", ", finally"), strict=False):
            self.scope += scope
            blocks.append(self._block(b, inner))
        self.scope = before
        if op.name == "tasks":
            yield Node("tasks", said, ranges=tuple(ranges), blocks=tuple(blocks))
            return
        self.depth -= len(ranges)
        if not ranges:
            for b in blocks:
                yield from b
            return
        split = [tuple(ranges)] if "overlap" in said else [(r,) for r in ranges]
        body = tuple(blocks)
        for n, each in enumerate(reversed(split)):
            mine = {k: v for k, v in said.items() if k != "peel" or n == 0}
            body = ([Node("for", mine, ranges=each, blocks=body)],)
        yield from body[0]


# -- parts of a program -------------------------------------------------------------------------------------

MOVES = ("acquire", "commit", "wait", "release", "mma", "barrier")


def skeleton(form: Normal) -> Normal:
    """Roles, loops, channels, products, and copies from and to arguments; registers are what their types are.

    How values are computed between products, and which lane stores them, is left out.
    """

    def of(operand: Access | str) -> Access | str:
        if isinstance(operand, str) or operand.memory.steps is not None:
            return operand
        return replace(operand, memory=replace(operand.memory, name=operand.memory.text))

    def kept(nodes: list[Node]) -> list[Node]:
        found = []
        for node in nodes:
            if node.blocks:
                found.append(replace(node, blocks=tuple(map(kept, node.blocks))))
            elif node.name in MOVES:
                found.append(replace(node, operands=tuple(map(of, node.operands))))
            elif node.name == "copy" and any(str(x.memory.name).startswith("%") for x in _accesses(node)):
                ends = [x for x in _accesses(node) if x.memory.steps is not None]
                found.append(replace(node, operands=tuple(ends)))
        return found

    return Normal(form.header, kept(form.body), [m for m in form.declared if m.steps is not None])


def _accesses(node: Node) -> list[Access]:
    return [x for x in node.operands if isinstance(x, Access)]


def most_registers(program: Program, machine: Machine, params: Mapping[str, int] | None = None) -> int:
    """Registers of 32 bits that values of one lane take at a time, at most: what is still to be read counts.

    An operation that goes element by element may put a result where an operand was that nothing reads any more.
    """
    return _Alive(bind(program, params), machine).most


class _Alive:
    """A walk over operations from the last to the first, with the register tensors that are read later."""

    def __init__(self, program: Program, machine: Machine):
        self.machine, self.most = machine, 0
        self.roots: dict[Value, Value] = {}
        for op in program.walk():
            if op.name == "alloc" and isinstance(op.result.type, RegisterType):
                self.roots[op.result] = op.result
            elif op.name == "view" and op.operands[0] in self.roots:
                self.roots[op.result] = self.roots[op.operands[0]]
        self._block(program.body, set())

    def _block(self, block: Block, alive: set[Value]) -> set[Value]:
        for op in reversed(block.ops):
            alive = self._loop(op, alive) if op.blocks else self._op(op, alive)
        return alive

    def _loop(self, op: Op, after: set[Value]) -> set[Value]:
        before: set[Value] = set()
        while True:
            alive = after | before if op.name in ("for", "tasks") else after
            for block in reversed(op.blocks):
                alive = self._block(block, alive)
            if alive <= before:
                return alive | after
            before |= alive

    def _op(self, op: Op, after: set[Value]) -> set[Value]:
        if op.name in ("alloc", "view"):
            return after
        held = [self.roots.get(v) for v in op.operands]
        target = 0 if op.name in ("map", "fill", "mma") else len(held) - 1
        used = {v for n, v in enumerate(held) if v is not None and n != target}
        made = held[target] if held else None
        if made is not None and (op.name == "mma" or op.attrs.get("accumulate")):
            used.add(made)
        whole = made is not None and op.operands[target] is made
        before = (after - {made} if whole else set(after)) | used
        during = [before, after] if op.name in ("map", "copy", "fill") else [before | after]
        made_here = set() if made is None else {made}
        for alive in (*during[:1], *(x | made_here for x in during[-1:])):
            self.most = max(self.most, sum(self._size(v) for v in alive if v is not None))
        return before

    def _size(self, value: Value) -> int:
        return -(-placement(value.type, self.machine).values * value.type.dtype.bits // 32)


# -- comparing ---------------------------------------------------------------------------------------------

Points = dict[str, np.ndarray[Any, Any]]


def differences(a: Normal, b: Normal) -> list[str]:
    """Where two normal forms differ; none where they are the same program."""
    found = [
        f"{k}: {a.header.get(k)} and {b.header.get(k)}"
        for k in sorted({*a.header, *b.header})
        if a.header.get(k) != b.header.get(k)
    ]
    for x, y in zip_longest(a.declared, b.declared):
        mine, other = ((m and (m.name, m.text, m.scope)) for m in (x, y))
        if mine != other:
            found.append(f"declared: {mine} and {other}")
    found += _differ(a.body, b.body, {}, "")
    return found


def _differ(a: list[Node], b: list[Node], points: Points, where: str) -> list[str]:
    found = []
    for n, (x, y) in enumerate(zip_longest(a, b)):
        here = f"{where}/{n} {x.name if x is not None else 'nothing'}"
        if x is None or y is None or x.name != y.name:
            return [*found, f"{here} and {y.name if y is not None else 'nothing'}"]
        found += [f"{here}: {text}" for text in _node(x, y, points)]
        inner = points
        if x.ranges:
            if [(r.step, str(r.symbol)) for r in x.ranges] != [(r.step, str(r.symbol)) for r in y.ranges]:
                return [*found, f"{here}: over {list(map(str, x.ranges))} and {list(map(str, y.ranges))}"]
            for r, s in zip(x.ranges, y.ranges, strict=True):
                if not (_equal(r.lo, s.lo, inner) and _equal(r.hi, s.hi, inner)):
                    return [*found, f"{here}: {r} and {s}"]
                inner = _walked(r, inner)
        if len(x.blocks) != len(y.blocks):
            found.append(f"{here}: {len(x.blocks)} bodies and {len(y.blocks)}")
        for p, q in zip(x.blocks, y.blocks, strict=False):
            found += _differ(p, q, inner, here)
    return found


def _node(x: Node, y: Node, points: Points) -> Iterator[str]:
    if len(x.operands) != len(y.operands):
        yield f"{len(x.operands)} operands and {len(y.operands)}"
        return
    loose = False
    for n, (p, q) in enumerate(zip(x.operands, y.operands, strict=True)):
        assert isinstance(p, Access)
        assert isinstance(q, Access)
        if (p.memory.name, p.shape) != (q.memory.name, q.shape):
            yield f"operand {n}: {p.memory.name} {p.shape} and {q.memory.name} {q.shape}"
            continue
        same, outside = _same_places(p, q, points)
        loose |= outside
        if not same:
            yield f"operand {n}: {_shown(p)} and {_shown(q)}"
    one, two = ({k: v for k, v in s.said.items() if loose or k not in ("otherwise", "skip")} for s in (x, y))
    if one != two:
        yield f"{one} and {two}"
    if (x.formula is None) != (y.formula is None):
        yield "a formula is missing"
    elif x.formula is not None and y.formula is not None:
        images = Substitution(dict(zip(y.over, x.over, strict=True)))
        if x.formula != y.formula.mapped(images):
            yield f"{x.formula} and {y.formula}"


def _same_places(p: Access, q: Access, points: Points) -> tuple[bool, bool]:
    """Whether two accesses go to the same places; and whether some of these lie outside."""
    q = replace(q.through(Substitution(dict(zip(q.over, p.over, strict=True)))), over=p.over)
    conditions = [[(e, n) for e, n in x.inside if e.lo < 0 or e.hi >= int(n)] for x in (p, q)]
    plain = all(e is f for e, f in zip(p.places, q.places, strict=True))
    if plain and not conditions[0] and not conditions[1]:
        return True, False
    space = _spread(points, p.over)
    masks = []
    for each in conditions:
        mask = np.ones(1, bool)
        for e, n in each:
            value = np.asarray(evaluate(e, space))
            mask = mask & (value >= 0) & (value < int(n))
        masks.append(mask)
    if not np.array_equal(*np.broadcast_arrays(*masks)):
        return False, True
    for e, f in zip(p.places, q.places, strict=True):
        differ = np.asarray(evaluate(e, space)) != np.asarray(evaluate(f, space))
        if np.any(differ & masks[0]):
            return False, True
    return True, not bool(masks[0].all())


def _spread(points: Points, over: Sequence[Symbol]) -> Points:
    """All points of the loops around, and for each all coordinates of an operand."""
    count = len(next(iter(points.values()))) if points else 1
    sizes = [int(s.upper) + 1 for s in over]
    assert count * prod(sizes) <= MOST, f"{count} points of {sizes}"
    rank = len(over)
    found = {name: values.reshape(-1, *(1,) * rank) for name, values in points.items()}
    for n, s in enumerate(over):
        found[s.name] = np.arange(sizes[n]).reshape(1, *(-1 if m == n else 1 for m in range(rank)))
    return found


def _equal(a: Expr, b: Expr, points: Points) -> bool:
    return a is b or bool(np.all(np.asarray(evaluate(a, points)) == np.asarray(evaluate(b, points))))


def _walked(r: Range, points: Points) -> Points:
    """The points within a loop: those around it, each with every number of its variable."""
    count = len(next(iter(points.values()))) if points else 1
    lo, hi = (np.broadcast_to(np.asarray(evaluate(e, points)), (count,)) for e in (r.lo, r.hi))
    rounds = np.maximum(0, -(-(hi - lo) // r.step))
    place = np.repeat(np.arange(count), rounds)
    number = np.arange(len(place)) - np.repeat(np.cumsum(rounds) - rounds, rounds)
    return {**{name: v[place] for name, v in points.items()}, r.symbol.name: lo[place] + r.step * number}


def _shown(access: Access) -> str:
    inside = "".join(f", 0 <= {e} < {n}" for e, n in access.inside)
    return f"{access.memory.name}[{', '.join(map(str, access.at))}{inside}]"
