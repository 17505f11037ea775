"""docs/api.md has every public name, and is what its script writes."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
from pathlib import Path

import pytest
from typer.main import get_command

import tilewright
from tilewright.cli import app

DOCS = Path(__file__).parents[2] / "docs"
TEXT = (DOCS / "api.md").read_text(encoding="utf-8")
SCRIPT = runpy.run_path(str(DOCS / "write_api.py"))
SECTIONS = dict(zip(*[iter(re.split(r"^## `?([^`\n]+)`?\n", TEXT, flags=re.MULTILINE)[1:])] * 2, strict=True))


def listed(section: str) -> list[str]:
    """The names that head an entry of a section."""
    heads = re.findall(r"^- (`.*?)\\\n", section, flags=re.MULTILINE | re.DOTALL)
    return [name for head in heads for name in re.findall(r"`(\w+)", head.split("; each")[0])]


def test_the_file_is_what_the_script_writes() -> None:
    assert SCRIPT["reference"]() == TEXT, "docs/api.md is out of date: run `make api`"


def test_every_public_part_has_a_section() -> None:
    parts = {f"tilewright.{name}" for name in tilewright.__all__ if inspect.ismodule(getattr(tilewright, name))}
    parts = (parts - {"tilewright.compat"}) | {"tilewright", "tilewright.compat.wave", "The command line"}
    assert parts <= set(SECTIONS)


@pytest.mark.parametrize("name", SCRIPT["MODULES"])
def test_every_public_name_stands_once(name: str) -> None:
    module = importlib.import_module(name)
    own = [n for n, value in vars(module).items() if getattr(value, "__module__", None) == name and n[0] != "_"]
    public = getattr(module, "__all__", own)
    assert sorted(listed(SECTIONS[name])) == sorted(set(public)), "run `make api`"
    assert len(set(public)) == len(public)


def test_a_name_that_is_new_would_be_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tilewright.kernels, "__all__", [*tilewright.kernels.__all__, "np"])
    assert SCRIPT["reference"]() != TEXT


def test_every_command_and_option_stands_there() -> None:
    commands = get_command(app).commands  # type: ignore[attr-defined]
    section = SECTIONS["The command line"]
    assert re.findall(r"^- `tilewright (\w+)", section, flags=re.MULTILINE) == list(commands)
    options = [p.opts[0] for command in commands.values() for p in command.params if p.opts[0].startswith("--")]
    assert re.findall(r"^  - `(--[\w-]+)", section, flags=re.MULTILINE) == options


def test_nothing_is_left_without_words() -> None:
    assert not re.findall(r"^- `.*\\\n\n", TEXT, flags=re.MULTILINE)
    assert "0x" not in TEXT, "an object's address stands in a signature"


def test_links_within_the_page_lead_to_headings() -> None:
    headings = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in SECTIONS}
    assert set(re.findall(r"\(#([^)]*)\)", TEXT)) <= headings
