"""What the plan of a contraction says, as cuts of its program over digits."""

from __future__ import annotations

from dataclasses import replace

from tilewright.algebra.expr import Expr, Symbol, index
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op
from tilewright.machine import MultiplyAtom
from tilewright.plan.blocking import COLUMNS, LANES, ROWS, Blocking, kept_digit, up
from tilewright.plan.contraction import Contraction, Operand, dimension, over_joined, size
from tilewright.plan.general import Cuts
from tilewright.plan.lanes import own_rounds
from tilewright.plan.microkernel import Axes, LaneKernel, Microkernel
from tilewright.plan.sliding import halo_of
from tilewright.plan.tiled import Depth, Tiled, Walk


def in_lines(c: Contraction, how: Blocking) -> Contraction:
    """The contraction as a blocking takes it: rows that are staged are one digit, lines with what lies between them."""
    walk = _walk(c, how)
    if walk is None or len(c.rows) == 1:
        return c
    *others, line, place = c.rows
    whole = index("rows_0", walk.extent)
    images = Substitution({line: whole // walk.pitch, place: whole % walk.pitch})

    def moved(operand: Operand) -> Operand:
        return replace(operand, coordinates=tuple(map(images, operand.coordinates)))

    a, out, *extras = map(moved, (c.a, c.out, *c.extras))
    over = over_joined(c.over, (line, place), whole)
    return replace(c, rows=(*others, whole), a=a, out=out, extras=tuple(extras), over=over)


def digits_of(c: Contraction, how: Blocking) -> tuple[Symbol, ...]:
    """The digits in the order in which the program's tiles have them: last of a sum is what vectors lie along."""
    kept = (kept_digit(c),) if how.by_lanes else ()
    return (*(d for d in c.batch if d not in kept), *c.rows, *c.columns, *kept, *c.depth)


def cuts_of(c: Contraction, how: Blocking, product: Op) -> Cuts:
    """The cuts of a contraction; `product` is that of its program, whose rows are `in_lines`."""
    walk, walked = _walk(c, how), in_lines(c, how)
    *lines, row = map(dimension, walked.rows if how.in_tiles or how.by_lanes else walked.rows[-2:])
    axis, digit = (LANES, kept_digit(c)) if how.by_lanes else (COLUMNS, c.columns[0])
    inside, across = [] if how.in_tiles or how.by_lanes else lines, dimension(digit)
    pieces: dict[str, dict[Expr, int]] = {
        COLUMNS: {dimension(d): 1 for d in c.columns},
        ROWS: {**dict.fromkeys(inside, 1), row: how.rows},
        axis: {across: how.columns},
    }
    several = dict(how.singles)
    singles = {d.name: (dimension(d), several.get(d.name, 1)) for d in (*walked.batch, *walked.rows)}
    one_by_one: dict[Expr, int] = {singles[name][0]: 1 for name in several}
    widths = {ROWS: ((inside or [row])[0], how.strip if walk is None else walk.width), axis: (across, how.task_columns)}
    tasks: dict[Expr, int] = dict({**singles, **widths}[name] for name in how.tasks)
    found = Cuts(
        tasks,
        {**one_by_one, **{d: n for name in how.order for d, n in pieces[name].items()}},
        extended={across: how.columns},
        depth=tuple(Depth(dimension(c.summed(s.digit)), s.size, s.written) for s in how.steps),
        schedule=how.schedule,
        packed=True,
    )
    if not isinstance(how.atom, MultiplyAtom):
        if how.strip >= size(c.rows[-1]):
            del tasks[row]
        width, unit = how.columns, how.atom.lanes
        past = up(size(digit) % width, unit) == width
        ends: dict[Expr, tuple[int, int]] = {row: own_rounds(c, how.rows), across: (0, int(past))}
        by = {product: LaneKernel(unit, row, across)}
        return replace(found, extended={across: unit}, apart=ends, lanes=by)
    products: dict[Op, Microkernel | None] = {product: Microkernel(how.atom, how.rows, how.columns)}
    if not how.in_tiles:
        return replace(found, products=products)
    streams, shifts = ("a" in how.streams, "b" in how.streams), _shifts(c) if how.stage == "strip" else {}
    around = tuple(d for d in product.operands[2].type.dims if d not in (row, across))
    deep = dimension(c.depth[-1])
    taps = tuple(dict.fromkeys(s.dim for s in found.depth if s.dim is not deep))
    axes = Axes(row, across, deep, around, taps, swapped=False)
    return replace(found, products=products, walk=walk, overlap=how.overlap, tiled=Tiled(axes, streams, shifts))


def _walk(c: Contraction, how: Blocking) -> Walk | None:
    """How the rows of a contraction lie that a task stages first; one digit of them is a line for each task."""
    if not how.stage:
        return None
    if len(c.rows) == 1:
        return Walk(1, -(-size(c.rows[-1]) // how.strip), how.strip, how.strip)
    halo, length = halo_of(c), size(c.rows[-1])
    pitch = length if halo is None or how.stage == "panel" else halo.pitch
    return Walk(how.strip, size(c.rows[-2]), length, pitch)


def _shifts(c: Contraction) -> dict[Expr, tuple[int, int]]:
    """Taps that read the lines of others, and how many lines and places further on."""
    halo = halo_of(c)
    assert halo is not None
    steps = (halo.lines, (halo.lines.step, 0)), (halo.places, (0, halo.places.step))
    return {dimension(slide.tap): step for slide, step in steps if slide.tap is not None}
