"""`make demo` shows something soon: it installs no tools of development, and speaks before it imports."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

ROOT = Path(__file__).parents[2]
WITHOUT_TILEWRIGHT = """
import runpy, sys
sys.modules["tilewright"] = sys.modules["numpy"] = None
runpy.run_path("examples/demo.py", run_name="__main__")
"""


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_demo_installed_linters_and_an_assembler_first():
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}  # no part of `make test`
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", "demo"]
    steps = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, check=True).stdout
    assert "--editable .\n" in steps
    assert steps.rstrip().endswith("examples/demo.py")
    assert "dev" not in steps
    assert "sass" not in steps


def test_the_demo_was_silent_while_it_imported():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TILEWRIGHT], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "ModuleNotFoundError" in done.stderr
    assert done.stdout.startswith("Tilewright, on two screens")


def shown(part: str) -> list[str]:
    """The lines that one part of the demonstration prints."""
    console = Console(markup=False, highlight=False, soft_wrap=True, record=True, file=StringIO(), width=120)
    runpy.run_path(str(ROOT / "examples/demo.py"), run_name="demo")[part](console)
    return console.export_text().splitlines()


def test_the_demo_finds_a_race_at_its_line():
    lines = shown("race")
    assert any(line.startswith("RaceFault: `copy %tile -> %x` (demo.py:") for line in lines)
    assert lines[-2].strip() == "tb.copy(tile, x)  # tb.barrier() is missing before this line"


def test_the_demo_plans_for_hopper_on_half_a_screen():
    lines = shown("on_hopper")
    assert any(line.startswith("mma by wgmma.") for line in lines)
    assert len(lines) <= 20
