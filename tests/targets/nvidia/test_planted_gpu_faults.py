"""The faults of benchmarks/planted_gpu_faults.py: each changes one line, which is still there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[3] / "benchmarks")]

from planted_gpu_faults import FAULTS, ROOT, Fault  # noqa: E402


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_changes_one_line_that_is_there(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text().count(fault.right) == 1
