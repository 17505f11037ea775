"""Functions that torch.compile calls without tracing them: each call is a graph break."""

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
    """Return `function`, wrapped so that torch.compile neither traces nor compiles it or its callees.

    torch.compile is told only if the program has loaded it; otherwise a call costs one lookup in `sys.modules`.

    >>> eager(max)(1, 2)
    2
    """
    disabled: list[Callable[P, R]] = []

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        """Return the result of `function`, which is called as disabled for torch.compile if that is loaded."""
        try:  # torch.compile cannot break a graph inside `try`, so it never compiles this frame
            if _DYNAMO in modules:
                return (disabled[0] if disabled else _disabled(function, disabled))(*args, **options)
            return function(*args, **options) if options else function(*args)  # type: ignore[call-arg]
        finally:
            pass

    return _marked(call)


def _disabled(function: Callable[P, R], disabled: list[Callable[P, R]]) -> Callable[P, R]:
    """Return `function` wrapped by torch._dynamo.disable, and append the wrapped function to the list `disabled`.

    The caller keeps the list, for its next call. While torch.compile is not fully imported, `function` itself is
    returned, and nothing is appended.
    """
    try:
        disable = getattr(modules.get(_DYNAMO), "disable", None)  # absent while it is being imported
        if disable is None:
            return function
        disabled.append(disable(function))
        return disabled[0]
    finally:
        pass


def _marked(function: Callable[P, R]) -> Callable[P, R]:
    """Set torch's attributes on `function`, so that torch.compile breaks its graph at calls of it, and return
    `function`."""
    marks: Any = function
    marks._torchdynamo_disable, marks._torchdynamo_disable_msg = True, _WHY
    return function


_marked(_disabled)
