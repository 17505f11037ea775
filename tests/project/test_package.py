"""The package as a Python user meets it: what `import tilewright` offers."""

from __future__ import annotations

import subprocess
import sys

import tilewright


def test_errors_are_there_after_importing_the_package():
    """They were not: `except tilewright.errors.ArgumentError` needed an import of its own."""
    source = "import tilewright; print(tilewright.errors.ArgumentError.__name__)"
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert run.stdout == "ArgumentError\n"
    assert "errors" in dir(tilewright)
