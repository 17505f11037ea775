"""The types of a kernel's arguments, also where `from __future__ import annotations` made them texts."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from textwrap import dedent
from types import FrameType
from typing import Any

from tilewright.errors import ProgramError
from tilewright.ir.location import Location


def evaluated_annotations(function: Callable[..., Any], frame: FrameType) -> dict[str, Any]:
    """The argument types; as text they are evaluated where they stand, in `frame` and those around it."""
    found = dict(function.__annotations__)
    texts = {name: text for name, text in found.items() if isinstance(text, str) and name != "return"}
    if not texts:
        return found
    names = dict(function.__globals__)
    for variables in reversed(_enclosing(function, frame)):  # the innermost count
        names.update(variables)
    return found | {name: _evaluated(function, name, text, names) for name, text in texts.items()}


def _evaluated(function: Callable[..., Any], name: str, text: str, names: dict[str, Any]) -> Any:
    """The type of one argument, from its text; a mistake in it is shown at the argument's line."""
    try:
        return eval(text, names)
    except ProgramError as fault:
        line = _line(function, name)
        raise type(fault)(fault.what, Location(function.__code__, 0, line)).with_traceback(None) from None


def _line(function: Callable[..., Any], name: str) -> int:
    """The line of an argument in its file; that of the function, where the file cannot be read."""
    start = function.__code__.co_firstlineno
    try:
        lines, _ = inspect.getsourcelines(function)
        (definition,) = ast.parse(dedent("".join(lines))).body
    except (OSError, SyntaxError):
        return start
    found = (node for node in ast.walk(definition) if isinstance(node, ast.arg) and node.arg == name)
    return start + next((node.lineno for node in found), 1) - 1


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
