"""Names: one class for each, no function too long to read at once, no strategy named where all machines are served."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import tilewright

PACKAGE = Path(tilewright.__file__).parent
LONGEST = 80
SHARED = {
    **dict.fromkeys(
        ("Conv1d", "Conv2d", "Conv3d", "Linear"), "torch's own words, of modules that stand for its modules"
    ),
    "Symbol": "sympy's own word, for programs that are written with it",
    "Tile": "what authors hold while a kernel is traced, and what the lowering knows of it",
}
"""Classes of the same name, and why there are two."""
OVER: dict[str, str] = {}
"""Functions that are longer, and why."""
STRATEGIES = r"\b(x86|avx\w*|amx|neon\w*|sve|bfmmla|smmla|hopper|ampere|cdna\w*|mfma|wgmma|dpas|xe|tma|ldmatrix)\b"


def _paths(*parts: str) -> list[Path]:
    return [p for part in parts for p in sorted((PACKAGE / part).rglob("*.py"))]


def _classes(path: Path) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]


def test_no_two_public_classes_have_one_name():
    found = defaultdict(list)
    for path in _paths("."):
        for name in re.findall(r"^\s*class\s+(\w+)", path.read_text(), re.MULTILINE):
            found[name].append(path)
    assert len(found) > 100
    for name, paths in found.items():  # prose may begin a line with `class`: whether it is one, the tree says
        if len(paths) > 1 and not name.startswith("_") and name not in SHARED:
            found_in = [str(p.relative_to(PACKAGE)) for p in dict.fromkeys(paths) for n in _classes(p) if n == name]
            assert len(found_in) < 2, (name, found_in)


def test_functions_of_planner_and_passes_are_read_at_once():
    long = []
    for path in _paths("plan", "rewrite", "lower", "transform", "driver"):
        name = path.relative_to(PACKAGE)
        for outer in ast.walk(ast.parse(path.read_text())):
            for node in ast.iter_child_nodes(outer):
                if not isinstance(node, ast.FunctionDef):
                    continue
                word = f"{outer.name}.{node.name}" if isinstance(outer, ast.ClassDef) else node.name
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > LONGEST and word not in OVER:
                    long.append(f"{name}: {word} has {lines} lines")
    assert long == []


def test_planner_and_passes_name_no_machine_and_no_atom():
    named = []
    for path in _paths("plan", "rewrite", "lower", "transform", "driver"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(STRATEGIES, line, re.IGNORECASE):
                named.append(f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}")
    assert named == []
