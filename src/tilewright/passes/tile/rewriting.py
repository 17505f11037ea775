"""Tile programs written again: over other dimensions, or as two programs with memory between them."""

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
    """A program written again, operation by operation, over other dimensions."""

    def __init__(self) -> None:
        self.values: dict[Value, Value] = {}
        """What stands for each value; arguments stand for themselves."""
        self.kept: dict[Op, Op] = {}
        """What each operation became."""

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """What stands for these dimensions."""
        raise NotImplementedError

    def access(self, op: Op) -> Mapping[str, object]:
        """Where a read or write goes: its attributes that are others now."""
        raise NotImplementedError

    def goes(self, op: Op) -> bool:
        """Whether a loop goes, and its body stands in its place."""
        return False

    def body(self, block: Block) -> Block:
        """A program's body."""
        made = Block(block.args)
        self.block(block.ops, made.ops)
        return made

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Operations, appended."""
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
        """An operation on what stands for its operands."""
        blocks = []
        for block in op.blocks:
            args = tuple(Value(self.type(a.type), a.name) for a in block.args)
            self.values |= dict(zip(block.args, args, strict=True))
            blocks.append(self.body(Block(args, block.ops)))
        attrs = dict(op.attrs)
        if op.name in ("read", "write"):
            attrs |= self.access(op)
        if "to" in attrs:
            attrs["to"] = self.over(attrs["to"])
        results = tuple(Value(self.type(r.type), r.name) for r in op.results)
        operands = tuple(map(self.of, op.operands))
        self.values |= dict(zip(op.results, results, strict=True))
        return Op(op.spec, operands, attrs, results, tuple(blocks), op.loc)

    def of(self, value: Value) -> Value:
        """What stands for a value."""
        return self.values.get(value, value)

    def type(self, kind: object) -> object:
        """The type of what stands for a value."""
        return TileType(kind.dtype, self.over(kind.dims)) if isinstance(kind, TileType) else kind


@dataclass(frozen=True)
class DimensionGroup:
    """Dimensions, side by side wherever a tile has them, and those that count their elements instead."""

    dims: tuple[Expr, ...]
    made: tuple[Symbol, ...]
    over: tuple[Symbol, ...]
    """Iterators along what is made."""
    at: Mapping[Expr, Expr]
    """The coordinate of each of the dimensions, in these iterators."""


class Regrouped(Rewriter):
    """A program in which other dimensions stand for groups of them; with `zeros`, such are read past the ends."""

    def __init__(
        self, groups: Iterable[DimensionGroup], *, zeros: bool = False, sizes: Mapping[Symbol, Size] | None = None
    ):
        """`sizes` are what symbols are in coordinates."""
        super().__init__()
        self.groups = {d: group for group in groups for d in group.dims}
        self.zeros, self.numbers = zeros, Substitution(sizes or {})

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Dimensions, groups as what stands for them."""
        return tuple(x for d in dims for x in (self.groups[d].made if d in self.groups else (d,)) if self._is_first(d))

    def _is_first(self, dim: Expr) -> bool:
        return dim not in self.groups or self.groups[dim].dims[0] is dim

    def access(self, op: Op) -> dict[str, object]:
        """Where a read or write goes."""
        kind, before, at = places(op)
        own = dict(zip(kind.dims, before, strict=True))
        found = {d: self.groups[d] for d in own if d in self.groups}
        if not found:
            return {}
        over = (x for d, s in own.items() for x in (found[d].over if d in found else (s,)) if self._is_first(d))
        images = Substitution({own[d]: group.at[d] for d, group in found.items()})
        zero = {"otherwise": 0} if self.zeros and op.name == "read" and "otherwise" not in op.attrs else {}
        return {"over": tuple(over), "at": tuple(images(self.numbers(e)) for e in at), **zero}


def places(op: Op) -> tuple[TileType, tuple[Symbol, ...], tuple[Expr, ...]]:
    """(what is read or written, its iterators, the coordinates in memory), also where the access says none."""
    memory, kind, _ = accessed(op)
    over = op.attrs.get("over") or tuple(symbol(f"at_{n}", 0) for n in range(len(kind.dims)))
    at = op.attrs.get("at") or tuple(dict(zip(kind.dims, over, strict=True))[d] for d in memory.type.dims)
    return kind, over, at


def needed(op: Op, made: Mapping[Value, Op]) -> set[Op]:
    """An operation, and all that it depends on."""
    found: set[Op] = set()
    left = [op]
    while left:
        now = left.pop()
        if now not in found:
            found.add(now)
            left += [inner for block in now.blocks for inner in block.ops]
            left += [made[v] for v in now.operands if v in made]
    return found


def acts(op: Op) -> bool:
    """Whether an operation does more than to give values, or ends a block."""
    if op.blocks:
        return any(acts(x) for x in within(op) if x.name != "yield")
    return op.name in WRITES or not op.results


def without_unused(block: Block, acts: Callable[[Op], bool] = acts) -> Block:
    """The block without operations that nothing needs: `acts` says which do more than to give values.

    Blocks within are changed in place.
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
    """The two programs, the memory between them, which is an argument of both, and the sizes of what is new."""

    first: Program
    second: Program
    partial: Value
    sizes: dict[Symbol, int]
    shape: tuple[int, ...]
    parts: int = 1
    """How many parts of a sum there are."""


def own_name(program: Program, name: str) -> str:
    """A name that no argument of a program has: what lies between two programs may be an argument of a third."""
    taken = {a.name for a in program.args}
    while name in taken:
        name += "_"
    return name


def between(program: Program, name: str, value: Value) -> Value:
    """Memory for a value that goes from one program to another."""
    return Value(MemoryType(value.type.dtype, value.type.dims), own_name(program, name))


def halved(
    program: Program,
    first: tuple[str, list[Op]],
    memory: Value,
    cut: Op,
    combined: list[Op],
    sizes: Mapping[Symbol, int],
    new: dict[Symbol, int],
    parts: int = 1,
) -> Halves:
    """Two programs: operations, whose last result goes to memory, and the program with others in place of `cut`.

    What is new has sizes beside the program's.
    """
    name, ops = first
    write = Op(TILE.ops["write"], (ops[-1].result, memory), {}, loc=cut.loc)
    one = _of(program, f"{program.name}_{name}", [*ops, write], memory)
    two = _of(program, program.name, _rest(program.body.ops, cut, combined), memory)
    verify(one)
    verify(two)
    numbers = Substitution({**sizes, **new})
    return Halves(one, two, memory, new, tuple(int(numbers(d)) for d in memory.type.dims), parts)


def _of(program: Program, name: str, ops: list[Op], memory: Value) -> Program:
    """A program of some operations of another."""
    used = {v for op in ops for x in (op, *within(op)) for v in x.operands}
    args = (*(a for a in program.args if a in used), memory)
    return replace(program, name=name, args=args, body=Block((), ops))


def within(op: Op) -> list[Op]:
    """The operations of an operation's blocks."""
    return [x for block in op.blocks for x in walk_block(block)]


def _rest(ops: list[Op], cut: Op, combined: list[Op]) -> list[Op]:
    """The operations with others in place of one, wherever it stands, and without those that nothing needs."""
    values = {cut.result: combined[-1].result}
    found: list[Op] = []
    for op in ops:
        if op is cut:
            found += combined
            continue
        blocks = tuple(Block(b.args, _rest(b.ops, cut, combined)) for b in op.blocks)
        operands = tuple(values.get(v, v) for v in op.operands)
        found.append(Op(op.spec, operands, op.attrs, op.results, blocks, op.loc))
    used: set[Value] = set()
    for op in reversed(found):
        if not op.results or not used.isdisjoint(op.results):
            used |= {v for x in (op, *within(op)) for v in x.operands}
    return [op for op in found if not op.results or not used.isdisjoint(op.results)]
