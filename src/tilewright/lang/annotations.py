"""Evaluate the annotations of a kernel's arguments, which may be text (`from __future__ import annotations`)."""

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
    """Return a function's annotations as {argument name: annotation}; annotations that are text are evaluated.

    Names in a text are looked up first in the local variables of the functions that enclose `function` and are still
    running (innermost first), then in the globals of `function`. The running functions are found on the stack, from
    `frame` outwards. The annotation of the return value, under the name "return", is not evaluated.
    """
    annotations = dict(function.__annotations__)
    texts = {name: text for name, text in annotations.items() if isinstance(text, str) and name != "return"}
    if not texts:
        return annotations
    names = dict(function.__globals__)
    for variables in reversed(_enclosing_scopes(function, frame)):  # the innermost scope wins
        names.update(variables)
    return annotations | {name: _evaluated_annotation(function, name, text, names) for name, text in texts.items()}


def _evaluated_annotation(function: Callable[..., Any], name: str, text: str, names: dict[str, Any]) -> Any:
    """Return the value of `text`, the annotation of argument `name` of `function`. `names` is {variable: value} for the
    evaluation; Python may add `__builtins__` to it.

    A ProgramError is raised again with the location of the argument's line; other errors pass unchanged.
    """
    try:
        return eval(text, names)
    except ProgramError as fault:
        line = _line_of_argument(function, name)
        raise type(fault)(fault.what, Location(function.__code__, 0, line)).with_traceback(None) from None


def _line_of_argument(function: Callable[..., Any], name: str) -> int:
    """Return the number of the source line of the argument `name` in the definition of `function`. If the source or the
    argument is not found, return the number of the function's first line.
    """
    start = function.__code__.co_firstlineno
    try:
        lines, _ = inspect.getsourcelines(function)
        (definition,) = ast.parse(dedent("".join(lines))).body
    except (OSError, SyntaxError):
        return start
    nodes = (node for node in ast.walk(definition) if isinstance(node, ast.arg) and node.arg == name)
    return start + next((node.lineno for node in nodes), 1) - 1


def _enclosing_scopes(function: Callable[..., Any], frame: FrameType) -> list[dict[str, Any]]:
    """Return a list of {variable: value}: the local variables of the functions that enclose `function` and still run,
    innermost first.

    The stack is searched from `frame` outwards. Callers that do not enclose `function` in their source are left out.
    """
    scopes, inner = [], function.__code__
    current: FrameType | None = frame
    while current is not None:
        if inner in current.f_code.co_consts:
            scopes.append(current.f_locals)
            inner = current.f_code
        current = current.f_back
    return scopes
