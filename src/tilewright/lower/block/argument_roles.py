"""The role of an argument in a program: only read ("in"), written completely ("out"), or neither ("inout")."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tilewright.algebra.expr import ZERO, Const, Expr, as_expr, symbol
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.ir.core import Op, Program, Value
from tilewright.plan.boxes import WRITES
from tilewright.plan.tile_register_tasks import LineLayout
from tilewright.plan.writes import writes_every_element


def role_of(program: Program, arg: Value, walks: Mapping[Expr, LineLayout], number: Callable[[Expr], Expr]) -> str:
    """Return "in" for an argument that is never written, "out" for one that is written completely and never read, else
    "inout".

    "out" needs a proof that plain writes (not atomics) reach every element. A written argument with data-dependent
    extents is "inout". `walks` is {dimension that runs along image lines: its LineLayout}; `number(e)` replaces known
    sizes in the expression e.
    """
    ops = list(program.walk())
    if not any(op.name in WRITES and op.operands[1] is arg for op in ops):
        return "in"
    if any(op.name == "read" and op.operands[0] is arg for op in ops) or arg.type.extents is not None:
        return "inout"
    return "out" if _covers(program.body.ops, arg, (), walks, number) else "inout"


def _covers(
    ops: list[Op], arg: Value, axes: tuple[Expr, ...], walks: Mapping[Expr, LineLayout], number: Callable[[Expr], Expr]
) -> bool:
    """True if it is proved that one of the operations `ops` writes every element of the argument `arg`.

    Bodies of loops are searched too, but not of while loops. `axes` are the axes of the loops around `ops`; the written
    tile must have all of them as dimensions. A write with the attribute `bounds` does not count. `walks` is {dimension
    that runs along image lines: its LineLayout}; `number(e)` replaces known sizes in the expression e.
    """
    for op in ops:
        if op.name == "write" and op.operands[1] is arg and "bounds" not in op.attrs:
            covers = (
                "at" not in op.attrs
                or _reaches_all_by_form(op, walks, number)
                or _reaches_all_by_values(op, walks, number)
            )
            if covers and all(axis in op.operands[0].type.dims for axis in axes):
                return True
        elif op.name == "iterate" and not op.attrs.get("start"):
            inner = (*axes, op.attrs["axis"])
            if _covers(op.blocks[0].ops, arg, inner, walks, number):
                return True
    return False


def _reaches_all_by_form(op: Op, walks: Mapping[Expr, LineLayout], number: Callable[[Expr], Expr]) -> bool:
    """True if the form of the coordinates of the write `op` proves that they reach every element of its argument.

    Each coordinate must count through its extent without gaps, such as 4*i + j for j in 0..3, and no other coordinate
    may have its iterators. Neighbouring coordinates may be the digits (mixed-radix parts) of one such index. False if a
    coordinate is read from data. `walks` is {dimension that runs along image lines: its LineLayout}; `number(e)`
    replaces known sizes in the expression e.
    """
    over = dict(zip(op.operands[0].type.dims, op.attrs["over"], strict=True))
    rows = {d: n.value if isinstance(n := number(d), Const) else None for d in walks}
    lines = Substitution({over[d]: walk.valid_position(rows[d]) for d, walk in walks.items() if d in over})
    sized = {s: number(d) - 1 for d, s in over.items() if d not in walks and number(d).lo >= 1}
    images = Substitution({s: symbol(s.name, 0, last) for s, last in sized.items()})
    unused = {s for e in over.values() for s in images(lines(e)).symbols}
    places = zip(op.attrs["at"], op.operands[1].type.dims, strict=True)
    for e, extent in _without_digits([(number(images(lines(e))), number(n)) for e, n in places]):
        form = linear_form(e, e.symbols)
        if form is None or form[1] is not ZERO or not e.symbols <= unused:
            return False
        unused -= e.symbols
        reached = as_expr(1)
        for s, factor in sorted(form[0].items(), key=lambda term: term[1].lo):
            if factor is not reached or s.upper is None:
                return False
            reached = reached * (s.upper + 1)
        if extent is not reached:
            return False
    return not op.attrs.get("lookups")


def _reaches_all_by_values(op: Op, walks: Mapping[Expr, LineLayout], number: Callable[[Expr], Expr]) -> bool:
    """True if the coordinates of the write `op`, evaluated for all elements of its tile, reach every element of its
    argument.

    False if a size is no number, or if any dimension runs along image lines (`walks`). `number(e)` replaces known sizes
    in the expression e.
    """
    memory = op.operands[1].type
    dims = (*op.operands[0].type.dims, *(s for s in memory.sizes if s is not None))
    is_known = not walks and all(isinstance(number(d), Const) for d in dims)
    return is_known and writes_every_element(op, lambda e: int(number(e)))


def _without_digits(places: list[tuple[Expr, Expr]]) -> list[tuple[Expr, Expr]]:
    """Return the (coordinate, extent) pairs `places`, with neighbours that are the digits (mixed-radix parts) of one
    index merged.

    (i//4, 3), (i%4, 4) becomes (i, 12). Two neighbours are merged if both coordinates have the same symbols, and the
    range of the second is exactly 0 to its extent - 1.
    """
    merged: list[tuple[Expr, Expr]] = []
    for e, extent in places:
        if merged and merged[-1][0].symbols == e.symbols and (e.lo, e.hi) == (0, extent.hi - 1):
            merged[-1] = merged[-1][0] * extent + e, merged[-1][1] * extent
        else:
            merged.append((e, extent))
    return merged
