"""Packages that say in a table what their files are about name every file, and none that is gone."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "tilewright"


PACKAGES = [
    *("algebra", "interpret/block", "ir", "kernels", "machine", "plan", "plan/search"),
    *("analysis", "rewrite", "lower", "lower/block", "lower/cpu", "lower/gpu", "transform", "driver"),
    *("lower/block/mma", "runtime", "targets/calls", "targets/cpu", "torch", "wave", "codegen/entry", "deploy"),
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_file_of_a_package_stands_in_its_table(package: str) -> None:
    folder = SOURCE / package
    table = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    rows = re.findall(r"^\| ([\w/, ]+?) +\|", table, re.M)
    named = {name.strip().rstrip("/") for row in rows for name in row.split(",")} - {"file"}
    files = {file.stem for file in folder.glob("*.py")} | {file.parent.name for file in folder.glob("*/__init__.py")}
    assert named == files - {"__init__"}
