"""Words of the old vocabulary stand only in the reader of version 1 of the plan language.

Its notation has such words. Everywhere else, identifiers say what they hold, and docstrings and comments use the words
of the field. An ordinary word is not listed: a number may have a factor, and a search may keep a set of seen nodes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent
READER = "plan/version1.py"
SOURCES = [p for p in sorted(PACKAGE.rglob("*.py")) if str(p.relative_to(PACKAGE)) != READER]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


NAMES = _set(
    "found made own there said told gone brought apart together taken loose how rounds settle askew twins meant"
    " dealt surplus flying framed turned bring"
)
"""Names that do not say what they hold: of variables, parameters, attributes, functions."""
WITHIN = _set("apart brought gone said told askew twins there")
"""Of these, the ones that may not be a part of a longer name either."""
GONE = _set(
    "Cut Cuts Multiplied Tiled Roles Placed GeneralChoice PlannedTerms RingCandidate Patch ProductChain TermProduct"
    " RingWork PatchWork ChainedProducts Surplus Served TermCost Walk Fixed InRows Halves Patched Copied Home Piece"
    " Spread Flying ProductGroup LaneMeetings Meetings Touched Turns Again Quick Factor FactorPanel"
    " nearer perhaps_copied planned_by_terms less_by_terms forms_of not_by_blocks perhaps_apart last_first abreast"
    " products_ahead goes only_there diagonal are_alike home_of fixed_by taken_over pass_on by_itself told_apart"
    " written_out is_no_larger rounds_of by_terms ring_costs patching"
)
"""Classes and functions that have other names now."""
OLD = NAMES | GONE
KEPT = {
    ("algebra/access.py", "how"): "a parameter of the public Access.cut",
    ("algebra/access_cut.py", "how"): "the same parameter, behind Access.cut",
    ("block/computing.py", "how"): "a parameter of the block language's reduce and scan",
    ("block/moving.py", "how"): "a parameter of the block language's atomic",
    ("block/control.py", "apart"): "a parameter of the block language's ring: the word of the channel's notation",
    ("targets/gpu/emit.py", "settle"): "the emitter finds a method by the name of the operation: `settle`",
    ("targets/gpu/emit.py", "together"): "the emitter finds a method by the name of the operation: `together`",
    ("cli/bench.py", "rounds"): "rounds of a measurement: an option of the command",
    ("cli/timing.py", "rounds"): "rounds of a measurement",
    ("runtime/timing.py", "rounds"): "rounds of a measurement",
}
"""(file, name): why it stays."""

PHRASES = re.compile(
    r"\b(goes over|go over|gone over|written out|brought|dealt out|side by side|lies? apart|taken apart|term by term"
    r"|lanes meet|waves meet|askew|so many|surplus)\b"
)
FIRST_WORDS = re.compile(r"(?:\A|[.:;] |\n)(What|Where|So many|Such|Of those) (?!does\b|is\b|are\b|do\b)")
"""A sentence that begins with a clause instead of its subject; questions are none."""


def _names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield (name, line) for everything that `tree` names; underscores at the ends are left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name.strip("_"), node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id.strip("_"), node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr.strip("_"), node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg.strip("_"), node.lineno
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname.strip("_"), node.lineno


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _old_names(tree: ast.Module) -> list[tuple[str, int]]:
    """Return [(name, line)] of the old names in a module."""
    return [(name, line) for name, line in _names(tree) if name in OLD or not WITHIN.isdisjoint(name.split("_"))]


def _prose(path: Path) -> Iterator[str]:
    """Yield the docstrings and comments of a module, each paragraph in one line."""
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from (" ".join(paragraph.split()) for paragraph in node.value.value.split("\n\n"))
    yield from re.findall(r"(?:^|\s)# (.*)$", path.read_text(), re.MULTILINE)


def test_identifiers_are_no_words_of_the_old_vocabulary() -> None:
    old = []
    for path in SOURCES:
        file = str(path.relative_to(PACKAGE))
        old += [f"{file}:{line}: {name}" for name, line in _old_names(_tree(path)) if (file, name) not in KEPT]
    assert old == []


def test_exceptions_are_needed() -> None:
    for file, name in KEPT:
        assert name in {n for n, _ in _old_names(_tree(PACKAGE / file))}, (file, name)


def test_docstrings_and_comments_use_no_phrase_of_the_old_vocabulary() -> None:
    old = []
    for path in SOURCES:
        for text in _prose(path):
            match = PHRASES.search(text) or FIRST_WORDS.search(text)
            if match:
                old.append(f"{path.relative_to(PACKAGE)}: {text[max(0, match.start() - 20) : match.end() + 40]!r}")
    assert old == []


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("found = 1", "found"),
        ("def f(how): pass", "how"),
        ("class _Cuts: pass", "Cuts"),
        ("self._made = 1", "made"),
        ("for rows_apart in x: pass", "rows_apart"),
        ("import x as taken", "taken"),
    ],
)
def test_old_names_are_found(source: str, name: str) -> None:
    assert [n for n, _ in _old_names(ast.parse(source))] == [name]


@pytest.mark.parametrize("text", ["What a lane has.", "It is so. Where it is not, 0.", "Rows lie side by side."])
def test_old_phrases_are_found(text: str) -> None:
    assert PHRASES.search(text) or FIRST_WORDS.search(text)


@pytest.mark.parametrize("text", ["Which lane has it", "A factor of 2, where n is even", "Where does it go? There"])
def test_other_words_are_no_phrases(text: str) -> None:
    assert not PHRASES.search(text)
    assert not FIRST_WORDS.search(text)
