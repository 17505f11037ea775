"""A contraction by vectors, pass by pass: each number of the rows' factor times vectors of columns.

The rows stay where they lie. Loops over outer digits of the depth run only where the tensor is; single rows that fall
outside are skipped, which is settled where the first and the last block of a line are peeled off.
"""

from __future__ import annotations

from typing import Any

from tilewright.algebra.expr import Expr
from tilewright.passes.contraction.draft import Draft, Round
from tilewright.passes.contraction.text import batch_at, ending, flat_index, limits, named, places
from tilewright.plan.contraction import size
from tilewright.plan.forms import COLUMNS, VectorForm


def _form(d: Draft) -> VectorForm:
    assert isinstance(d.form, VectorForm)
    return d.form


def place(d: Draft) -> None:
    """Tasks over strips of rows and parts of columns; within one, loops over lines and blocks of sums."""
    form, c = _form(d), d.c
    last = c.rows[-1]
    full, tail = divmod(size(last), form.rows)
    lines, only, first, end = [], None, "0", str(full)
    if len(c.rows) > 1:
        line = c.rows[-2]
        strips = -(-size(line) // form.strip)
        span = f"{form.strip}*strip..min({form.strip}*(strip + 1), {size(line)})" if strips > 1 else f"0..{size(line)}"
        lines = [f"{line.name} in {span}"]
    else:
        per = form.strip // form.rows
        strips = max(1, -(-full // per))
        if strips > 1:
            first, end, only = f"{per}*strip", f"min({per}*(strip + 1), {full})", f"strip == {strips - 1}"
    d.tasks = d.task_ranges(f"strip in 0..{strips}" if strips > 1 else None)
    if full:
        peel = " peel [1, 1]" if c.a.conditions() and only is None else ""
        start = form.rows * named("block", full)
        d.rounds.append(Round(form.rows, start, _loops(d, [*lines, f"block in {first}..{end}{peel}"])))
    if tail:
        d.rounds.append(Round(tail, full * form.rows, _loops(d, lines), only, sums="%rest_"))


def _loops(d: Draft, rows: list[str]) -> list[str]:
    ranges = [d.columns_range, *rows] if d.form.order[0] == COLUMNS else [*rows, d.columns_range]
    return [f"for {r}" for r in ranges]


def stage(d: Draft) -> None:
    """Rows are read in place: nothing to do."""


def multiply(d: Draft) -> None:
    """Sums in registers, and the products of every block."""
    form, c = _form(d), d.c
    for r in d.rounds:
        d.held.append(
            f"{r.sums} = alloc register {c.sum_dtype} ({r.rows}, {form.columns}) as {form.atom.name}.c",
        )
        r.body += [f"fill {r.sums} {_number(c.start)}", *_products(d, r)]


def _products(d: Draft, r: Round) -> list[str]:
    form, c = _form(d), d.c
    line, last = c.rows[-1], c.depth[-1]
    extents = {x.name: x for x in c.depth[:-1]}
    outer = {*c.batch, *c.rows[:-1]}
    settled: frozenset[Expr] = frozenset()
    opened: list[str] = []
    step = 1
    for s in form.steps:
        if s.digit == last.name:
            if s.written:  # what one product takes
                continue
            step = s.size
            opened.append(f"for e in 0..{size(last) // step}")
            continue
        digit = extents[s.digit]
        span = None if s.written else limits(c.a, digit, outer)
        if span is not None:
            settled |= span[2]
            opened.append(f"for {digit.name} in {span[0]}..{span[1]}")
        else:
            opened.append(f"for {digit.name} in 0..{size(digit)}{' unroll' if s.written else ''}")
    i, k, e = named("i", r.rows), named("k", step), named("e", size(last) // step)
    depth: dict[Any, Any] = {x: named(x.name, size(x)) for x in c.depth[:-1]}
    at = {line: r.start + i, **depth, last: step * e + k}
    whole = flat_index(c.depth, {**depth, last: step * e + k})
    taps = places(c.a, at, settled)
    group = [f"{whole // form.group}", "j", f"{(step * e + k) % form.group}"]
    skip = " skip" if "?" in taps else ""
    lines = [
        f"%taps_ = view %{c.a.name} (i {r.rows}, k {step}) -> {taps}",
        f"%columns_ = view %packed_ (k {step}, j {form.columns}) -> [{batch_at(c)}f, {', '.join(group)}]",
        f"mma {r.sums} += %taps_ * %columns_ using {form.atom.name}{skip}",
    ]
    for loop in reversed(opened):
        lines = [f"{loop} {{", *("  " + each for each in lines), "}"]
    return lines


def finish(d: Draft) -> None:
    """What becomes of a block of sums: the epilogue, and the store; columns past the last are dropped."""
    form, c = _form(d), d.c
    (column,) = c.columns
    f, j = named("f", d.blocks), named("j", form.columns)
    for r in d.rounds:
        ends = {c.rows[-1]: r.start + named("i", r.rows), column: form.columns * f + j}
        ragged = bool(size(column) % form.columns)
        r.ending += ending(c, r.sums, r.rows, form.columns, ends, "", ragged)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
