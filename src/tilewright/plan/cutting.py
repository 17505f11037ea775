"""What the plan of a contraction says, as cuts of its program over digits."""

from __future__ import annotations

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op
from tilewright.plan.contraction import Contraction, dimension
from tilewright.plan.forms import COLUMNS, ROWS, VectorForm
from tilewright.plan.general import Cuts
from tilewright.plan.microkernel import Microkernel


def cuts_of(c: Contraction, form: VectorForm, product: Op) -> Cuts:
    """The cuts of a contraction by vectors; `product` is that of its program."""
    (column,) = map(dimension, c.columns)
    *lines, row = map(dimension, c.rows[-2:])
    task = {ROWS: (lines or [row])[0], COLUMNS: column}
    width = {ROWS: form.strip, COLUMNS: form.task_columns}
    pieces: dict[str, dict[Expr, int]] = {
        ROWS: {**dict.fromkeys(lines, 1), row: form.rows},
        COLUMNS: {column: form.columns},
    }
    names = {d.name: dimension(d) for d in (*c.batch, *c.rows, *c.depth)}
    return Cuts(
        {(names | task)[n]: width.get(n, 1) for n in form.tasks},
        {d: n for axis in form.order for d, n in pieces[axis].items()},
        products={product: Microkernel(form.atom, form.rows, form.columns)},
        extended=frozenset([column]),
        depth={names[s.digit]: (s.size, s.written) for s in form.steps[:-1]},
        schedule=form.schedule,
        packed=True,
    )
