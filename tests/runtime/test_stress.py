"""A short run of stress.py: some processes against one cache, some of them killed."""

from __future__ import annotations

from pathlib import Path

import pytest
from stress import stress


@pytest.mark.long  # tests/compiler/test_many_callers.py kills one of a few processes in every run
def test_processes_share_a_cache_while_some_are_killed(tmp_path: Path) -> None:
    found = stress(4, 2, 2, tmp_path / "cache")
    assert not found.faults
    assert found.killed >= 6
    assert found.results >= found.killed
