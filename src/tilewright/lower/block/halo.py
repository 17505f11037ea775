"""Halo tiles: the part of a tensor that a padded, overlapping read covers, copied to shared memory once.

%x_part = alloc shared bf16 (4, 66, 64)
copy %x_view -> %x_part else 0               lines 2*t - 1 to 2*t + 2, zero out of bounds
mma ... [i0 + r, i1 + s, c]                  every tap reads it in place

It is the box of memory that the access covers for the current parts. Windows of a convolution overlap, so that the box
is smaller than the read. If every lane has a box of results, each lane has a window of its own in memory:

%x_part = alloc shared bf16 (64, 32, 3, 6)   of 64 channels and 32 boxes of 1x4: 3x6 neighbours
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.ir.core import Op
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.lower.block import in_place
from tilewright.lower.block.accesses import TileAccess, marked
from tilewright.lower.block.lazy_tiles import Parts, load
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.writer import BlockWriter, split
from tilewright.plan.bound import BoundKernel


@dataclass(frozen=True)
class Box:
    """The box of memory that an access covers: its first coordinate and its extent along each memory dimension."""

    first: tuple[Expr, ...]
    widths: tuple[int, ...]


def box_of(low: Lowering, op: Op, access: TileAccess, dims: tuple[Expr, ...], parts: Parts) -> Box | None:
    """Return the Box of memory that the read `op` covers, if it has fewer elements than the read, as with sliding
    windows.

    `access` has the memory coordinates; `parts` is {dimension in `dims`: (first index, extent)}. Along rows of an MMA
    that uses the read, the box is padded to whole atoms. None if the box has no fewer elements, if a coordinate is not
    linear or has a negative factor, or if an extent is known only at the call.
    """
    sizes = {d: width for d in dims if isinstance(width := parts[d][1], int)}
    if len(sizes) < len(dims):
        return None
    spare = in_place.rows_past_the_end(low, op, parts)
    over = low.writer.axes([sizes[d] + spare.get(d, 0) for d in dims])
    images = low.scope.images(dims, parts, over)
    box = image_of([images(e) for e in access.at], over)
    return box if box is not None and prod(box.widths) < prod(sizes.values()) else None


def image_of(at: Sequence[Expr], over: Sequence[Symbol]) -> Box | None:
    """Return the Box (first coordinate and extent in each dimension) that the coordinates `at` cover.

    Each iterator in `over` runs from 0 to its upper bound. None if a coordinate is not linear in the iterators, or if a
    factor is negative or no constant.

    >>> from tilewright.algebra.expr import index
    >>> i, r = index("i", 8), index("r", 3)
    >>> image_of([i + r - 1, 2 * i], (i, r))
    Box(first=(<-1>, <0>), widths=(10, 15))
    """
    first, widths = [], []
    for e in at:
        form = linear_form(e, list(over))
        if form is None:
            return None
        width = 1
        for axis, step in form[0].items():
            if not isinstance(step, Const) or step.value < 0:
                return None
            width += step.value * int(axis.hi)
        first.append(form[1])
        widths.append(width)
    return Box(tuple(first), tuple(widths))


def window_of(low: Lowering, access: TileAccess, dims: tuple[Expr, ...], parts: Parts) -> Box | None:
    """Return the window of a read in a SIMT product: the Box of memory that one lane reads for its box of results.

    The Box's first coordinate depends on the lane. `access` has the memory coordinates; `parts` is {dimension in
    `dims`: (first index, extent)}. None if the Box has no fewer elements than the lane's reads, so that a copy saves
    nothing; if a coordinate is not linear or has a negative factor; if the plan does not unroll the products of K
    (`unrolled_terms`); or if an extent is known only at the call.
    """
    lane_dims = [d for d in dims if is_in_window(low.bound, d)]
    sizes = [width for d in lane_dims if isinstance(width := parts[d][1], int)]
    if len(sizes) < len(lane_dims) or low.bound.unrolled_terms is None:
        return None
    over = low.writer.axes(sizes)
    images = Substitution({low.scope.coordinate(d): parts[d][0] + i for d, i in zip(lane_dims, over, strict=True)})
    at = [images(e) for e in access.at]
    axes, digits = split(over, at)
    window = image_of([digits(e) for e in at], axes)
    return window if window is not None and prod(window.widths) < prod(sizes) else None


def is_in_window(bound: BoundKernel, dim: Expr) -> bool:
    """True if one lane computes all of its task's part of `dim`: the lane's box of results has `dim`, or tasks do not
    split `dim`.
    """
    return dim in bound.lane_box or dim not in bound.widths


def windowed(
    low: Lowering,
    access: TileAccess,
    box: Box,
    dims: tuple[Expr, ...],
    parts: Parts,
    dtype: DType,
    otherwise: float,
) -> Formula:
    """Emit the copy of the memory that a read of a SIMT product covers to a new shared tensor; return the formula that
    loads an element from there.

    Some dimensions of the read are split over lanes. Along the others, a lane computes a box of results, for which it
    reads a window (a box of memory). The tensor has the extents of the lane dimensions, then those of a window, without
    extents 1. `box` is the window of one lane, `access` has the memory coordinates, and `parts` is {dimension in
    `dims`: (first index, extent)}. `dtype` is the element type, and `otherwise` the value of elements out of bounds.
    """
    lane_dims = [d for d in dims if not is_in_window(low.bound, d)]
    longer = [n for n, width in enumerate(box.widths) if width > 1]
    sizes = [*(parts[d][1] for d in lane_dims), *(box.widths[n] for n in longer)]
    tensor = low.writer.alloc(dtype, sizes, f"{access.tensor.name}_part")
    over = low.writer.axes(sizes)
    images = Substitution({low.scope.coordinate(d): parts[d][0] + i for d, i in zip(lane_dims, over, strict=False)})
    window_index = dict(zip(longer, over[len(lane_dims) :], strict=True))
    places = [images(first) + window_index.get(n, 0) for n, first in enumerate(box.first)]
    view = low.writer.view(access.tensor, over, marked(places, access.shape))
    low.writer.emit("copy", (view, tensor), otherwise=otherwise)
    at = [access.at[n] - box.first[n] for n in longer]
    return load(tensor, *(low.scope.coordinate(d) - parts[d][0] for d in lane_dims), *at)


def staged(writer: BlockWriter, access: TileAccess, box: Box, dtype: DType, otherwise: float) -> Formula:
    """Emit the copy of a halo tile, the memory `box` that a read covers, to a new shared tensor of type `dtype`; return
    the formula that loads an element of the read from that tensor.

    `access` has the memory coordinates of the read; `otherwise` is the value of elements out of bounds.
    """
    tensor = writer.alloc(dtype, box.widths, f"{access.tensor.name}_part")
    over = writer.axes(box.widths)
    places = [first + i for first, i in zip(box.first, over, strict=True)]
    writer.copy(access.tensor, over, marked(places, access.shape), tensor, otherwise)
    return load(tensor, *(e - first for e, first in zip(access.at, box.first, strict=True)))
