"""Check arguments of public functions against the annotations in their signatures.

A package lists the annotations that occur in its public functions, each with a predicate. `checked` wraps a function so
that a wrong argument raises an error that names it before the function starts. Code inside the package calls the
functions unwrapped.

>>> def half(n: int) -> int:
...     return n // 2
>>> half = checked(half, {"int": (lambda n: type(n) is int, "an integer")}, ArgumentError)
>>> half(6)
3
>>> half("six")
Traceback (most recent call last):
tilewright.errors.ArgumentError: half: n='six' is not an integer
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy as np

from tilewright.errors import ArgumentError, TilewrightError
from tilewright.limits import written

P = ParamSpec("P")
R = TypeVar("R")
Kind = tuple[Callable[[Any], bool], str]
"""Whether a value will do, and what would, in words."""


def checked(
    function: Callable[P, R], kinds: Mapping[str, Kind], error: type[TilewrightError] = ArgumentError
) -> Callable[P, R]:
    """Return `function` wrapped so that a wrong argument raises `error` before the function starts.

    `kinds` maps "function.parameter", or an annotation as text, to (predicate, description of valid values); an entry
    for the parameter takes precedence over one for the annotation. Parameters without an entry are not checked. An
    argument that is the default of its parameter is always valid. numpy integers, also in tuples, are passed on as
    Python integers.
    """
    name = function.__name__
    positional: list[tuple[str, Kind | None]] = []
    by_name: dict[str, Kind] = {}
    variadic: tuple[str, Kind | None] | None = None
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        annotation = inspect.formatannotation(parameter.annotation).strip("'\"")
        kind = kinds.get(f"{name}.{parameter.name}", kinds.get(annotation))
        if parameter.default is not parameter.empty:
            defaults[parameter.name] = parameter.default
        if parameter.kind is parameter.VAR_POSITIONAL:
            variadic = (parameter.name, kind)
        elif parameter.kind is not parameter.VAR_KEYWORD:
            if parameter.kind is not parameter.KEYWORD_ONLY:
                positional.append((parameter.name, kind))
            if kind is not None:
                by_name[parameter.name] = kind

    def require(parameter: str, kind: Kind | None, value: Any) -> None:
        """Raise `error` if `value`, the argument of `parameter`, is not valid for `kind`. None as `kind` accepts every
        value.
        """
        if kind is not None and not (parameter in defaults and value is defaults[parameter]) and not kind[0](value):
            raise error(f"{name}: {parameter}={written(value, 80)} is not {kind[1]}")

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        """Check all arguments, then call the function with them."""
        for place, value in enumerate(args):
            if place < len(positional):
                require(*positional[place], value)
            elif variadic is not None:
                require(*variadic, value)
        for parameter, value in options.items():
            require(parameter, by_name.get(parameter), value)
        plain: Any = [_plain(value) for value in args]
        named: Any = {parameter: _plain(value) for parameter, value in options.items()}
        return function(*plain, **named)

    return call


def _plain(value: Any) -> Any:
    """Return `value` with every numpy integer replaced by a Python integer: `value` itself, and entries of tuples.
    Other values are returned unchanged.
    """
    if type(value) is tuple:
        return tuple(map(_plain, value))
    return int(value) if isinstance(value, np.integer) else value


def check_all(
    offered: dict[str, Any],
    names: Iterable[str],
    kinds: Mapping[str, Kind],
    error: type[TilewrightError] = ArgumentError,
) -> None:
    """Replace the functions called `names` in the dictionary `offered`, a module's globals, by versions that check
    their arguments. Names of other objects are skipped; a name that is not in `offered` raises KeyError.

    `kinds` maps "function.parameter", or an annotation as text, to (predicate, description of valid values). A wrong
    argument raises `error`.
    """
    for name in names:
        if isinstance(offered[name], FunctionType):
            offered[name] = checked(offered[name], kinds, error)
