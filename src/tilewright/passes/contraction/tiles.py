"""A contraction by tile products, pass by pass: tasks and loops, rows staged, products, results.

Rows are read from where they lie, or staged once a task, in planes of one tile's depth:

- `place`: rows lie at a constant stride, and the depth's last digit side by side; no copy.
- `lines`: the lines that a strip of rows needs are copied once, with their padding; each tap reads the same planes a
  little further on. Lines overlap: the zeros that end one also begin the next. Rows run over whole lines; those that
  fall on the overlap are computed and dropped.
- `panel`: every tap's elements are copied for each row. It fits any access.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright.algebra.expr import Expr
from tilewright.passes.contraction.draft import Draft, Packing, Round, nested
from tilewright.passes.contraction.text import (
    argument,
    batch_at,
    batch_shape,
    batch_tasks,
    by_rows,
    ending,
    finished,
    named,
    places,
    strip_view,
)
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.forms import COLUMNS, Step, TileForm, up
from tilewright.plan.sliding import halo_of


def packed_for_tiles(c: Contraction, form: TileForm) -> Packing:
    """[columns / block][outer digits of the depth][last / depth][tiles][depth / group][16][group]."""
    (column,) = c.columns
    last = c.depth[-1]
    depth, group, lanes = form.depth, form.group, form.atom.shape[1]
    tiles = form.columns // lanes
    blocks, chunks = up(size(column), form.columns) // form.columns, up(size(last), depth) // depth
    outer = c.depth[:-1]
    shape = (*batch_shape(c), blocks, *(size(d) for d in outer), chunks, tiles, depth // group, lanes, group)
    f, b = named("f", blocks), named("b", chunks)
    h, r, j, g = named("h", tiles), named("r", depth // group), named("j", lanes), named("g", group)
    taps = {d: named(d.name, size(d)) for d in outer}
    meanings = {column: form.columns * f + lanes * h + j, last: depth * b + group * r + g, **taps}
    axes = [*taps.values(), b, h, r, j, g]
    over = "(" + ", ".join(f"{a.name} {size(a)}" for a in axes) + ")"
    to = ", ".join(a.name for a in axes)
    lines = [
        f"block pack({argument('in', c.b)}, %packed_: out global {c.b.dtype} ({', '.join(map(str, shape))}))",
        "{",
        f"  tasks {', '.join([*batch_tasks(c), f'f in 0..{blocks}'])} {{",
        f"    %from_ = view %{c.b.value} {over} -> {places(c.b, meanings)}",
        f"    %to_ = view %packed_ {over} -> [{batch_at(c)}f, {to}]",
        "    copy %from_ -> %to_ else 0",
        "  }",
        "}",
    ]
    return Packing("\n".join(lines) + "\n", shape, c.b.dtype)


def _form(d: Draft) -> TileForm:
    assert isinstance(d.form, TileForm)
    return d.form


def _chunks(d: Draft) -> int:
    return up(size(d.c.depth[-1]), _form(d).depth) // _form(d).depth


# -- tasks and loops --------------------------------------------------------------------------------------


def place(d: Draft) -> None:
    """Tasks over strips of rows and parts of columns; within one, loops over blocks of sums."""
    form, c = _form(d), d.c
    last = c.rows[-1]
    if form.stage == "place":
        full, tail = divmod(size(last), form.rows)
        per = form.strip // form.rows
        strips = max(1, -(-full // per))
        d.tasks = d.task_ranges(f"strip in 0..{strips}" if strips > 1 else None)
        m = named("m", max(1, full))
        if full:
            span = f"m in {per}*strip..min({per}*(strip + 1), {full})" if strips > 1 else f"m in 0..{full}"
            d.rounds.append(Round(form.rows, form.rows * m, [_for(d, span)], deferred=form.overlap == "defer"))
        if tail:
            only = f"strip == {strips - 1}" if strips > 1 else None
            d.rounds.append(Round(form.rows, full * form.rows, [f"for {d.columns_range}"], only))
        return
    total = size(c.rows[-2]) if len(c.rows) > 1 else size(last)
    strips = -(-total // form.strip)
    d.tasks = d.task_ranges(f"strip in 0..{strips}" if strips > 1 else None)
    blocks = -(-_walked(d) // form.rows)
    m = named("m", blocks)
    d.rounds.append(
        Round(form.rows, form.rows * m, [_for(d, f"m in 0..{blocks}")], deferred=form.overlap == "defer"),
    )


def _for(d: Draft, rows: str) -> str:
    ranges = [d.columns_range, rows] if _form(d).order[0] == COLUMNS else [rows, d.columns_range]
    return f"for {', '.join(ranges)}"


def _line(d: Draft) -> int:
    """How far rows are from line to line."""
    form, last = _form(d), d.c.rows[-1]
    if len(d.c.rows) == 1:
        return form.strip
    if form.stage == "panel":
        return size(last)
    halo = halo_of(d.c)
    assert halo is not None
    return halo.line(d.c.a.shape[halo.column_dim])


def _lines(d: Draft) -> int:
    """The lines of a strip."""
    return _form(d).strip if len(d.c.rows) > 1 else 1


def _walked(d: Draft) -> int:
    """The rows of a strip that are computed: none behind its last."""
    line = _line(d)
    return _lines(d) * line - (line - size(d.c.rows[-1]) if len(d.c.rows) > 1 else 0)


# -- rows -------------------------------------------------------------------------------------------------


def stage(d: Draft) -> None:
    """Where a block's rows are read: in place, or from planes that the task fills first."""
    {"place": _in_place, "lines": _in_lines, "panel": _in_panel}[_form(d).stage](d)


def _in_place(d: Draft) -> None:
    form, c = _form(d), d.c
    (row,) = c.rows
    last = c.depth[-1]
    i, k = named("i", form.rows), named("c", form.depth)

    def view(chunk: Expr, r: Round) -> str:
        at = {row: r.start + i, last: form.depth * chunk + k}
        return f"%{c.a.value} (i {form.rows}, c {form.depth}) -> {places(c.a, at)}"

    d.rows_view = view


def _rows_at(d: Draft, width: int, lines: int) -> dict[Any, Any]:
    """The row digits within a strip: line l and place q."""
    c, form = d.c, _form(d)
    known: dict[Any, Any] = {x: named(x.name, size(x)) for x in c.rows[:-2]}
    q = named("q", width)
    total = size(c.rows[-2]) if len(c.rows) > 1 else size(c.rows[-1])
    strips = -(-total // form.strip)
    strip = named("strip", strips) if strips > 1 else named("strip", 1) * 0
    if len(c.rows) == 1:
        return {c.rows[-1]: form.strip * strip + q}
    return {**known, c.rows[-2]: form.strip * strip + named("l", lines), c.rows[-1]: q}


def _in_lines(d: Draft) -> None:
    c, form = d.c, _form(d)
    halo = halo_of(c)
    assert halo is not None
    chunks, line, width = _chunks(d), _line(d), halo.width()
    taps = 1 if halo.line_taps is None else (size(halo.line_taps) - 1) * halo.line_step + 1
    lines = form.strip + taps - 1
    pixels = lines * line + (width - line) + form.rows
    staged = _rows_at(d, line, lines) | {t: 0 for t in (halo.line_taps, halo.column_taps) if t is not None}
    axes = f"(l {lines}, q {line}, b {chunks}, c {form.depth})"
    d.staged += [
        f"%planes_ = alloc shared {c.a.dtype} ({chunks}, {pixels}, {form.depth})",
        f"%past_ = view %planes_ (b {chunks}, i {pixels - lines * line}, c {form.depth}) -> [b, {lines * line} + i, c]",
        "fill %past_ 0",
        *_taken(d, staged, f"l {lines}, q {line}", "l, q", axes),
        f"%padded_ = view %planes_ {axes} -> [b, {line}*l + q, c]",
        "copy %lines_ -> %padded_ else 0",
    ]
    shift: Any = 0
    if halo.line_taps is not None:
        shift = shift + line * halo.line_step * named(halo.line_taps.name, size(halo.line_taps))
    if halo.column_taps is not None:
        shift = shift + halo.column_step * named(halo.column_taps.name, size(halo.column_taps))
    d.rows_view = lambda chunk, r: (
        f"%planes_ (i {form.rows}, c {form.depth}) -> [{chunk}, {r.start + named('i', form.rows) + shift}, c]"
    )


def _in_panel(d: Draft) -> None:
    c, form = d.c, _form(d)
    chunks, line, strip = _chunks(d), _line(d), _lines(d)
    rows = up(strip * line, form.rows)
    taps = c.depth[:-1]
    staged = _rows_at(d, line, strip) | {t: named(t.name, size(t)) for t in taps}
    tap_axes = "".join(f"{t.name} {size(t)}, " for t in taps)
    tap_names = "".join(f"{t.name}, " for t in taps)
    shape = ", ".join([*(str(size(t)) for t in taps), str(chunks), str(rows), str(form.depth)])
    axes = f"(l {strip}, q {line}, {tap_axes}b {chunks}, c {form.depth})"
    d.staged.append(f"%panel_ = alloc shared {c.a.dtype} ({shape})")
    if rows > strip * line:
        over = f"({tap_axes}b {chunks}, i {rows - strip * line}, c {form.depth})"
        d.staged += [f"%past_ = view %panel_ {over} -> [{tap_names}b, {strip * line} + i, c]", "fill %past_ 0"]
    over = f"l {strip}, q {line}{', ' + tap_axes[:-2] if taps else ''}"
    d.staged += [
        *_taken(d, staged, over, f"l, q{', ' + tap_names[:-2] if taps else ''}", axes),
        f"%staged_ = view %panel_ {axes} -> [{tap_names}b, {line}*l + q, c]",
        "copy %lines_ -> %staged_ else 0",
    ]
    d.rows_view = lambda chunk, r: (
        f"%panel_ (i {form.rows}, c {form.depth}) -> [{tap_names}{chunk}, {r.start + named('i', form.rows)}, c]"
    )


def _taken(d: Draft, staged: dict[Any, Any], over: str, names: str, axes: str) -> list[str]:
    """The view of what is staged: chunks of the depth's last digit, and nothing past its end.

    Where that digit shares its dimension with others (a group, a tap), what lies past its end is others' elements:
    a view of the digit alone comes first, which they are outside of.
    """
    c, form = d.c, _form(d)
    last = c.depth[-1]
    chunk = form.depth * named("b", _chunks(d)) + named("c", form.depth)
    if any(e is last for e in c.a.coordinates):
        return [f"%lines_ = view %{c.a.value} {axes} -> {places(c.a, {**staged, last: chunk})}"]
    whole = places(c.a, {**staged, last: named("t", size(last))})
    past = " ?" if size(last) % form.depth else ""
    return [
        f"%taps_ = view %{c.a.value} ({over}, t {size(last)}) -> {whole}",
        f"%lines_ = view %taps_ {axes} -> [{names}, {chunk}{past}]",
    ]


# -- products ---------------------------------------------------------------------------------------------


def multiply(d: Draft) -> None:
    """Tile registers, and the products of every block."""
    c, form = d.c, _form(d)
    atom = form.atom.name
    d.held += [
        f"%scratch_ = alloc shared {c.sum_dtype} ({form.rows}, {form.columns})",
        f"%sums_ = alloc register {c.sum_dtype} ({form.rows}, {form.columns}) as {atom}.c",
        f"%left_ = alloc register {c.a.dtype} ({form.rows}, {form.depth}) as {atom}.a",
        f"%right_ = alloc register {c.b.dtype} ({form.depth}, {form.columns}) as {atom}.b",
    ]
    for r in d.rounds:
        r.body.append(f"fill %sums_ {int(c.start)}")
        if form.stage == "place" and not isinstance(r.start, Expr):
            r.body += _ragged(d, r)
        else:
            r.body += _depth(d, form.steps, r.deferred, partial(_products_of, d, r))


def _products_of(d: Draft, r: Round, chunk: Any) -> list[str]:
    assert d.rows_view is not None
    return _step(d, d.rows_view(chunk, r), chunk)


def _step(d: Draft, rows: str, chunk: Any) -> list[str]:
    """One step of the depth: both factors into tile registers, and their product."""
    c, form = d.c, _form(d)
    lanes = form.atom.shape[1]
    outer = "".join(f"{t.name}, " for t in c.depth[:-1])
    at = f"{batch_at(c)}f, {outer}{chunk}, j//{lanes}, c//{form.group}, j%{lanes}, c%{form.group}"
    streams = {name: int(form.streams in (name, "both")) for name in ("a", "b")}
    return [
        f"%rows_ = view {rows}",
        f"copy %rows_ -> %left_ stream {streams['a']}",
        f"%filters_ = view %packed_ (c {form.depth}, j {form.columns}) -> [{at}]",
        f"copy %filters_ -> %right_ stream {streams['b']}",
        f"mma %sums_ += %left_ * %right_ using {form.atom.name}",
    ]


def _depth(d: Draft, steps: tuple[Step, ...], peeled: bool, step: Callable[[Any], list[str]]) -> list[str]:
    """All steps of the depth in the plan's order.

    Where the first is a loop, its first round is written out: what the round before it left to do goes there.
    """
    form, last = _form(d), d.c.depth[-1].name
    chunks = _chunks(d)
    first, *rest = steps
    if first.digit == last and not first.written and len([s for s in steps if s.digit == last]) == 2:
        per = first.size // form.depth
        b, a = named("b", per), named("a", chunks // per)
        inner = tuple(rest)
        if peeled:
            lines = _nest(d, inner, per, step(b))
            more = _nest(d, inner, per, step(per * a + b))
            span = f"for a in 1..{chunks // per} {{"
            return lines if chunks == per else [*lines, span, *("  " + line for line in more), "}"]
        more = _nest(d, inner, per, step(per * a + b))
        return [f"for a in 0..{chunks // per} {{", *("  " + line for line in more), "}"]
    return _nest(d, steps, chunks, step(named("b", chunks)))


def _nest(d: Draft, steps: tuple[Step, ...], chunks: int, body: list[str]) -> list[str]:
    """Loops around a body, neighbours of a kind as one."""
    last = d.c.depth[-1].name
    extents = {t.name: size(t) for t in d.c.depth[:-1]}
    lines = body
    remaining = list(steps)
    while remaining:
        written = remaining[-1].written
        run: list[str] = []
        while remaining and remaining[-1].written == written:
            s = remaining.pop()
            run.insert(0, f"b in 0..{chunks}" if s.digit == last else f"{s.digit} in 0..{extents[s.digit]}")
        lines = nested([f"for {', '.join(run)}{' unroll' if written else ''}"], lines)
    return lines


def _ragged(d: Draft, r: Round) -> list[str]:
    """The products of the last rows, fewer than a block: staged, with zeros for those that are not there."""
    c, form = d.c, _form(d)
    (row,) = c.rows
    chunks = _chunks(d)
    b = named("b", chunks)
    at = {
        row: r.start + named("i", form.rows),
        c.depth[-1]: form.depth * b + named("c", form.depth),
        **{t: named(t.name, size(t)) for t in c.depth[:-1]},
    }
    ranges = [*(f"{t.name} in 0..{size(t)}" for t in c.depth[:-1]), f"b in 0..{chunks}"]
    axes = f"(i {form.rows}, c {form.depth})"
    return [
        f"%tail_ = alloc shared {c.a.dtype} ({form.rows}, {form.depth})",
        f"for {', '.join(ranges)} {{",
        f"  %part_ = view %{c.a.value} {axes} -> {places(c.a, at)}",
        "  copy %part_ -> %tail_ else 0",
        *("  " + line for line in _step(d, f"%tail_ {axes} -> [i, c]", b)),
        "}",
    ]


# -- results ----------------------------------------------------------------------------------------------


def finish(d: Draft) -> None:
    """What becomes of a block of sums: the epilogue, and the store; columns and rows past the last are dropped."""
    c, form = d.c, _form(d)
    (column,) = c.columns
    f, j = named("f", d.blocks), named("j", form.columns)
    at = form.columns * f + j
    staged = form.stage != "place"
    if staged:
        width = size(c.rows[-1]) if len(c.rows) > 1 else form.strip
        rows = _rows_at(d, width, _lines(d))
        d.held.append(strip_view(c, c.out, rows, "strip_"))
        for n, extra in enumerate(c.extras):
            if by_rows(c, extra):
                d.held.append(strip_view(c, extra, rows, f"strip_extra{n}_"))
    for r in d.rounds:
        r.ending.append("copy %sums_ -> %scratch_")
        if not staged:
            ends = {c.rows[-1]: r.start + named("i", form.rows), column: at}
            ragged = bool(size(column) % form.columns)
            r.ending += ending(c, "%scratch_", form.rows, form.columns, ends, ragged)
        else:
            r.ending += [_strip_view(d, r, "goal_", "strip_"), *_strip_extras(d, r)]
            r.ending += finished(c, "%scratch_", form.rows, form.columns, {column: at})


def _strip_view(d: Draft, r: Round, name: str, strip: str) -> str:
    """A staged block's part of a tensor that is seen by strips: row r of the strip is (r // line, r % line)."""
    form, line = _form(d), _line(d)
    row = r.start + named("i", form.rows)
    return (
        f"%{name} = view %{strip} (i {form.rows}, j {form.columns}) -> "
        f"[({row})//{line} ?, ({row})%{line} ?, {form.columns}*f + j ?]"
    )


def _strip_extras(d: Draft, r: Round) -> list[str]:
    return [
        _strip_view(d, r, f"extra{n}_", f"strip_extra{n}_") for n, extra in enumerate(d.c.extras) if by_rows(d.c, extra)
    ]
