"""No exception from inside is made into another at the boundary: nothing catches all there are."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import tilewright

SOURCES = sorted(Path(tilewright.__file__).parent.rglob("*.py"))
EVERYTHING = {"Exception", "BaseException", "RecursionError", "MemoryError"}


def caught(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, name) of what handlers and `suppress` catch; a bare `except` catches BaseException.

    >>> caught(ast.parse("try: f()\\nexcept (KeyError, MemoryError): pass"))
    [(2, 'KeyError'), (2, 'MemoryError')]
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            kinds = [node.type] if node.type is not None else [ast.Name("BaseException")]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "suppress":
            kinds = node.args
        else:
            continue
        for kind in kinds:
            each = kind.elts if isinstance(kind, ast.Tuple) else [kind]
            found += [(node.lineno, ast.unparse(k).split(".")[-1]) for k in each]
    return found


@pytest.mark.sampled(181)
@pytest.mark.parametrize("path", SOURCES, ids=[p.stem for p in SOURCES])
def test_nothing_catches_every_exception(path: Path) -> None:
    wide = [(line, name) for line, name in caught(ast.parse(path.read_text())) if name in EVERYTHING]
    assert not wide, f"{path}: {wide}"
