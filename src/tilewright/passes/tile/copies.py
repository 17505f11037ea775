"""Copies of MMA operands that run first: accesses with numbers for sizes, the programs that copy, the program on
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
from tilewright.passes.tile.rewriting import places

Shape = tuple[int, ...]


@dataclass(frozen=True)
class FactorCopy:
    """The program that copies an MMA operand, its sizes, the shapes of its two arguments, and text for `explain`.

    Dimensions are merged where they can be.
    """

    program: Program
    sizes: dict[Symbol, int]
    shapes: dict[Value, Shape]
    words: str

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Copied:
    """The program on copies of its factors, all sizes and shapes of it, and loops that are free.

    `sources` are the arguments that lie otherwise than before; most are copied.
    """

    program: Program
    sizes: dict[Symbol, int]
    shapes: dict[Value, Shape]
    free: tuple[Op, ...]
    copies: tuple[FactorCopy, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Numbered:
    """A read or write of an argument: coordinates over symbols with bounds, and the tensor's extents as ints."""

    op: Op
    over: dict[Expr, Symbol]
    """By dimension of the tile."""
    at: tuple[Expr, ...]
    shape: Shape
    order: tuple[int, ...] | None = None
    """The number of the source's coordinate for each of `at` and `shape`; None: they are in the source's order."""

    @property
    def source(self) -> Value:
        """The argument that is accessed."""
        return accessed(self.op)[0]

    @property
    def bytes(self) -> int:
        """The number of bytes of an element."""
        return int(self.source.type.dtype.bits) // 8

    def extent(self, dim: Expr) -> int:
        """Return the number of elements of the tile along a dimension."""
        return int(self.over[dim].hi) + 1


def numbered(
    op: Op, sizes: Mapping[Symbol, int], shapes: Mapping[Value, Shape], bounded: Collection[Expr] | None = None
) -> Numbered | str:
    """Return a read or write with numbers for its sizes; or text: why it has none.

    Symbols of the dimensions in `bounded` (None: of all) get bounds; expressions of the others keep what lies past the
    end.
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
    every = Substitution({**sizes, **{s: over[d] for d, s in zip(kind.dims, before, strict=True)}})
    return Numbered(op, over, tuple(map(every, at)), shapes[source])


def factor_read(
    program: Program, factor: Value, sizes: Mapping[Symbol, int], shapes: Mapping[Value, Shape]
) -> Numbered | str:
    """Return the read of an MMA operand; or text: why it is no plain read of an argument."""
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
    """Return the reads of both operands of an MMA, each of an argument that nothing else uses; or text: why not."""
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
    """Return a block with operations replaced as `swapped` says; `kept` gets {operation: its copy} for the others."""
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


def copying(
    program: Program, source: Value, name: str, given: Shape, every: int, at: tuple[Expr, ...], words: str
) -> FactorCopy:
    """Return the program that copies an operand to `every` contiguous elements, with zeros where it has none.

    It runs along the copy's memory, so that lanes write whole words, whatever the rows are. `at` are the coordinates in
    `given` (the source's shape) at which an element is read, by its number (`number_in`).
    """
    dtype, flat = source.type.dtype, number_in(every)
    dims = tuple(symbol(f"{source.name}_{n}", 1) for n in range(len(given)))
    along = symbol(f"{name}_0", 1)
    here, copy_arg = Value(MemoryType(dtype, dims), source.name), Value(MemoryType(dtype, (along,)), name)
    attrs = {"over": (flat,), "at": at, "otherwise": 0}
    read = Op(TILE.ops["read"], (here,), attrs, (Value(TileType(dtype, (along,))),))
    write = Op(TILE.ops["write"], (read.result, copy_arg), {})
    body = Block((), [read, write])
    copy = replace(program, name=f"{program.name}_{name}", args=(here, copy_arg), body=body, records=[])
    verify(copy)
    sizes = dict(zip((*dims, along), (*given, every), strict=True))
    return FactorCopy(copy, sizes, {here: given, copy_arg: (every,)}, words)


def copying_to(
    program: Program, source: Value, name: str, given: Shape, order: tuple[int, ...], words: str
) -> FactorCopy:
    """Return the program that copies an operand of the shape `given` to the order `order` of its dimensions.

    Dimensions of one element are left out. Lanes read and write along memory, through shared memory.
    """
    dtype = source.type.dtype
    kept = [n for n, extent in enumerate(given) if extent > 1] or [0]
    dims = {n: symbol(f"{source.name}_{n}", 1) for n in kept}
    before, after = tuple(dims.values()), tuple(dims[n] for n in order if n in dims)
    here, copy_arg = Value(MemoryType(dtype, before), source.name), Value(MemoryType(dtype, after), name)
    read = Op(TILE.ops["read"], (here,), {}, (Value(TileType(dtype, before)),))
    body = Block((), [read, Op(TILE.ops["write"], (read.result, copy_arg), {})])
    copy = replace(program, name=f"{program.name}_{name}", args=(here, copy_arg), body=body, records=[])
    verify(copy)
    sizes = {dims[n]: given[n] for n in kept}
    shapes = {here: tuple(sizes[d] for d in before), copy_arg: tuple(sizes[d] for d in after)}
    return FactorCopy(copy, sizes, shapes, words)


def number_in(every: int) -> Symbol:
    """Return the symbol for the number of an element in a copy of `every` elements."""
    return symbol("at", 0, every - 1)


def digits(number: Expr, extents: Sequence[int]) -> list[Expr]:
    """Return the coordinates of an element of a packed tensor from its number."""
    return [number // step % extent for step, extent in zip(steps_of(extents), extents, strict=True)]


def steps_of(shape: Sequence[int]) -> Shape:
    """Return the strides of a packed row-major tensor."""
    return tuple(prod(shape[n + 1 :]) for n in range(len(shape)))


def up(extent: int, pitch: int, size: int) -> int:
    """Return the least length from `extent` on whose bytes are a multiple of `pitch`; elements have `size` bytes."""
    while extent * size % pitch:
        extent += 1
    return extent
