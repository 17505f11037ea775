"""Integer expressions as Python functions: an interpreter evaluates the same few again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tilewright.algebra.expr import (
    And,
    AtLeastZero,
    Const,
    Exact,
    Expr,
    FloorDiv,
    IsZero,
    Max,
    Min,
    Mod,
    Or,
    Product,
    Sum,
    Symbol,
    Xor,
)
from tilewright.errors import DivisionByZero, ExpressionError

_made: dict[Expr, tuple[Callable[..., Any], tuple[str, ...]]] = {}


def evaluated(e: Expr, values: Mapping[str, Any]) -> Any:
    """The value of e for values of its symbols by name: ints, or numpy arrays that go together.

    >>> from tilewright.algebra.expr import index
    >>> m = index("m", 100)
    >>> evaluated((m // 7) % 3, {"m": 23})
    0
    """
    if type(e) is Const:
        return e.value
    function, ordered = _made.get(e) or _make(e)
    try:
        return function(*[values[name] for name in ordered])
    except KeyError as fault:
        raise ExpressionError(f"no value is given for the symbol {fault.args[0]}") from None
    except ZeroDivisionError:
        raise DivisionByZero(f"{e} divides by 0{_where(ordered, values)}") from None
    except OverflowError:
        raise ExpressionError(f"{e} does not fit 64 bits{_where(ordered, values)}") from None


def names_in(e: Expr) -> tuple[str, ...]:
    """The names of the symbols that an expression depends on, through definitions."""
    _, names = _made.get(e) or _make(e)
    return names


def _make(e: Expr) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """A function that evaluates e, and the names of its arguments."""
    names: set[str] = set()
    source = _source(e, names)
    ordered = tuple(sorted(names))
    arguments = ", ".join(f"s_{name}" for name in ordered)  # a symbol may be called `in`
    function = eval(f"lambda {arguments}: {source}", {"_min": _min, "_max": _max, "_divisor": _divisor})
    found = _made[e] = function, ordered
    return found


def _where(names: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """The values of symbols, for messages; arrays are left out."""
    shown = ", ".join(f"{name} = {values[name]}" for name in names if isinstance(values[name], int))
    return f", where {shown}" if shown else ""


def _divisor(b: Any) -> Any:
    if isinstance(b, np.ndarray) and not b.all():
        raise ZeroDivisionError
    return b


def _min(*args: Any) -> Any:
    return min(args) if all(isinstance(a, int) for a in args) else _fold(np.minimum, args)


def _max(*args: Any) -> Any:
    return max(args) if all(isinstance(a, int) for a in args) else _fold(np.maximum, args)


def _fold(function: Callable[[Any, Any], Any], args: tuple[Any, ...]) -> Any:
    total = args[0]
    for a in args[1:]:
        total = function(total, a)
    return total


_SIGNS: dict[type[Expr], str] = {FloorDiv: "//", Mod: "%", Exact: "//", Xor: "^", Product: "*", And: "&", Or: "|"}


def _source(e: Expr, names: set[str]) -> str:
    if isinstance(e, Const):
        return f"({e.value})"
    if isinstance(e, Symbol):
        if e.definition is not None:
            return _source(e.definition, names)
        names.add(e.name)
        return f"s_{e.name}"
    if isinstance(e, Sum):
        terms = [f"{c}*{_source(t, names)}" if c != 1 else _source(t, names) for t, c in e.terms]
        return "(" + " + ".join([*terms, *([str(e.constant)] if e.constant else [])]) + ")"
    if isinstance(e, AtLeastZero):
        return f"({_source(e.operand, names)} >= 0)"
    if isinstance(e, IsZero):
        return f"({_source(e.operand, names)} == 0)"
    parts = [_source(part, names) for part in e.parts]
    if isinstance(e, Min | Max):
        return f"{'_min' if isinstance(e, Min) else '_max'}({', '.join(parts)})"
    if isinstance(e, FloorDiv | Mod | Exact) and not isinstance(e.right, Const):
        parts[1] = f"_divisor({parts[1]})"
    return "(" + f" {_SIGNS[type(e)]} ".join(parts) + ")"
