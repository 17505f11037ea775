"""A sample of what benchmarks/deletions.py does for all programs: what is deleted is missed, at a line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from tilewright.errors import InterpreterFault

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("deletions", ROOT / "benchmarks" / "deletions.py")
assert _SPEC is not None
assert _SPEC.loader is not None
deletions = importlib.util.module_from_spec(_SPEC)
sys.modules["deletions"] = deletions
_SPEC.loader.exec_module(deletions)
SUBJECTS = deletions.subjects()


def test_every_example_in_python_is_there():
    files = [path for folder in ("block", "ck") for path in (ROOT / "examples" / folder).glob("*.py")]
    assert set(SUBJECTS) == {path.stem for path in files} - {"references"}


@pytest.mark.parametrize(
    "name", ["basic_gemm", "gemm_hopper", "conv_hopper_halo", "conv_hopper_patches", "flash_hopper"]
)
def test_every_deletion_is_refused_or_reported_at_the_authors_line(name):
    found = list(deletions.deletions(SUBJECTS[name], ((1, 0),)))
    assert found
    for outcome in found:
        assert outcome.fault is not None, outcome.line
        assert f'{name}.py", line ' in str(outcome.fault)
        assert "^" in str(outcome.fault).splitlines()[-1]


def test_composable_kernels_own_race_is_reported():
    """CK's basic GEMM lacks the second barrier: the one after the product."""
    last = list(deletions.deletions(SUBJECTS["basic_gemm"], ((1, 3),)))[-1]
    assert last.op == "barrier"
    assert isinstance(last.fault, InterpreterFault)
    assert "a wait, a barrier or a release is missing" in str(last.fault)
