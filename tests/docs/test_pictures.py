"""The pictures of the documents are those that their script draws, and the commands that the tutorial names run."""

from __future__ import annotations

import re
import runpy
import shlex
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright.cli import app

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "layouts.md").read_text(encoding="utf-8")
PICTURES: dict[str, str] = runpy.run_path(str(DOCS / "draw_pictures.py"))["pictures"]()
LINKS = [
    (words, (page.parent / path).resolve().relative_to(DOCS.resolve()).as_posix())
    for page in sorted(DOCS.rglob("*.md"))
    for words, path in re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", page.read_text(encoding="utf-8"))
]
"""The words and the path, relative to the folder `docs`, of each picture that a page shows."""
COMMANDS = re.findall(r"`tilewright (draw '[^`]*)`", TUTORIAL)


def test_the_folder_holds_the_pictures_of_the_script() -> None:
    assert sorted(file.name for file in (DOCS / "pictures").iterdir()) == sorted(f"{name}.svg" for name in PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_script_draws(name: str) -> None:
    stored = (DOCS / "pictures" / f"{name}.svg").read_bytes()
    assert stored == PICTURES[name].encode(), "the pictures are out of date: run `make pictures`"
    assert ET.fromstring(stored).tag.endswith("svg")


def test_the_documents_show_every_picture_once_and_no_other() -> None:
    assert sorted(path for _, path in LINKS) == sorted(f"pictures/{name}.svg" for name in PICTURES)


def test_every_picture_is_described_in_words() -> None:
    assert [path for words, path in LINKS if len(words) < 20] == []


def test_the_tutorial_names_commands() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_tutorial_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, shlex.split(command), env={"COLUMNS": "100", "NO_COLOR": "1"})
    assert result.exit_code == 0, result.output
    assert [file.name for file in tmp_path.iterdir()] == re.findall(r"-o (\S+)", command)
