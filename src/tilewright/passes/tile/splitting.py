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
from dataclasses import dataclass, replace

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value, building, walk_block
from tilewright.ir.tile import TILE
from tilewright.ir.verifier import verify

NAME = "partial_sums"
WRITTEN_OUT = 16
"""Parts whose sum is written out, at most."""


@dataclass(frozen=True)
class Halves:
    """The two programs, the memory between them, which is an argument of both, and the sizes of what is new."""

    first: Program
    second: Program
    partial: Value
    sizes: dict[Symbol, int]
    shape: tuple[int, ...]
    parts: int = 1
    """How many parts of K there are."""


def own_name(program: Program, name: str) -> str:
    """A name that no argument of a program has: what lies between two programs may be an argument of a third."""
    taken, found = {a.name for a in program.args}, name
    while found in taken:
        found += "_"
    return found


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
        memory = Value(MemoryType(kind.dtype, total.dims), own_name(program, NAME))
        zero = Op(start.spec, (), dict(start.attrs), (Value(total),), loc=start.loc)
        taken = {old.result: new.result for old, new in zip(reads, found, strict=True) if new is not None}
        factors = tuple(taken[v] for v in product.operands[:2])
        mma = Op(product.spec, (*factors, zero.result), dict(product.attrs), (Value(total),), loc=product.loc)
        write = Op(TILE.ops["write"], (mma.result, memory), {}, loc=product.loc)
        args = (*dict.fromkeys(op.operands[0] for op in reads), memory)
        ops = [zero, *(op for op in found if op is not None), mma, write]
        first = replace(program, name=f"{program.name}_parts", args=args, body=Block((), ops))
        second = second_half(program, loop, memory, total, outer, parts=parts)
        verify(first)
        verify(second)
    new = {outer: parts, inner: width}
    shape = (parts, *(int(Substitution(sizes)(d)) for d in kind.dims))
    return Halves(first, second, memory, new, shape, parts)


def over_parts(op: Op, axis: Expr, outer: Symbol, inner: Symbol, width: int, parts: int) -> Op | None:
    """A read over parts of K; None where K is no dimension of its memory."""
    memory: MemoryType = op.operands[0].type
    kind: TileType = op.result.type
    if axis not in memory.dims:
        return None
    over = op.attrs.get("over") or tuple(symbol(f"at_{n}", 0) for n in range(len(kind.dims)))
    own = dict(zip(kind.dims, over, strict=True))
    at = op.attrs.get("at") or tuple(own[d] for d in memory.dims)
    if at[memory.dims.index(axis)] is not own[axis]:
        return None
    s, p = symbol("at_split", 0, parts - 1), symbol("at_part", 0, width - 1)
    images = Substitution({own[axis]: width * s + p})
    dims = tuple(x for d in kind.dims for x in ((outer, inner) if d is axis else (d,)))
    places = tuple(x for d in kind.dims for x in ((s, p) if d is axis else (own[d],)))
    attrs = {**op.attrs, "over": places, "at": tuple(map(images, at)), "otherwise": 0}
    return Op(op.spec, op.operands, attrs, (Value(TileType(kind.dtype, dims), op.result.name),), loc=op.loc)


def second_half(
    program: Program, loop: Op, memory: Value, total: TileType, outer: Symbol, how: str = "sum", parts: int = 0
) -> Program:
    """The program with the sum of parts, or what else combines them, in place of its loop.

    A sum of a few parts is written out: then all of it is a function of elements, which needs no memory between.
    """
    combined = _written_out(loop, memory, parts) if how == "sum" and 1 < parts <= WRITTEN_OUT else None
    if combined is None:
        read = Op(TILE.ops["read"], (memory,), {}, (Value(total),), loc=loop.loc)
        combined = [read, Op(TILE.ops[how], (read.result,), {"dim": outer}, (Value(loop.result.type),), loc=loop.loc)]
    summed, ops = combined[-1], list[Op]()
    for op in program.body.ops:
        if op is loop:
            ops += combined
            continue
        operands = tuple(summed.result if v is loop.result else v for v in op.operands)
        ops.append(Op(op.spec, operands, op.attrs, op.results, op.blocks, op.loc))
    used: set[Value] = set()
    for op in reversed(ops):  # what only the loop needed goes, with what that was made of
        if not op.results or any(r in used for r in op.results):
            used |= {v for inner in (op, *(o for b in op.blocks for o in walk_block(b))) for v in inner.operands}
    ops = [op for op in ops if not op.results or any(r in used for r in op.results)]
    args = (*(a for a in program.args if a in used), memory)
    return replace(program, args=args, body=Block((), ops))


def _written_out(loop: Op, memory: Value, parts: int) -> list[Op]:
    """Reads of all parts, and their sum in order."""
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
