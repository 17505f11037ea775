"""The kinds of attributes: for each, what values it takes, how it is printed, and how it is read back.

| kind      | value                                  | text                    |
|-----------|----------------------------------------|-------------------------|
| int       | an int                                 | 3                       |
| number    | an int or a float                      | 0.5, inf, nan           |
| bool      | True or False                          | true                    |
| str       | text                                   | "label"                 |
| name      | an identifier                          | tf32                    |
| dtype     | an element type                        | f16                     |
| expr      | an expression                          | (M//2 + 1)              |
| exprs     | a tuple of expressions                 | [M, K//2]               |
| numexpr   | a number or an expression              | 0.5, (M)                |
| lookups   | tuple of (symbol, tuple of expressions)| [d0: [i, j], d1: [i]]   |
| table     | tuple of (expression, expression)      | {M: 16, N: 0}           |
"""

from __future__ import annotations

import json
from typing import Any

from tilewright.algebra.expr import Expr, Symbol
from tilewright.errors import ProgramError
from tilewright.ir.dtypes import DType


def attr_text(kind: str, value: Any) -> str:
    """The text of an attribute of this kind."""
    match kind.rstrip("?"):
        case "int" | "name":
            return str(value)
        case "number":
            return repr(value)
        case "bool":
            return "true" if value else "false"
        case "str":
            return json.dumps(value)
        case "dtype":
            return str(value.name)
        case "expr":
            return f"({value})"
        case "exprs":
            return "[" + ", ".join(map(str, value)) + "]"
        case "numexpr":
            return f"({value})" if isinstance(value, Expr) else repr(value)
        case "lookups":
            rows = (f"{s}: [{', '.join(map(str, at))}]" for s, at in value)
            return "[" + ", ".join(rows) + "]"
        case "table":
            return "{" + ", ".join(f"{k}: {v}" for k, v in value) + "}"
    raise AssertionError(kind)


_KINDS: dict[str, Any] = {
    "int": int,
    "number": (int, float),
    "bool": bool,
    "str": str,
    "name": str,
    "dtype": DType,
    "expr": Expr,
    "exprs": tuple,
    "numexpr": (int, float, Expr),
    "lookups": tuple,
    "table": tuple,
}


def check_attr(kind: str, name: str, value: Any, where: str) -> None:
    """Raises unless the value is one that the kind allows."""
    if not isinstance(value, _KINDS[kind.rstrip("?")]):
        raise ProgramError(f"{where}: the attribute {name} is {value!r}, which is no {kind.rstrip('?')}")
    if kind.rstrip("?") == "exprs" and not all(isinstance(e, Expr) for e in value):
        raise ProgramError(f"{where}: the attribute {name} holds {value!r}; all must be expressions")


def attr_symbols(kind: str, value: Any) -> set[Symbol]:
    """The symbols that occur in an attribute."""
    match kind.rstrip("?"):
        case "expr":
            return set(value.symbols)
        case "exprs":
            return {s for e in value for s in e.symbols}
        case "numexpr":
            return set(value.symbols) if isinstance(value, Expr) else set()
        case "lookups":
            return {s for d, at in value for s in {d, *(s for e in at for s in e.symbols)}}
        case "table":
            return {s for pair in value for e in pair for s in e.symbols}
    return set()
