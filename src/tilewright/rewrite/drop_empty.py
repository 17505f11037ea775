"""Removes operations on empty tiles: writes without elements, loops without iterations, MMAs with an empty K.

    %3 = iterate K init=(%2) { ... mma ... }      K is 0: %2 replaces %3
    write %4, %y : f32[M, N]                      M is 0: deleted, with all operations that only it needs
    %5 = read %x ... otherwise=0                  x has no elements: a tile of zeros

Later passes divide coordinates by extents, and split dimensions into tasks, so that an extent of 0 must not reach them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import ZERO, Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import Size
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.tile import TILE
from tilewright.plan.boxes import WRITES
from tilewright.rewrite.rewriter import Rewriter, within, without_unused


def without_empty(
    program: Program, sizes: Mapping[Symbol, Size], free: Collection[Op]
) -> tuple[Program, Collection[Op]]:
    """Remove operations on empty tiles; return (new program, counterparts of the loops `free` in it).

    Both are returned unchanged if no dimension has the extent 0. `sizes` is {dimension: extent}. `free` holds the loops
    that give the same result for every tile size.

    >>> from tilewright.algebra.expr import symbol
    >>> from tilewright.ir.tile import parse_tile
    >>> program = parse_tile('''tile product(%a: global f32[M, K], %b: global f32[N, K], %c: global f32[M, N])
    ...   symbols K, M, N
    ... {
    ...   %0 = fill value=0 : f32[M, N]
    ...   %1 = read %a : f32[M, K]
    ...   %2 = read %b : f32[N, K]
    ...   %3 = mma %1, %2, %0 : f32[M, N]
    ...   write %3, %c
    ... }''')
    >>> m, n, k = (symbol(name, 0) for name in "MNK")
    >>> [op.name for op in without_empty(program, {m: 3, n: 4, k: 0}, ())[0].walk()]
    ['fill', 'write']
    >>> [op.name for op in without_empty(program, {m: 0, n: 4, k: 5}, ())[0].walk()]
    []
    """
    values = [*program.args, *(v for op in program.walk() for v in op.results)]
    numbers = Substitution(sizes)
    empty = {d for d in {d for v in values for d in getattr(v.type, "dims", ())} if numbers(d) is ZERO}
    if not empty:
        return program, free
    with building():
        rewrite = _WithoutEmpty(empty, _limited(program))
        rewritten = replace(program, body=rewrite.body(program.body))
    return rewritten, {rewrite.kept[op] for op in free if op in rewrite.kept}


def _limited(program: Program) -> set[Expr]:
    """Return the set of axes for which a constraint of `program` states the start or the number of iterations of the
    loop.

    The loop may then run even if the extent of its axis is 0.
    """
    tilings = [record for record in program.records if record.name == "tiling"]
    return {record.attrs["dim"] for record in tilings if "iters" in record.attrs or "start" in record.attrs}


class _WithoutEmpty(Rewriter):
    """Rewrites a program without operations on tiles that have a dimension in `empty` (of extent 0).

    `limited` are axes of loops that run by a constraint, whatever their extent.
    """

    def __init__(self, empty: set[Expr], limited: set[Expr]):
        super().__init__()
        self.empty, self.limited = empty, limited

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return `dims` unchanged: tiles keep their dimensions."""
        return dims

    def access(self, op: Op) -> Mapping[str, object]:
        """Return {}: the read or write `op` keeps its attributes."""
        return {}

    def body(self, block: Block) -> Block:
        """Return `block` rewritten, without operations that have no effect and no used result."""
        return without_unused(super().body(block), self._has_effect)

    def op(self, op: Op) -> Op:
        """Return the rewritten operation `op`.

        A read from memory with an empty dimension becomes a fill with the number `otherwise`, if the read states one.
        """
        rewritten = super().op(op)
        if op.name != "read" or "otherwise" not in op.attrs or self.empty.isdisjoint(op.operands[0].type.dims):
            return rewritten
        return Op(TILE.ops["fill"], (), {"value": op.attrs["otherwise"]}, rewritten.results, loc=op.loc)

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten form of each operation in the list `given` to `ops`.

        Loops without iterations, and MMAs with an empty K, are left out. Their initial values replace their results.
        """
        for op in given:
            replacements = self._replacement(op)
            if replacements is None:
                super().block([op], ops)
            else:
                self.values |= {r: self.of(v) for r, v in zip(op.results, replacements, strict=True)}

    def _has_effect(self, op: Op) -> bool:
        """True if the operation `op` must stay though nothing uses its results.

        It writes at least one element, or it has no results and is no write (such as a `yield`). An operation with
        blocks must stay if an operation in them must, other than a `yield`.
        """
        if op.blocks:
            return any(self._has_effect(x) for x in within(op) if x.name != "yield")
        return not self._is_empty(op.operands[0]) if op.name in WRITES else not op.results

    def _is_empty(self, value: Value) -> bool:
        """True if `value` is a tile with a dimension of extent 0."""
        return isinstance(value.type, TileType) and not self.empty.isdisjoint(value.type.dims)

    def _replacement(self, op: Op) -> tuple[Value, ...] | None:
        """Return the values that replace the results of `op`, a loop without iterations or an MMA with an empty K; else
        None.

        They are the initial values of the loop, or the accumulator of the MMA.
        """
        if op.name == "iterate" and op.attrs["axis"] in self.empty - self.limited and not op.attrs.get("start"):
            return op.operands
        if op.name == "mma":
            a, b, total = (set(v.type.dims) for v in op.operands)
            return op.operands[2:] if not self.empty.isdisjoint((a & b) - total) else None
        return None
