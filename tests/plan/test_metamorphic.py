"""Programs that mean the same, written in two ways: a sample of `benchmarks/metamorphic.py`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import metamorphic
from metamorphic_programs import FAMILIES, Writing


def test_both_writings_of_a_pair_give_the_same():
    pairs = [metamorphic.pair_of(number, seed=1) for number in range(100)]
    assert {pair.family for pair in pairs} == set(FAMILIES)
    assert [number for number, pair in enumerate(pairs) if not metamorphic.equal_results(pair)] == []


def test_a_result_is_the_one_that_numpy_gives():
    pair = metamorphic.pair_of(0)
    assert pair.program.name == "product mk,nk->mn bf16 to f32, bias and relu"
    x, w, bias, _ = (array.astype(np.float64) for array in pair.program.data().values())
    for writing in (pair.one, pair.other):
        assert (metamorphic.result(pair, writing).astype(np.float64) == np.maximum(x @ w.T + bias, 0)).all()


def test_every_writing_of_a_split_dimension_has_the_same_bytes():
    program = metamorphic.pair_of(0).program
    plain, split = (program.written(Writing(split=parts), large=True) for parts in ({}, {"M": 0.35, "K": 1.0}))
    assert [np.prod(a) for a in plain.shapes] == [np.prod(a) for a in split.shapes]
    assert len(split.shapes[0]) == 4
    assert 1 in split.shapes[0]


def test_pairs_are_compared_and_reported(capsys: pytest.CaptureFixture[str]):
    outcomes = [metamorphic.outcome(number) for number in (1, 3)]
    assert all(each.equal and min(each.us) > 0 for each in outcomes)
    slower = replace(outcomes[0], number=77, us=(100.0, 106.0))
    assert (slower.alike, replace(slower, us=(100.0, 104.0)).alike) == (False, True)
    refused = replace(outcomes[0], number=78, us=(100.0, float("nan")))
    assert not refused.alike
    metamorphic.report([*outcomes, slower, refused, replace(outcomes[1], number=79, equal=False)], worst=5)
    said = capsys.readouterr().out
    assert "1 pairs with results that differ" in said
    assert "of 5 pairs" in said
    assert said.index("  78 ") < said.index("  77 ")  # the worst first
