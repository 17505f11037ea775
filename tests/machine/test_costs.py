"""Costs in rows: what plans are ranked by is a machine's own, and plausible."""

from __future__ import annotations

import pytest

from tilewright.targets.registry import machine


@pytest.mark.parametrize("name", ["ampere", "hopper", "cdna3", "xe"])
def test_gpus_do_not_count_functions_by_the_code_of_cpus(name: str) -> None:
    """A sigmoid was 40 operations on every GPU: as many as vectors of a CPU take."""
    gpu, cpu = machine(name).costs.functions, machine("x86.avx512").costs.functions
    assert gpu["exp2"] == 1
    assert gpu["sigmoid"] <= 6 < cpu["sigmoid"]
    assert gpu["exp"] < cpu["exp"]
