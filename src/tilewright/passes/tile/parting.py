"""A program with one reduction as two, where what it gives is little and what it goes along is long.

    %0 = read %x : f32[M, N]          first: %0 over [M_split, M_part, N]     second: reads %partial : f32[M_split, N],
    %1 = sum %0 dim=(M) : f32[N]      sums M_part, writes %partial            sums M_split, goes on as before

Each part of the dimension is reduced in tasks of its own, to memory; the second program combines the parts, always in
the same order. Parts divide the dimension, so that nothing has to be put in their place.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.algebra.expr import Symbol, symbol
from tilewright.ir.core import Op, Program, TileType, Value, building
from tilewright.ir.tile import BINARY, COMPARISONS, REDUCTIONS, UNARY_ANY, UNARY_FLOAT
from tilewright.passes.tile.rewriting import Halves, between, halved, needed
from tilewright.passes.tile.splitting import NAME, Parted, combining, is_plain

_ALIKE = {*UNARY_FLOAT, *UNARY_ANY, *BINARY, *COMPARISONS, "cast", "select", "read", "fill"}


def parted(program: Program, sizes: Mapping[Symbol, int], count: int) -> Halves | str:
    """The program in two halves: the dimension that it reduces in so many parts; or why it stays whole."""
    found = [op for op in program.walk() if op.name in REDUCTIONS]
    if len(found) != 1 or found[0] not in program.body.ops or program.records:
        return "it is not one reduction without constraints"
    (last,) = found
    axis, kind = last.attrs["dim"], last.result.type
    if len(last.operands) != 1 or kind.dtype.accumulator is not kind.dtype:
        return f"what {last.name} gives is rounded, or goes on from something"
    made = {r: op for op in program.body.ops for r in op.results}
    before = [op for op in program.body.ops if op is not last and op in needed(last, made)]
    if any(op.name not in _ALIKE for op in before):
        return "what is reduced is not computed element by element from what is read"
    inner_values = {r for op in before for r in op.results}
    if any(v in inner_values for op in program.walk() if op not in before and op is not last for v in op.operands):
        return "what is reduced is used again"
    reads = [op for op in before if op.name == "read" and axis in op.result.type.dims]
    if any(set(op.attrs) & {"lookups", "bounds", "otherwise"} for op in reads):
        return "its reads are not plain"
    if not all(is_plain(op, axis) for op in reads):
        return f"{axis} is no dimension of what is read"
    extent = sizes.get(axis, 0)
    if count < 2 or extent % count:
        return f"{axis} is not made of {count} equal parts"
    outer, inner = symbol(f"{axis}_split", 1), symbol(f"{axis}_part", 1)
    with building():
        over = Parted(axis, outer, inner, extent // count, count, zeros=False)
        over.block(before, ops := list[Op]())
        source = ops[-1].result
        total = TileType(kind.dtype, tuple(d for d in source.type.dims if d is not inner))
        part = Op(last.spec, (source,), {**last.attrs, "dim": inner}, (Value(total),), loc=last.loc)
        memory = between(program, NAME, part.result)
        combined, new = combining(last, memory, outer, last.name), {outer: count, inner: extent // count}
        return halved(program, ("parts", [*ops, part]), memory, last, combined, sizes, new, count)
