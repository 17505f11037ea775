"""What the plan of a contraction says, as cuts of its program over digits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr, Symbol, index
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op
from tilewright.plan.contraction import Contraction, Operand, dimension, over_joined, size
from tilewright.plan.forms import COLUMNS, LANES, ROWS, Form, LaneForm, TileForm, VectorForm, kept_digit
from tilewright.plan.general import Cuts
from tilewright.plan.lanes import own_rounds
from tilewright.plan.microkernel import LaneKernel, Microkernel
from tilewright.plan.sliding import halo_of
from tilewright.plan.tiled import Depth, Tiled, Walk


def in_lines(c: Contraction, form: Form) -> Contraction:
    """The contraction as a form takes it: rows that are staged are one digit, lines with what lies between them."""
    walk = _walk(c, form) if isinstance(form, TileForm) else None
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


def digits_of(c: Contraction, form: Form) -> tuple[Symbol, ...]:
    """The digits in the order in which the program's tiles have them: last of a sum is what vectors lie along."""
    kept = (kept_digit(c),) if isinstance(form, LaneForm) else ()
    return (*(d for d in c.batch if d not in kept), *c.rows, *c.columns, *kept, *c.depth)


def cuts_of(c: Contraction, form: Form, product: Op) -> Cuts:
    """The cuts of a contraction; `product` is that of its program, whose rows are `in_lines`."""
    if isinstance(form, TileForm):
        return _of_tiles(c, form, product)
    return _of_lanes(c, form, product) if isinstance(form, LaneForm) else _of_vectors(c, form, product)


def _of_tiles(c: Contraction, form: TileForm, product: Op) -> Cuts:
    walk, walked = _walk(c, form), in_lines(c, form)
    (column,), row = map(dimension, c.columns), dimension(walked.rows[-1])
    pieces: dict[str, tuple[Expr, int]] = {ROWS: (row, form.rows), COLUMNS: (column, form.columns)}
    width = form.strip if walk is None else walk.width
    steps = (Depth(_digit(c, s.digit), s.size, s.written) for s in form.steps)
    return Cuts(
        _tasks(walked, form.tasks, {ROWS: (row, width), COLUMNS: (column, form.task_columns)}),
        dict(pieces[axis] for axis in form.order),
        products={product: Microkernel(form.atom, form.rows, form.columns)},
        extended={column: form.columns},
        schedule=form.schedule,
        packed=True,
        tiled=Tiled(
            product,
            row,
            column,
            dimension(c.depth[-1]),
            tuple(steps),
            (form.streams in ("a", "both"), form.streams in ("b", "both")),
            form.overlap == "defer",
            walk,
            _shifts(c) if form.stage == "lines" else {},
        ),
    )


def _walk(c: Contraction, form: TileForm) -> Walk | None:
    """How the rows of a contraction lie that a task stages first; one digit of them is a line for each task."""
    if form.stage == "place":
        return None
    if len(c.rows) == 1:
        return Walk(1, -(-size(c.rows[-1]) // form.strip), form.strip, form.strip)
    halo, length = halo_of(c), size(c.rows[-1])
    pitch = length if halo is None or form.stage == "panel" else halo.line(c.a.shape[halo.column_dim])
    return Walk(form.strip, size(c.rows[-2]), length, pitch)


def _shifts(c: Contraction) -> dict[Expr, tuple[int, int]]:
    """Taps that read the lines of others, and how many lines and places further on."""
    halo = halo_of(c)
    assert halo is not None
    taps = ((halo.line_taps, (halo.line_step, 0)), (halo.column_taps, (0, halo.column_step)))
    return {dimension(tap): step for tap, step in taps if tap is not None}


def _of_vectors(c: Contraction, form: VectorForm, product: Op) -> Cuts:
    (column,) = map(dimension, c.columns)
    *lines, row = map(dimension, c.rows[-2:])
    pieces: dict[str, dict[Expr, int]] = {
        ROWS: {**dict.fromkeys(lines, 1), row: form.rows},
        COLUMNS: {column: form.columns},
    }
    widths = {ROWS: ((lines or [row])[0], form.strip), COLUMNS: (column, form.task_columns)}
    last: dict[Expr, int] = {row: form.rows} if c.rows[-1] in c.open else {}  # where it ends, only a call tells
    return Cuts(
        _tasks(c, form.tasks, widths),
        {d: n for axis in form.order for d, n in pieces[axis].items()},
        products={product: Microkernel(form.atom, form.rows, form.columns)},
        extended={column: form.columns, **last},
        depth=_depth(c, form),
        schedule=form.schedule,
        packed=True,
    )


def _of_lanes(c: Contraction, form: LaneForm, product: Op) -> Cuts:
    row, along = dimension(c.rows[-1]), dimension(kept_digit(c))
    whole = form.strip >= size(c.rows[-1])
    past = -(-(size(kept_digit(c)) % form.width) // form.atom.lanes) * form.atom.lanes == form.width
    widths = {ROWS: (row, form.strip if not whole else 0), LANES: (along, form.task_width)}
    return Cuts(
        {d: n for d, n in _tasks(c, form.tasks, widths).items() if n},
        {row: form.rows, along: form.width, **{dimension(d): 1 for d in c.columns}},
        extended={along: form.atom.lanes},
        apart={row: own_rounds(c, form.rows), along: (0, int(past))},
        lanes={product: LaneKernel(form.atom.lanes, row, along)},
        depth=_depth(c, form),
        schedule=form.schedule,
        packed=True,
    )


def _tasks(c: Contraction, tasks: tuple[str, ...], widths: Mapping[str, tuple[Symbol, int]]) -> dict[Expr, int]:
    """What a task takes of each dimension, in the order of the tasks' numbers; of others than these, one."""
    single = {d.name: (dimension(d), 1) for d in (*c.batch, *c.rows)}
    return dict({**single, **widths}[name] for name in tasks)


def _depth(c: Contraction, form: VectorForm | LaneForm) -> dict[Expr, tuple[int, bool]]:
    """The loops over the depth; of two cuts of a digit the first: the second is what one product takes."""
    found: dict[Expr, tuple[int, bool]] = {}
    for step in form.steps:
        found.setdefault(_digit(c, step.digit), (step.size, step.written))
    return found


def _digit(c: Contraction, name: str) -> Symbol:
    """The dimension of a digit of the depth, by its name."""
    (digit,) = (d for d in c.depth if d.name == name)
    return dimension(digit)
