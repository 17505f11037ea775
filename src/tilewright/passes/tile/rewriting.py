"""Rewriting of tile programs: over other dimensions, or as two programs with memory between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value, walk_block
from tilewright.ir.tile import TILE, accessed
from tilewright.ir.verifier import verify
from tilewright.passes.places import Size
from tilewright.plan.boxes import WRITES


class Rewriter:
    """Rewrites a program, operation by operation, over other dimensions."""

    def __init__(self) -> None:
        self.values: dict[Value, Value] = {}
        """{value: its replacement}; arguments are not replaced."""
        self.kept: dict[Op, Op] = {}
        """{operation: its rewritten form}."""

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions that replace `dims`."""
        raise NotImplementedError

    def access(self, op: Op) -> Mapping[str, object]:
        """Return the changed attributes (iterators, coordinates) of a read or write."""
        raise NotImplementedError

    def goes(self, op: Op) -> bool:
        """True if a loop is deleted, so that its body takes its place."""
        return False

    def body(self, block: Block) -> Block:
        """Return the rewritten block."""
        rewritten = Block(block.args)
        self.block(block.ops, rewritten.ops)
        return rewritten

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten operations of `given` to `ops`."""
        for op in given:
            if op.name == "iterate" and self.goes(op):
                (inner,) = op.blocks
                self.values |= {arg: self.of(v) for arg, v in zip(inner.args, op.operands, strict=True)}
                self.block(inner.ops[:-1], ops)
                self.values |= {r: self.of(v) for r, v in zip(op.results, inner.ops[-1].operands, strict=True)}
            else:
                self.kept[op] = self.op(op)
                ops.append(self.kept[op])

    def op(self, op: Op) -> Op:
        """Return the rewritten operation."""
        blocks = []
        for block in op.blocks:
            args = tuple(Value(self.type(a.type), a.name) for a in block.args)
            self.values |= dict(zip(block.args, args, strict=True))
            blocks.append(self.body(Block(args, block.ops)))
        attrs = dict(op.attrs)
        if op.name in ("read", "write"):
            attrs |= self.access(op)
        if isinstance(attrs.get("to"), tuple):  # of `repeat` it is one dimension
            attrs["to"] = self.over(attrs["to"])
        results = tuple(Value(self.type(r.type), r.name) for r in op.results)
        operands = tuple(map(self.of, op.operands))
        self.values |= dict(zip(op.results, results, strict=True))
        return Op(op.spec, operands, attrs, results, tuple(blocks), op.loc)

    def of(self, value: Value) -> Value:
        """Return the replacement of a value; the value itself if it has none."""
        return self.values.get(value, value)

    def type(self, kind: object) -> object:
        """Return the type of a value's replacement."""
        return TileType(kind.dtype, self.over(kind.dims)) if isinstance(kind, TileType) else kind


@dataclass(frozen=True)
class DimensionGroup:
    """Dimensions that are neighbours in every tile, and the new dimensions `made` that replace them."""

    dims: tuple[Expr, ...]
    made: tuple[Symbol, ...]
    over: tuple[Symbol, ...]
    """Iterators along the new dimensions."""
    at: Mapping[Expr, Expr]
    """The coordinate of each of the dimensions, in these iterators."""


class Regrouped(Rewriter):
    """Rewrites a program with other dimensions in place of groups; with `zeros`, reads past the ends give zero."""

    def __init__(
        self, groups: Iterable[DimensionGroup], *, zeros: bool = False, sizes: Mapping[Symbol, Size] | None = None
    ):
        """`sizes` are what symbols are in coordinates."""
        super().__init__()
        self.groups = {d: group for group in groups for d in group.dims}
        self.zeros, self.numbers = zeros, Substitution(sizes or {})

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions, with groups replaced."""
        return tuple(x for d in dims for x in (self.groups[d].made if d in self.groups else (d,)) if self._is_first(d))

    def _is_first(self, dim: Expr) -> bool:
        """True if a dimension is in no group, or is the first of its group."""
        return dim not in self.groups or self.groups[dim].dims[0] is dim

    def access(self, op: Op) -> dict[str, object]:
        """Return the iterators and coordinates of a read or write over the new dimensions."""
        kind, before, at = places(op)
        index_of = dict(zip(kind.dims, before, strict=True))
        group_of = {d: self.groups[d] for d in index_of if d in self.groups}
        if not group_of:
            return {}
        over = (
            x for d, s in index_of.items() for x in (group_of[d].over if d in group_of else (s,)) if self._is_first(d)
        )
        images = Substitution({index_of[d]: group.at[d] for d, group in group_of.items()})
        zero = {"otherwise": 0} if self.zeros and op.name == "read" and "otherwise" not in op.attrs else {}
        return {"over": tuple(over), "at": tuple(images(self.numbers(e)) for e in at), **zero}


def places(op: Op) -> tuple[TileType, tuple[Symbol, ...], tuple[Expr, ...]]:
    """Return (tile type, iterators, memory coordinates) of a read or write, also if the access states none."""
    memory, kind, _ = accessed(op)
    over = op.attrs.get("over") or tuple(symbol(f"at_{n}", 0) for n in range(len(kind.dims)))
    at = op.attrs.get("at") or tuple(dict(zip(kind.dims, over, strict=True))[d] for d in memory.type.dims)
    return kind, over, at


def needed(op: Op, makers: Mapping[Value, Op]) -> set[Op]:
    """Return an operation and all operations that it depends on; `makers` maps values to the operations that compute
    them.
    """
    ops: set[Op] = set()
    left = [op]
    while left:
        now = left.pop()
        if now not in ops:
            ops.add(now)
            left += [inner for block in now.blocks for inner in block.ops]
            left += [makers[v] for v in now.operands if v in makers]
    return ops


def acts(op: Op) -> bool:
    """True if an operation has an effect beside its results, or ends a block."""
    if op.blocks:
        return any(acts(x) for x in within(op) if x.name != "yield")
    return op.name in WRITES or not op.results


def without_unused(block: Block, acts: Callable[[Op], bool] = acts) -> Block:
    """Return the block without operations whose results nothing uses; `acts` tells which ones have effects.

    Blocks inside are changed in place.
    """
    used: set[Value] = set()
    kept: list[Op] = []
    for op in reversed(block.ops):
        if acts(op) or not used.isdisjoint(op.results):
            for inner in op.blocks:
                inner.ops[:] = without_unused(inner, acts).ops
            used |= {v for x in (op, *within(op)) for v in x.operands}
            kept.append(op)
    return Block(block.args, kept[::-1])


# -- two programs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Halves:
    """Two programs, the memories between them (arguments of both) with their shapes, and the sizes of new dimensions.

    The first program computes `parts` parts of a reduction.
    """

    first: Program
    second: Program
    memories: dict[Value, tuple[int, ...]]
    sizes: dict[Symbol, int]
    parts: int = 1


@dataclass(frozen=True)
class Replacement:
    """Operations of a second program, and the values in them that stand for the results of `cut`."""

    cut: Op
    ops: list[Op]
    results: tuple[Value, ...]

    @classmethod
    def by_last(cls, cut: Op, ops: list[Op]) -> Replacement:
        """Return the Replacement of the only result of `cut` by that of the last of `ops`."""
        return cls(cut, ops, (ops[-1].result,))


def own_name(program: Program, name: str) -> str:
    """Return a name that no argument of a program has, made from `name`."""
    taken = {a.name for a in program.args}
    while name in taken:
        name += "_"
    return name


def between(program: Program, name: str, value: Value) -> Value:
    """Return memory for a value that goes from one program to another."""
    return Value(MemoryType(value.type.dtype, value.type.dims), own_name(program, name))


def halved(
    program: Program,
    first: tuple[str, list[Op]],
    stored: Mapping[Value, Value],
    rest: Replacement,
    sizes: Mapping[Symbol, int],
    new: dict[Symbol, int],
    parts: int = 1,
) -> Halves | str:
    """Return two programs: the operations of `first`, and the rest of the program; or text: why it stays whole.

    `stored` are {value of the first: memory that it goes to}. In the rest, operations that read these memories stand in
    place of `rest.cut`. `new` are sizes of new dimensions.
    """
    name, ops = first
    why = _why_not_first(program, ops)
    if why is not None:
        return why
    writes = [Op(TILE.ops["write"], pair, {}, loc=rest.cut.loc) for pair in stored.items()]
    one = _of(program, f"{program.name}_{name}", [*ops, *writes])
    two = _of(program, program.name, _with_replacement(program.body.ops, rest))
    memories = tuple(stored.values())
    one, two = (replace(half, args=(*half.args, *memories)) for half in (one, two))
    verify(one)
    verify(two)
    numbers = Substitution({**sizes, **new})
    shapes = {memory: tuple(int(numbers(d)) for d in memory.type.dims) for memory in memories}
    return Halves(one, two, shapes, new, parts)


def _why_not_first(program: Program, ops: list[Op]) -> str | None:
    """Return why operations cannot run in a program before the rest of `program`; None if they can.

    The rest has all effects, so that what is read must not have been written before.
    """
    inside = [x for op in ops for x in (op, *within(op))]
    if any(x.name in WRITES for x in inside):
        return "what runs first writes memory"
    for memory in {x.operands[0] for x in inside if x.name == "read"}:
        written = False
        for op in program.body.ops:
            around = (op, *within(op))
            written = written or any(x.name in WRITES and x.operands[1] is memory for x in around)
            if written and any(x.name == "read" and x.operands[0] is memory for x in around):
                return f"{memory.name} is written before it is read"
    return None


def _of(program: Program, name: str, ops: list[Op]) -> Program:
    """Return a program with the operations `ops`, and those arguments of `program` that they use."""
    used = {v for op in ops for x in (op, *within(op)) for v in x.operands}
    return replace(program, name=name, args=tuple(a for a in program.args if a in used), body=Block((), ops))


def within(op: Op) -> list[Op]:
    """Return the operations inside an operation's blocks."""
    return [x for block in op.blocks for x in walk_block(block)]


def _with_replacement(ops: list[Op], rest: Replacement) -> list[Op]:
    """Return the operations with those of `rest` in place of its cut, and without those whose results nothing uses and
    that have no effect.
    """
    values = dict(zip(rest.cut.results, rest.results, strict=True))
    return without_unused(Block((), _replaced(ops, rest, values))).ops


def _replaced(ops: list[Op], rest: Replacement, values: Mapping[Value, Value]) -> list[Op]:
    """Return the operations with those of `rest` in place of its cut; `values` replace its results."""
    rewritten: list[Op] = []
    for op in ops:
        if op is rest.cut:
            rewritten += rest.ops
            continue
        blocks = tuple(Block(b.args, _replaced(b.ops, rest, values)) for b in op.blocks)
        operands = tuple(values.get(v, v) for v in op.operands)
        rewritten.append(Op(op.spec, operands, op.attrs, op.results, blocks, op.loc))
    return rewritten
