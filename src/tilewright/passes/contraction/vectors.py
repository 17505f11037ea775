"""A contraction by vectors, pass by pass: each number of the rows' factor times vectors of columns.

The rows stay where they lie. Loops over outer digits of the depth run only where the tensor is; single rows that fall
outside are skipped, which is settled where the first and the last block of a line are peeled off.
"""

from __future__ import annotations

from typing import Any

from tilewright.algebra.expr import Expr, symbol
from tilewright.passes.contraction.draft import Draft, Round, nested
from tilewright.passes.contraction.text import batch_at, ending, extent, flat_index, limits, named, places
from tilewright.plan.contraction import coupled, size
from tilewright.plan.forms import COLUMNS, VectorForm
from tilewright.plan.opening import MOST


def _form(d: Draft) -> VectorForm:
    assert isinstance(d.form, VectorForm)
    return d.form


def place(d: Draft) -> None:
    """Tasks over strips of rows and parts of columns; within one, loops over lines and blocks of sums.

    Where taps may fall outside, the first and the last block of a line are rounds of their own.
    """
    form, c = _form(d), d.c
    last = c.rows[-1]
    if any(digit in c.rows[-2:] for digit, _ in c.open):
        _place_open(d)
        return
    full, tail = divmod(size(last), form.rows)
    only = None
    first, end = "0", str(full)
    if len(c.rows) > 1:
        line = c.rows[-2]
        strips = -(-size(line) // form.strip)
        span = f"{form.strip}*strip..min({form.strip}*(strip + 1), {size(line)})" if strips > 1 else f"0..{size(line)}"
        d.loops = [f"for {line.name} in {span}"]
    else:
        per = form.strip // form.rows
        strips = max(1, -(-full // per))
        if strips > 1:
            first, end, only = f"{per}*strip", f"min({per}*(strip + 1), {full})", f"strip == {strips - 1}"
    d.tasks = d.task_ranges(f"strip in 0..{strips}" if strips > 1 else None)
    across = [f"for {d.columns_range}"]
    if form.order[0] == COLUMNS:
        d.loops, across = [*across, *d.loops], []
    if not c.a.conditions():
        if full:
            start = form.rows * named("block", full)
            d.rounds.append(Round(form.rows, start, [f"for block in {first}..{end}", *across]))
    elif only is None:
        if full:
            d.rounds.append(Round(form.rows, 0, across, edge=True))
        if full > 2:
            start = form.rows * named("block", full)
            d.rounds.append(Round(form.rows, start, [f"for block in 1..{full - 1}", *across]))
        if full > 1:
            d.rounds.append(Round(form.rows, form.rows * (full - 1), across, edge=True))
    elif full:
        start = form.rows * named("block", full)
        d.rounds.append(Round(form.rows, start, [f"for block in {first}..{end}", *across], edge=True))
    if tail:
        d.rounds.append(Round(tail, full * form.rows, across, only, edge=True))


def _place_open(d: Draft) -> None:
    """Tasks and loops where the image's size, or the number of rows, is open: the last block has rows that are not."""
    form, c = _form(d), d.c
    last, rows = c.rows[-1], form.rows
    count = extent(c, last)
    across = [f"for {d.columns_range}"]
    if len(c.rows) > 1:
        line = c.rows[-2]
        d.tasks = d.task_ranges(f"{line.name} in 0..{extent(c, line)}")
        blocks = [f"for block in 0..ceildiv({count}, {rows}) peel [1, 1]"]
        loops = [*across, *blocks] if form.order[0] == COLUMNS else [*blocks, *across]
        d.rounds.append(Round(rows, rows * named("block", MOST), loops, edge=True))
        return
    per = form.strip // rows
    d.tasks = d.task_ranges(f"strip in 0..ceildiv({count}, {form.strip})")
    if form.order[0] == COLUMNS:
        d.loops, across = across, []
    span = f"for block in {per}*strip..min({per}*(strip + 1), ({count})//{rows})"
    d.rounds.append(Round(rows, rows * named("block", MOST), [span, *across]))
    whole = symbol("whole", 0, MOST)
    only = f"strip == ({count} - 1)//{form.strip} and ({count})%{rows} >= 1"
    d.rounds.append(
        Round(rows, rows * whole, [f"for whole in ({count})//{rows}..({count})//{rows} + 1", *across], only)
    )


def stage(d: Draft) -> None:
    """Rows are read in place: nothing to do."""


def multiply(d: Draft) -> None:
    """Sums in registers, and the products of every block."""
    form, c = _form(d), d.c
    for r in d.rounds:  # within the round: what another round sums must not hold registers here
        r.body += [
            f"%sums_ = alloc register {c.sum_dtype} ({r.rows}, {form.columns}) as {form.atom.name}.c",
            f"fill %sums_ {_number(c.start)}",
            *_products(d, r),
        ]


def _products(d: Draft, r: Round) -> list[str]:
    form, c = _form(d), d.c
    line, last = c.rows[-1], c.depth[-1]
    extents = {x.name: x for x in c.depth[:-1]}
    outer = {*c.batch, *c.rows[:-1], *c.parameters}
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
        at_edge = r.edge and coupled(c, digit)  # which rows a tap skips is known where it is written out
        written = s.written or at_edge
        span = None if written else limits(c.a, digit, outer)
        if span is not None:
            settled |= span[2]
            opened.append(f"for {digit.name} in {span[0]}..{span[1]}")
        elif at_edge and not s.written:  # outside of all loops: elements that taps share would be kept in registers
            opened.insert(0, f"for {digit.name} in 0..{size(digit)} unroll")
        else:
            opened.append(f"for {digit.name} in 0..{size(digit)}{' unroll' if written else ''}")
    i, k, e = named("i", r.rows), named("k", step), named("e", size(last) // step)
    depth: dict[Any, Any] = {x: named(x.name, size(x)) for x in c.depth[:-1]}
    at = {line: r.start + i, **depth, last: step * e + k}
    whole = flat_index(c.depth, {**depth, last: step * e + k})
    taps = places(c.a, at, settled)
    group = [f"{whole // form.group}", "j", f"{(step * e + k) % form.group}"]
    skip = " skip" if "?" in taps else ""
    lines = [
        f"%taps_ = view %{c.a.value} (i {r.rows}, k {step}) -> {taps}",
        f"%columns_ = view %packed_ (k {step}, j {form.columns}) -> [{batch_at(c)}f, {', '.join(group)}]",
        f"mma %sums_ += %taps_ * %columns_ using {form.atom.name}{skip}",
    ]
    return nested(opened, lines)


def finish(d: Draft) -> None:
    """What becomes of a block of sums: the epilogue, and the store; columns past the last are dropped."""
    form, c = _form(d), d.c
    (column,) = c.columns
    f, j = named("f", d.blocks), named("j", form.columns)
    for r in d.rounds:
        ends = {c.rows[-1]: r.start + named("i", r.rows), column: form.columns * f + j}
        ragged = bool(size(column) % form.columns)
        r.ending += ending(c, "%sums_", r.rows, form.columns, ends, ragged)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
