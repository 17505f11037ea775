"""The part of a tensor that a read with padding looks at, copied once: a halo tile.

%x_part = alloc shared bf16 (4, 66, 64)
copy %x_view -> %x_part else 0               lines 2*t - 1 to 2*t + 2, what is out of bounds is zero
mma ... [i0 + r, i1 + s, c]                  every tap reads it where it lies

It is the image of the current parts under the access. A read whose elements overlap, the taps of a convolution, has an
image that is smaller than the read itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import linear_form
from tilewright.ir.core import Op
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.passes.tile import inplace
from tilewright.passes.tile.accesses import TileAccess, marked
from tilewright.passes.tile.values import Parts, load

if TYPE_CHECKING:
    from tilewright.passes.tile.general import Lowering


@dataclass(frozen=True)
class Box:
    """Where the image of the current parts starts along each dimension of memory, and how wide it is."""

    first: tuple[Expr, ...]
    widths: tuple[int, ...]


def box_of(low: Lowering, op: Op, access: TileAccess, dims: tuple[Expr, ...], parts: Parts) -> Box | None:
    """The image of a read, where it has the form of a box that is smaller than the read; None otherwise.

    Along the rows of a product that reads it, it is as wide as whole atoms ask.
    """
    sizes = {d: width for d in dims if isinstance(width := parts[d][1], int)}
    if len(sizes) < len(dims):
        return None
    spare = inplace.rows_past_the_end(low, op, parts)
    over = low.w.axes([sizes[d] + spare.get(d, 0) for d in dims])
    images = low.images(dims, parts, over)
    found = image_of([images(e) for e in access.at], over)
    return found if found is not None and prod(found.widths) < prod(sizes.values()) else None


def image_of(at: Sequence[Expr], over: Sequence[Symbol]) -> Box | None:
    """The box that coordinates take over axes that start at 0; None where they are not linear in them, and growing.

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


def staged(low: Lowering, access: TileAccess, box: Box, dtype: DType, otherwise: float) -> Formula:
    """Copies a read's image; gives what the read is then."""
    tensor = low.w.alloc(dtype, box.widths, f"{access.tensor.name}_part")
    over = low.w.axes(box.widths)
    places = [first + i for first, i in zip(box.first, over, strict=True)]
    low.w.copy(access.tensor, over, marked(places, access.shape), tensor, otherwise)
    return load(tensor, *(e - first for e, first in zip(access.at, box.first, strict=True)))
