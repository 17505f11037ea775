"""docs/machines.md is what its script writes, and no field, machine or atom is missing."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields
from pathlib import Path

import pytest

from tilewright.machine import Limits
from tilewright.targets.registry import MACHINES, machine

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "machines.md").read_text(encoding="utf-8")
SCRIPT = runpy.run_path(str(DOCS / "write_machines.py"))


def test_the_file_is_what_the_script_writes():
    assert SCRIPT["page"]() == TEXT, "docs/machines.md is out of date: run `make machines`"


def test_every_field_that_the_planner_counts_is_explained():
    assert {field.name for field in fields(Limits)} == set(SCRIPT["MEANING"]), "a row of MEANING in write_machines.py"


def test_every_machine_is_shown():
    assert [name for name in MACHINES if not any(row.startswith(name) for row in SCRIPT["ROWS"])] == []
    assert set(SCRIPT["ROWS"]) == set(SCRIPT["SHOWN_AS"])


@pytest.mark.parametrize("name", SCRIPT["ROWS"])
def test_every_atom_stands_in_a_table(name):
    row = machine(name)
    named = set(re.findall(r"^\| `([^`]*)`", TEXT, flags=re.MULTILINE))
    families = {re.sub(r"(wgmma\.m64|fma\.m64)n\d+", r"\1nN", atom) for atom in (*row.multiply, *row.copies)}
    assert families <= named


def test_links_within_the_page_lead_to_headings():
    headings = re.findall(r"^#+ (.*)$", TEXT, flags=re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(re.findall(r"\(#([^)]*)\)", TEXT)) <= anchors
