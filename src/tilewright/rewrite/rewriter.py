"""Rewriting of tile programs: over other dimensions, or as two programs with memory between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import Size
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value, walk_block
from tilewright.ir.tile import TILE, accessed
from tilewright.ir.verifier import verify
from tilewright.plan.boxes import WRITES


class Rewriter:
    """Rewrites a program, operation by operation, over other dimensions; subclasses say which dimensions and
    accesses.
    """

    def __init__(self) -> None:
        self.values: dict[Value, Value] = {}
        """{value: its replacement}; arguments are not replaced."""
        self.kept: dict[Op, Op] = {}
        """{operation: its rewritten form}."""

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return the dimensions that replace `dims`, those of a tile, in the rewritten program. Each subclass
        implements it.
        """
        raise NotImplementedError

    def access(self, op: Op) -> Mapping[str, object]:
        """Return {attribute: new value} for the attributes of the read or write `op` that change: `over`, `at`,
        `otherwise`.

        Each subclass implements it.
        """
        raise NotImplementedError

    def is_removed(self, op: Op) -> bool:
        """True if the loop `op` is replaced by its body, run once. By default no loop is; subclasses override it."""
        return False

    def body(self, block: Block) -> Block:
        """Return a new block with the rewritten form of each operation in `block`, and the same arguments."""
        rewritten = Block(block.args)
        self.block(block.ops, rewritten.ops)
        return rewritten

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten form of each operation in the list `given` to `ops`.

        A loop that is removed (`is_removed`) is replaced by its body. Other operations are recorded in `self.kept`.
        """
        for op in given:
            if op.name == "iterate" and self.is_removed(op):
                (inner,) = op.blocks
                self.values |= {arg: self.of(v) for arg, v in zip(inner.args, op.operands, strict=True)}
                self.block(inner.ops[:-1], ops)
                self.values |= {r: self.of(v) for r, v in zip(op.results, inner.ops[-1].operands, strict=True)}
            else:
                self.kept[op] = self.op(op)
                ops.append(self.kept[op])

    def op(self, op: Op) -> Op:
        """Return the rewritten operation `op`, with rewritten operands, result types, attributes and blocks.

        Also record its results, and the arguments of its blocks, in `self.values`.
        """
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
        """Return the value that replaces `value` in the rewritten program; `value` itself if nothing replaces it."""
        return self.values.get(value, value)

    def type(self, kind: object) -> object:
        """Return the type that replaces `kind`: a tile type gets new dimensions (`Rewriter.over`), any other type
        stays.
        """
        return TileType(kind.dtype, self.over(kind.dims)) if isinstance(kind, TileType) else kind


@dataclass(frozen=True)
class DimensionGroup:
    """Dimensions that are neighbours in every tile, and the new dimensions `new_dims` that replace them."""

    dims: tuple[Expr, ...]
    new_dims: tuple[Symbol, ...]
    over: tuple[Symbol, ...]
    """Iterators along the new dimensions."""
    at: Mapping[Expr, Expr]
    """The coordinate of each of the dimensions, in these iterators."""


class Regrouped(Rewriter):
    """Rewrites a program with new dimensions in place of groups of dimensions.

    With `zeros`, a read gives zero past the end of its memory if it does not say what lies there.
    """

    def __init__(
        self, groups: Iterable[DimensionGroup], *, zeros: bool = False, sizes: Mapping[Symbol, Size] | None = None
    ):
        """`sizes` are the values that replace symbols in coordinates."""
        super().__init__()
        self.groups = {d: group for group in groups for d in group.dims}
        self.zeros, self.numbers = zeros, Substitution(sizes or {})

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return `dims` with each group replaced by its new dimensions, at the position of its first dimension."""
        return tuple(
            x for d in dims for x in (self.groups[d].new_dims if d in self.groups else (d,)) if self._is_first(d)
        )

    def _is_first(self, dim: Expr) -> bool:
        """True if the dimension `dim` is in no group, or is the first of its group."""
        return dim not in self.groups or self.groups[dim].dims[0] is dim

    def access(self, op: Op) -> dict[str, object]:
        """Return {"over": iterators, "at": memory coordinates} of the read or write `op` over the new dimensions.

        With `self.zeros`, a read that states no value out of bounds gets "otherwise": 0 too. Return {} if the tile has
        no dimension of a group.
        """
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
    """Return (type of the tile, iterators along its dimensions, memory coordinates) of the read or write `op`.

    If `op` states no coordinates, each coordinate is the iterator of the dimension of the same name. If it states no
    iterators, they are new symbols called at_0, at_1, ...
    """
    memory, kind, _ = accessed(op)
    over = op.attrs.get("over") or tuple(symbol(f"at_{n}", 0) for n in range(len(kind.dims)))
    at = op.attrs.get("at") or tuple(dict(zip(kind.dims, over, strict=True))[d] for d in memory.type.dims)
    return kind, over, at


def needed(op: Op, makers: Mapping[Value, Op]) -> set[Op]:
    """Return the set of `op` and all operations on which it depends, directly or not, with the operations in their
    blocks.

    `makers` is {value: the operation that computes it}. Values that `makers` lacks are not followed.
    """
    ops: set[Op] = set()
    pending = [op]
    while pending:
        current = pending.pop()
        if current not in ops:
            ops.add(current)
            pending += [inner for block in current.blocks for inner in block.ops]
            pending += [makers[v] for v in current.operands if v in makers]
    return ops


def must_stay(op: Op) -> bool:
    """True if the operation `op` must stay though nothing uses its results.

    It writes memory, or it has no results (such as a `yield`). An operation with blocks must stay if an operation in
    them must, other than a `yield`.
    """
    if op.blocks:
        return any(must_stay(x) for x in within(op) if x.name != "yield")
    return op.name in WRITES or not op.results


def without_unused(block: Block, must_stay: Callable[[Op], bool] = must_stay) -> Block:
    """Return a new block: `block` without operations that have no used result and for which `must_stay` is false.

    Blocks nested in the operations are changed in place.
    """
    used: set[Value] = set()
    remaining: list[Op] = []
    for op in reversed(block.ops):
        if must_stay(op) or not used.isdisjoint(op.results):
            for inner in op.blocks:
                inner.ops[:] = without_unused(inner, must_stay).ops
            used |= {v for x in (op, *within(op)) for v in x.operands}
            remaining.append(op)
    return Block(block.args, remaining[::-1])


# -- two programs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoPrograms:
    """Two programs made from one, the memories that the first writes and the second reads, and the sizes of new
    dimensions.

    `memories` maps these arguments to their shapes. The first program computes a reduction in `parts` parts.
    """

    first: Program
    second: Program
    memories: dict[Value, tuple[int, ...]]
    sizes: dict[Symbol, int]
    parts: int = 1


@dataclass(frozen=True)
class Replacement:
    """Operations that take the place of the operation `cut`; `results` are the values that replace the results of
    `cut`.
    """

    cut: Op
    ops: list[Op]
    results: tuple[Value, ...]

    @classmethod
    def by_last(cls, cut: Op, ops: list[Op]) -> Replacement:
        """Return a Replacement of the operation `cut` by `ops`: the result of the last of `ops` replaces the result of
        `cut`.

        Both must have exactly one result.
        """
        return cls(cut, ops, (ops[-1].result,))


def unused_name(program: Program, name: str) -> str:
    """Return `name`, with underscores added while an argument of `program` has that name."""
    used_names = {a.name for a in program.args}
    while name in used_names:
        name += "_"
    return name


def memory_between(program: Program, name: str, value: Value) -> Value:
    """Return a new argument in memory, through which one program passes the tile `value` to another.

    It has the dimensions and element type of `value`. Its name is `name`, with underscores added while an argument of
    `program` has that name.
    """
    return Value(MemoryType(value.type.dtype, value.type.dims), unused_name(program, name))


def two_programs(
    program: Program,
    first: tuple[str, list[Op]],
    stored: Mapping[Value, Value],
    rest: Replacement,
    sizes: Mapping[Symbol, int],
    new: dict[Symbol, int],
    parts: int = 1,
) -> TwoPrograms | str:
    """Return `program` as a TwoPrograms, the second of which reads what the first writes; or text: why it cannot be
    split so.

    `first` is (suffix of the first program's name, its operations). `stored` is {value of the first: memory that it is
    written to}. In the second, the operations of `rest`, which read these memories, replace `rest.cut`.

    `sizes` is {dimension: extent}, and `new` the same for new dimensions. `parts` is the number of parts in which the
    first program computes a reduction; it is only recorded.
    """
    name, ops = first
    reason = _why_not_first(program, ops)
    if reason is not None:
        return reason
    writes = [Op(TILE.ops["write"], pair, {}, loc=rest.cut.loc) for pair in stored.items()]
    one = _program_of(program, f"{program.name}_{name}", [*ops, *writes])
    two = _program_of(program, program.name, _with_replacement(program.body.ops, rest))
    memories = tuple(stored.values())
    one, two = (replace(half, args=(*half.args, *memories)) for half in (one, two))
    verify(one)
    verify(two)
    numbers = Substitution({**sizes, **new})
    shapes = {memory: tuple(int(numbers(d)) for d in memory.type.dims) for memory in memories}
    return TwoPrograms(one, two, shapes, new, parts)


def _why_not_first(program: Program, ops: list[Op]) -> str | None:
    """Return text: why `ops` cannot run in a separate program before the rest of `program`; None if they can.

    They must not write memory. If they read a memory that `program` writes, `program` must not read it in the operation
    of its body that writes it, or in a later one.
    """
    inside = [x for op in ops for x in (op, *within(op))]
    if any(x.name in WRITES for x in inside):
        return "what runs first writes memory"
    for memory in dict.fromkeys(x.operands[0] for x in inside if x.name == "read"):
        written = False
        for op in program.body.ops:
            around = (op, *within(op))
            written = written or any(x.name in WRITES and x.operands[1] is memory for x in around)
            if written and any(x.name == "read" and x.operands[0] is memory for x in around):
                return f"{memory.name} is written before it is read"
    return None


def _program_of(program: Program, name: str, ops: list[Op]) -> Program:
    """Return a program called `name` with the body `ops`, and the arguments of `program` that `ops` use."""
    used = {v for op in ops for x in (op, *within(op)) for v in x.operands}
    return replace(program, name=name, args=tuple(a for a in program.args if a in used), body=Block((), ops))


def within(op: Op) -> list[Op]:
    """Return a list of all operations inside the blocks of `op`, at any depth, without `op` itself."""
    return [x for block in op.blocks for x in walk_block(block)]


def _with_replacement(ops: list[Op], rest: Replacement) -> list[Op]:
    """Return the list `ops` with the operation `rest.cut` replaced by `rest.ops`.

    Operations without used results are then left out, unless they write.
    """
    values = dict(zip(rest.cut.results, rest.results, strict=True))
    return without_unused(Block((), _replaced(ops, rest, values))).ops


def _replaced(ops: list[Op], rest: Replacement, values: Mapping[Value, Value]) -> list[Op]:
    """Return copies of the operations `ops` with `rest.ops` in place of the operation `rest.cut`, also in nested
    blocks.

    `values` is {value: replacement} for operands. It maps the results of `rest.cut` to the values that replace them.
    """
    rewritten: list[Op] = []
    for op in ops:
        if op is rest.cut:
            rewritten += rest.ops
            continue
        blocks = tuple(Block(b.args, _replaced(b.ops, rest, values)) for b in op.blocks)
        operands = tuple(values.get(v, v) for v in op.operands)
        rewritten.append(Op(op.spec, operands, op.attrs, op.results, blocks, op.loc))
    return rewritten
