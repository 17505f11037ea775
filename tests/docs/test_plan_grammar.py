"""docs/plan_grammar.md and its folder have a row for every statement and word of plans; their examples are parsed."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import pytest

from tilewright.plan import schedule, text
from tilewright.plan.text import parse_plan
from tilewright.plan.unlowered import unlowered
from tilewright.plan.version1 import WORDS as VERSION_1
from tilewright.plan.version1 import as_version_2
from tilewright.plan.words import WORDS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {page.stem: page.read_text(encoding="utf-8") for page in sorted((DOCS / "plan_grammar").glob("*.md"))}
OLD = PAGES.pop("version_1")
OVERVIEW = (DOCS / "plan_grammar.md").read_text(encoding="utf-8")
REFERENCE = "\n".join([OVERVIEW, *PAGES.values()])
ROWS = [line.strip("|").split("|") for line in REFERENCE.splitlines() if line.startswith("| `")]
EXAMPLES = {cells[-1].strip().strip("`"): cells for cells in ROWS}
OLD_ROWS = [re.findall(r"`([^`]*)`", line) for line in OLD.splitlines() if line.startswith("| `")]
SETTING = {
    "axis M": "axis M = (M 64): task 16, loop 4, loop 2",
    "axis K": "axis K = (K 64): loop 16, loop 8",
    "axis K_0": "axis K_0 = (K_0 64): loop 16",
    "axis N": "axis N = (N 64): task 16",
    "axis rows": "axis rows = (m_0 64): task 16, loop 4",
    "axis columns": "axis columns = (f_0 64): task 16, loop 4",
    "axis depth": "axis depth = (k_0 64): loop 4",
    "grid": "grid M, N, rows, columns",
}
"""Statements that the examples need around them, by the words that an example replaces one by."""


def whole_plan(example: str) -> str:
    """A plan that has the example as one of its statements."""
    lines = [line for word, line in SETTING.items() if not example.startswith(f"{word} ")]
    if example.startswith("producer "):
        lines.append("mma by wgmma.m64n256k16.bf16, tile 128x256")
    if example == "then":
        return "; ".join([*lines, "split kernel after mma", "then", *lines])
    return "; ".join([*lines, example])


def words_of_parser() -> set[str]:
    """The words in the parser's patterns, and in the statements that the schedule's types print."""
    constants = (schedule.LEVELS, schedule.HINTS, schedule.ORDERS, schedule.OVERLAPS, schedule.FORMS, schedule.SPACES)
    constants += (schedule.BETWEEN, schedule.POINTS, schedule.LAUNCHES, (schedule.PACKED, schedule.BIND, schedule.THEN))
    constants += ((schedule.ALIGNED, schedule.PANELS, schedule.PADDED, schedule.DIAGONAL),)
    told = [word for words in constants for word in words]
    for node in ast.walk(ast.parse(inspect.getsource(text))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("re.compile", "statement.startswith"):
            told += [part.value for part in ast.walk(node.args[0]) if isinstance(part, ast.Constant)]
        if isinstance(node, ast.Compare):  # `part in ("joint", "store per group", "pingpong")`
            told += [part.value for part in ast.walk(node) if isinstance(getattr(part, "value", 0), str)]
    written = " ".join(re.sub(r"\\[a-z]|\[[^]]*\]|waves\?", " ", str(part)) for part in told)
    return {word for word in re.findall(r"[a-z]{2,}|l1", written) if word != "im"}


def test_the_overview_links_to_every_page():
    linked = set(re.findall(r"\]\(plan_grammar/(\w+)\.md\)", OVERVIEW))
    assert linked == {*PAGES, "version_1"}


def test_every_word_of_the_parser_is_explained():
    explained = set(re.findall(r"[a-z]{2,}|l1", REFERENCE))
    assert words_of_parser() >= {"axis", "task", "raster", "producer", "transposed", "peel", "occupancy", "reversed"}
    assert words_of_parser() - explained == set()


def test_every_word_of_suggestions_stands_in_code():
    code = set(re.findall(r"[a-z]+", " ".join(re.findall(r"`[^`]*`", REFERENCE)))) | {"workspace"}
    assert set(WORDS) - code == set()


def test_every_kind_of_statement_has_a_row():
    heads = " ".join(cells[0] for cells in ROWS)
    assert [word for word in text.NOTATION if not re.search(rf"\b{word}\b", heads)] == []


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_are_parsed_and_printed_back(example):
    plan = parse_plan(whole_plan(example))
    assert example in plan.lines() or example == "overlap none"


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_is_not_lowered_is_marked(example):
    refused = [line for line, _ in unlowered(parse_plan(whole_plan(example)))]
    done = EXAMPLES[example][-2].strip()
    assert done in ("yes", "no", "CPU", "GPU")
    assert (done == "no") == (example in refused), "the column *compiles* is wrong"


def test_every_word_of_version_1_is_translated():
    assert set(VERSION_1) <= set(re.findall(r"[a-z]+", OLD))


@pytest.mark.parametrize("old", OLD_ROWS, ids=lambda row: row[0])
def test_rows_of_version_1_are_translations(old):
    half = len(old) // 2
    for before, after in zip(old[:half], old[half:], strict=True):
        assert "; ".join(as_version_2(before) or []) in (after, after.replace("; raster cyclic", ""))
