"""Copies MMA operands to rows that a machine's bulk copies can read: longer rows, padded with zeros, or im2col panels.

    %3 = read %x over=[i, r, s, c] at=[i//12544, 2*(i//112%112) + r - 3, 2*(i%112) + s - 3, c] : bf16[M, K_2, K_1, K_0]

Filter taps along the last axis and their channels are contiguous, so that a few channels can become one long run. With
four channels of each pixel instead of three, and zeros around an image line, position q reads 28 elements from 8*q on:

    %0 = read %x over=[i] at=[i//920, i//4%230 - 3, i%4] otherwise=0             before, to %x_rows (32, 224, 230, 4)
    %3 = read %x_rows over=[i, r, j] at=[i//12544, 2*(i//112%112) + r - 3, i%112, j] : bf16[M, K_2, K_0]

where %x_rows is viewed as (32, 224, 112, 28) with strides (206080, 920, 8, 1), which overlap. The other operand's taps
and channels become the same run. If taps are not contiguous, or there are none, as in a GEMM, the program stays as it
is, and rows are copied to a larger pitch.
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
from tilewright.plan.schedule import K_ROWS, PADDED, PANELS
from tilewright.rewrite.k_last import transposed_copy, with_k_last
from tilewright.rewrite.operand_copies import (
    FactorCopy,
    Numbered,
    RepackedProgram,
    Shape,
    copying_program,
    digits,
    element_number,
    factor_reads,
    padded_extent,
    steps_of,
    with_ops,
)
from tilewright.rewrite.rewriter import unused_name

SLACK = 8
"""Rows are padded to whole cache lines if that makes them longer by at most 1/SLACK, else to whole sectors."""


@dataclass(frozen=True)
class _WindowCoordinate:
    """A coordinate of a read of the form step * position + tap + first: positions of a sliding window, and taps within
    it.
    """

    position: Expr
    step: int
    tap: Expr
    first: int

    @property
    def positions(self) -> int:
        """The number of positions of the sliding window along this coordinate."""
        return int(self.position.hi) + 1

    @property
    def reach(self) -> int:
        """The number of elements from the first tap of the first window to the last tap of the last window, both
        included.

        For 4 windows of 3 taps with step 2, this is 9.
        """
        return (self.positions - 1) * self.step + int(self.tap.hi) + 1


@dataclass(frozen=True)
class Reading:
    """Requirements of a machine's bulk copies, in bytes: row pitches must be multiples of `pitch`.

    Windows may be at most `furthest` image lines apart. Rows whose pitch is a multiple of `sector` are read faster, of
    `line` faster still.
    """

    pitch: int
    furthest: int
    sector: int
    line: int

    def padded(self, extent: int, size: int) -> int:
        """Return the length in elements to which a row of `extent` elements is padded; an element has `size` bytes.

        The padded row is a whole number of cache lines if that makes it longer by at most 1/8 (`SLACK`), else of
        sectors.
        """
        sectors, lines = (padded_extent(extent, max(self.pitch, n), size) for n in (self.sector, self.line))
        return lines if SLACK * (lines - extent) <= extent else sectors


def aligned(
    program: Program,
    sizes: Mapping[Symbol, int],
    shapes: Mapping[Value, Shape],
    free: Collection[Op],
    form: str,
    reading: Reading,
) -> RepackedProgram | str:
    """Return the program on copies of its MMA operands that bulk copies can read, as a RepackedProgram.

    It includes the programs that make the copies. Return text, why there is none, if this is impossible or not needed.
    The program must have exactly one MMA. `form` says how a copy differs from its operand:

    - PANELS: each row has all of K (im2col).
    - PADDED: K, the last dimension, is padded with zeros.
    - K_ROWS: a dimension of K becomes the last of memory.
    - Any other text: a filter tap and the channels become one dimension. If they cannot, rows only get a larger pitch.

    `sizes` is {dimension: extent}, `shapes` is {argument: extents}. `free` holds the loops that give the same result
    for every tile size. `reading` has the row pitches that bulk copies need.
    """
    products = [op for op in program.walk() if op.name == "mma"]
    if len(products) != 1:
        return f"it has {len(products)} products"
    (product,) = products
    with building():
        reads = factor_reads(program, product, sizes, shapes)
        if isinstance(reads, str):
            return reads
        new: list[_ReplacedRead] | str
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
class _ReplacedRead:
    """The replacement of a read: how the copy is packed, the shape and strides by which the program views it,
    coordinates.
    """

    read: Numbered
    packed: Shape
    first: Shape
    """The first source index of the copy along each dimension; zeros are copied for indices below 0."""
    shape: Shape
    strides: Shape
    over: dict[Expr, Symbol]
    at: tuple[Expr, ...]
    run: Expr | None = None
    """The merged dimension of taps and channels; None: no dimensions are merged."""
    summed: tuple[Expr, ...] = ()
    """The dimensions that are contiguous in each row of a panel; (): the copy has the tensor's dimensions."""

    @property
    def is_view(self) -> bool:
        """True if no copy is needed: the tensor itself, viewed with `shape` and `strides`, has the elements that the
        read needs.
        """
        if self.read.order is not None:
            return False
        if self.summed:
            every = [s for d, s in self.read.over.items() if d not in self.summed]
            every += [self.read.over[d] for d in self.summed]
            return tuple(every) == self.read.at and prod(self.packed) == prod(self.read.shape)
        return self.packed == self.read.shape and not any(self.first)


def _in_rows(program: Program, product: Op, reads: Sequence[Numbered], reading: Reading) -> list[_ReplacedRead] | str:
    """Return a list of _ReplacedRead: reads of MMA operands, each with a copy that has aligned rows; or text: why there
    are none.

    In the copies, a filter tap and the channels become one dimension. If they cannot, rows are padded. `reads` are the
    reads of the operands of the MMA `product`; a read that needs no copy is not in the list. `reading` has the row
    pitches that bulk copies need.
    """
    merged = _with_merged_taps(program, product, reads, reading.pitch, reading.furthest)
    return merged or _with_padded_pitch(reads, reading)


def _with_k_last(
    program: Program, product: Op, reads: Sequence[Numbered], reading: Reading
) -> list[_ReplacedRead] | str:
    """Return a list of _ReplacedRead: reads of MMA operands, each with a copy that has a dimension of K last; or text:
    why none.

    `reads` are the reads of the operands of the MMA `product`. `reading` has the row pitches that bulk copies need. If
    rows of a copy would not have such a pitch, a tap and the channels become one dimension in the copy, or rows are
    padded.
    """
    moved = with_k_last(product, reads)
    if isinstance(moved, str):
        return moved
    new = [] if all(_has_pitch(read, reading) for read in moved) else _in_rows(program, product, moved, reading)
    if isinstance(new, str):
        return new
    others = [read for read in moved if read.order is not None and all(read is not each.read for each in new)]
    return [*new, *(_unpadded_copy(read) for read in others)]


def _has_pitch(read: Numbered, reading: Reading) -> bool:
    """True if the rows of the packed tensor that `read` reads have a pitch that bulk copies accept.

    That is, all strides but the last are multiples of `reading.pitch` bytes.
    """
    return all(step * read.bytes % reading.pitch == 0 for step in steps_of(read.shape)[:-1])


def _unpadded_copy(read: Numbered) -> _ReplacedRead:
    """Return a _ReplacedRead: `read` from an unpadded copy of its tensor.

    The copy's dimensions have the order of the coordinates of `read`.
    """
    return _ReplacedRead(read, read.shape, (0,) * len(read.shape), read.shape, steps_of(read.shape), read.over, read.at)


def _with_padded_k(
    program: Program, product: Op, reads: Sequence[Numbered], free: Collection[Op], reading: Reading
) -> list[_ReplacedRead] | str:
    """Return a list of _ReplacedRead: the reads of both MMA operands, from copies with K padded with zeros; or text:
    why none.

    K is a summed dimension that is the last of both tensors. Only the MMA `product`, its `reads` and loops of `free`
    may use it. `free` holds the loops that give the same result for every tile size. `reading` has the row pitches that
    bulk copies need.
    """
    one, two = (v.type.dims for v in product.operands[:2])
    for k in (d for d in one if d in two and d not in product.result.type.dims):
        if any(read.at[-1] is not read.over[k] or read.shape[-1] != read.extent(k) for read in reads):
            continue
        if not _is_private_dim(program, product, reads, k, free=free):
            return f"{k} is used elsewhere"
        padded_k = reading.padded(reads[0].extent(k), reads[0].bytes)
        replacements = []
        for read in reads:
            packed, over = (*read.shape[:-1], padded_k), {**read.over, k: symbol(read.over[k].name, 0, padded_k - 1)}
            at, first = (*read.at[:-1], over[k]), (0,) * len(packed)
            replacements.append(_ReplacedRead(read, packed, first, packed, steps_of(packed), over, at, k))
        return replacements
    return "no dimension that is summed is the last of both factors"


def _with_padded_pitch(reads: Sequence[Numbered], reading: Reading) -> list[_ReplacedRead] | str:
    """Return a list of _ReplacedRead: those of `reads` with a row pitch that bulk copies refuse, from copies with
    padded rows.

    Return text if bulk copies accept all pitches. `reading` has the pitches that bulk copies need.
    """
    replacements = []
    for read in reads:
        if _has_pitch(read, reading):
            continue
        padded_shape = (*read.shape[:-1], reading.padded(read.shape[-1], read.bytes))
        replacements.append(
            _ReplacedRead(
                read, padded_shape, (0,) * len(padded_shape), read.shape, steps_of(padded_shape), read.over, read.at
            )
        )
    return replacements or "rows lie far enough apart"


def _with_merged_taps(
    program: Program, product: Op, reads: Sequence[Numbered], pitch: int, furthest: int
) -> list[_ReplacedRead] | None:
    """Return a list of _ReplacedRead: the reads of both MMA operands, from copies with a filter tap and the channels
    merged.

    None if no pair of tap and channels is contiguous in both operands and used by nothing else. `reads` are the reads
    of the operands of the MMA `product`. Image lines and the distance of windows become multiples of `pitch` bytes.
    Another window coordinate with a step above `furthest` is split into window position and tap.
    """
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


def _in_panels(program: Program, product: Op, reads: Sequence[Numbered], pitch: int) -> list[_ReplacedRead] | str:
    """Return a list of _ReplacedRead: the reads of both MMA operands, from im2col panels (each row has all of K).

    Or return text: why there is none. `reads` are the reads of the operands of the MMA `product`. The MMA must sum at
    least two dimensions that nothing else uses, and the last coordinate of each read must not be below 0. Rows are
    padded to a multiple of `pitch` bytes.
    """
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
        packed = (*extents, padded_extent(length, pitch, read.bytes))
        j = symbol(read.over[summed[-1]].name, 0, length - 1)
        over = {d: read.over[d] for d in rows} | {summed[-1]: j}
        shape, at = (*extents, length), (*(read.over[d] for d in rows), j)
        first = (0,) * len(packed)
        replacements.append(_ReplacedRead(read, packed, first, shape, steps_of(packed), over, at, summed[-1], summed))
    return replacements


def _row_coordinate(read: Numbered, tap: Expr, channel: Expr | None) -> _WindowCoordinate | None:
    """Return the second-last coordinate of `read` as a window coordinate, step * position + `tap` + first.

    None if it has another form, or if (tap, channel) pairs are not contiguous in memory. For that, the last coordinate
    must be the index of `channel` alone and cover its dimension of memory. If `channel` is None, the last coordinate
    must be 0 in a dimension of extent 1.
    """
    if len(read.at) < 2:
        return None
    *outer, line, last = read.at
    channel_index = ZERO if channel is None else read.over[channel]
    extent = 1 if channel is None else int(read.over[channel].hi) + 1
    if last is not channel_index or read.shape[-1] != extent or any(channel_index in e.symbols for e in (*outer, line)):
        return None
    return _window_coordinate(read, len(outer), read.over[tap])


def _window_coordinate(read: Numbered, place: int, tap: Symbol | None = None) -> _WindowCoordinate | None:
    """Return coordinate number `place` of `read` as a window coordinate, step * position + tap + first.

    None if it has another form. `tap` is the iterator of the tap. If `tap` is None, the tap is the only iterator with
    factor 1 and more than one value. No other coordinate may use the tap.
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
    return None if taps[0] in position.symbols else _WindowCoordinate(position, step, taps[0], first)


def _is_private_dim(
    program: Program, product: Op, reads: Sequence[Numbered], *dims: Expr | None, free: Collection[Op] = ()
) -> bool:
    """True if only the MMA `product`, its `reads`, and loops of `free` use the dimensions `dims`; a None in `dims` is
    ignored.

    `free` holds the loops that give the same result for every tile size.
    """
    known = {product, *(r.op for r in reads)}
    types = [v.type for op in program.walk() if op not in known for v in (*op.operands, *op.results)]
    loops = [op.attrs["axis"] for op in program.walk() if op.name == "iterate" and op not in free]
    return not any(d in loops or any(d in getattr(kind, "dims", ()) for kind in types) for d in dims if d is not None)


def _in_runs(
    read: Numbered, line: _WindowCoordinate, tap_and_run: tuple[Expr, Expr], channels: int, pitch: int, furthest: int
) -> _ReplacedRead:
    """Return a _ReplacedRead: `read` from a copy in which a filter tap and `channels` channels are one dimension.

    `tap_and_run` is (dimension of the tap, dimension that stands for tap and channels in the copy). `line` is the
    window coordinate within an image line. Lines of the copy hold all windows, and are padded to a multiple of `pitch`
    bytes. Another window coordinate with a step above `furthest` is split into window position and tap.
    """
    tap, run = tap_and_run
    last = len(read.at) - 2
    walks: dict[int, _WindowCoordinate] = {last: line}
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
            dims_of_copy = [(packed[place], step, read.at[place])]
        else:
            window = walks[place]
            dims_of_copy = (
                [(window.positions, window.step * step, window.position)]
                if not isinstance(window.position, Const)
                else []
            )
            dims_of_copy += [(int(window.tap.hi) + 1, step, window.tap)] if place != last else []
        for extent, stride, coordinate in dims_of_copy:
            shape.append(extent)
            strides.append(stride)
            at.append(coordinate)
    return _ReplacedRead(read, tuple(packed), tuple(first), (*shape, length), (*strides, 1), over, (*at, j), run)


def _is_misaligned(packed: Sequence[int], pitch: int, size: int) -> bool:
    """True if an image line of a tensor of shape `packed`, with elements of `size` bytes, is no multiple of `pitch`
    bytes.

    An image line is the last two dimensions.
    """
    return packed[-2] * packed[-1] * size % pitch != 0


def _with_replaced_reads(
    program: Program,
    sizes: Mapping[Symbol, int],
    shapes: Mapping[Value, Shape],
    free: Collection[Op],
    replacements: list[_ReplacedRead],
) -> RepackedProgram:
    """Return the program with the reads in `replacements` replaced, as a RepackedProgram with a program for each copy
    needed.

    `sizes` is {dimension: extent}, `shapes` is {argument: extents}; the result has both for the new program. `free`
    holds the loops that give the same result for every tile size; the result has the copies of these loops in the new
    program.
    """
    copies, swapped, replacement_of = [], {}, dict[Value, Value]()
    all_sizes, extents = dict(sizes), dict(shapes)
    for replacement in replacements:
        source, kind = replacement.read.source, replacement.read.op.result.type
        name = source.name or ""
        if not replacement.is_view:
            name = unused_name(program, f"{source.name}_rows")
            copies.append(_copy(program, replacement, name))
        dims, attrs = source.type.dims, replacement.read.op.attrs
        if replacement.run is not None:
            dims = tuple(symbol(f"{name}_{n}", 1) for n in range(len(replacement.shape)))
            all_sizes |= {
                **dict(zip(dims, replacement.shape, strict=True)),
                **dict.fromkeys(replacement.run.symbols, replacement.shape[-1]),
            }
            attrs = {**attrs, "over": tuple(replacement.over.values()), "at": replacement.at}
        elif replacement.read.order is not None:
            dims = tuple(dims[n] for n in replacement.read.order)
            attrs = {**attrs, "over": tuple(replacement.over.values()), "at": replacement.at}
        replaced_argument = replacement_of[source] = Value(
            MemoryType(kind.dtype, dims, strides=replacement.strides), name
        )
        extents[replaced_argument] = replacement.shape
        result = Value(TileType(kind.dtype, tuple(replacement.over)), replacement.read.op.result.name)
        swapped[replacement.read.op] = Op(
            replacement.read.op.spec, (replaced_argument,), attrs, (result,), loc=replacement.read.op.loc
        )
    values = {op.result: new_read.result for op, new_read in swapped.items()}
    copy_of_op: dict[Op, Op] = {}
    body = with_ops(program.body, swapped, values, copy_of_op)
    merged_symbols = {s for replacement in replacements if replacement.run is not None for s in replacement.run.symbols}
    bindings = {s: e for s, e in program.bindings.items() if s not in merged_symbols}
    rewritten = replace(
        program, body=body, bindings=bindings, args=tuple(replacement_of.get(a, a) for a in program.args)
    )
    verify(rewritten)
    return RepackedProgram(
        rewritten,
        all_sizes,
        extents,
        tuple(copy_of_op.get(op, op) for op in free),
        tuple(copies),
        tuple(a.name or "" for a in replacement_of),
    )


def _copy(program: Program, replacement: _ReplacedRead, name: str) -> FactorCopy:
    """Return the program that makes the copy for `replacement`, and writes it to a new argument called `name`, as a
    FactorCopy.

    Elements that the source lacks are zeros. A copy that only reorders dimensions is a transpose. If the copy has the
    source's order, unchanged dimensions are merged.
    """
    if (
        replacement.read.order is not None
        and replacement.packed == replacement.read.shape
        and not any(replacement.first)
    ):
        return transposed_copy(program, replacement.read, name)
    count = prod(replacement.packed)
    flat = element_number(count)
    if replacement.summed:
        source_shape, at = replacement.read.shape, _panel_source(replacement, flat)
    elif replacement.read.order is not None:
        source_shape, at = _from_source_order(replacement, flat)
    else:
        source_shape, extents, first = _merged(replacement.read.shape, replacement.packed, replacement.first)
        at = tuple(place + begin for place, begin in zip(digits(flat, extents), first, strict=True))
    words = (
        f"{replacement.read.source.name} is copied with zeros to rows of {replacement.packed[-1]} in "
        f"{replacement.packed}, from {replacement.read.shape[-1]} in {replacement.read.shape}"
    )
    return copying_program(program, replacement.read.source, name, source_shape, count, at, words)


def _from_source_order(replacement: _ReplacedRead, flat: Symbol) -> tuple[Shape, tuple[Expr, ...]]:
    """Return (shape of the source, coordinates in the source of element number `flat` of the copy).

    Both have the source's order of dimensions. `replacement` describes a copy in another order:
    `replacement.read.order` must not be None.
    """
    assert replacement.read.order is not None
    packed_of = dict(
        zip(
            replacement.read.order,
            zip(digits(flat, replacement.packed), replacement.first, replacement.read.shape, strict=True),
            strict=True,
        )
    )
    source_dims = [packed_of[n] for n in range(len(packed_of))]
    return tuple(extent for _, _, extent in source_dims), tuple(e + first for e, first, _ in source_dims)


def _panel_source(replacement: _ReplacedRead, flat: Symbol) -> tuple[Expr, ...]:
    """Return the source coordinates of element number `flat` (row-major) of the im2col panel that `replacement`
    describes.

    In the padding of a row, the last coordinate is out of bounds, so that zeros are copied.
    """
    read, length = replacement.read, replacement.shape[-1]
    *places, along = digits(flat, replacement.packed)
    rows = [s for d, s in read.over.items() if d not in replacement.summed]
    taps = [read.over[d] for d in replacement.summed]
    extents = tuple(int(s.hi) + 1 for s in taps)
    images = Substitution(dict(zip((*rows, *taps), (*places, *digits(along, extents)), strict=True)))
    *outer, last = (images(e) for e in read.at)
    return (*outer, last + read.shape[-1] * (along // length))


def _merged(source: Shape, packed: Shape, first: Shape) -> tuple[Shape, Shape, Shape]:
    """Return `source` and `packed` (shapes of source and copy) and `first` with as few dimensions as possible.

    `first` is the source index of the copy's first element along each dimension. A dimension of equal extent in both
    shapes, with first index 0, is merged with the one before.

    >>> _merged((32, 224, 224, 3), (32, 224, 230, 4), (0, 0, -3, 0)), _merged((4, 5), (4, 5), (0, 0))
    (((7168, 224, 3), (7168, 230, 4), (0, -3, 0)), ((20,), (20,), (0,)))
    """
    merged: list[tuple[int, int, int]] = []
    for extent, wide, begin in zip(source, packed, first, strict=True):
        if merged and extent == wide and not begin:
            merged[-1] = (merged[-1][0] * extent, merged[-1][1] * extent, merged[-1][2] * extent)
        else:
            merged.append((extent, wide, begin))
    a, b, c = zip(*merged, strict=True)
    return a, b, c
