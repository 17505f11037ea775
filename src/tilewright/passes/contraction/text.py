"""Block text from digits: coordinates with other meanings for digits, the end of a block of sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.algebra.expr import Const, Symbol, index
from tilewright.algebra.expr_use import Substitution
from tilewright.plan.contraction import Contraction, Operand, size


def named(name: str, extent: int) -> Symbol:
    """A loop variable or axis of the text."""
    return index(name, max(1, extent))


def argument(role: str, operand: Operand) -> str:
    """An argument of a program."""
    return f"%{operand.value}: {role} global {operand.dtype} ({', '.join(map(str, operand.shape))})"


def extent(c: Contraction, digit: Symbol) -> str:
    """How far a digit of the rows goes: a number, or an expression of open sizes."""
    return str(dict(c.open).get(digit, size(digit)))


def batch_tasks(c: Contraction) -> list[str]:
    """The loops over what both factors keep."""
    return [f"{d.name} in 0..{size(d)}" for d in c.batch]


def batch_at(c: Contraction) -> str:
    """The first coordinates of the packed factor."""
    return "".join(f"{d.name}, " for d in c.batch)


def batch_shape(c: Contraction) -> tuple[int, ...]:
    """The first extents of the packed factor."""
    return tuple(size(d) for d in c.batch)


def places(operand: Operand, meanings: Mapping[Any, Any]) -> str:
    """The coordinates of a view with these meanings; those that may leave the tensor are marked."""
    images = Substitution(meanings)
    shown = []
    for c, n in zip(operand.coordinates, operand.shape, strict=True):
        found = images(c)
        now = ((c >= 0, found >= 0), (c < n, found < n))
        loose = any(x not in operand.inside and not (isinstance(y, Const) and y.value) for x, y in now)
        shown.append(f"{found}{' ?' if loose else ''}")
    return "[" + ", ".join(shown) + "]"


def may_leave(operand: Operand, meanings: Mapping[Any, Any]) -> bool:
    """Whether a coordinate of the view may leave its tensor."""
    return "?" in places(operand, meanings)


def ending(c: Contraction, sums: str, rows: int, columns: int, meanings: Mapping[Any, Any], padded: bool) -> list[str]:
    """The lines that turn a block of sums into results: epilogue and store. `padded`: columns past the last one."""
    shape = f"(i {rows}, j {columns})"
    (column,) = c.columns
    if padded:  # what lies past the last column may be another group's: a view of the columns alone comes first
        whole = places(c.out, {**meanings, column: named("j", size(column))})
        lines = [
            f"%whole_ = view %{c.out.value} (i {rows}, j {size(column)}) -> {whole}",
            f"%goal_ = view %whole_ {shape} -> [i, {meanings[column]} ?]",
        ]
    else:
        lines = [f"%goal_ = view %{c.out.value} {shape} -> {places(c.out, meanings)}"]
    return [*lines, *finished(c, sums, rows, columns, meanings)]


def finished(c: Contraction, sums: str, rows: int, columns: int, meanings: Mapping[Any, Any]) -> list[str]:
    """The lines that store a block of sums at %goal_, through the epilogue."""
    lines, names = [], ["", sums]
    for n, extra in enumerate(c.extras):
        unseen = by_rows(c, extra) and not any(r in meanings for r in c.rows)  # it is seen by strips already
        if not unseen:
            lines.append(f"%extra{n}_ = view %{extra.value} (i {rows}, j {columns}) -> {places(extra, meanings)}")
        if unseen or may_leave(extra, meanings):
            lines.append(f"%held{n}_ = alloc shared {extra.dtype} ({rows}, {columns})")
            lines.append(f"copy %extra{n}_ -> %held{n}_ else 0")
            names.append(f"%held{n}_")
        else:
            names.append(f"%extra{n}_")
    if c.epilogue.name == "operand":
        return [*lines, f"copy {sums} -> %goal_"]
    return [*lines, f"map %goal_ = {c.epilogue.text(names)}"]


def by_rows(c: Contraction, operand: Operand) -> bool:
    """Whether a tensor's places depend on the row."""
    return any(e.symbols & set(c.rows) for e in operand.coordinates)


def strip_view(c: Contraction, operand: Operand, rows: Mapping[Any, Any], name: str) -> str:
    """The part of a tensor that a strip of rows sees: lines l, places q, columns j."""
    (column,) = c.columns
    extents = {s.name: size(s) for e in rows.values() for s in e.symbols if s.name in ("l", "q")}
    at = places(operand, {**rows, column: named("j", size(column))})
    return (
        f"%{name} = view %{operand.value} (l {extents.get('l', 1)}, q {extents.get('q', 1)}, j {size(column)}) -> {at}"
    )
