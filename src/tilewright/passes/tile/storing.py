"""Results that leave through shared memory: from registers to tiles there, which the machine copies out by itself."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from tilewright.algebra import Swizzle
from tilewright.algebra.expr import ONE, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.formula import Formula
from tilewright.machine import CopyAtom
from tilewright.passes.tile.values import Load, Tile, load, loads
from tilewright.passes.tile.writer import extent, split
from tilewright.plan.model import element_bytes
from tilewright.plan.patches import rows_of

if TYPE_CHECKING:
    from tilewright.passes.tile.general import Lowering
    from tilewright.passes.tile.memory import Write


ROWS_SWIZZLED = 3
"""A chunk's number is changed by so many bits of its row's: eight rows differ, as many as there are banks of chunks."""


def _leaving(low: Lowering) -> CopyAtom | None:
    """The copy of the machine's own that brings results from shared memory to arguments."""
    if low.machine is None:
        return None
    return next((a for a in low.machine.copies_between("shared", "global") if a.asynchronous and a.rows), None)


def through_shared(low: Lowering, to: Write) -> bool:
    """Writes a result of sums in registers, some columns at a time; False where it is none."""
    _need_outside(low, to)
    sums = {each.tensor for each in loads(to.formula) if each.tensor in low.sums}
    if not sums:
        return False
    if len(sums) > 1:  # such as a sum that is divided by what its row has
        made = low.stored(Tile(to.dtype, to.dims, to.parts, to.formula), name="made")
        to.formula, sums = made.formula, {each.tensor for each in loads(made.formula) if each.tensor in low.sums}
    if len(sums) != 1:
        return False
    (held,) = sums
    if len(low.sums[held]) != 2:
        return False
    m, n = low.sums[held]
    rows, columns = to.parts[m][1], to.parts[n][1]
    atom = _leaving(low)
    size = element_bytes(to.dtype)
    row = next((n for n in atom.rows if columns * size % n == 0), None) if atom is not None else None
    if (
        atom is None
        or row is None
        or (set(to.dims) - {m, n} and any(to.parts[d][1] > 1 for d in set(to.dims) - {m, n}))
    ):
        return False
    wide = row // size
    swizzle = Swizzle((row // atom.chunk).bit_length() - 1, (atom.chunk // size).bit_length() - 1, ROWS_SWIZZLED)
    tile = low.w.alloc(to.dtype, (rows, wide), "result", swizzle)
    with low.w.loop("j", columns // wide, unroll=True) as j:
        i, c = low.w.axes((rows, wide))
        places = {low.coordinate(d): part[0] for d, part in to.parts.items()}
        places |= {low.coordinate(m): to.parts[m][0] + i, low.coordinate(n): to.parts[n][0] + wide * j + c}
        images = Substitution(places)
        part = low.w.emit("view", (held,), over=(i, c), at=((i, False), (wide * j + c, False))).result
        part.name = low.w.fresh("columns")
        low.w.map(tile, (i, c), _looking_at(to.formula, held, load(part, i, c)), images)
        coordinates = [images(e) for e in to.access.at]
        _leave(low, to, tile, (i, c), coordinates)
    return True


def _leave(low: Lowering, to: Write, tile: Value, over: tuple[Symbol, Symbol], coordinates: list[Expr]) -> None:
    """Copies a tile of results to where its rows and columns belong: rows that are a box of positions as one, those
    that run on from line to line image by image, without what lies behind the last line."""
    i, c = over
    walk, w = low.cuts.walk, low.w
    (how,) = low.cuts.products.values() if walk is not None else (None,)
    with ExitStack() as loops:
        axes: tuple[Symbol, ...] = over
        images = Substitution({})
        if walk is not None and how is not None:
            each = rows_of(walk, how)
            image = loops.enter_context(w.loop("g", how.rows // each, unroll=True))
            line, place, column = w.axes((walk.lines, walk.pitch, extent(c)))
            axes = line, place, column
            images = Substitution({i: each * image + walk.pitch * line + place, c: column})
        places = [images(e) for e in coordinates]
        marks = [not ((e >= 0) is ONE and (e < n) is ONE) for e, n in zip(places, to.access.shape, strict=True)]
        axes, digits = split(axes, places)
        goal = w.view(to.access.tensor, axes, [(digits(e), mark) for e, mark in zip(places, marks, strict=True)])
        source = w.view(tile, axes, [(digits(images(x)), False) for x in over])
        low.taken.append(w.emit("copy", (source, goal)))


def _looking_at(formula: Formula, tensor: Value, other: Formula) -> Formula:
    """The formula with another operand for what it takes from a tensor."""
    if formula.name == "operand" and isinstance(formula.value, Load) and formula.value.tensor is tensor:
        return other
    return Formula(formula.name, tuple(_looking_at(f, tensor, other) for f in formula.parts), formula.value)


def _need_outside(low: Lowering, to: Write) -> None:
    """That what tasks at the edges compute too much lies outside the argument, where it is not stored."""
    for d in to.dims:
        width, extent = to.parts[d][1], low.size(d)
        if as_expr(extent % width) is as_expr(0):
            continue
        past: dict[Expr, Expr] = {low.coordinate(d): symbol("past", extent)}
        images = Substitution(past)
        if not any((images(e) >= n) is ONE for e, n in zip(to.access.at, to.access.shape, strict=True)):
            raise ProgramError(f"what lies past the end of {d} cannot be shown to lie outside what is written")
