"""Factors in rows that a machine's copies can read: what is too short, or lies askew, is copied with zeros first.

    %3 = read %x over=[i, r, s, c] at=[i//12544, 2*(i//112%112) + r - 3, 2*(i%112) + s - 3, c] : bf16[M, K_2, K_1, K_0]

Taps along the last axis and their channels are one run of memory, so that a few channels become many: with four of
each pixel instead of three, and the zeros around a line beside it, position q reads 28 neighbours from element 8*q on,

    %0 = read %x over=[i] at=[i//920, i//4%230 - 3, i%4] otherwise=0             before, to %x_rows (32, 224, 230, 4)
    %3 = read %x_rows over=[i, r, j] at=[i//12544, 2*(i//112%112) + r - 3, i%112, j] : bf16[M, K_2, K_0]

where %x_rows is seen as (32, 224, 112, 28) with strides (206080, 920, 8, 1), which overlap. The other factor's taps and
channels become the same run. If taps are not contiguous, or there are none, as in a GEMM, the program stays as it is,
and rows are copied to a larger pitch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.algebra.expr import ZERO, Const, Expr, Symbol, symbol
from tilewright.algebra.expr_rules import linear
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import MemoryType, Op, Program, TileType, Value, building
from tilewright.ir.verifier import verify
from tilewright.passes.tile.copies import (
    Copied,
    FactorCopy,
    Numbered,
    Shape,
    copying,
    digits,
    factor_reads,
    number_in,
    steps_of,
    up,
    with_ops,
)
from tilewright.passes.tile.k_last import transposing, with_k_last
from tilewright.passes.tile.rewriting import own_name
from tilewright.plan.schedule import K_ROWS, PADDED, PANELS

SLACK = 8
"""Rows are padded to whole lines if they become longer by no more than one part in so many."""


@dataclass(frozen=True)
class _Walk:
    """A coordinate of a read, `step * position + tap + first`: positions of a sliding window, and taps within it."""

    position: Expr
    step: int
    tap: Expr
    first: int

    @property
    def positions(self) -> int:
        """The number of window positions."""
        return int(self.position.hi) + 1

    @property
    def reach(self) -> int:
        """The number of indices from the first tap of the first window to the last tap of the last window."""
        return (self.positions - 1) * self.step + int(self.tap.hi) + 1


@dataclass(frozen=True)
class Reading:
    """Conditions of a machine's bulk copies: row pitches are multiples of `pitch` bytes, windows at most `furthest`
    lines apart.

    Rows whose pitch is a multiple of a sector are read faster, of a cache line faster still.
    """

    pitch: int
    furthest: int
    sector: int
    line: int

    def padded(self, extent: int, size: int) -> int:
        """Return the padded length of a row of `extent` elements of `size` bytes: whole lines if not much longer, else
        sectors.
        """
        sectors, lines = (up(extent, max(self.pitch, n), size) for n in (self.sector, self.line))
        return lines if SLACK * (lines - extent) <= extent else sectors


def aligned(
    program: Program,
    sizes: Mapping[Symbol, int],
    shapes: Mapping[Value, Shape],
    free: Collection[Op],
    form: str,
    reading: Reading,
) -> Copied | str:
    """Return the program on copies of its MMA operands in rows that bulk copies can read; or text: why there is none.

    `form` says how: PANELS (each row has all of K as one run, im2col), PADDED (K is padded with zeros), K_ROWS (a
    dimension of K becomes the last one of memory), or any other (filter taps and channels merge to one run, or only the
    row pitch changes).
    """
    products = [op for op in program.walk() if op.name == "mma"]
    if len(products) != 1:
        return f"it has {len(products)} products"
    (product,) = products
    with building():
        reads = factor_reads(program, product, sizes, shapes)
        if isinstance(reads, str):
            return reads
        new: list[_New] | str
        if form == PANELS:
            new = _in_panels(program, product, reads, reading.pitch)
        elif form == PADDED:
            new = _with_padded_k(program, product, reads, free, reading)
        elif form == K_ROWS:
            new = _with_k_last(program, product, reads, reading)
        else:
            new = _in_rows(program, product, reads, reading)
        if isinstance(new, str):
            return new
        return _with_replaced_reads(program, sizes, shapes, free, new)


@dataclass(frozen=True)
class _New:
    """A read's replacement: the packed shape of the copy, the shape and strides seen by the program, and coordinates
    there.
    """

    read: Numbered
    packed: Shape
    first: Shape
    """The first source index of the copy along each dimension; below 0 lie zeros."""
    shape: Shape
    strides: Shape
    over: dict[Expr, Symbol]
    at: tuple[Expr, ...]
    run: Expr | None = None
    """The dimension that stands for taps and channels."""
    summed: tuple[Expr, ...] = ()
    """The dimensions that are one run of each row of a panel; none: the copy has the tensor's dimensions."""

    @property
    def is_view(self) -> bool:
        """True if no copy is needed: the tensor itself can be viewed with these strides."""
        if self.read.order is not None:
            return False
        if self.summed:
            every = [s for d, s in self.read.over.items() if d not in self.summed]
            every += [self.read.over[d] for d in self.summed]
            return tuple(every) == self.read.at and prod(self.packed) == prod(self.read.shape)
        return self.packed == self.read.shape and not any(self.first)


def _in_rows(program: Program, product: Op, reads: Sequence[Numbered], reading: Reading) -> list[_New] | str:
    """Return replacements that bulk copies can read: taps and channels as one run, else rows at another pitch."""
    merged = _with_merged_taps(program, product, reads, reading.pitch, reading.furthest)
    return merged or _with_padded_pitch(reads, reading)


def _with_k_last(program: Program, product: Op, reads: Sequence[Numbered], reading: Reading) -> list[_New] | str:
    """Return copies of the operands with a contiguous dimension of K, for bulk copies; or text: why there are none."""
    moved = with_k_last(product, reads)
    if isinstance(moved, str):
        return moved
    new = [] if all(_has_pitch(read, reading) for read in moved) else _in_rows(program, product, moved, reading)
    if isinstance(new, str):
        return new
    others = [read for read in moved if read.order is not None and all(read is not each.read for each in new)]
    return [*new, *(_as_it_is(read) for read in others)]


def _has_pitch(read: Numbered, reading: Reading) -> bool:
    """True if all rows of a read tensor lie a multiple of the pitch of bulk copies apart."""
    return all(step * read.bytes % reading.pitch == 0 for step in steps_of(read.shape)[:-1])


def _as_it_is(read: Numbered) -> _New:
    """Return the replacement of a read by one of a copy in the order of its coordinates."""
    return _New(read, read.shape, (0,) * len(read.shape), read.shape, steps_of(read.shape), read.over, read.at)


def _with_padded_k(
    program: Program, product: Op, reads: Sequence[Numbered], free: Collection[Op], reading: Reading
) -> list[_New] | str:
    """Return replacements with K padded by zeros in both operands; or text: why there are none."""
    one, two = (v.type.dims for v in product.operands[:2])
    for k in (d for d in one if d in two and d not in product.result.type.dims):
        if any(read.at[-1] is not read.over[k] or read.shape[-1] != read.extent(k) for read in reads):
            continue
        if not _is_private_dim(program, product, reads, k, free=free):
            return f"{k} is used elsewhere"
        wide = reading.padded(reads[0].extent(k), reads[0].bytes)
        replacements = []
        for read in reads:
            packed, over = (*read.shape[:-1], wide), {**read.over, k: symbol(read.over[k].name, 0, wide - 1)}
            at, first = (*read.at[:-1], over[k]), (0,) * len(packed)
            replacements.append(_New(read, packed, first, packed, steps_of(packed), over, at, k))
        return replacements
    return "no dimension that is summed is the last of both factors"


def _with_padded_pitch(reads: Sequence[Numbered], reading: Reading) -> list[_New] | str:
    """Return replacements for the tensors whose row pitch bulk copies refuse, with padded rows; or text if there are
    none.
    """
    replacements = []
    for read in reads:
        if _has_pitch(read, reading):  # copies look at that of one row, too
            continue
        wide = (*read.shape[:-1], reading.padded(read.shape[-1], read.bytes))
        replacements.append(_New(read, wide, (0,) * len(wide), read.shape, steps_of(wide), read.over, read.at))
    return replacements or "rows lie far enough apart"


def _with_merged_taps(
    program: Program, product: Op, reads: Sequence[Numbered], pitch: int, furthest: int
) -> list[_New] | None:
    """Return replacements in which a filter tap and the channels are one run; None if an operand has no such run."""
    one, two = (v.type.dims for v in product.operands[:2])
    summed = [d for d in one if d in two and d not in product.result.type.dims]
    for tap in summed:
        for channel in (*(d for d in summed if d is not tap), None):
            lines = [_row_coordinate(read, tap, channel) for read in reads]
            if None in lines or not _is_private_dim(program, product, reads, tap, channel):
                continue
            walks = [walk for walk in lines if walk is not None]
            size, channels = reads[0].bytes, reads[0].shape[-1]
            while any(w.positions > 1 and w.step * channels * size % pitch for w in walks):
                channels += 1
            run = tap if channel is None else channel
            return [
                _in_runs(read, walk, (tap, run), channels, pitch, furthest)
                for read, walk in zip(reads, walks, strict=True)
            ]
    return None


def _in_panels(program: Program, product: Op, reads: Sequence[Numbered], pitch: int) -> list[_New] | str:
    """Return replacements in which all of K is one run of each row (im2col); or text: why there are none."""
    one, two = (v.type.dims for v in product.operands[:2])
    summed = tuple(d for d in one if d in two and d not in product.result.type.dims)
    if len(summed) < 2 or not _is_private_dim(program, product, reads, *summed):
        return "what is summed is one run already, or used elsewhere"
    if any(read.at[-1].lo is None or int(read.at[-1].lo) < 0 for read in reads):
        return "the last coordinate of a factor may lie before its tensor"
    replacements = []
    for read in reads:
        rows = [d for d in read.over if d not in summed]
        extents = [int(read.over[d].hi) + 1 for d in rows]
        length = prod(int(read.over[d].hi) + 1 for d in summed)
        packed = (*extents, up(length, pitch, read.bytes))
        j = symbol(read.over[summed[-1]].name, 0, length - 1)
        over = {d: read.over[d] for d in rows} | {summed[-1]: j}
        shape, at = (*extents, length), (*(read.over[d] for d in rows), j)
        first = (0,) * len(packed)
        replacements.append(_New(read, packed, first, shape, steps_of(packed), over, at, summed[-1], summed))
    return replacements


def _row_coordinate(read: Numbered, tap: Expr, channel: Expr | None) -> _Walk | None:
    """Return the second-innermost coordinate of a read whose (tap, channel) pairs are contiguous; None otherwise."""
    if len(read.at) < 2:
        return None
    *outer, line, last = read.at
    whole = ZERO if channel is None else read.over[channel]
    extent = 1 if channel is None else int(read.over[channel].hi) + 1
    if last is not whole or read.shape[-1] != extent or any(whole in e.symbols for e in (*outer, line)):
        return None
    return _window_coordinate(read, len(outer), read.over[tap])


def _window_coordinate(read: Numbered, place: int, tap: Symbol | None = None) -> _Walk | None:
    """Return coordinate number `place` of a read as a _Walk: a window position and a tap that no other coordinate has.

    None if it has no such form. `tap` is the symbol of the tap; None: the only one with factor 1.
    """
    first, terms = linear(read.at[place])
    weights = dict(terms)
    taps = [s for s in ((tap,) if tap is not None else read.over.values()) if weights.get(s) == 1 and s.hi != 0]
    if len(taps) != 1 or sum(taps[0] in e.symbols for e in read.at) != 1:
        return None
    del weights[taps[0]]
    position, step = next(iter(weights.items()), (ZERO, 1))
    if len(weights) > 1 or step < 1 or position.lo != 0 or not isinstance(position.hi, int):
        return None
    return None if taps[0] in position.symbols else _Walk(position, step, taps[0], first)


def _is_private_dim(
    program: Program, product: Op, reads: Sequence[Numbered], *dims: Expr | None, free: Collection[Op] = ()
) -> bool:
    """True if `dims` occur only in the product and its reads, and in no loop that is not in `free`."""
    known = {product, *(r.op for r in reads)}
    types = [v.type for op in program.walk() if op not in known for v in (*op.operands, *op.results)]
    loops = [op.attrs["axis"] for op in program.walk() if op.name == "iterate" and op not in free]
    return not any(d in loops or any(d in getattr(kind, "dims", ()) for kind in types) for d in dims if d is not None)


def _in_runs(read: Numbered, line: _Walk, both: tuple[Expr, Expr], channels: int, pitch: int, furthest: int) -> _New:
    """Return the replacement of a read in which the tap and `channels` channels are one dimension, that of the
    channels.

    `both` is (tap, that dimension). Image lines are made long enough for all windows, and a multiple of `pitch` bytes.
    """
    tap, run = both
    last = len(read.at) - 2
    walks: dict[int, _Walk] = {last: line}
    for place in range(last):
        walk_of = _window_coordinate(read, place)
        if walk_of is not None and walk_of.step > furthest:
            walks[place] = walk_of
    packed, first = list(read.shape), [0] * len(read.at)
    packed[-1] = channels
    for place, walk in walks.items():
        if walk.first or walk.reach > packed[place] or (place == last and _is_misaligned(packed, pitch, read.bytes)):
            packed[place], first[place] = walk.reach, walk.first
    while _is_misaligned(packed, pitch, read.bytes):
        packed[last] += 1
    length = (int(read.over[tap].hi) + 1) * channels
    j = symbol(read.over[run].name, 0, length - 1)
    over = {d: j if d is run else s for d, s in read.over.items() if d is run or d is not tap}
    shape, strides, at = list[int](), list[int](), list[Expr]()
    for place, step in enumerate(steps_of(tuple(packed))[:-1]):
        if place not in walks:
            seen = [(packed[place], step, read.at[place])]
        else:
            of = walks[place]
            seen = [(of.positions, of.step * step, of.position)] if not isinstance(of.position, Const) else []
            seen += [(int(of.tap.hi) + 1, step, of.tap)] if place != last else []
        for extent, stride, coordinate in seen:
            shape.append(extent)
            strides.append(stride)
            at.append(coordinate)
    return _New(read, tuple(packed), tuple(first), (*shape, length), (*strides, 1), over, (*at, j), run)


def _is_misaligned(packed: Sequence[int], pitch: int, size: int) -> bool:
    """True if the pitch of image lines is no multiple of `pitch` bytes."""
    return packed[-2] * packed[-1] * size % pitch != 0


def _with_replaced_reads(
    program: Program, sizes: Mapping[Symbol, int], shapes: Mapping[Value, Shape], free: Collection[Op], new: list[_New]
) -> Copied:
    """Return the program with the replaced reads, its sizes and shapes, and the programs that copy."""
    copies, swapped, seen_as = [], {}, dict[Value, Value]()
    every, extents = dict(sizes), dict(shapes)
    for each in new:
        source, kind = each.read.source, each.read.op.result.type
        name = source.name or ""
        if not each.is_view:
            name = own_name(program, f"{source.name}_rows")
            copies.append(_copy(program, each, name))
        dims, attrs = source.type.dims, each.read.op.attrs
        if each.run is not None:
            dims = tuple(symbol(f"{name}_{n}", 1) for n in range(len(each.shape)))
            every |= {**dict(zip(dims, each.shape, strict=True)), **dict.fromkeys(each.run.symbols, each.shape[-1])}
            attrs = {**attrs, "over": tuple(each.over.values()), "at": each.at}
        elif each.read.order is not None:
            dims = tuple(dims[n] for n in each.read.order)
            attrs = {**attrs, "over": tuple(each.over.values()), "at": each.at}
        seen = seen_as[source] = Value(MemoryType(kind.dtype, dims, strides=each.strides), name)
        extents[seen] = each.shape
        result = Value(TileType(kind.dtype, tuple(each.over)), each.read.op.result.name)
        swapped[each.read.op] = Op(each.read.op.spec, (seen,), attrs, (result,), loc=each.read.op.loc)
    values = {op.result: now.result for op, now in swapped.items()}
    kept: dict[Op, Op] = {}
    body = with_ops(program.body, swapped, values, kept)
    longer = {s for each in new if each.run is not None for s in each.run.symbols}
    bindings = {s: e for s, e in program.bindings.items() if s not in longer}
    rewritten = replace(program, body=body, bindings=bindings, args=tuple(seen_as.get(a, a) for a in program.args))
    verify(rewritten)
    return Copied(
        rewritten,
        every,
        extents,
        tuple(kept.get(op, op) for op in free),
        tuple(copies),
        tuple(a.name or "" for a in seen_as),
    )


def _copy(program: Program, new: _New, name: str) -> FactorCopy:
    """Return the program that copies an operand to its packed form.

    Dimensions of the source that the copy has unchanged are merged with the dimension before.
    """
    if new.read.order is not None and new.packed == new.read.shape and not any(new.first):
        return transposing(program, new.read, name)
    every = prod(new.packed)
    flat = number_in(every)
    if new.summed:
        source_shape, at = new.read.shape, _panel_source(new, flat)
    elif new.read.order is not None:
        source_shape, at = _from_source_order(new, flat)
    else:
        source_shape, extents, first = _merged(new.read.shape, new.packed, new.first)
        at = tuple(place + begin for place, begin in zip(digits(flat, extents), first, strict=True))
    words = (
        f"{new.read.source.name} is copied with zeros to rows of {new.packed[-1]} in {new.packed}, "
        f"from {new.read.shape[-1]} in {new.read.shape}"
    )
    return copying(program, new.read.source, name, source_shape, every, at, words)


def _from_source_order(new: _New, flat: Symbol) -> tuple[Shape, tuple[Expr, ...]]:
    """Return (shape of the source, its coordinates for element number `flat` of a copy in another order)."""
    assert new.read.order is not None
    place = dict(
        zip(new.read.order, zip(digits(flat, new.packed), new.first, new.read.shape, strict=True), strict=True)
    )
    found = [place[n] for n in range(len(place))]
    return tuple(extent for _, _, extent in found), tuple(e + first for e, first, _ in found)


def _panel_source(new: _New, flat: Symbol) -> tuple[Expr, ...]:
    """Return the source coordinates of element number `flat` of a panel; past a row's end they are out of bounds
    (zero).
    """
    read, length = new.read, new.shape[-1]
    *places, along = digits(flat, new.packed)
    rows = [s for d, s in read.over.items() if d not in new.summed]
    taps = [read.over[d] for d in new.summed]
    extents = tuple(int(s.hi) + 1 for s in taps)
    images = Substitution(dict(zip((*rows, *taps), (*places, *digits(along, extents)), strict=True)))
    *outer, last = (images(e) for e in read.at)
    return (*outer, last + read.shape[-1] * (along // length))


def _merged(given: Shape, packed: Shape, first: Shape) -> tuple[Shape, Shape, Shape]:
    """Return (extents of a tensor, extents of its copy, start of the copy) with as few dimensions as possible.

    >>> _merged((32, 224, 224, 3), (32, 224, 230, 4), (0, 0, -3, 0)), _merged((4, 5), (4, 5), (0, 0))
    (((7168, 224, 3), (7168, 230, 4), (0, -3, 0)), ((20,), (20,), (0,)))
    """
    merged: list[tuple[int, int, int]] = []
    for extent, wide, begin in zip(given, packed, first, strict=True):
        if merged and extent == wide and not begin:
            merged[-1] = (merged[-1][0] * extent, merged[-1][1] * extent, merged[-1][2] * extent)
        else:
            merged.append((extent, wide, begin))
    a, b, c = zip(*merged, strict=True)
    return a, b, c
