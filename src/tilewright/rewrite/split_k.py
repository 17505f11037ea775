"""Split-K: a program with one MMA as two programs, for results with few elements and a long K.

    %1 = iterate %0 axis=(K) (...) {            first                          second
      %3 = read %a : bf16[M, K]                 reads over [M, S, P]           %p = read %partial : f32[S, M, N]
      %4 = read %b : bf16[N, K]                 mma to f32[S, M, N]            %1 = sum %p dim=(S) : f32[M, N]
      %5 = mma %3, %4, %2 : f32[M, N]           write to %partial              what follows the loop
      yield %5
    } : f32[M, N]

The first program sums each part of K in tasks of its own, and writes partial sums to memory; the second adds them,
always in the same order, and does what follows. The last part may be shorter than the others: past the end of K the
first program reads zeros. An MMA over several dimensions without a loop, as in a convolution, is split along one of
them: in equal parts, unless that dimension ends where memory ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.algebra.expr import Expr, FloorDiv, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program, TileType, Value, building
from tilewright.ir.tile import TILE
from tilewright.machine import Machine
from tilewright.plan.computed import computed_factor
from tilewright.plan.microkernel import axes_in, mmas_by_name
from tilewright.rewrite.rewriter import (
    DimensionGroup,
    Regrouped,
    Replacement,
    TwoPrograms,
    memory_between,
    places,
    two_programs,
)

NAME = "partial_sums"
WRITTEN_OUT = 16
"""The most parts whose sum is unrolled into additions."""


@dataclass(frozen=True)
class WholeSum:
    """An MMA, perhaps in a loop over K, that split-K can split.

    `cut` is the loop or the MMA, `start` the fill with zero that it starts from, `operand_ops` the operations that
    compute the operands of `product` (the MMA), `axes` the summed dimensions that may be split. `ends` are those of
    them past whose end both operands read zeros.
    """

    cut: Op
    start: Op
    operand_ops: list[Op]
    product: Op
    axes: tuple[Expr, ...]
    ends: frozenset[Expr]


def splittable_mma(program: Program, free: Collection[Op], sizes: Mapping[Symbol, int]) -> WholeSum | str:
    """Return the only MMA of `program` as a WholeSum, with the dimensions of K along which split-K can split it.

    Or return text: why it cannot be split. The MMA may be in a loop of `free`. It must start from zero, and the program
    must have no constraints. Without a loop, both operands must be reads. In a loop, operands may be computed
    elementwise, and the loop must do nothing but add the MMA. `free` holds the loops that give the same result for
    every tile size. `sizes` is {dimension: extent}.
    """
    loops = [op for op in program.body.ops if op.name == "iterate"]
    if program.records:
        return "its constraints say how it is cut"
    product = next((op for op in program.walk() if op.name == "mma"), None)
    if product is None or (loops and (len(loops) > 1 or loops[0] not in free)):
        return "it is not one product, or one loop over K"
    cut = loops[0] if loops else product
    first = cut.operands[0] if loops else product.operands[2]
    start = next((op for op in program.body.ops if first in op.results), None)
    if start is None or start.name != "fill" or start.attrs["value"] != 0:
        return "its sum does not start from zero"
    one, two = (v.type.dims for v in product.operands[:2])
    axes = tuple(d for d in one if d in two and d not in product.result.type.dims)
    if product.attrs.get("blocks", 1) > 1:  # the last of what is summed has a block for each of the result's
        axes = axes[:-1]
    if loops:
        factor_ops = _operand_ops(program, cut)
        if isinstance(factor_ops, str) or cut.attrs["axis"] not in axes:
            return factor_ops if isinstance(factor_ops, str) else f"{cut.attrs['axis']} is in blocks"
        axes = (cut.attrs["axis"],)
        reads = [op for op in factor_ops if op.name == "read" and op.result in product.operands]
        return WholeSum(cut, start, factor_ops, product, axes, _ending_axes(reads, axes, sizes))
    operand_reads = [op for op in program.body.ops if op.name == "read" and op.result in product.operands[:2]]
    if len(operand_reads) != 2 or product not in program.body.ops:
        return "an operand is not read from memory"
    return WholeSum(cut, start, operand_reads, product, axes, _ending_axes(operand_reads, axes, sizes))


def _ending_axes(reads: Sequence[Op], axes: Sequence[Expr], sizes: Mapping[Symbol, int]) -> frozenset[Expr]:
    """Return the set of dimensions of `axes` that end, in each of `reads`, where a memory dimension ends.

    The last part of such a dimension may overhang: zeros are read past the end. The set is empty if a read gives
    another number than 0 out of bounds.
    """
    if any(op.attrs.get("otherwise", 0) != 0 for op in reads):
        return frozenset()
    return frozenset(axis for axis in axes if all(is_plain(op, axis, sizes) for op in reads))


def _operand_ops(program: Program, loop: Op) -> list[Op] | str:
    """Return the operations in the body of `loop` that compute the operands of its MMA; or text: why split-K is not
    possible.

    The loop must do nothing but add an MMA to its accumulator. Operands may be computed elementwise from plain reads,
    but not from the accumulator.
    """
    (body,) = loop.blocks
    *operand_ops, product, last = body.ops
    if product.name != "mma" or last.operands != (product.result,) or product.operands[2] is not body.args[0]:
        return "its loop does more than multiply two tensors"
    computed_operands = [computed_factor(program, v) for v in product.operands[:2]]
    if any(isinstance(operand, str) for operand in computed_operands) or any(
        body.args[0] in op.operands for op in operand_ops
    ):
        return "its loop does more than multiply two tensors, or what is computed of such"
    if any(set(op.attrs) & {"lookups", "bounds", "otherwise"} for op in operand_ops):
        return "its reads are not plain"
    return operand_ops


def possible_splits(
    whole_sum: WholeSum, sizes: Mapping[Symbol, int], counts: Sequence[int], step: int
) -> Iterator[tuple[Expr, int]]:
    """Yield (dimension, number of parts) for each way in which split-K can split `whole_sum`.

    A dimension in `whole_sum.ends` gets each number in `counts`. Any other dimension gets each number of equal parts
    that divides it: 6 elements give 2, 3 and 6. Along K of the atom, parts are multiples of `step` elements. `sizes` is
    {dimension: extent}.
    """
    numbers = Substitution(dict(sizes))
    for axis in whole_sum.axes:
        if axis in whole_sum.ends:
            yield from ((axis, n) for n in counts)
            continue
        units, rest = divmod(int(numbers(axis)), _unit_of(whole_sum, sizes, axis, step))
        yield from ((axis, n) for n in range(2, units + 1) if not rest and units % n == 0)


def _unit_of(whole_sum: WholeSum, sizes: Mapping[Symbol, int], axis: Expr, step: int) -> int:
    """Return the number of elements of which every part of the dimension `axis` must be a multiple.

    It is `step` if `axis` is the dimension of K along which atoms of `whole_sum.product` are repeated, else 1. `sizes`
    is {dimension: extent}.
    """
    numbers = Substitution(dict(sizes))
    axes = axes_in(whole_sum.product, lambda d: int(numbers(d)))
    return step if not isinstance(axes, str) and axis is axes.k else 1


def split_k_programs(
    program: Program, sizes: Mapping[Symbol, int], free: Collection[Op], axis: Expr, count: int, step: int
) -> TwoPrograms | str:
    """Return the program as a TwoPrograms, by split-K; or text: why it cannot be split.

    The first program computes partial sums over `count` parts of the dimension `axis`. The second adds them and does
    the rest. If zeros are read past the end of `axis`, there may be fewer parts than `count`, and the last may be
    shorter. Along K of the atom, parts are multiples of `step` elements. `sizes` is {dimension: extent}. `free` holds
    the loops that give the same result for every tile size.
    """
    whole_sum = splittable_mma(program, free, sizes)
    if isinstance(whole_sum, str):
        return whole_sum
    zeros = axis in whole_sum.ends
    if axis not in whole_sum.axes or (not zeros and (axis, count) not in possible_splits(whole_sum, sizes, (), step)):
        return f"{axis} is not summed, or has no {count} equal parts"
    extent = int(Substitution(dict(sizes))(axis))
    unit = _unit_of(whole_sum, sizes, axis, step)
    width = -(-extent // count // unit) * unit if zeros else extent // count
    parts = -(-extent // width)
    if parts < 2:
        return f"{axis} is too short"
    ends = parts * width != extent
    if ends and any(computed_factor(program, v) is not None for v in whole_sum.product.operands[:2]):
        return f"{axis} ends within a part, and an operand is computed"  # of zeros, which may give anything
    outer, inner = symbol(f"{axis}_split", 1), symbol(f"{axis}_part", 1)
    cut, start, product = whole_sum.cut, whole_sum.start, whole_sum.product
    with building():
        parted = Parted(axis, {outer: (width, parts), inner: (1, width)}, zeros=zeros)
        parted.block(whole_sum.operand_ops, ops := list[Op]())
        kind: TileType = product.result.type
        total = TileType(kind.dtype, (outer, *kind.dims))
        zero = Op(start.spec, (), dict(start.attrs), (Value(total),), loc=start.loc)
        operands = tuple(map(parted.of, product.operands[:2]))
        mma = Op(product.spec, (*operands, zero.result), dict(product.attrs), (Value(total),), loc=product.loc)
        ops = [zero, *ops, mma]
        memory = memory_between(program, NAME, mma.result)
        combined = _sum_of_reads(cut, memory, parts) if parts <= WRITTEN_OUT else combining(cut, memory, outer, "sum")
        rest = Replacement.by_last(cut, combined)
        new = {outer: parts, inner: width}
        return two_programs(program, ("parts", ops), {mma.result: memory}, rest, sizes, new, parts)


def is_plain(read: Op, axis: Expr, sizes: Mapping[Symbol, int]) -> bool:
    """True if exactly one coordinate of `read` is the index of `axis` or a quotient of it, and its memory dimension
    ends there.

    For instance, x[k] if x has K elements, or x[k//4] if x has K/4. `sizes` is {dimension: extent}.
    """
    kind, over, at = places(read)
    iterator, size = dict(zip(kind.dims, over, strict=True)).get(axis), Substitution(dict(sizes))
    ends = [
        size(d * rows) is size(axis)
        for d, place in zip(read.operands[0].type.dims, at, strict=True)
        if (rows := _positions_per_index(place, iterator)) is not None
    ]
    return ends == [True]


def _positions_per_index(place: Expr, iterator: Expr | None) -> Expr | None:
    """Return the number of successive values of `iterator` with the same coordinate `place`.

    It is 1 if `place` is the iterator, and n if `place` is `iterator // n`. Any other `place` gives None.
    """
    if place is iterator:
        return as_expr(1)
    return place.right if isinstance(place, FloorDiv) and place.left is iterator else None


class Parted(Regrouped):
    """Rewrites operations over new dimensions in place of `axis`: its index is first + the sum of width * new index.

    `steps` maps each new dimension to (width, extent). With `zeros`, reads past the end of `axis` give zero.
    """

    def __init__(self, axis: Expr, steps: Mapping[Symbol, tuple[int, int]], *, zeros: bool, first: int = 0):
        """`steps` maps each new dimension to (width, extent)."""
        self.axis, self.steps, self.first = axis, steps, first
        over = tuple(symbol(f"at_{d}", 0, count - 1) for d, (_, count) in steps.items())
        at = sum((width * i for i, (width, _) in zip(over, steps.values(), strict=True)), start=as_expr(first))
        super().__init__([DimensionGroup((axis,), tuple(steps), over, {axis: at})], zeros=zeros)

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten form of each operation in the list `given` to `ops`.

        A `self_index` (tile of indices) along the split axis becomes operations that compute it from the new indices.
        """
        for op in given:
            if op.name != "self_index" or op.attrs["dim"] is not self.axis:
                super().block([op], ops)
                continue
            index = self._append_constant(op, self.first, ops)
            for d, (width, _) in self.steps.items():
                kind = TileType(op.result.type.dtype, (d,))
                place = Op(op.spec, (), {**op.attrs, "dim": d}, (Value(kind),), loc=op.loc)
                ops.append(place)
                step = self._append_op("mul", place.result, self._append_constant(op, width, ops), op, ops)
                index = self._append_op("add", index, step, op, ops)
            self.values[op.result] = index

    def _append_constant(self, op: Op, number: int, ops: list[Op]) -> Value:
        """Append a fill with `number`, a tile without dimensions, to `ops`; return its result.

        It has the element type of the result of `op`.
        """
        kind = TileType(op.result.type.dtype, ())
        ops.append(Op(TILE.ops["fill"], (), {"value": number}, (Value(kind),), loc=op.loc))
        return ops[-1].result

    def _append_op(self, name: str, one: Value, two: Value, op: Op, ops: list[Op]) -> Value:
        """Append the elementwise operation called `name`, such as "add", on the tiles `one` and `two` to `ops`; return
        its result.

        The result has the dimensions of both tiles, and the element type of the result of `op`.
        """
        dims = (*one.type.dims, *(d for d in two.type.dims if d not in one.type.dims))
        ops.append(Op(TILE.ops[name], (one, two), {}, (Value(TileType(op.result.type.dtype, dims)),), loc=op.loc))
        return ops[-1].result


def combining(cut: Op, memory: Value, outer: Symbol, reduction: str) -> list[Op]:
    """Return [read, reduction]: operations that read all parts of a result from `memory`, and reduce them along
    `outer`.

    `outer` is a dimension of the memory. `reduction` names the reduction, such as "sum". Its result has the type of the
    result of the operation `cut`, which it replaces.
    """
    read = Op(TILE.ops["read"], (memory,), {}, (Value(TileType(memory.type.dtype, memory.type.dims)),), loc=cut.loc)
    return [read, Op(TILE.ops[reduction], (read.result,), {"dim": outer}, (Value(cut.result.type),), loc=cut.loc)]


def _sum_of_reads(loop: Op, memory: Value, parts: int) -> list[Op]:
    """Return operations that read each of the `parts` parts in `memory` and add them in order.

    The result of the last operation has the type of the result of `loop`, which it replaces. All are elementwise: the
    second program of split-K then needs no reduction.
    """
    kind: TileType = loop.result.type
    over = tuple(symbol(f"at_{n}", 0) for n in range(len(kind.dims)))
    ops: list[Op] = []
    total: Value | None = None
    for n in range(parts):
        attrs = {"over": over, "at": (as_expr(n), *over)}
        ops.append(Op(TILE.ops["read"], (memory,), attrs, (Value(kind),), loc=loop.loc))
        if total is None:
            total = ops[-1].result
            continue
        ops.append(Op(TILE.ops["add"], (total, ops[-1].result), {}, (Value(kind),), loc=loop.loc))
        total = ops[-1].result
    return ops


def part_step(program: Program, machine: Machine) -> int:
    """Return the number of elements of K of which the parts of split-K must be multiples.

    This is the leading dimension in memory (`slab`, in elements) of the machine's atoms for the operand types of
    `program`. If atoms for one type differ, the last in the machine's table counts; of several types, the one with the
    largest number. If no atom has one of the types, return the largest number of all atoms; 1 if no atom has a leading
    dimension.
    """
    types = {v.type.dtype for op in mmas_by_name(program).values() for v in op.operands[:2]}
    slabs = {x.a.dtype: x.slab for x in machine.multiply.values() if x.slab is not None}
    return max((slab for dtype, slab in slabs.items() if dtype in types), default=max(slabs.values(), default=1))
