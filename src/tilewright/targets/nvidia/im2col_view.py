"""Conditions under which TMA's im2col form can copy between views: an axis of the box counts pixels of images.

The number of a pixel is one axis of the box plus the number at which it begins. Along each spatial dimension, fastest
first, the coordinate is `step * digit + tap`. The digits are those of the pixel's number x: `x % Q`, then `x // Q % P`;
the image is the rest, `x // (P*Q)`. Q, P and the image's extents may be open; the taps of a filter are numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.algebra import Expr, Symbol, is_nonneg, substitute
from tilewright.algebra.expr import ONE, ZERO, Const, Mod, as_expr
from tilewright.algebra.expr_rules import linear
from tilewright.machine import Condition, MemoryView, Refused, ViewRequest, is_number
from tilewright.machine.views import weight
from tilewright.targets.nvidia.tma_tile import TmaTile
from tilewright.targets.nvidia.tma_view import map_conditions, near_tile, sides, start_conditions

# by the number of spatial dimensions: bits of a corner (signed), bits of an offset (unsigned)
CORNER_BITS = {1: 16, 2: 8, 3: 5}
OFFSET_BITS = {1: 16, 2: 8, 3: 5}
MOST_CHANNELS, MOST_PIXELS, MOST_STEP = 256, 1024, 8


@dataclass(frozen=True)
class TapWalk:
    """The movement of pixels along one spatial dimension: `count` positions in steps of `step`, plus the tap's
    offset."""

    dimension: int
    step: int
    count: Expr
    taps: Expr


def im2col_conditions(request: ViewRequest) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which im2col instructions can do the copy `request` from a view in
    global memory to a view in shared memory. Raise Refused, while iterating, if no sizes allow the copy.
    """
    near, far = sides(request, loads=True)
    tile = near_tile(request, near, most=2)
    if len(tile.order) < 2:
        raise Refused("a column has several channels and several pixels")
    _need_column(tile)
    channel, pixel = (request.axes[d] for d in tile.order)
    ranks = len(far.coordinates) - 2
    if ranks not in CORNER_BITS:
        raise Refused(f"an image has 3 to 5 dimensions, channels last; {far.name} has {len(far.coordinates)}")
    last = far.coordinates[-1]
    if not is_number(weight(last, channel), 1) or pixel in last.symbols:
        raise Refused(f"the last dimension of {far.name} is not walked by the channels alone")
    used = {s for c in far.coordinates for s in c.symbols}
    idle = [d for d, axis in enumerate(request.axes) if request.box[d] > 1 and axis not in used]
    if idle:
        raise Refused(f"dimension {idle[0]} of the box walks no dimension of {far.name}")
    for walk in walks(far, channel, pixel):
        yield from _walk_conditions(far, walk, ranks)
    yield from start_conditions(request, far, len(far.coordinates) - 1, substitute(last, {channel: 0}))
    yield from map_conditions(request, far, list(reversed(list(enumerate(far.strides)))))


def _need_column(tile: TmaTile) -> None:
    """Raise Refused if one instruction's box of `tile` has more than 256 channels or more than 1024 pixels, the most
    that an im2col instruction copies.
    """
    channels, pixels = (tile.box[d] for d in tile.order)
    if channels > MOST_CHANNELS or pixels > MOST_PIXELS:
        raise Refused(
            f"a column of {pixels} pixels and {channels} channels is more than {MOST_PIXELS} and {MOST_CHANNELS}"
        )


def walks(far: MemoryView, channel: Symbol, pixel: Symbol) -> Iterator[TapWalk]:
    """Yield the TapWalk of each spatial dimension (W, H, ...) of the view `far` in global memory: how its coordinate
    depends on the pixel number. `channel` and `pixel` are the box's axes over channels and over pixels. Raise Refused,
    while iterating, unless pixels are counted along lines first, then from line to line, then through images.
    """
    flat: Expr = pixel  # the number of a pixel, as far as the digits so far tell it
    positions: Expr = ONE
    for d in range(len(far.coordinates) - 2, 0, -1):
        coordinate = far.coordinates[d]
        if channel in coordinate.symbols:
            raise Refused(f"the channels walk dimension {d} of {far.name} too")
        digits = [(t, c) for t, c in linear(coordinate)[1] if pixel in t.symbols]
        if not digits:
            yield TapWalk(d, 1, ONE, coordinate)
            continue
        (digit, step), rest = digits[0], digits[1:]
        if isinstance(digit, Mod) and not rest:
            flat, count = _pixel_number(far, d, digit.left, flat, positions, pixel), digit.right
        else:  # no further digit: all pixels lie within one image
            digit = flat // positions
            if not isinstance(digit.hi, int):
                raise _not_counted(far, d)
            step, count = _step_of(far, d, digit, pixel), as_expr(digit.hi + 1)
        yield TapWalk(d, step, count, coordinate - step * digit)
        positions = positions * count
    _pixel_number(far, 0, far.coordinates[0], flat, positions, pixel)


def _step_of(far: MemoryView, d: int, digit: Expr, pixel: Symbol) -> int:
    """Return the step of dimension `d` of the view `far`: the coordinate is step * `digit` plus terms without `pixel`.
    `digit` is the last digit of the pixel number. Raise Refused if no step from 1 to 8 fits.
    """
    for step in range(1, MOST_STEP + 1):
        if pixel not in (far.coordinates[d] - step * digit).symbols:
            return step
    raise _not_counted(far, d)


def _pixel_number(far: MemoryView, d: int, left: Expr, flat: Expr, positions: Expr, pixel: Symbol) -> Expr:
    """Return `flat` + `positions` * shift, such that this number divided by `positions` is `left`. The result is the
    pixel number that the coordinates of dimension `d` and of all faster dimensions of the view `far` have in common.

    `flat` is the pixel number that the faster dimensions have in common. `positions` is the product of their extents.
    `left` is the quotient that dimension `d` uses. Raise Refused if the shift depends on the axis `pixel`.
    """
    shift = left - flat // positions
    if pixel in shift.symbols:
        raise _not_counted(far, d)
    return flat + positions * shift


def _not_counted(far: MemoryView, d: int) -> Refused:
    """Return (not raise) the Refused that says that dimension `d` of `far`, the view in global memory, does not count
    pixels in the order of memory.
    """
    return Refused(
        f"the box does not count pixels of {far.name} along lines first, then from line to line and through images: "
        f"dimension {d} is at {far.coordinates[d]}"
    )


def _walk_conditions(far: MemoryView, walk: TapWalk, ranks: int) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which an im2col map can describe one spatial dimension of `far`, the
    view in global memory. `walk` is the movement along the dimension. `ranks` is the number of spatial dimensions.

    The map stores the lower and upper corner of each dimension in few bits; a condition says that a corner fits. Raise
    Refused, while the conditions are iterated, if a constant corner does not fit, if the step is less than 1 or more
    than 8, or if the tap offsets have no constant limits or differ too much.
    """
    if not 1 <= walk.step <= MOST_STEP:
        raise Refused(f"positions {walk.step} apart are more than {MOST_STEP}, or not forwards")
    least, most = walk.taps.lo, walk.taps.hi
    if not isinstance(least, int) or not isinstance(most, int):
        raise Refused(f"the taps along dimension {walk.dimension} of {far.name}, {walk.taps}, have no limits")
    bits = OFFSET_BITS[ranks]
    if most - least >= 1 << bits:
        raise Refused(f"taps {most - least} apart are more than an offset of {bits} bits can say")
    bits = CORNER_BITS[ranks]
    limit = 1 << bits - 1
    last = least + (walk.count - 1) * walk.step - (far.shape[walk.dimension] - 1)
    for corner in (ZERO + least, last):
        reason = (
            f"a corner of {corner} along dimension {walk.dimension} of {far.name} does not fit the {bits} bits it has"
        )
        if isinstance(corner, Const):
            if not -limit <= corner.value < limit:
                raise Refused(reason)
        elif not (is_nonneg(corner + limit) and is_nonneg(limit - 1 - corner)):
            yield Condition((corner >= -limit) & (corner < limit), reason)
