"""Integer expressions compiled to Python functions: an interpreter evaluates the same few many times.

`separated` takes expressions apart: into terms of the coordinates of elements, whose arrays are the same each time, and
numbers that loop variables give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
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
from tilewright.algebra.expr_operations import exact_quotient
from tilewright.errors import DivisionByZero, ExpressionError, NotExact

_compiled: dict[Expr, tuple[Callable[..., Any], tuple[str, ...]]] = {}


def evaluated(e: Expr, values: Mapping[str, Any]) -> Any:
    """Return the value of the integer expression `e` for `values`, {symbol name: int or numpy array}; arrays broadcast.

    Raise ExpressionError if a symbol has no value or the value exceeds 64 bits, DivisionByZero for a division by 0, and
    NotExact if an exact division a / b leaves a remainder, for arrays in any element.

    >>> from tilewright.algebra.expr import index
    >>> m = index("m", 100)
    >>> evaluated((m // 7) % 3, {"m": 23})
    0
    """
    if type(e) is Const:
        return e.value
    function, names = _compiled.get(e) or _compile(e)
    try:
        return function(*[values[name] for name in names])
    except KeyError as fault:
        raise ExpressionError(f"no value is given for the symbol {fault.args[0]}") from None
    except ZeroDivisionError:
        raise DivisionByZero(f"{e} divides by 0{_values_text(names, values)}") from None
    except NotExact as fault:
        raise NotExact(f"{e}: {fault}{_values_text(names, values)}") from None
    except OverflowError:
        raise ExpressionError(f"{e} does not fit 64 bits{_values_text(names, values)}") from None


@lru_cache(maxsize=4096)
def names_in(e: Expr) -> tuple[str, ...]:
    """Return the names of the symbols on which the integer expression `e` depends, sorted. The result is cached.

    A symbol with a definition (by `let`) is replaced by the symbols on which the definition depends.
    """
    names: set[str] = set()
    for s in e.symbols:
        names.update((s.name,) if s.definition is None else names_in(s.definition))
    return tuple(sorted(names))


@lru_cache(maxsize=1024)
def names_in_all(expressions: tuple[Expr, ...]) -> tuple[str, ...]:
    """Return the names of the symbols on which any of the integer `expressions` depends, each once, in order of first
    use. The result is cached.
    """
    return tuple(dict.fromkeys(name for e in expressions for name in names_in(e)))


def _compile(e: Expr) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Compile the expression `e` to a Python function and return (function, names of its arguments). Store both in the
    cache `_compiled`.

    The arguments are the values of the symbols on which `e` depends (see `names_in`), sorted by name.
    """
    names: set[str] = set()
    source = _python_source(e, names)
    ordered = tuple(sorted(names))
    compiled = _compiled[e] = _function(source, ordered), ordered
    return compiled


def _function(source: str, names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a Python function that computes the Python expression `source`. Its arguments are the values of the
    symbols `names`, in this order; `source` calls the value of symbol m s_m.
    """
    arguments = ", ".join(f"s_{name}" for name in names)  # a symbol may be called `in`
    known = {"_min": _min, "_max": _max, "_require_nonzero": _require_nonzero, "_exact": exact_quotient}
    function: Callable[..., Any] = eval(f"lambda {arguments}: {source}", known)
    return function


# -- expressions in parts -----------------------------------------------------------------------------------

Terms = tuple[tuple[Expr, int], ...]
"""(expression, coefficient) of each term of a sum."""


@dataclass(frozen=True)
class Separated:
    """Expressions, each as a sum of two parts: `terms` that depend on the axes, and an integer that depends on other
    symbols.

    The integer is the expression's *number*; it includes the constant.
    """

    terms: tuple[Terms, ...]
    """For each expression, its terms in the axes."""
    names: tuple[str, ...]
    """The other symbols in any of the expressions."""
    function: Callable[..., tuple[int, ...]]
    """From the values of `names`, in this order, to the number of each expression."""

    def numbers(self, values: Mapping[str, Any]) -> tuple[int, ...] | None:
        """Return, for each expression, the sum of the terms that do not depend on the axes, as an int; `values` is
        {symbol name: value}.

        Return None if a value is missing or an array, or if a division fails (`evaluated` then reports the fault).
        """
        try:
            given = [values[name] for name in self.names]
            for value in given:
                if isinstance(value, np.ndarray):
                    return None
            return self.function(*given)
        except (KeyError, ZeroDivisionError, NotExact):
            return None


@lru_cache(maxsize=1024)
def separated(expressions: tuple[Expr, ...], axes: tuple[str, ...]) -> Separated | None:
    """Return each of `expressions` split into terms in the symbols named `axes`, and a number that depends only on
    other symbols.

    Return None if a term depends on both, such as i*j or (i + j) // 2 for the axis i. The result is cached.

    >>> from tilewright.algebra.expr import index
    >>> i, j = index("i", 8), index("j", 8)
    >>> parts = separated((3 * i + 5 * j + 7,), ("i",))
    >>> parts.terms, parts.numbers({"j": 2})
    ((((<i>, 3),),), (17,))
    >>> separated(((i + j) // 2,), ("i",)) is None
    True
    """
    varying, sources = [], []
    names: set[str] = set()
    for e in expressions:
        constant, terms = _sum_of(e)
        with_axes = tuple((t, c) for t, c in terms if not set(axes).isdisjoint(names_in(t)))
        if not all(set(axes).issuperset(names_in(t)) for t, _ in with_axes):
            return None
        varying.append(with_axes)
        others = [f"{c}*{_python_source(t, names)}" for t, c in terms if (t, c) not in with_axes]
        sources.append(" + ".join([str(constant), *others]) + ", ")
    ordered = tuple(sorted(names))
    return Separated(tuple(varying), ordered, _function(f"({''.join(sources)})", ordered))


def _sum_of(e: Expr) -> tuple[int, Terms]:
    """Return (constant, terms) of the expression `e` as a sum of terms (expression, coefficient). An expression that is
    no sum is a single term.
    """
    if isinstance(e, Const):
        return e.value, ()
    return (e.constant, e.terms) if isinstance(e, Sum) else (0, ((e, 1),))


def _values_text(names: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """Return text for a message, such as ", where m = 3": the ints among the values of the symbols `names`; "" if there
    are none. `values` is {symbol name: value}.
    """
    shown = ", ".join(f"{name} = {values[name]}" for name in names if isinstance(values[name], int))
    return f", where {shown}" if shown else ""


def _require_nonzero(b: Any) -> Any:
    """Return the divisor `b` unchanged; raise ZeroDivisionError if `b` is an array with a zero.

    For ints, Python's division raises that error.
    """
    if isinstance(b, np.ndarray) and not b.all():
        raise ZeroDivisionError
    return b


def _min(*args: Any) -> Any:
    """Return the minimum of `args`, ints or arrays; arrays are compared elementwise."""
    return min(args) if all(isinstance(a, int) for a in args) else _fold(np.minimum, args)


def _max(*args: Any) -> Any:
    """Return the maximum of `args`, ints or arrays; arrays are compared elementwise."""
    return max(args) if all(isinstance(a, int) for a in args) else _fold(np.maximum, args)


def _fold(function: Callable[[Any, Any], Any], args: tuple[Any, ...]) -> Any:
    """Return the ints or arrays `args` combined by `function` from left to right: f(f(a, b), c) for the function f and
    a, b, c.
    """
    total = args[0]
    for a in args[1:]:
        total = function(total, a)
    return total


_SIGNS: dict[type[Expr], str] = {FloorDiv: "//", Mod: "%", Xor: "^", Product: "*", And: "&", Or: "|"}
_CALLED: dict[type[Expr], str] = {Min: "_min", Max: "_max", Exact: "_exact"}


def _python_source(e: Expr, names: set[str]) -> str:
    """Return Python source that evaluates `e`, in which the value of symbol m is s_m: "(2*s_m + 1)". Add the names of
    the symbols (here "m") to the set `names`.

    A symbol with a definition is replaced by the definition.
    """
    if isinstance(e, Const):
        return f"({e.value})"
    if isinstance(e, Symbol):
        if e.definition is not None:
            return _python_source(e.definition, names)
        names.add(e.name)
        return f"s_{e.name}"
    if isinstance(e, Sum):
        terms = [f"{c}*{_python_source(t, names)}" if c != 1 else _python_source(t, names) for t, c in e.terms]
        return "(" + " + ".join([*terms, *([str(e.constant)] if e.constant else [])]) + ")"
    if isinstance(e, AtLeastZero):
        return f"({_python_source(e.operand, names)} >= 0)"
    if isinstance(e, IsZero):
        return f"({_python_source(e.operand, names)} == 0)"
    parts = [_python_source(part, names) for part in e.parts]
    if type(e) in _CALLED:
        return f"{_CALLED[type(e)]}({', '.join(parts)})"
    if isinstance(e, FloorDiv | Mod) and not isinstance(e.right, Const):
        parts[1] = f"_require_nonzero({parts[1]})"
    return "(" + f" {_SIGNS[type(e)]} ".join(parts) + ")"
