"""A contraction by lanes, pass by pass: vectors along a digit that both factors and the result keep.

A block of sums is a few rows of a line by a few vectors; it stays in registers over all taps. Loops over outer digits
of the depth run only where the tensor is. Taps that slide along the line are written out, so that rows share what they
load; blocks of which a tap falls outside are rounds of their own, and read zeros there. What is left of the digit after
the last whole group of vectors is a group of its own, under a mask that is a constant.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.dtypes import DType
from tilewright.passes.contraction.draft import Draft, Round, nested
from tilewright.passes.contraction.packing import Packing
from tilewright.passes.contraction.text import argument, ending, flat_index, limits, named, places
from tilewright.plan.contraction import Contraction, coupled, size
from tilewright.plan.forms import LANES, ROWS, LaneForm, kept_digit, lane_singles
from tilewright.plan.lanes import own_rounds


@dataclass
class Group(Round):
    """Rows by neighbours of the digit, within the rows' loop: how many neighbours, and which group of them it is."""

    width: int = 0
    group: Any = 0


def packed_for_lanes(c: Contraction, width: int) -> Packing:
    """[other digits of the batch][digit / width][columns][depth][width], of the sums' type, zeros past the last."""
    digit, others = kept_digit(c), _others(c)
    groups = -(-size(digit) // width)
    shape = (*(size(d) for d in others), groups, c.extent(c.columns), c.extent(c.depth), width)
    depth = {d: named(d.name, size(d)) for d in c.depth}
    f, j, inner = named("f", groups), named("j", width), named("t", size(digit))
    lane = width * f + j
    axes = [*c.columns, *depth.values(), j]
    over = _over(axes)
    names = "".join(f"{a.name}, " for a in (*c.columns, *depth.values()))
    at = "".join(f"{d.name}, " for d in others)
    tasks = [*(f"{d.name} in 0..{size(d)}" for d in others), f"f in 0..{groups}"]
    whole = places(c.b, {**depth, digit: inner})  # of the digit alone: what follows it may be another's
    lines = [
        f"block pack({argument('in', c.b)}, %packed_: out global {c.sum_dtype} ({', '.join(map(str, shape))}))",
        "{",
        f"  tasks {', '.join(tasks)} {{",
        f"    %whole_ = view %{c.b.value} {_over([*c.columns, *depth.values(), inner])} -> {whole}",
        f"    %from_ = view %whole_ {over} -> [{names}{lane}{' ?' if _past(c, lane) else ''}]",
        f"    %to_ = view %packed_ {over} -> [{at}f, {flat_index(c.columns, {})}, {flat_index(c.depth, depth)}, j]",
    ]
    if c.b.dtype is c.sum_dtype:
        lines.append("    copy %from_ -> %to_ else 0")
    else:
        lines += [
            f"    %held_ = alloc shared {c.b.dtype} ({', '.join(str(size(a)) for a in axes)})",
            "    copy %from_ -> %held_ else 0",
            f"    map %to_ = {c.sum_dtype}(%held_)",
        ]
    return Packing("\n".join([*lines, "  }", "}"]) + "\n", shape, c.sum_dtype)


def _over(axes: list[Symbol]) -> str:
    return "(" + ", ".join(f"{a.name} {size(a)}" for a in axes) + ")"


def _others(c: Contraction) -> list[Symbol]:
    """The digits of the batch that the lanes do not run along."""
    return [d for d in c.batch if d is not kept_digit(c)]


def _past(c: Contraction, lane: Expr) -> bool:
    """Whether a place on the digit may lie past its last."""
    return bool(lane.hi >= size(kept_digit(c)))


def _form(d: Draft) -> LaneForm:
    assert isinstance(d.form, LaneForm)
    return d.form


def place(d: Draft) -> None:
    """Tasks over groups of vectors, lines and strips of a line; within one, blocks of rows, and in these all groups.

    Memory is so read in the order in which it lies.
    """
    form, c = _form(d), d.c
    line = c.rows[-1]
    full, tail = divmod(size(line), form.rows)
    per = max(1, form.strip // form.rows)
    strips = max(1, -(-full // per)) if form.strip < size(line) else 1
    whole, rest, parts = _groups(d)
    ranges = {x.name: f"{x.name} in 0..{size(x)}" for x in lane_singles(c)}
    ranges |= {LANES: f"part in 0..{parts}" if parts > 1 else "", ROWS: f"strip in 0..{strips}" if strips > 1 else ""}
    d.tasks = [ranges[name] for name in form.tasks if ranges[name]] or ["all in 0..1"]
    columns = [f"{x.name} in 0..{size(x)}" for x in c.columns]

    def groups(rows: int, start: Any) -> list[Round]:
        found: list[Round] = []
        if whole:
            many = form.task_width // form.width
            span = f"{many}*part..min({many}*(part + 1), {whole})" if parts > 1 else f"0..{whole}"
            loop = f"for {', '.join([f'f in {span}', *columns])}"
            found.append(Group(rows, start, [loop], width=form.width, group=named("f", whole)))
        if rest:
            only = f"part == {parts - 1}" if parts > 1 else None
            found.append(Group(rows, start, [f"for {', '.join(columns)}"], only, width=rest, group=whole))
        return found

    def blocks(first: int, end: int, span: str = "") -> None:
        """Blocks that are alike; one alone needs no loop."""
        if end - first == 1:
            d.rounds.append(Round(form.rows, None, [], inner=groups(form.rows, form.rows * first)))
        elif end > first:
            start = form.rows * (named("block", end - first) + first)
            loop = f"for block in {span or f'0..{end - first}'}"
            d.rounds.append(Round(form.rows, None, [loop], inner=groups(form.rows, start)))

    before, after = own_rounds(c, form.rows) if strips == 1 else (0, 0)
    for block in range(before):
        blocks(block, block + 1)
    blocks(before, full - after, f"{per}*strip..min({per}*(strip + 1), {full})" if strips > 1 else "")
    for block in range(full - after, full):
        blocks(block, block + 1)
    if tail:
        last = f"strip == {strips - 1}" if strips > 1 else None
        d.rounds.append(Round(tail, None, [], last, inner=groups(tail, full * form.rows)))


def _groups(d: Draft) -> tuple[int, int, int]:
    """(whole groups of vectors, lanes of the last one where it is not whole, parts that tasks take)."""
    form = _form(d)
    whole, past = divmod(size(kept_digit(d.c)), form.width)
    rest = -(-past // form.atom.lanes) * form.atom.lanes
    return whole, rest, -(-(whole + bool(rest)) // (form.task_width // form.width))


def _all(d: Draft) -> list[Group]:
    return [g for r in d.rounds for g in r.inner if isinstance(g, Group)]


def stage(d: Draft) -> None:
    """Rows are read in place: nothing to do."""


def multiply(d: Draft) -> None:
    """Sums in registers, and the products of every block."""
    for g in _all(d):
        g.body += [
            f"%sums_ = {_registers(d, d.c.sum_dtype, g)}",
            f"fill %sums_ {_number(d.c.start)}",
            *_products(d, g),
        ]


def _products(d: Draft, g: Group) -> list[str]:
    form, c = _form(d), d.c
    known = {*c.rows[:-1], *c.batch}
    settled: frozenset[Expr] = frozenset()
    opened = []
    for s in form.steps:
        digit = next(t for t in c.depth if t.name == s.digit)
        span = None if s.written or coupled(c, digit) else limits(c.a, digit, known)
        if span is not None:
            settled |= span[2]
            opened.append(f"for {digit.name} in {span[0]}..{span[1]}")
        else:
            opened.append(f"for {digit.name} in 0..{size(digit)}{' unroll' if s.written else ''}")
    return nested(opened, _tap(d, g, settled))


def _tap(d: Draft, g: Group, settled: frozenset[Expr]) -> list[str]:
    """The products of one tap."""
    c = d.c
    shape = f"(i {g.rows}, j {g.width})"
    depth = {t: named(t.name, size(t)) for t in c.depth}
    taps = places(c.a, {**_meanings(d, g), **depth}, settled)
    before = "".join(f"{x.name}, " for x in _others(c))
    filters = f"{before}{g.group}, {flat_index(c.columns, {})}, {flat_index(c.depth, depth)}, j"
    lines = [
        f"%taps_ = view %{c.a.value} {shape} -> {taps}",
        f"%filters_ = view %packed_ {shape} -> [{filters}]",
    ]
    read = "%taps_"
    if "?" in taps:
        lines += [f"%held_ = {_registers(d, c.a.dtype, g)}", "copy %taps_ -> %held_ else 0"]
        read = "%held_"
    wide = read if c.a.dtype is c.sum_dtype else f"{c.sum_dtype}({read})"
    return [*lines, f"map %sums_ = fma({wide}, %filters_, %sums_)"]


def _meanings(d: Draft, g: Group) -> dict[Any, Any]:
    """The row and the neighbour of a block's element."""
    lane = _form(d).width * g.group + named("j", g.width)
    return {d.c.rows[-1]: g.start + named("i", g.rows), kept_digit(d.c): lane}


def _registers(d: Draft, dtype: DType, g: Group) -> str:
    """A block in registers: vectors along the lanes, one after another."""
    lanes = _form(d).atom.lanes
    layout = f"({lanes},({g.rows},{g.width // lanes})):({g.rows},(1,{g.rows * lanes}))"
    return f"alloc register {dtype} ({g.rows}, {g.width}) by {layout}"


def finish(d: Draft) -> None:
    """What becomes of a block of sums: the epilogue, and the store; what lies past the digit's last is dropped."""
    c = d.c
    digit = kept_digit(c)
    turned = replace(c, columns=(digit,), batch=())
    for g in _all(d):
        at = _meanings(d, g)
        g.ending += ending(turned, "%sums_", g.rows, g.width, at, _past(c, at[digit]))


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
