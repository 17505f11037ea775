"""Factors in rows that a machine's copies can read: what is too short, or lies askew, is copied with zeros first.

    %3 = read %x over=[i, r, s, c] at=[i//12544, 2*(i//112%112) + r - 3, 2*(i%112) + s - 3, c] : bf16[M, K_2, K_1, K_0]

Taps along the last axis and their channels are one run of memory, so that a few channels become many: with four of
each pixel instead of three, and the zeros around a line beside it, position q reads 28 neighbours from element 8*q on,

    %0 = read %x over=[n, h, w, c] at=[n, h, w - 3, c] otherwise=0               before, to %x_rows (32, 224, 230, 4)
    %3 = read %x_rows over=[i, r, j] at=[i//12544, 2*(i//112%112) + r - 3, i%112, j] : bf16[M, K_2, K_0]

where %x_rows is seen as (32, 224, 112, 28) with strides (206080, 920, 8, 1), which overlap. The other factor's taps and
channels become the same run. Where taps lie apart, or there are none, as in a product of matrices, the program stays
as it is, and rows are copied to lie far enough apart.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.algebra.expr import ZERO, Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_rules import linear
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value, building
from tilewright.ir.tile import TILE
from tilewright.ir.verifier import verify
from tilewright.passes.tile.splitting import own_name

Shape = tuple[int, ...]


@dataclass(frozen=True)
class RowCopy:
    """A factor that is copied: the program that does it, its sizes and the shapes of its two arguments."""

    program: Program
    sizes: dict[Symbol, int]
    shapes: dict[Value, Shape]

    @property
    def source(self) -> str:
        """The name of what is copied."""
        return self.program.args[0].name or ""

    def __str__(self) -> str:
        given, made = self.shapes.values()
        return f"{self.source} is copied with zeros to rows of {made[-1]} in {made}, from {given[-1]} in {given}"


@dataclass(frozen=True)
class Aligned:
    """The program on copies of its factors, all sizes and shapes of it, and loops that are free.

    `sources` are the arguments that lie otherwise than before; most are copied.
    """

    program: Program
    sizes: dict[Symbol, int]
    shapes: dict[Value, Shape]
    free: tuple[Op, ...]
    copies: tuple[RowCopy, ...]
    sources: tuple[str, ...]


@dataclass(frozen=True)
class _Read:
    """A factor's read: its coordinates, over symbols that have bounds, and the tensor's extents."""

    op: Op
    over: dict[Expr, Symbol]
    """By dimension of the tile."""
    at: tuple[Expr, ...]
    shape: Shape

    @property
    def source(self) -> Value:
        return self.op.operands[0]

    @property
    def bytes(self) -> int:
        return int(self.op.result.type.dtype.bits) // 8


@dataclass(frozen=True)
class _Run:
    """A read whose last two coordinates are taps and channels: `step * position + tap + first`, and the channel."""

    read: _Read
    position: Expr
    step: int
    first: int

    @property
    def positions(self) -> int:
        return int(self.position.hi) + 1


def aligned(
    program: Program, sizes: Mapping[Symbol, int], shapes: Mapping[Value, Shape], free: Collection[Op], pitch: int
) -> Aligned | str:
    """The program on copies of its factors whose rows lie a multiple of `pitch` bytes apart; or why there is none."""
    products = [op for op in program.walk() if op.name == "mma"]
    if len(products) != 1:
        return f"it has {len(products)} products"
    (product,) = products
    with building():
        reads = [_read(program, v, sizes, shapes) for v in product.operands[:2]]
        if any(isinstance(r, str) for r in reads):
            return next(r for r in reads if isinstance(r, str))
        found = [r for r in reads if isinstance(r, _Read)]
        sources = {r.source for r in found}
        if len(sources) < 2 or any(
            not sources.isdisjoint(op.operands) for op in program.walk() if op not in {r.op for r in found}
        ):
            return "a factor is used twice"
        new = _joined(program, product, found, sizes, pitch) or _apart(program, found, pitch)
        if isinstance(new, str):
            return new
        return _aligned(program, sizes, shapes, free, new)


def _read(program: Program, factor: Value, sizes: Mapping[Symbol, int], shapes: Mapping[Value, Shape]) -> _Read | str:
    """The read of a factor; or why it is no plain one."""
    op = next((x for x in program.walk() if factor in x.results), None)
    if op is None or op.name != "read" or op.operands[0] not in shapes:
        return "a factor is computed, or is no argument"
    if set(op.attrs) & {"lookups", "bounds"} or op.attrs.get("otherwise", 0) != 0:
        return "a factor is read where data say, or is not zero outside"
    kind: TileType = op.result.type
    images, numbers = {}, Substitution(dict(sizes))
    before = op.attrs.get("over") or tuple(symbol(f"at_{n}", 0) for n in range(len(kind.dims)))
    over = {d: symbol(s.name, 0, int(numbers(d)) - 1) for d, s in zip(kind.dims, before, strict=True)}
    images = {s: over[d] for d, s in zip(kind.dims, before, strict=True)}
    own = dict(zip(kind.dims, before, strict=True))
    at = op.attrs.get("at") or tuple(own[d] for d in op.operands[0].type.dims)
    every = Substitution({**sizes, **images})
    return _Read(op, over, tuple(map(every, at)), shapes[op.operands[0]])


@dataclass(frozen=True)
class _New:
    """A read's replacement: the copy's packed shape, how the program sees it, and what its coordinates are there."""

    read: _Read
    packed: Shape
    first: int
    """Where along the last dimension but one the copy begins in the tensor: below 0 in zeros."""
    shape: Shape
    strides: Shape
    over: dict[Expr, Symbol]
    at: tuple[Expr, ...]
    run: Expr | None = None
    """The dimension that stands for taps and channels."""

    @property
    def is_view(self) -> bool:
        """Whether the tensor itself can be seen so."""
        return self.packed == self.read.shape and self.first == 0


def _apart(program: Program, reads: Sequence[_Read], pitch: int) -> list[_New] | str:
    """Copies of those tensors whose rows lie askew, with rows far enough apart; coordinates stay."""
    found = []
    for read in reads:
        steps = _packed(read.shape)
        if all(step * read.bytes % pitch == 0 for n, step in zip(read.shape, steps[:-1], strict=False) if n > 1):
            continue
        wide = (*read.shape[:-1], _up(read.shape[-1], pitch, read.bytes))
        found.append(_New(read, wide, 0, read.shape, _packed(wide), read.over, read.at))
    return found or "rows lie far enough apart"


def _joined(
    program: Program, product: Op, reads: Sequence[_Read], sizes: Mapping[Symbol, int], pitch: int
) -> list[_New] | None:
    """Copies in which taps and channels are one run; None where some factor's are none."""
    one, two = (v.type.dims for v in product.operands[:2])
    summed = [d for d in one if d in two and d not in product.result.type.dims]
    if not all(len(r.shape) > 1 for r in reads):
        return None
    for tap in summed:
        for channel in (*(d for d in summed if d is not tap), None):
            runs = [_run(read, tap, channel) for read in reads]
            if None not in runs and _only_there(program, product, reads, tap, channel):
                return _as_runs([r for r in runs if r is not None], tap, channel, sizes, pitch)
    return None


def _run(read: _Read, tap: Expr, channel: Expr | None) -> _Run | None:
    """A read in which these dimensions are one run of memory; None: they are none."""
    *outer, line, last = read.at
    t = read.over[tap]
    whole = ZERO if channel is None else read.over[channel]
    extent = 1 if channel is None else int(read.over[channel].hi) + 1
    if last is not whole or read.shape[-1] != extent or any(t in e.symbols or whole in e.symbols for e in outer):
        return None
    first, terms = linear(line)
    weights = dict(terms)
    if weights.pop(t, None) != 1 or len(weights) > 1 or any({t, whole} & e.symbols for e in weights):
        return None
    position, step = next(iter(weights.items()), (ZERO, 1))
    if step < 1 or position.lo != 0 or not isinstance(position.hi, int):
        return None
    return _Run(read, position, step, first)


def _only_there(program: Program, product: Op, reads: Sequence[_Read], *dims: Expr | None) -> bool:
    """Whether nothing but the product and its factors has a dimension."""
    known = {product, *(r.op for r in reads)}
    found = [v.type for op in program.walk() if op not in known for v in (*op.operands, *op.results)]
    loops = [op.attrs["axis"] for op in program.walk() if op.name == "iterate"]
    return not any(d in loops or any(d in getattr(kind, "dims", ()) for kind in found) for d in dims if d is not None)


def _as_runs(
    runs: Sequence[_Run], tap: Expr, channel: Expr | None, sizes: Mapping[Symbol, int], pitch: int
) -> list[_New]:
    """The copies of tensors in which taps and channels are runs: of as few channels as let positions lie so far apart
    as copies can read them."""
    taps, size = int(runs[0].read.over[tap].hi) + 1, runs[0].read.bytes
    channels = runs[0].read.shape[-1]
    while any(r.positions > 1 and r.step * channels * size % pitch for r in runs):
        channels += 1
    found = []
    for run in runs:
        read = run.read
        pixels = (run.positions - 1) * run.step + taps
        while pixels * channels * size % pitch:
            pixels += 1
        packed = (*read.shape[:-2], pixels, channels)
        length = taps * channels
        both = [d for d in (tap, channel) if d is not None]
        j = symbol(read.over[both[-1]].name, 0, length - 1)
        over = {d: j if d is both[-1] else s for d, s in read.over.items() if d is both[-1] or d not in both}
        steps = _packed(packed)
        if isinstance(run.position, Const):
            shape, strides, at = (*read.shape[:-2], length), (*steps[:-2], 1), (*read.at[:-2], j)
        else:
            shape = (*read.shape[:-2], run.positions, length)
            strides, at = (*steps[:-2], run.step * channels, 1), (*read.at[:-2], run.position, j)
        found.append(_New(read, packed, run.first, shape, strides, over, at, both[-1]))
    return found


def _aligned(
    program: Program, sizes: Mapping[Symbol, int], shapes: Mapping[Value, Shape], free: Collection[Op], new: list[_New]
) -> Aligned:
    """The program with these reads in place of its own, and the programs that copy."""
    copies, swapped, given = [], {}, dict[Value, Value]()
    every, extents = dict(sizes), dict(shapes)
    for each in new:
        source, kind = each.read.source, each.read.op.result.type
        name = source.name or ""
        if not each.is_view:
            name = own_name(program, f"{source.name}_rows")
            copies.append(_copy(program, each, name))
        dims = tuple(symbol(f"{name}_{n}", 1) for n in range(len(each.shape)))
        seen = given[source] = Value(MemoryType(kind.dtype, dims, strides=each.strides), name)
        every |= zip(dims, each.shape, strict=True)
        extents[seen] = each.shape
        if each.run is not None:
            every |= dict.fromkeys(each.run.symbols, each.shape[-1])
        attrs = {**each.read.op.attrs, "over": tuple(each.over.values()), "at": each.at}
        result = Value(TileType(kind.dtype, tuple(each.over)), each.read.op.result.name)
        swapped[each.read.op] = Op(each.read.op.spec, (seen,), attrs, (result,), loc=each.read.op.loc)
    values = {op.result: now.result for op, now in swapped.items()}
    kept: dict[Op, Op] = {}
    body = _with(program.body, swapped, values, kept)
    made = replace(program, body=body)
    made = replace(made, args=tuple(given.get(a, a) for a in program.args))
    verify(made)
    return Aligned(
        made,
        every,
        extents,
        tuple(kept.get(op, op) for op in free),
        tuple(copies),
        tuple(a.name or "" for a in given),
    )


def _with(block: Block, swapped: Mapping[Op, Op], values: Mapping[Value, Value], kept: dict[Op, Op]) -> Block:
    """A block with other operations in place of some; `kept` gets what became of those that have blocks."""
    ops = []
    for op in block.ops:
        if op in swapped:
            ops.append(swapped[op])
            continue
        blocks = tuple(_with(b, swapped, values, kept) for b in op.blocks)
        operands = tuple(values.get(v, v) for v in op.operands)
        ops.append(Op(op.spec, operands, op.attrs, op.results, blocks, op.loc))
        kept[op] = ops[-1]
    return Block(block.args, ops)


def _copy(program: Program, new: _New, name: str) -> RowCopy:
    """The program that copies a factor, with zeros where it has no elements."""
    source, dtype = new.read.source, new.read.op.result.type.dtype
    over = tuple(symbol(f"at_{n}", 0, extent - 1) for n, extent in enumerate(new.packed))
    at = [as_expr(s) + (new.first if n == len(over) - 2 else 0) for n, s in enumerate(over)]
    own = tuple(symbol(f"{source.name}_{n}", 1) for n in range(len(over)))
    dims = tuple(symbol(f"{name}_{n}", 1) for n in range(len(over)))
    given, made = Value(MemoryType(dtype, own), source.name), Value(MemoryType(dtype, dims), name)
    attrs = {"over": over, "at": tuple(at), "otherwise": 0}
    read = Op(TILE.ops["read"], (given,), attrs, (Value(TileType(dtype, dims)),))
    write = Op(TILE.ops["write"], (read.result, made), {})
    body = Block((), [read, write])
    copy = replace(program, name=f"{program.name}_{name}", args=(given, made), body=body, records=[])
    verify(copy)
    sizes = dict(zip((*own, *dims), (*new.read.shape, *new.packed), strict=True))
    return RowCopy(copy, sizes, {given: new.read.shape, made: new.packed})


def _packed(shape: Shape) -> Shape:
    return tuple(prod(shape[n + 1 :]) for n in range(len(shape)))


def _up(extent: int, pitch: int, size: int) -> int:
    """The least length from an extent on whose bytes are a multiple of a pitch."""
    while extent * size % pitch:
        extent += 1
    return extent
