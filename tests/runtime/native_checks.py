"""What the tests of native programs share: small programs for any x86, and scripts in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


AFFINE = """block affine(%x: in global f32 (M, N), %y: out global f32 (M, N))
  param M = 5, N = 37
{
  tasks m in 0..M {
    %row = view %x (j N) -> [m, j]
    %to = view %y (j N) -> [m, j]
    map %to = %row*FACTOR + OFFSET
  }
}
"""


def affine(factor: int = 2, offset: int = 1) -> str:
    """The text of a program that computes x*factor + offset, exactly for small integers."""
    return AFFINE.replace("FACTOR", str(factor)).replace("OFFSET", str(offset))


def whole(*shape: int, form: Any = np.float32) -> Array:
    """Integers 0, 1, 2, ..."""
    return np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape).astype(form)


def script(text: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a script in a process of its own, with tests/runtime and tests/block among its paths."""
    here = Path(__file__).parent
    paths = [str(here), str(here.parent / "block"), *(p for p in sys.path if p)]
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(text), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
        capture_output=True,
        text=True,
        timeout=600,
    )


def succeeds(text: str, *arguments: str, **variables: str) -> str:
    """What a script prints that must end well."""
    done = script(text, *arguments, **variables)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
