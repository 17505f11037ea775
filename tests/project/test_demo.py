"""`make demo` shows something soon: it installs no tools of development, and speaks before it imports."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert done.stdout.startswith("Tilewright, in six parts")
