"""The parts of the package import only downwards: the order of docs/design.md, §3."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilewright

PACKAGE = Path(tilewright.__file__).parent

# A part may import the parts before it in this list, and itself. Parts of one row do not know each other.
ORDER = [
    {"_version", "errors"},
    {"limits"},
    {"signatures"},
    {"algebra"},
    {"ir"},
    {"machine"},
    {"check"},
    {"lang"},
    {"wave"},
    {"plan"},
    {"passes"},
    {"interpret"},
    {"runtime"},
    {"codegen"},
    {"targets"},
    {"block"},
    {"compiler"},
    {"problems", "kernels"},
    {"ops", "cli", "compat", "tune", "torch", "explore"},
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


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "tilewright"}


MODULES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_parts_import_only_downwards(path):
    where = path.relative_to(PACKAGE)
    if where.name == "__init__.py" and len(where.parts) == 1:
        return  # the package offers its parts lazily
    part = where.parts[0].removesuffix(".py")
    for name in imports(path):
        other = part_of(name)
        assert rank(other) < rank(part) or other == part, f"{where} imports {name}, which lies above it"


FEW = 6
"""Files that import each other in a circle, at most; what is imported for type checking counts too."""
TANGLED = {"passes": 12, "passes/waves": 14, "plan/search": 17}
"""Packages with larger circles, which may only become smaller."""
STRAIGHT = {"passes/tile"}
"""Packages without any."""


def imported_modules() -> dict[str, set[str]]:
    """The modules of the package, and which of them each one imports."""
    modules = {str(path.relative_to(PACKAGE).with_suffix("")).removesuffix("/__init__"): path for path in MODULES}
    found = {}
    for module, path in modules.items():
        names = {name.removeprefix("tilewright.").replace(".", "/") for name in imports(path)}
        own = {name if name in modules else name.rpartition("/")[0] for name in names}
        found[module] = own & modules.keys() - {module}
    return found


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The largest sets of modules of which each imports every other, directly or through others."""
    reached = {module: {module} for module in graph}
    changed = True
    while changed:
        changed = False
        for module, found in reached.items():
            more = set().union(*(reached[other] for other in graph[module])) - found
            found |= more
            changed = changed or bool(more)
    groups = {frozenset(m for m in reached[module] if module in reached[m]) for module in graph}
    return [set(group) for group in groups if len(group) > 1]


CIRCLES = circles(imported_modules())


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}
    assert circles(graph) == [{"a", "b", "c"}]


@pytest.mark.parametrize("package", ["passes", "passes/tile", "passes/waves", "plan", "plan/search"])
def test_few_files_of_planner_and_passes_import_each_other_in_a_circle(package):
    most = 1 if package in STRAIGHT else TANGLED.get(package, FEW)
    for circle in CIRCLES:
        if any(module.rpartition("/")[0] == package for module in circle):
            assert len(circle) <= most, sorted(circle)


def test_importing_the_package_loads_none_of_its_parts():
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, tilewright; print(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    ours = [name for name in loaded if name.startswith("tilewright")]
    assert ours == ["tilewright", "tilewright._version"]
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


@pytest.mark.parametrize("part", ["algebra", "ir", "machine", "lang", "plan", "passes", "interpret"])
def test_no_machine_is_named_above_the_targets(part):
    named = []
    for path in sorted((PACKAGE / part).rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if re.search(MACHINES, line, re.IGNORECASE):
                named.append(f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}")
    assert named == []
