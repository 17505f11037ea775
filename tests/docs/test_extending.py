"""docs/extending: each walk-through is done in a copy of the package, and its program prints what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {file.stem: file.read_text(encoding="utf-8") for file in sorted((ROOT / "docs/extending").glob("*.md"))}


def blocks(text: str, language: str) -> list[str]:
    """The blocks of code of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, flags=re.DOTALL | re.MULTILINE)


def changes(text: str) -> list[tuple[str, str, str]]:
    """(path, the lines before, the lines after) of each change; a new file has no lines before."""
    found = []
    for block in blocks(text, "diff"):
        parts = re.findall(r"^(\+\+\+|---) (\S+)\n(.*?)(?=^\+\+\+ |^--- |\Z)", block, re.DOTALL | re.MULTILINE)
        for mark, path, body in parts:
            lines = body.splitlines(keepends=True)
            before = "".join(line[1:] for line in lines if line[0] in " -") if mark == "---" else ""
            found.append((path, before, "".join(line[1:] for line in lines if line[0] in " +")))
    return found


def apply(folder: Path, text: str) -> None:
    """Make the changes of a page in a folder."""
    for path, before, after in changes(text):
        file = folder / path
        if not before:
            assert not file.exists(), path
            file.parent.mkdir(exist_ok=True)
            file.write_text(after, encoding="utf-8")
            continue
        source = file.read_text(encoding="utf-8")
        assert source.count(before) == 1, f"{path} has no longer, or not once:\n{before}"
        file.write_text(source.replace(before, after), encoding="utf-8")


def run(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the package of a folder, and no cache."""
    (folder / "shown.py").write_text(program, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "TILEWRIGHT_CACHE_DIR": "off"}
    return subprocess.run(
        [sys.executable, "shown.py"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A folder with a copy of the package, which Python compiles once for all pages."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def copy(package, name):
    """The copy of the package, from which the page's changes are taken back after the test."""
    yield package
    for path, before, _ in changes(PAGES[name]):
        if before:
            shutil.copy2(ROOT / path, package / path)
        else:
            (package / path).unlink(missing_ok=True)


def test_every_page_has_changes_a_program_and_its_output():
    assert list(PAGES) == ["add_a_machine", "add_a_rewrite", "add_an_operation"]
    for text in PAGES.values():
        assert changes(text)
        assert len(blocks(text, "python")) == len(blocks(text, "text")) == 1


@pytest.mark.parametrize("name", PAGES)
def test_walk_throughs_do_what_the_page_says(name, copy):
    (program,), (output,) = blocks(PAGES[name], "python"), blocks(PAGES[name], "text")
    before = run(copy, program)
    assert (before.returncode, before.stdout) != (0, output), (
        "the program shows nothing: it prints this without the change"
    )
    apply(copy, PAGES[name])
    after = run(copy, program)
    assert after.stdout == output, after.stderr
