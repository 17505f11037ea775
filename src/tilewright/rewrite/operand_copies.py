"""Copies of MMA operands that run first: accesses with numbers for sizes, the copying programs, the program on
copies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value
from tilewright.ir.tile import TILE, accessed
from tilewright.ir.verifier import verify
from tilewright.rewrite.rewriter import places

Shape = tuple[int, ...]


@dataclass(frozen=True)
class FactorCopy:
    """A program that copies an MMA operand, its sizes, the shapes of its two arguments, and a text for `explain`.

    Its dimensions are merged where they can be.
    """

    program: Program
    sizes: dict[Symbol, int]
    shapes: dict[Value, Shape]
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class RepackedProgram:
    """A program that reads copies of MMA operands, its sizes and shapes, its free loops, and the copying programs.

    `sources` names the arguments with another layout than before; most are copied.
    """

    program: Program
    sizes: dict[Symbol, int]
    shapes: dict[Value, Shape]
    free: tuple[Op, ...]
    copies: tuple[FactorCopy, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Numbered:
    """A read or write of an argument with numbers for all sizes: bounded iterators, coordinates, and extents of the
    tensor.
    """

    op: Op
    over: dict[Expr, Symbol]
    """{dimension of the tile: its iterator}."""
    at: tuple[Expr, ...]
    shape: Shape
    order: tuple[int, ...] | None = None
    """For each entry of `at` and `shape`, the number of that coordinate in the source; None: 0, 1, 2, ..."""

    @property
    def source(self) -> Value:
        """The argument (memory) that is read or written."""
        return accessed(self.op)[0]

    @property
    def bytes(self) -> int:
        """The size of one element in bytes."""
        return int(self.source.type.dtype.bits) // 8

    def extent(self, dim: Expr) -> int:
        """Return the extent of the tile along the dimension `dim`. The iterator of `dim` must have bounds."""
        return int(self.over[dim].hi) + 1


def numbered(
    op: Op, sizes: Mapping[Symbol, int], shapes: Mapping[Value, Shape], bounded: Collection[Expr] | None = None
) -> Numbered | str:
    """Return the read or write `op` as a Numbered, with numbers in place of all sizes; or text: why it cannot be.

    It cannot if it accesses no argument of `shapes`, or its coordinates or bounds depend on data. `sizes` is
    {dimension: extent}, `shapes` is {argument: extents}. Iterators of the dimensions in `bounded` (None: of all) get
    bounds 0..extent-1, by which coordinates are simplified.
    """
    source = accessed(op)[0]
    if source not in shapes or set(op.attrs) & {"lookups", "bounds"}:
        return f"{source.name} is no argument, or it is read or written where data say"
    kind, before, at = places(op)
    numbers = Substitution(dict(sizes))
    over = {
        d: symbol(s.name, 0, int(numbers(d)) - 1) if bounded is None or d in bounded else s
        for d, s in zip(kind.dims, before, strict=True)
    }
    all_values = Substitution({**sizes, **{s: over[d] for d, s in zip(kind.dims, before, strict=True)}})
    return Numbered(op, over, tuple(map(all_values, at)), shapes[source])


def factor_read(
    program: Program, factor: Value, sizes: Mapping[Symbol, int], shapes: Mapping[Value, Shape]
) -> Numbered | str:
    """Return the read that makes the MMA operand `factor` as a Numbered (numbers for all sizes); or text: why it is not
    plain.

    A plain read is of an argument in `shapes` ({argument: extents}), does not depend on data, and gives 0 out of
    bounds. Its elements are whole bytes. An operand that is computed gives text too. `sizes` is {dimension: extent}.
    """
    op = next((x for x in program.walk() if factor in x.results), None)
    if op is None or op.name != "read" or op.operands[0] not in shapes:
        return "a factor is computed, or is no argument"
    kind: TileType = op.result.type
    if set(op.attrs) & {"lookups", "bounds"} or op.attrs.get("otherwise", 0) != 0:
        return "a factor is read where data say, or is not zero outside"
    if kind.dtype.bits % 8:
        return f"elements of {kind.dtype} are no whole bytes"
    return numbered(op, sizes, shapes)


def factor_reads(
    program: Program, product: Op, sizes: Mapping[Symbol, int], shapes: Mapping[Value, Shape]
) -> list[Numbered] | str:
    """Return [read of operand A, read of operand B] of the MMA `product`, each a Numbered (numbers for all sizes).

    Or return text: why not. Each operand must come from a plain read of an argument (see `factor_read`). The two
    arguments must differ, and nothing else may use them. `sizes` is {dimension: extent}, `shapes` is {argument:
    extents}.
    """
    reads = []
    for factor in product.operands[:2]:
        read = factor_read(program, factor, sizes, shapes)
        if isinstance(read, str):
            return read
        reads.append(read)
    sources, read_ops = {r.source for r in reads}, {r.op for r in reads}
    if len(sources) < 2 or any(not sources.isdisjoint(op.operands) for op in program.walk() if op not in read_ops):
        return "a factor is used twice"
    return reads


def with_ops(block: Block, swapped: Mapping[Op, Op], values: Mapping[Value, Value], kept: dict[Op, Op]) -> Block:
    """Return a copy of `block` with operations replaced by `swapped`, {operation: replacement}, also in nested blocks.

    Operands of all other operations are replaced by `values`, {value: replacement}. Also record {operation: its copy}
    in `kept` for each operation that is not replaced.
    """
    ops = []
    for op in block.ops:
        if op in swapped:
            ops.append(swapped[op])
            continue
        blocks = tuple(with_ops(b, swapped, values, kept) for b in op.blocks)
        operands = tuple(values.get(v, v) for v in op.operands)
        ops.append(Op(op.spec, operands, op.attrs, op.results, blocks, op.loc))
        kept[op] = ops[-1]
    return Block(block.args, ops)


def copying_program(
    program: Program, source: Value, name: str, source_shape: Shape, count: int, at: tuple[Expr, ...], words: str
) -> FactorCopy:
    """Return the program, a FactorCopy, that copies the argument `source` to a new argument `name` of `count` elements
    in a row.

    Element n of the copy is the source's element at the coordinates `at`, expressions of the symbol
    `element_number(count)`; out of bounds it is 0. `source_shape` is the shape in which the source is read. `words` is
    the text that explains the copy. The new program is called `<program>_<name>`, and has no constraints.
    """
    dtype, flat = source.type.dtype, element_number(count)
    dims = tuple(symbol(f"{source.name}_{n}", 1) for n in range(len(source_shape)))
    along = symbol(f"{name}_0", 1)
    here, copy_arg = Value(MemoryType(dtype, dims), source.name), Value(MemoryType(dtype, (along,)), name)
    attrs = {"over": (flat,), "at": at, "otherwise": 0}
    read = Op(TILE.ops["read"], (here,), attrs, (Value(TileType(dtype, (along,))),))
    write = Op(TILE.ops["write"], (read.result, copy_arg), {})
    body = Block((), [read, write])
    copy = replace(program, name=f"{program.name}_{name}", args=(here, copy_arg), body=body, records=[])
    verify(copy)
    sizes = dict(zip((*dims, along), (*source_shape, count), strict=True))
    return FactorCopy(copy, sizes, {here: source_shape, copy_arg: (count,)}, words)


def transposing_program(
    program: Program, source: Value, name: str, source_shape: Shape, order: tuple[int, ...], words: str
) -> FactorCopy:
    """Return the program, a FactorCopy, that copies the argument `source` to a new argument `name` with reordered
    dimensions.

    `order` has the dimension numbers of the source in the order of the copy: (0, 2, 1) swaps the last two.
    `source_shape` is the shape in which the source is read; dimensions of extent 1 are left out. `words` is the text
    that explains the copy. The new program is called `<program>_<name>`, and has no constraints.
    """
    dtype = source.type.dtype
    long_dims = [n for n, extent in enumerate(source_shape) if extent > 1] or [0]
    dims = {n: symbol(f"{source.name}_{n}", 1) for n in long_dims}
    before, after = tuple(dims.values()), tuple(dims[n] for n in order if n in dims)
    here, copy_arg = Value(MemoryType(dtype, before), source.name), Value(MemoryType(dtype, after), name)
    read = Op(TILE.ops["read"], (here,), {}, (Value(TileType(dtype, before)),))
    body = Block((), [read, Op(TILE.ops["write"], (read.result, copy_arg), {})])
    copy = replace(program, name=f"{program.name}_{name}", args=(here, copy_arg), body=body, records=[])
    verify(copy)
    sizes = {dims[n]: source_shape[n] for n in long_dims}
    shapes = {here: tuple(sizes[d] for d in before), copy_arg: tuple(sizes[d] for d in after)}
    return FactorCopy(copy, sizes, shapes, words)


def element_number(count: int) -> Symbol:
    """Return the symbol for the number of an element in a copy of `count` elements: 0..count-1."""
    return symbol("at", 0, count - 1)


def digits(number: Expr, extents: Sequence[int]) -> list[Expr]:
    """Return the coordinates of element `number` (row-major) in a packed tensor with these `extents`, as expressions.

    For example n and (3, 4) give [n//4%3, n%4].
    """
    return [number // step % extent for step, extent in zip(steps_of(extents), extents, strict=True)]


def steps_of(shape: Sequence[int]) -> Shape:
    """Return the strides, in elements, of a packed row-major tensor of this shape: (2, 3, 4) gives (12, 4, 1)."""
    return tuple(prod(shape[n + 1 :]) for n in range(len(shape)))


def padded_extent(extent: int, pitch: int, size: int) -> int:
    """Return the smallest number of elements that is at least `extent` and takes a multiple of `pitch` bytes.

    An element has `size` bytes.

    >>> padded_extent(5, 16, 4)
    8
    """
    while extent * size % pitch:
        extent += 1
    return extent
