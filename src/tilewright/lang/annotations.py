"""The types of a kernel's arguments, also where `from __future__ import annotations` made them texts."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any


def evaluated_annotations(function: Callable[..., Any], frame: FrameType) -> dict[str, Any]:
    """The argument types; as text they are evaluated where they stand, in `frame` and those around it."""
    found = dict(function.__annotations__)
    texts = {name: text for name, text in found.items() if isinstance(text, str) and name != "return"}
    if not texts:
        return found
    names = dict(function.__globals__)
    for variables in reversed(_enclosing(function, frame)):  # the innermost count
        names.update(variables)
    return found | {name: eval(text, names) for name, text in texts.items()}


def _enclosing(function: Callable[..., Any], frame: FrameType) -> list[dict[str, Any]]:
    """The variables of the functions in which it is written, which are still running; not those of their callers."""
    found, inner = [], function.__code__
    current: FrameType | None = frame
    while current is not None:
        if inner in current.f_code.co_consts:
            found.append(current.f_locals)
            inner = current.f_code
        current = current.f_back
    return found
