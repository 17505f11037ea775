"""What the author calls things: the names that a traced call's results are assigned to, read off the source.

A program is easier to read, and a message easier to follow, where `%acc` is what the author calls `acc`. The source is
looked at once for each function; where it cannot be had, names are made up, and nothing else changes.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

from tilewright.ir.location import Location

_Place = tuple[int, int]
_Names = dict[_Place, tuple[str, ...]]


def author_names(location: Location | None) -> tuple[str, ...]:
    """The names to which the author assigns what the call at a location gives.

    `sa, acc = tb.shared(...), mma.c(...)` names each result, `for m, n in tb.tasks(...)` and
    `with ring.fill() as (sa, sb)` both of two; a call that is not assigned has no names.
    """
    if location is None:
        return ()
    positions = _positions(location.code)
    place = location.instruction // 2
    if place >= len(positions):
        return ()
    first, last, begin, end = positions[place]
    if first is None or last is None or begin is None or end is None:
        return ()
    starts, ends = _assigned(location.code)
    return starts.get((first, begin)) or ends.get((last, end), ())


def argument_names(function: Any, count: int) -> tuple[str, ...]:
    """The names of a function's arguments, where there are as many; otherwise i, j, k, ..."""
    code = getattr(function, "__code__", None)
    if code is not None and code.co_argcount == count:
        return tuple(code.co_varnames[:count])
    return made_up(count)


def made_up(count: int) -> tuple[str, ...]:
    """Names for coordinates that nobody named."""
    letters = "ijklmn"
    return tuple(letters[n] if n < len(letters) else f"i{n}" for n in range(count))


@lru_cache(maxsize=512)
def _positions(code: CodeType) -> tuple[tuple[int | None, int | None, int | None, int | None], ...]:
    return tuple(code.co_positions())


@lru_cache(maxsize=512)
def _assigned(code: CodeType) -> tuple[_Names, _Names]:
    """Names by the start of the `with` that binds them, and by the end of the expression whose value they are given.

    Some versions of Python say that a `with` is entered at its expression, some at the whole statement.
    """
    first, last = code.co_firstlineno, _last_line(code)
    lines = linecache.getlines(code.co_filename)[first - 1 : last]
    source = "".join(lines)
    above = 0
    if source[:1].isspace():  # a function within another: a header keeps its columns where they are
        source, above = f"if True:\n{source}", 1
    try:
        tree = ast.parse(source)
    except SyntaxError:  # part of a line only, such as a lambda
        return {}, {}
    starts: _Names = {}
    ends: _Names = {}
    for node in ast.walk(tree):
        for target, value in _pairs(node):
            names = _names(target)
            if names and value.end_lineno is not None and value.end_col_offset is not None:
                ends[value.end_lineno + first - 1 - above, value.end_col_offset] = names
                if isinstance(node, ast.With) and len(node.items) == 1:
                    starts[node.lineno + first - 1 - above, node.col_offset] = names
    return starts, ends


def _last_line(code: CodeType) -> int:
    own = max((p[1] for p in _positions(code) if p[1] is not None), default=code.co_firstlineno)
    return max([own, *(_last_line(c) for c in code.co_consts if isinstance(c, CodeType))])


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Every target of a statement with the expression whose value it is given."""
    match node:
        case ast.Assign(targets=[target], value=value):
            yield from _split(target, value)
        case ast.NamedExpr(target=target, value=value) | ast.For(target=target, iter=value):
            yield target, value
        case ast.With(items=items):
            for item in items:
                if item.optional_vars is not None:
                    yield item.optional_vars, item.context_expr
        case _:
            pass


def _split(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
    if both and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
        for t, v in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
            yield from _split(t, v)
    else:
        yield target, value


def _names(target: ast.expr) -> tuple[str, ...]:
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Tuple | ast.List) and all(isinstance(e, ast.Name) for e in target.elts):
        return tuple(e.id for e in target.elts if isinstance(e, ast.Name))
    return ()
