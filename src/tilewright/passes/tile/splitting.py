"""Split-K: a program with one product as two, where its sums are few and long.

    %1 = iterate %0 axis=(K) (...) {            first                          second
      %3 = read %a : bf16[M, K]                 reads over [M, S, P]           %p = read %partial : f32[S, M, N]
      %4 = read %b : bf16[N, K]                 mma to f32[S, M, N]            %1 = sum %p dim=(S) : f32[M, N]
      %5 = mma %3, %4, %2 : f32[M, N]           write to %partial              what follows the loop
      yield %5
    } : f32[M, N]

The first sums parts of K, each in tasks of its own, to memory; the second adds them up, always in the same order, and
does what follows. Past the end of K the first reads zeros.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program, TileType, Value, building
from tilewright.ir.tile import TILE
from tilewright.passes.tile.rewriting import Halves, between, halved, places

NAME = "partial_sums"
WRITTEN_OUT = 16
"""Parts whose sum is written out, at most."""


def halves(program: Program, sizes: Mapping[Symbol, int], free: Collection[Op], count: int, step: int) -> Halves | str:
    """The program in two halves: K in so many parts, each whole steps; or why it stays whole."""
    loops = [op for op in program.body.ops if op.name == "iterate"]
    if len(loops) != 1 or loops[0] not in free or program.records:
        return "it is not one loop over K without constraints"
    (loop,) = loops
    axis, (body,) = loop.attrs["axis"], loop.blocks
    *reads, product, last = body.ops
    if [op.name for op in body.ops] != ["read", "read", "mma", "yield"] or last.operands != (product.result,):
        return "its loop does more than multiply two tensors"
    start = next((op for op in program.body.ops if loop.operands[0] in op.results), None)
    if start is None or start.name != "fill" or start.attrs["value"] != 0 or product.operands[2] is not body.args[0]:
        return "its sum does not start from zero"
    if any(set(op.attrs) & {"lookups", "bounds", "otherwise"} for op in reads):
        return "its reads are not plain"
    extent = sizes[axis]
    width = -(-extent // count // step) * step
    parts = -(-extent // width)
    if parts < 2:
        return f"{axis} is too short"
    outer, inner = symbol(f"{axis}_split", 1), symbol(f"{axis}_part", 1)
    with building():
        found = [over_parts(op, axis, outer, inner, width, parts) for op in reads]
        if None in found:
            return f"{axis} is no dimension of what is read"
        kind: TileType = product.result.type
        total = TileType(kind.dtype, (outer, *kind.dims))
        zero = Op(start.spec, (), dict(start.attrs), (Value(total),), loc=start.loc)
        taken = {old.result: new.result for old, new in zip(reads, found, strict=True) if new is not None}
        factors = tuple(taken[v] for v in product.operands[:2])
        mma = Op(product.spec, (*factors, zero.result), dict(product.attrs), (Value(total),), loc=product.loc)
        ops = [zero, *(op for op in found if op is not None), mma]
        memory = between(program, NAME, mma.result)
        combined = _written_out(loop, memory, parts) if parts <= WRITTEN_OUT else combining(loop, memory, outer, "sum")
        return halved(program, ("parts", ops), memory, loop, combined, sizes, {outer: parts, inner: width}, parts)


def over_parts(op: Op, axis: Expr, outer: Symbol, inner: Symbol, width: int, parts: int) -> Op | None:
    """A read over parts of K; None where K is no dimension of its memory."""
    kind, over, at = places(op)
    dims = op.operands[0].type.dims
    own = dict(zip(kind.dims, over, strict=True))
    if axis not in dims or at[dims.index(axis)] is not own[axis]:
        return None
    s, p = symbol("at_split", 0, parts - 1), symbol("at_part", 0, width - 1)
    images = Substitution({own[axis]: width * s + p})

    def parted(of: Mapping[Expr, Expr], two: tuple[Expr, Expr]) -> tuple[Expr, ...]:
        return tuple(x for d in kind.dims for x in (two if d is axis else (of[d],)))

    attrs = {**op.attrs, "over": parted(own, (s, p)), "at": tuple(map(images, at)), "otherwise": 0}
    made = TileType(kind.dtype, parted({d: d for d in kind.dims}, (outer, inner)))
    return Op(op.spec, op.operands, attrs, (Value(made, op.result.name),), loc=op.loc)


def combining(cut: Op, memory: Value, outer: Symbol, how: str) -> list[Op]:
    """All parts, and what they give together in place of an operation."""
    read = Op(TILE.ops["read"], (memory,), {}, (Value(TileType(memory.type.dtype, memory.type.dims)),), loc=cut.loc)
    return [read, Op(TILE.ops[how], (read.result,), {"dim": outer}, (Value(cut.result.type),), loc=cut.loc)]


def _written_out(loop: Op, memory: Value, parts: int) -> list[Op]:
    """Reads of all parts, and their sum in order: a function of elements, which needs no memory between."""
    kind: TileType = loop.result.type
    over = tuple(symbol(f"at_{n}", 0) for n in range(len(kind.dims)))
    made: list[Op] = []
    total: Value | None = None
    for n in range(parts):
        attrs = {"over": over, "at": (as_expr(n), *over)}
        made.append(Op(TILE.ops["read"], (memory,), attrs, (Value(kind),), loc=loop.loc))
        if total is None:
            total = made[-1].result
            continue
        made.append(Op(TILE.ops["add"], (total, made[-1].result), {}, (Value(kind),), loc=loop.loc))
        total = made[-1].result
    return made
