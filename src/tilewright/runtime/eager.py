"""Calls that torch.compile makes as Python does: its graphs end before them, and begin anew after them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from sys import modules
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
_DYNAMO = "torch._dynamo"
_WHY = "Tilewright's kernels are machine code, which torch.compile does not see into"


def eager(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which torch.compile neither traces nor compiles, nor anything that it calls.

    torch.compile is told only where a program has loaded it; otherwise a call costs one look into `sys.modules`.

    >>> eager(max)(1, 2)
    2
    """
    apart: list[Callable[P, R]] = []

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:  # a graph cannot end inside `try`: torch.compile then leaves this frame as it is, for good
            if _DYNAMO in modules:
                return (apart[0] if apart else _taken_apart(function, apart))(*args, **options)
            return function(*args, **options) if options else function(*args)  # type: ignore[call-arg]
        finally:
            pass

    return _marked(call)


def _taken_apart(function: Callable[P, R], apart: list[Callable[P, R]]) -> Callable[P, R]:
    """The function as torch.compile leaves it alone, kept in `apart`; itself where torch.compile is not in use."""
    try:
        disable = getattr(modules.get(_DYNAMO), "disable", None)  # absent while it is being imported
        if disable is None:
            return function
        apart.append(disable(function))
        return apart[0]
    finally:
        pass


def _marked(function: Callable[P, R]) -> Callable[P, R]:
    """The function with torch's own mark of what no graph takes in."""
    marks: Any = function
    marks._torchdynamo_disable, marks._torchdynamo_disable_msg = True, _WHY
    return function


_marked(_taken_apart)
