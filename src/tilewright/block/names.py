"""Names for traced values: the variables to which the author's source assigns the results of a call.

A program is easier to read, and a message easier to follow, if a tensor that the author calls `acc` is `%acc`. The
source of each function is parsed once. Without a source, names are made up and the program is otherwise the same.
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
    """Return the variable names to which the author's source assigns the results of the call at `location`. Return ()
    if the results are assigned to no variable, or if the source is not known.

    `sa, acc = tb.shared(...), mma.c(...)` gives one name to each of two calls. `for m, n in tb.tasks(...)` and `with
    ring.fill() as (sa, sb)` give two names to one call.
    """
    if location is None:
        return ()
    positions = _positions(location.code)
    index = location.instruction // 2
    if index >= len(positions):
        return ()
    first, last, begin, end = positions[index]
    if first is None or last is None or begin is None or end is None:
        return ()
    starts, ends = _assigned(location.code)
    return starts.get((first, begin)) or ends.get((last, end), ())


def argument_names(function: Any, count: int) -> tuple[str, ...]:
    """Return the parameter names of `function` if it has `count` parameters; otherwise the `count` default names i, j,
    k, ...
    """
    code = getattr(function, "__code__", None)
    if code is not None and code.co_argcount == count:
        return tuple(code.co_varnames[:count])
    return made_up(count)


def made_up(count: int) -> tuple[str, ...]:
    """Return `count` default names for coordinates, in order: i, j, k, l, m, n, then i6, i7, ..."""
    letters = "ijklmn"
    return tuple(letters[n] if n < len(letters) else f"i{n}" for n in range(count))


@lru_cache(maxsize=512)
def _positions(code: CodeType) -> tuple[tuple[int | None, int | None, int | None, int | None], ...]:
    """Return the source position of each bytecode instruction of `code`, from Python's `co_positions`: (first line,
    last line, first column, last column). An unknown number is None.
    """
    return tuple(code.co_positions())


@lru_cache(maxsize=512)
def _assigned(code: CodeType) -> tuple[_Names, _Names]:
    """Return two dicts {(line, column): assigned names} for the source of `code`; both are empty if the source cannot
    be parsed.

    The keys of the first are the starts of `with` statements of one item. The keys of the second are the ends of
    expressions that are assigned to variables. There are two, because some versions of Python attribute entering a
    `with` to its expression, others to the statement.
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
    """Return the number of the last source line of `code`, including functions nested in it."""
    last = max((p[1] for p in _positions(code) if p[1] is not None), default=code.co_firstlineno)
    return max([last, *(_last_line(c) for c in code.co_consts if isinstance(c, CodeType))])


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield (target, value expression) for each assignment that the syntax node `node` makes by `=`, `:=`, `for` or
    `with ... as`. Yield nothing for other nodes, or for an assignment to several targets (`a = b = x`).
    """
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
    """Yield pairs (target, value) of an assignment: `a, b = x, y` gives (a, x) and (b, y), nested tuples too. If
    `target` and `value` are not tuples of the same length, yield (`target`, `value`).
    """
    are_tuples = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
    if are_tuples and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
        for element, element_value in zip(target.elts, value.elts, strict=True):  # type: ignore[attr-defined]
            yield from _split(element, element_value)
    else:
        yield target, value


def _names(target: ast.expr) -> tuple[str, ...]:
    """Return the variable names in the assignment target `target`: `x` -> ("x",), `(x, y)` -> ("x", "y"). Return () for
    a target with anything else, such as an attribute.
    """
    if isinstance(target, ast.Name):
        return (target.id,)
    if isinstance(target, ast.Tuple | ast.List) and all(isinstance(element, ast.Name) for element in target.elts):
        return tuple(element.id for element in target.elts if isinstance(element, ast.Name))
    return ()
