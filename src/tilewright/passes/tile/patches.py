"""Patches: a dimension that is counted in digits, cut into boxes of them instead of runs of neighbours.

    %3 = read %x over=[n, p, q, r, s, c] at=[n, p + r - 1, q + s - 1, c] : bf16[M_2, M_1, M_0, K_2, K_1, K_0]
    %3 = read %x over=[t, i, r, s, c] at=[2*(t//49) + i//64, ..., 8*(t%7) + i%8 + s - 1, c] : bf16[M_box, M_in, ...]

The digits become two dimensions: which patch, and which element of it. Where a box does not divide a digit, patches at
the end go past it: what is read there is zero, and nothing is stored. Elements of a patch lie close together along all
digits, so what a product reads around them overlaps most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.algebra.expr import Expr, Symbol, symbol
from tilewright.ir.core import Program, building
from tilewright.ir.verifier import verify
from tilewright.passes.tile.rewriting import DimensionGroup, Regrouped


@dataclass(frozen=True)
class Patched:
    """A program over patches: the dimension that counts them, the one within, and the sizes of both."""

    program: Program
    outer: Symbol
    inner: Symbol
    sizes: dict[Symbol, int]


def in_patches(
    program: Program,
    sizes: Mapping[Symbol, int],
    name: str,
    digits: Sequence[Symbol],
    box: Sequence[int],
    lines: tuple[int, int] | None = None,
) -> Patched:
    """The program whose dimension `name` is counted by these digits, which stand side by side, cut into such boxes.

    `lines` are how many elements the last two digits take together, and how far lines lie apart there: elements run on
    from line to line, and those between lines, and behind the last, are no digits'.

    >>> from tilewright.ir.tile import parse_tile
    >>> tile = parse_tile('''tile moved(%x: global f32[P, Q], %y: global f32[P, Q])
    ...   symbols P, Q, p, q
    ... {
    ...   %0 = read %x over=[p, q] at=[p, q] : f32[P, Q]
    ...   write %0, %y over=[p, q] at=[p, q]
    ... }''')
    >>> digits = tile.args[0].type.dims
    >>> print(in_patches(tile, dict(zip(digits, (6, 10))), "M", digits, (2, 4)).program.body.ops[0].attrs["at"])
    (<2*(at_box//3) + at_in//4>, <4*(at_box%3) + at_in%4>)
    """
    counts = [-(-sizes[d] // n) for d, n in zip(digits, box, strict=True)]
    dims = symbol(f"{name}_box", 1), symbol(f"{name}_in", 1)
    inside = prod(box) if lines is None else prod(box[:-2]) * lines[0]
    t, i = symbol("at_box", 0, prod(counts) - 1), symbol("at_in", 0, inside - 1)
    which, within = _digits(t, counts), _digits(i, box)
    if lines is not None:
        each, pitch = lines
        *outer, row = _digits(i, (*box[:-2], each))
        within = [*outer, row // pitch, row % pitch]
    places: dict[Expr, Expr] = {d: n * a + b for d, n, a, b in zip(digits, box, which, within, strict=True)}
    ragged = lines is not None or any(sizes[d] % n for d, n in zip(digits, box, strict=True))
    with building():
        made = Regrouped([DimensionGroup(tuple(digits), dims, (t, i), places)], zeros=ragged)
        found = replace(program, body=made.body(program.body))
        verify(found)
    return Patched(found, *dims, dict(zip(dims, (prod(counts), inside), strict=True)))


def _digits(flat: Symbol, extents: Sequence[int]) -> list[Expr]:
    """The digits of a number, the last fastest."""
    after = [prod(extents[n + 1 :]) for n in range(len(extents))]
    return [flat // a % n if k else flat // a for k, (a, n) in enumerate(zip(after, extents, strict=True))]
