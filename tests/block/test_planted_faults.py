"""A share of what benchmarks/planted_faults.py does for all programs, under one schedule."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]

import planted_faults  # noqa: E402
from deletions import subjects  # noqa: E402

SUBJECTS = subjects()
# the others take longer
SHARE = ("conv_amx", "conv_hopper", "gemm_hopper", "basic_gemm", "tiled_copy", "img2col")
HARMLESS = {"tiled_copy": ["swapped lanes"], "img2col": ["swapped lanes"]}
"""Registers that meet nothing but memory: whichever thread holds an element, it arrives where it should."""


@pytest.mark.parametrize("name", SHARE)
def test_planted_faults_are_refused_or_reported_at_the_authors_line(name: str) -> None:
    found = list(planted_faults.outcomes(name, SUBJECTS[name], ((1, 0),)))
    assert found
    for outcome in found:
        if outcome.report is None:
            assert outcome.proof, (outcome.line, outcome.fault)
            continue
        *_, place, _, carets = str(outcome.report).splitlines()
        assert f'{name}.py", line ' in place
        assert set(carets.strip()) == {"^"}
    assert [o.fault for o in found if o.report is None] == HARMLESS.get(name, [])


def test_every_kind_of_fault_is_planted() -> None:
    kinds = {fault for name in SUBJECTS for _, fault, _ in planted_faults.variants(planted_faults.path_of(name))}
    assert kinds == {"one row less", "swapped lanes", "uneven partition", "uneven waves"}
