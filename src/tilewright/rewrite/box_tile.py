"""Tiles a flat dimension into boxes of its digits (mixed-radix parts) instead of runs of neighbours.

    %3 = read %x over=[n, p, q, r, s, c] at=[n, p + r - 1, q + s - 1, c] : bf16[M_2, M_1, M_0, K_2, K_1, K_0]
    %3 = read %x over=[t, i, r, s, c] at=[2*(t//49) + i//64, ..., 8*(t%7) + i%8 + s - 1, c] : bf16[M_box, M_in, ...]

The digits are replaced by two dimensions: the number of the box, and the element of the box; or by one dimension for
each digit within the box. If a box does not divide a digit, boxes at the end go past it: zeros are read there, and
nothing is stored. Elements of a box are near each other along all digits, so that the windows that an MMA reads around
them overlap most.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.algebra.expr import Expr, Symbol, as_expr, symbol
from tilewright.ir.core import Op, Program, building
from tilewright.ir.verifier import verify
from tilewright.rewrite.rewriter import DimensionGroup, Regrouped


@dataclass(frozen=True)
class ProgramInBoxes:
    """A program over boxes: the dimension `outer` that counts boxes, those within a box, their sizes, and the free
    loops.
    """

    program: Program
    outer: Symbol
    inner: tuple[Symbol, ...]
    sizes: dict[Symbol, int]
    free: frozenset[Op] = frozenset()


def in_boxes(
    program: Program,
    sizes: Mapping[Symbol, int],
    name: str,
    digits: Sequence[Symbol],
    box: Sequence[int],
    lines: tuple[int, int] | None = None,
    *,
    one_dim_per_digit: bool = False,
    free: Collection[Op] = (),
) -> ProgramInBoxes:
    """Return the program over boxes, as a ProgramInBoxes: one dimension counts boxes, others count within a box.

    They replace `digits`, neighbouring dimensions that are mixed-radix parts of the flat dimension `name`. `box` has
    the extent of a box along each digit. Within a box there is one flat dimension, or, with `one_dim_per_digit`, one
    for each extent above 1. `lines` is None; or, if a box continues from one image line to the next, (elements of a box
    along the last two digits, pitch of an image line). `sizes` is {dimension: extent}. `free` holds the loops that give
    the same result for every tile size.

    >>> from tilewright.ir.tile import parse_tile
    >>> tile = parse_tile('''tile moved(%x: global f32[P, Q], %y: global f32[P, Q])
    ...   symbols P, Q, p, q
    ... {
    ...   %0 = read %x over=[p, q] at=[p, q] : f32[P, Q]
    ...   write %0, %y over=[p, q] at=[p, q]
    ... }''')
    >>> digits = tile.args[0].type.dims
    >>> print(in_boxes(tile, dict(zip(digits, (6, 10))), "M", digits, (2, 4)).program.body.ops[0].attrs["at"])
    (<2*(at_box//3) + at_in//4>, <4*(at_box%3) + at_in%4>)
    """
    counts = [-(-sizes[d] // n) for d, n in zip(digits, box, strict=True)]
    t = symbol("at_box", 0, prod(counts) - 1)
    inside = _Inside.per_digit(digits, box) if one_dim_per_digit else _Inside.flat(name, box, lines)
    dims = outer_of(name), *inside.dims
    numbers = zip(digits, box, _digits(t, counts), inside.within, strict=True)
    places: dict[Expr, Expr] = {d: n * a + b for d, n, a, b in numbers}
    ragged = lines is not None or any(sizes[d] % n for d, n in zip(digits, box, strict=True))
    with building():
        rewrite = Regrouped([DimensionGroup(tuple(digits), dims, (t, *inside.axes), places)], zeros=ragged)
        rewritten = replace(program, body=rewrite.body(program.body))
        verify(rewritten)
    extents = dict(zip(dims, (prod(counts), *(int(s.hi) + 1 for s in inside.axes)), strict=True))
    return ProgramInBoxes(rewritten, dims[0], dims[1:], extents, frozenset(rewrite.kept[op] for op in free))


def outer_of(name: str) -> Symbol:
    """Return the symbol of the dimension that counts the boxes of the tiled dimension `name`: "M" gives M_box."""
    return symbol(f"{name}_box", 1)


def inner_of(digits: Sequence[Symbol], box: Sequence[int]) -> dict[Symbol, int]:
    """Return {dimension within a box: extent}, one for each dimension in `digits` along which the box is longer than 1.

    `box` has the extent of a box along each of `digits`. For example P, Q and (1, 4) give {Q_in: 4}.
    """
    return {symbol(f"{d}_in", 1): n for d, n in zip(digits, box, strict=True) if n > 1}


@dataclass(frozen=True)
class _Inside:
    """The dimensions within a box, an iterator along each, and the digits within the box as expressions of the
    iterators.
    """

    dims: tuple[Symbol, ...]
    axes: tuple[Symbol, ...]
    within: list[Expr]

    @classmethod
    def flat(cls, name: str, box: Sequence[int], lines: tuple[int, int] | None) -> _Inside:
        """Return an _Inside with one flat dimension: the index counts all elements of a box with the extents `box`,
        row-major.

        `name` is the dimension that is tiled: "M" gives the dimension M_in. `lines` is None; or, if the index also
        counts the padding between image lines, (elements along the last two extents, pitch of a line).
        """
        count = prod(box) if lines is None else prod(box[:-2]) * lines[0]
        i = symbol("at_in", 0, count - 1)
        within = _digits(i, box)
        if lines is not None:
            elements_of_lines, pitch = lines
            *outer, row = _digits(i, (*box[:-2], elements_of_lines))
            within = [*outer, row // pitch, row % pitch]
        return cls((symbol(f"{name}_in", 1),), (i,), within)

    @classmethod
    def per_digit(cls, digits: Sequence[Symbol], box: Sequence[int]) -> _Inside:
        """Return an _Inside with one dimension for each of `digits` along which the extent in `box` is above 1.

        `digits` are mixed-radix parts of a dimension, and `box` has an extent for each. Along the other digits, the
        index within a box is 0.
        """
        long = {d: symbol(f"at_in_{d}", 0, n - 1) for d, n in zip(digits, box, strict=True) if n > 1}
        within = [long[d] if d in long else as_expr(0) for d in digits]
        return cls(tuple(inner_of(digits, box)), tuple(long.values()), within)


def _digits(flat: Symbol, extents: Sequence[int]) -> list[Expr]:
    """Return the digits (mixed-radix parts) of the index `flat`, as expressions; the last digit is the fastest.

    `extents` are the extents of the digits. For example f and the extents (2, 4) give [f//4, f%4].
    """
    after = [prod(extents[n + 1 :]) for n in range(len(extents))]
    return [flat // a % n if k else flat // a for k, (a, n) in enumerate(zip(after, extents, strict=True))]
