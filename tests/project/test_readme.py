"""README as a user meets it: links that lead somewhere, commands that exist, code that a type checker takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tilewright
from tilewright.cli import app

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "examples/block/README.md"]


@cache
def anchors(page: Path) -> set[str]:
    """The names under which links reach the headings of a page."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_are_there(page):
    prose = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    targets = [t.partition("#") for t in re.findall(r"\]\(([^)\s]+)\)", prose) if "://" not in t]
    files = [(page.parent / path if path else page, anchor) for path, _, anchor in targets]
    assert [str(file) for file, _ in files if not file.exists()] == []
    missing = [(file.name, a) for file, a in files if a and file.suffix == ".md" and a not in anchors(file.resolve())]
    assert missing == []


def code_of(page: Path) -> str:
    """The Python of a page's examples, in order; without block kernels, whose annotations are calls, and no types."""
    blocks = re.findall(r"```pycon\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = [block for block in blocks if "import tilewright.block" not in block]
    lines = [line[4:] for block in blocks for line in block.splitlines() if line[:3] in (">>>", "...")]
    return "\n".join(lines) + "\n"


def test_a_type_checker_takes_what_readme_shows(tmp_path):
    """It found 14 faults: `Memory[M, K, ...]` was no type."""
    file = tmp_path / "shown.py"
    file.write_text(code_of(ROOT / "README.md") + code_of(ROOT / "docs/operators.md"))
    found = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file=",
            "--follow-imports=silent",
            "--cache-dir",
            str(tmp_path / "cache"),
            str(file),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
    )
    assert found.stdout.startswith("Success"), found.stdout + found.stderr


def test_the_commands_that_readme_shows_exist():
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "docs/command_line.md"))
    shown = set(re.findall(r"^tilewright (\w+)", text, flags=re.MULTILINE))
    listed = CliRunner().invoke(app, ["--help"]).output
    assert shown == {"run", "show", "targets", "cache", "environment", "bench", "draw"}
    assert all(f" {name} " in listed for name in shown)


def test_readme_and_its_next_pages_say_how_to_install_and_what_runs():
    wanted = {
        "README.md": [
            "pip install .",
            "make demo",
            "make test",
            "docs/install.md",
            "docs/command_line.md",
            "docs/operators.md",
        ],
        "docs/install.md": ["pip install .", "pip install tilewright", "| CPU | what runs |"],
        "docs/command_line.md": ["| `mb1` |"],
        "docs/operators.md": ["threads", "Plain calls have no gradients."],
    }
    for page, phrases in wanted.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        assert [phrase for phrase in phrases if phrase not in text] == [], page


def test_the_changelog_names_this_version_in_the_form_of_keep_a_changelog():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert f"[{tilewright.__version__}]" in headings
    kinds = re.findall(r"^### (\w+)", text, flags=re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert "## Versions" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_no_address_is_made_up():
    """Project URLs wait for a public repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project.get("urls", {}) == {}
