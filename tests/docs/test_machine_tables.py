"""docs/machines.md and docs/machines are what their script writes, and no field, machine or atom is missing."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from tilewright.machine import Limits
from tilewright.targets.registry import MACHINES, machine

DOCS = Path(__file__).parents[2] / "docs"
SCRIPT = runpy.run_path(str(DOCS / "write_machines.py"))
PATHS = ["machines.md", *sorted(f"machines/{path.name}" for path in (DOCS / "machines").iterdir())]
TEXTS = {path: (DOCS / path).read_text(encoding="utf-8") for path in PATHS}


def test_the_files_are_what_the_script_writes():
    assert SCRIPT["pages"]() == TEXTS, "docs/machines.md or docs/machines is out of date: run `make machines`"


def test_every_field_that_the_planner_counts_is_explained():
    assert {field.name for field in fields(Limits)} == set(SCRIPT["MEANING"]), "a row of MEANING in write_machines.py"


def test_every_machine_is_shown():
    assert [name for name in MACHINES if not any(row.startswith(name) for row in SCRIPT["ROWS"])] == []
    assert set(SCRIPT["ROWS"]) == set(SCRIPT["SHOWN_AS"])
    assert sorted(SCRIPT["ROWS"]) == sorted(name for _, names in SCRIPT["MORE_OF"].values() for name in names)


@pytest.mark.parametrize("name", SCRIPT["ROWS"])
def test_every_atom_stands_in_a_table(name):
    row = machine(name)
    (text,) = (text for text in TEXTS.values() if f"\n## `{name}`\n" in text)
    named = set(re.findall(r"^\| `([^`]*)`", text, flags=re.MULTILINE))
    families = {re.sub(r"(wgmma\.m64|fma\.m64)n\d+", r"\1nN", atom) for atom in (*row.multiply, *row.copies)}
    assert families <= named


@pytest.mark.parametrize("path", PATHS)
def test_links_between_the_pages_lead_to_headings(path):
    for target, anchor in re.findall(r"\((machines/\w+\.md)?#([^)]*)\)", TEXTS[path]):
        headings = re.findall(r"^#+ (.*)$", TEXTS[target or path], flags=re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
