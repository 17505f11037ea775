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
    around: list[dict[str, Any]] = []
    current: FrameType | None = frame
    while current is not None:  # types may be built from variables of the functions around, which are still running
        around.append(current.f_locals)
        current = current.f_back
    names = dict(function.__globals__)
    for variables in reversed(around):  # the innermost count
        names.update(variables)
    return found | {name: eval(text, names) for name, text in texts.items()}
