"""Costs in rows: what plans are ranked by is a machine's own, and plausible."""

from __future__ import annotations

from math import prod

import pytest

from tilewright.targets.registry import machine


@pytest.mark.parametrize("name", ["ampere", "hopper", "cdna3", "xe"])
def test_gpus_do_not_count_functions_by_the_code_of_cpus(name: str) -> None:
    """A sigmoid was 40 operations on every GPU: as many as vectors of a CPU take."""
    gpu, cpu = machine(name).costs.functions, machine("x86.avx512").costs.functions
    assert gpu["exp2"] <= 4
    assert gpu["sigmoid"] <= 13 < cpu["sigmoid"]
    assert gpu["exp"] < cpu["exp"]


@pytest.mark.parametrize(("name", "published"), [("ampere", 2039), ("hopper", 4800), ("cdna3", 5300), ("xe", 3277)])
def test_memory_is_planned_by_less_than_its_published_rate(name: str, published: float) -> None:
    """Ampere, CDNA3 and Xe were planned by 8 bytes a cycle and core at 2 GHz, whatever their memory."""
    limits = machine(name).limits
    reached = limits.far_rate * (limits.cores or 0) * limits.clock_ghz
    assert 0.6 * published < reached < 0.95 * published
    assert limits.far_rate < limits.l2_rate < limits.shared_rate


@pytest.mark.parametrize(("name", "parts", "published"), [("ampere", 4, 312), ("cdna3", 4, 1307), ("xe", 8, 839)])
def test_atoms_of_all_parts_of_a_core_are_the_published_peak(name: str, parts: int, published: float) -> None:
    """An atom of Ampere had Hopper's cycles, and one of Xe took one cycle: a peak of 6700 TFLOP/s."""
    row = machine(name)
    rates = [prod(a.shape) / a.cycles for a in row.multiply.values() if a.a.dtype.name == "bf16"]
    peak = 2 * max(rates) * parts * (row.limits.cores or 0) * row.limits.clock_ghz / 1000
    assert 0.95 < peak / published < 1.05
