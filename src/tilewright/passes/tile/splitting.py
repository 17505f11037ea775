"""Split-K: a program with one product as two, where its sums are few and long.

    %1 = iterate %0 axis=(K) (...) {            first                          second
      %3 = read %a : bf16[M, K]                 reads over [M, S, P]           %p = read %partial : f32[S, M, N]
      %4 = read %b : bf16[N, K]                 mma to f32[S, M, N]            %1 = sum %p dim=(S) : f32[M, N]
      %5 = mma %3, %4, %2 : f32[M, N]           write to %partial              what follows the loop
      yield %5
    } : f32[M, N]

The first sums parts of K, each in tasks of its own, to memory; the second adds them up, always in the same order, and
does what follows. The last part may be shorter than the others: past the end of K the first reads zeros. A product over
several dimensions, as that of a convolution, which no loop goes over, is taken apart along one of them; in equal parts,
unless that dimension ends where memory ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.algebra.expr import Expr, FloorDiv, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program, TileType, Value, building
from tilewright.ir.tile import TILE
from tilewright.machine import Machine
from tilewright.passes.tile.rewriting import DimensionGroup, Halves, Regrouped, Replacement, between, halved, places
from tilewright.plan.computed import computed_factor
from tilewright.plan.microkernel import axes_in, names_of

NAME = "partial_sums"
WRITTEN_OUT = 16
"""Parts whose sum is written out, at most."""


@dataclass(frozen=True)
class WholeSum:
    """A sum of products that may be split (split K).

    `cut` has the result, `start` is the zero it starts from, `made` are the operations that compute the operands of
    `product`, `axes` the summed dimensions that may be split. `ends` are those past whose end both operands read zeros.
    """

    cut: Op
    start: Op
    made: list[Op]
    product: Op
    axes: tuple[Expr, ...]
    ends: frozenset[Expr]


def sum_of(program: Program, free: Collection[Op], sizes: Mapping[Symbol, int]) -> WholeSum | str:
    """Return the WholeSum of a program with one MMA; or text: why it stays whole."""
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
    """Return those of `axes` along which all reads go to the end of their memory, past which they read zeros."""
    if any(op.attrs.get("otherwise", 0) != 0 for op in reads):
        return frozenset()
    return frozenset(axis for axis in axes if all(is_plain(op, axis, sizes) for op in reads))


def _operand_ops(program: Program, loop: Op) -> list[Op] | str:
    """Return the operations that compute the operands in a loop that only adds MMAs; or text: why it is no such
    loop.
    """
    (body,) = loop.blocks
    *factor_ops, product, last = body.ops
    if product.name != "mma" or last.operands != (product.result,) or product.operands[2] is not body.args[0]:
        return "its loop does more than multiply two tensors"
    factors = [computed_factor(program, v) for v in product.operands[:2]]
    if any(isinstance(x, str) for x in factors) or any(body.args[0] in op.operands for op in factor_ops):
        return "its loop does more than multiply two tensors, or what is computed of such"
    if any(set(op.attrs) & {"lookups", "bounds", "otherwise"} for op in factor_ops):
        return "its reads are not plain"
    return factor_ops


def ways(
    whole_sum: WholeSum, sizes: Mapping[Symbol, int], counts: Sequence[int], step: int
) -> Iterator[tuple[Expr, int]]:
    """Yield (dimension, number of parts) of the ways to split a sum; parts are equal unless they may end in zeros.

    `counts` are the numbers to try in that case; K is split at multiples of `step`.
    """
    numbers = Substitution(dict(sizes))
    for axis in whole_sum.axes:
        if axis in whole_sum.ends:
            yield from ((axis, n) for n in counts)
            continue
        whole, rest = divmod(int(numbers(axis)), _unit_of(whole_sum, sizes, axis, step))
        yield from ((axis, n) for n in range(2, whole + 1) if not rest and whole % n == 0)


def _unit_of(whole_sum: WholeSum, sizes: Mapping[Symbol, int], axis: Expr, step: int) -> int:
    """Return the elements that parts of `axis` are multiples of: `step` along the MMA's K, 1 along other dimensions."""
    numbers = Substitution(dict(sizes))
    axes = axes_in(whole_sum.product, lambda d: int(numbers(d)))
    return step if not isinstance(axes, str) and axis is axes.k else 1


def halves(
    program: Program, sizes: Mapping[Symbol, int], free: Collection[Op], axis: Expr, count: int, step: int
) -> Halves | str:
    """Return the program as two, with `axis` split into `count` parts of whole steps; or text: why it stays whole."""
    whole = sum_of(program, free, sizes)
    if isinstance(whole, str):
        return whole
    zeros = axis in whole.ends
    if axis not in whole.axes or (not zeros and (axis, count) not in ways(whole, sizes, (), step)):
        return f"{axis} is not summed, or has no {count} equal parts"
    extent = int(Substitution(dict(sizes))(axis))
    unit = _unit_of(whole, sizes, axis, step)
    width = -(-extent // count // unit) * unit if zeros else extent // count
    parts = -(-extent // width)
    if parts < 2:
        return f"{axis} is too short"
    ends = parts * width != extent
    if ends and any(computed_factor(program, v) is not None for v in whole.product.operands[:2]):
        return f"{axis} ends within a part, and an operand is computed"  # of zeros, which may give anything
    outer, inner = symbol(f"{axis}_split", 1), symbol(f"{axis}_part", 1)
    cut, start, product = whole.cut, whole.start, whole.product
    with building():
        parted = Parted(axis, {outer: (width, parts), inner: (1, width)}, zeros=zeros)
        parted.block(whole.made, ops := list[Op]())
        kind: TileType = product.result.type
        total = TileType(kind.dtype, (outer, *kind.dims))
        zero = Op(start.spec, (), dict(start.attrs), (Value(total),), loc=start.loc)
        taken = tuple(map(parted.of, product.operands[:2]))
        mma = Op(product.spec, (*taken, zero.result), dict(product.attrs), (Value(total),), loc=product.loc)
        ops = [zero, *ops, mma]
        memory = between(program, NAME, mma.result)
        combined = _sum_of_reads(cut, memory, parts) if parts <= WRITTEN_OUT else combining(cut, memory, outer, "sum")
        rest = Replacement.by_last(cut, combined)
        new = {outer: parts, inner: width}
        return halved(program, ("parts", ops), {mma.result: memory}, rest, sizes, new, parts)


def is_plain(read: Op, axis: Expr, sizes: Mapping[Symbol, int]) -> bool:
    """True if a read goes along `axis` to the end of a dimension of its memory, and past its end only beyond that.

    The dimension of the memory may have another name, as in a copy that a kernel made. If `axis` was merged of several
    dimensions, it is the outermost of them that ends.
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
    """Return how many values of `iterator` have the same index `place`: 1, or n of `iterator // n`; None otherwise."""
    if place is iterator:
        return as_expr(1)
    return place.right if isinstance(place, FloorDiv) and place.left is iterator else None


class Parted(Regrouped):
    """Rewrites operations over new dimensions that count a part of `axis`: index = first + sum of width * new index.

    With `zeros`, reads past the end of `axis` give zero.
    """

    def __init__(self, axis: Expr, steps: Mapping[Symbol, tuple[int, int]], *, zeros: bool, first: int = 0):
        """`steps` are the width and how many, by dimension."""
        self.axis, self.steps, self.first = axis, steps, first
        over = tuple(symbol(f"at_{d}", 0, count - 1) for d, (_, count) in steps.items())
        at = sum((width * i for i, (width, _) in zip(over, steps.values(), strict=True)), start=as_expr(first))
        super().__init__([DimensionGroup((axis,), tuple(steps), over, {axis: at})], zeros=zeros)

    def block(self, given: list[Op], ops: list[Op]) -> None:
        """Append the rewritten operations to `ops`; a `self_index` of the axis is computed from the new dimensions'
        indices.
        """
        for op in given:
            if op.name != "self_index" or op.attrs["dim"] is not self.axis:
                super().block([op], ops)
                continue
            index = self._number(op, self.first, ops)
            for d, (width, _) in self.steps.items():
                kind = TileType(op.result.type.dtype, (d,))
                place = Op(op.spec, (), {**op.attrs, "dim": d}, (Value(kind),), loc=op.loc)
                ops.append(place)
                step = self._by("mul", place.result, self._number(op, width, ops), op, ops)
                index = self._by("add", index, step, op, ops)
            self.values[op.result] = index

    def _number(self, op: Op, number: int, ops: list[Op]) -> Value:
        """Append a fill with a number of the type of `op`, and return its result."""
        kind = TileType(op.result.type.dtype, ())
        ops.append(Op(TILE.ops["fill"], (), {"value": number}, (Value(kind),), loc=op.loc))
        return ops[-1].result

    def _by(self, name: str, one: Value, two: Value, op: Op, ops: list[Op]) -> Value:
        """Append the operation `name` on two values of the type of `op`, and return its result."""
        dims = (*one.type.dims, *(d for d in two.type.dims if d not in one.type.dims))
        ops.append(Op(TILE.ops[name], (one, two), {}, (Value(TileType(op.result.type.dtype, dims)),), loc=op.loc))
        return ops[-1].result


def combining(cut: Op, memory: Value, outer: Symbol, how: str) -> list[Op]:
    """Return a read of all parts, and their combination by `how` along `outer`, in place of `cut`."""
    read = Op(TILE.ops["read"], (memory,), {}, (Value(TileType(memory.type.dtype, memory.type.dims)),), loc=cut.loc)
    return [read, Op(TILE.ops[how], (read.result,), {"dim": outer}, (Value(cut.result.type),), loc=cut.loc)]


def _sum_of_reads(loop: Op, memory: Value, parts: int) -> list[Op]:
    """Return reads of all parts and their sum in order, as additions: an elementwise program."""
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


def step_of(program: Program, machine: Machine) -> int:
    """Return the unit of parts of K: the elements of a row of shared memory (slab) of the machine's atoms."""
    types = {v.type.dtype for op in names_of(program).values() for v in op.operands[:2]}
    slabs = {x.a.dtype: x.slab for x in machine.multiply.values() if x.slab is not None}
    return max((slab for dtype, slab in slabs.items() if dtype in types), default=max(slabs.values(), default=1))
