"""The parts of the package import only downwards: the order of the table of parts in docs/design.md."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent

# A part may import the parts before it in this list, and itself. Parts of one row do not know each other.
ORDER = [
    {"_version", "errors", "lazy"},
    {"limits"},
    {"signatures"},
    {"algebra"},
    {"ir"},
    {"machine"},
    {"analysis"},
    {"check"},
    {"lang"},
    {"wave"},
    {"plan"},
    {"rewrite"},
    {"lower"},
    {"transform"},
    {"driver"},
    {"interpret"},
    {"runtime"},
    {"codegen"},
    {"targets"},
    {"block"},
    {"compiler"},
    {"deploy"},
    {"problems", "kernels"},
    {"ops", "cli", "compat"},
    {"torch", "jax"},
    {"__main__"},
]


def part_of(module: str) -> str:
    """tilewright.algebra.expr -> algebra; the package itself -> ''."""
    return [*module.split("."), ""][1]


def rank(part: str) -> int:
    for place, row in enumerate(ORDER):
        if part in row:
            return place
    raise AssertionError(f"the part {part!r} has no place in the order of the parts")


@cache
def imports(path: Path) -> set[str]:
    """What a file imports of the package; files are read once for all tests."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "tilewright"}


MODULES = sorted(PACKAGE.rglob("*.py"))
IS_MODULE = frozenset(map(str, MODULES))


FOLDERS = sorted({str(path.parent.relative_to(PACKAGE)) for path in MODULES})


def modules_in(folder: str) -> list[Path]:
    """The files of a folder of the package, without those of folders in it."""
    return [path for path in MODULES if path.parent == PACKAGE / folder]


@pytest.mark.parametrize("folder", FOLDERS)
def test_parts_import_only_downwards(folder):
    upwards = []
    for path in modules_in(folder):
        where = path.relative_to(PACKAGE)
        if where.name == "__init__.py" and len(where.parts) == 1:
            continue  # the package offers its parts lazily
        part = where.parts[0].removesuffix(".py")
        others = {name: part_of(name) for name in imports(path)}
        upwards += [
            f"{where} imports {name}" for name, other in others.items() if rank(other) >= rank(part) and other != part
        ]
    assert upwards == [], "what is imported lies above what imports it"


LARGEST = {
    "algebra": 10,
    "algebra/picture": 9,
    "block": 3,
    "codegen": 2,
    "compiler": 2,
    "interpret/block": 4,
    "ir": 14,
    "targets/cpu": 6,
    "targets/gpu": 5,
}
"""Folders whose files still import each other in a circle, and how many the largest circle has; others have none."""


@cache
def imported_files(path: Path) -> set[Path]:
    """The files of the package that a file imports, also for types only."""
    found = set()
    for name in imports(path):
        parts = name.split(".")[1:]
        for whole in (parts, parts[:-1]):  # a module, or what a module defines
            place = "/".join((str(PACKAGE), *whole))
            files = [f for f in (f"{place}.py", f"{place}/__init__.py") if whole and f in IS_MODULE]
            if files:
                found.add(Path(files[0]))
                break
    return found - {path}


@cache
def reached_files(path: Path) -> set[Path]:
    """The files that a file imports, or that those import, and so on."""
    found: set[Path] = set()
    left = [path]
    while left:
        new = imported_files(left.pop()) - found
        found |= new
        left += new
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_files_import_each_other_in_no_circle(folder):
    circles = [
        sorted(str(other.relative_to(PACKAGE)) for other in reached_files(path) if path in reached_files(other))
        for path in modules_in(folder)
    ]
    largest = max(circles, key=len)
    assert len(largest) <= LARGEST.get(folder, 0), f"{len(largest)} files import each other: {', '.join(largest)}"


def test_importing_the_package_loads_none_of_its_parts():
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tilewright; print(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    ours = [name for name in loaded if name.startswith("tilewright")]
    assert ours == ["tilewright", "tilewright._version", "tilewright.lazy"]
    assert not {"numpy", "llvmlite", "rich", "typer"} & set(loaded)


def test_the_algebra_needs_neither_the_terminal_nor_llvm():
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tilewright.algebra; print(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert not {"llvmlite", "rich", "typer"} & set(loaded)


MACHINES = r"\b(x86|avx\w*|amx|sapphire\w*|nvidia|hopper|ampere|cdna\w*|mfma|wgmma|dpas|xe|intel|llvm)\b"


@pytest.mark.parametrize(
    "part",
    [
        *("algebra", "ir", "machine", "analysis", "check", "lang", "plan"),
        *("rewrite", "lower", "transform", "driver", "interpret"),
    ],
)
def test_no_machine_is_named_above_the_targets(part):
    named = []
    for path in sorted((PACKAGE / part).rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(MACHINES, line, re.IGNORECASE):
                named.append(f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}")
    assert named == []
