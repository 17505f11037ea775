"""Splits a long reduction with few results into two programs: partial reductions, then their combination.

    %0 = read %x : f32[M, N]          first: %0 over [M_split, M_part, N]     second: reads %partial : f32[M_split, N],
    %1 = sum %0 dim=(M) : f32[N]      sums M_part, writes %partial            sums M_split, goes on as before

Each part of the dimension is reduced in tasks of its own, to memory; the second program combines the parts, always in
the same order. All parts have the same length. The elements left over, fewer than one for each part (or than a cache
line for each part, if the dimension is contiguous), are reduced by the second program too.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.ir.core import Op, Program, TileType, Value, building
from tilewright.ir.tile import REDUCTIONS, STEPS, TILE
from tilewright.machine import Machine
from tilewright.plan.boxes import contiguous_dims
from tilewright.plan.computed import GIVEN, SIMPLE
from tilewright.plan.model import element_bytes, line_bytes
from tilewright.rewrite.rewriter import Replacement, TwoPrograms, memory_between, needed, two_programs
from tilewright.rewrite.split_k import NAME, Parted, combining, is_plain

MANY = 16
"""A part of more than this many cache lines is rounded down to whole cache lines."""
_ALIKE = {*SIMPLE, *GIVEN, "read"}


def split_reduction_programs(
    program: Program, sizes: Mapping[Symbol, int], count: int, machine: Machine
) -> TwoPrograms | str:
    """Return the program as a TwoPrograms that reduces in parts; or text: why it cannot be split.

    The first program reduces `count` equal parts of the reduced dimension separately. The second combines their
    results, and reduces the remaining elements. The program must have no constraints and exactly one reduction, with a
    result that is not rounded. The values that it reduces must be computed elementwise from plain reads, and used by
    nothing else. `sizes` is {dimension: extent}. A long part is rounded to cache lines of `machine`.
    """
    reductions = [op for op in program.walk() if op.name in REDUCTIONS]
    if len(reductions) != 1 or reductions[0] not in program.body.ops or program.records:
        return "it is not one reduction without constraints"
    (last,) = reductions
    axis, kind = last.attrs["dim"], last.result.type
    if len(last.operands) != 1 or kind.dtype.accumulator is not kind.dtype:
        return f"what {last.name} gives is rounded, or goes on from something"
    maker = {r: op for op in program.body.ops for r in op.results}
    before = [op for op in program.body.ops if op is not last and op in needed(last, maker)]
    if any(op.name not in _ALIKE for op in before):
        return "what is reduced is not computed element by element from what is read"
    inner_values = {r for op in before for r in op.results}
    if any(v in inner_values for op in program.walk() if op not in before and op is not last for v in op.operands):
        return "what is reduced is used again"
    reads = [op for op in before if op.name == "read" and axis in op.result.type.dims]
    if any(set(op.attrs) & {"lookups", "bounds", "otherwise"} for op in reads):
        return "its reads are not plain"
    if not all(is_plain(op, axis, sizes) for op in reads):
        return f"{axis} is no dimension of what is read"
    extent = sizes.get(axis, 0)
    width = _width(reads, axis, extent, count, line_bytes(machine))
    if count < 2 or width < 1:
        return f"{axis}, {extent}, has no {count} parts"
    outer, inner, left = (symbol(f"{axis}_{name}", 1) for name in ("split", "part", "left"))
    begin, new = count * width, {outer: count, inner: width}
    with building():
        part, ops = _part_reduction(
            last, before, Parted(axis, {outer: (width, count), inner: (1, width)}, zeros=False), inner
        )
        memory = memory_between(program, NAME, part)
        combined = combining(last, memory, outer, last.name)
        if begin < extent:
            over = Parted(axis, {left: (1, extent - begin)}, zeros=False, first=begin)
            left_over, more = _part_reduction(last, before, over, left)
            to_add = (combined[-1].result, left_over)
            new[left] = extent - begin
            combined += [*more, Op(TILE.ops[STEPS[last.name]], to_add, {}, (Value(kind),), loc=last.loc)]
        rest = Replacement.by_last(last, combined)
        return two_programs(program, ("parts", ops), {ops[-1].result: memory}, rest, sizes, new, count)


def _part_reduction(last: Op, before: list[Op], over: Parted, dim: Symbol) -> tuple[Value, list[Op]]:
    """Return (result, operations that compute it): a reduction like `last`, but along the new dimension `dim`.

    `before` are the operations that compute the operand of `last`. `over` rewrites them over new dimensions in place of
    the reduced dimension. The result keeps the new dimensions other than `dim`.
    """
    over.block(before, ops := list[Op]())
    source = over.of(last.operands[0])
    total = TileType(last.result.type.dtype, tuple(d for d in source.type.dims if d is not dim))
    ops.append(Op(last.spec, (source,), {**last.attrs, "dim": dim}, (Value(total),), loc=last.loc))
    return ops[-1].result, ops


def _width(reads: list[Op], axis: Expr, extent: int, count: int, line_bytes: int) -> int:
    """Return the number of elements in each of `count` parts of the dimension `axis`: `extent` // `count`.

    If `axis` is contiguous and a part is longer than `MANY` cache lines of `line_bytes` bytes, it is rounded down to
    whole cache lines. `reads` are the reads along `axis`.
    """
    width = extent // count
    sides = [element_bytes(op.operands[0].type.dtype) for op in reads if axis in contiguous_dims(op)]
    line = max((line_bytes // n for n in sides), default=1)
    return width // line * line if width > MANY * line else width
