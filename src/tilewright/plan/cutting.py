"""What the plan of a contraction says, as cuts of its program over digits."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op
from tilewright.plan.contraction import Contraction, dimension, size
from tilewright.plan.forms import COLUMNS, LANES, ROWS, LaneForm, VectorForm, kept_digit
from tilewright.plan.general import Cuts
from tilewright.plan.lanes import own_rounds
from tilewright.plan.microkernel import LaneKernel, Microkernel


def digits_of(c: Contraction, form: VectorForm | LaneForm) -> tuple[Symbol, ...]:
    """The digits in the order in which the program's tiles have them: last of a sum is what vectors lie along."""
    kept = (kept_digit(c),) if isinstance(form, LaneForm) else ()
    return (*(d for d in c.batch if d not in kept), *c.rows, *c.columns, *kept, *c.depth)


def cuts_of(c: Contraction, form: VectorForm | LaneForm, product: Op) -> Cuts:
    """The cuts of a contraction; `product` is that of its program."""
    return _of_lanes(c, form, product) if isinstance(form, LaneForm) else _of_vectors(c, form, product)


def _of_vectors(c: Contraction, form: VectorForm, product: Op) -> Cuts:
    (column,) = map(dimension, c.columns)
    *lines, row = map(dimension, c.rows[-2:])
    pieces: dict[str, dict[Expr, int]] = {
        ROWS: {**dict.fromkeys(lines, 1), row: form.rows},
        COLUMNS: {column: form.columns},
    }
    widths = {ROWS: ((lines or [row])[0], form.strip), COLUMNS: (column, form.task_columns)}
    last: dict[Expr, int] = (
        {row: form.rows} if any(d is c.rows[-1] for d, _ in c.open) else {}
    )  # where it ends, only a call tells
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
        (digit,) = (d for d in c.depth if d.name == step.digit)
        found.setdefault(dimension(digit), (step.size, step.written))
    return found
