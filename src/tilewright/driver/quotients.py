"""Quotients `a / b` among the integers of a program: the author promises that b divides a, which is checked here."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.algebra.expr import Const, Exact, Expr, as_expr
from tilewright.algebra.expr_conditions import eq
from tilewright.algebra.expr_use import Substitution
from tilewright.driver.request import Request
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Program


def require_whole_quotients(request: Request) -> list[Expr]:
    """Return the list of the conditions that a call must meet: for each quotient of open sizes, that its remainder is
    0.

    Conditions are over the parameters of the open sizes. Quotients that depend on more than sizes (indices, workgroup
    ids, symbols that the program sets) are left out. Raise a ProgramError for a quotient of known sizes that is no
    integer or divides by 0, and for one that is no integer for any size.
    """
    extents, conditions = Substitution(dict(request.sized.extents)), dict[Expr, None]()
    sizes = set(request.opened.parameters)
    for op, e in _quotients(request.program):
        a, b = extents(e.left), extents(e.right)
        if isinstance(a, Const) and isinstance(b, Const):
            if b.value == 0 or a.value % b.value:
                raise ProgramError(f"{e}: {a} / {b} is not an integer; write // to round down", op.loc)
            continue
        is_whole = eq(a % b, 0)
        if is_whole is as_expr(0):
            raise ProgramError(f"{e}: {a} / {b} is no integer for any size; write // to round down", op.loc)
        conditions[is_whole] = None
    in_parameters = map(request.opened.in_parameters, conditions)
    return [e for e in in_parameters if not isinstance(e, Const) and e.symbols <= sizes]


def _quotients(program: Program) -> Iterator[tuple[Op, Exact]]:
    """Yield (operation, quotient) for each `a / b` in the attribute `value` of an operation of a tile program.

    Quotients with a symbol that the program sets are left out.
    """
    set_here = {op.attrs["symbol"] for op in program.walk() if op.name == "set_symbol"}
    for op in program.walk():
        value = op.attrs.get("value")
        for e in _parts(value) if isinstance(value, Expr) else ():
            if isinstance(e, Exact) and set_here.isdisjoint(e.symbols):
                yield op, e


def _parts(e: Expr) -> Iterator[Expr]:
    """Yield the expression `e` and all expressions nested in it, outer ones first."""
    yield e
    for part in e.parts:
        yield from _parts(part)
