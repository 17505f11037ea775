"""A few of the hundred operators of `benchmarks/newcomer_operators.py`: right, and near their floor or warned of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
import newcomer_operators  # noqa: E402
from newcomer_form import OPERATORS  # noqa: E402

RUN = (
    *("relu", "softmax_of_channels", "group_norm", "cross_entropy", "topk_of_experts", "cat", "index_select"),
    *("max_pool2d", "conv2d_7x7_of_3_channels", "causal_conv1d", "interpolate_bilinear"),
    *("squared_cdist", "attention_causal"),
)
PLANNED = ("sum_of_all", "rms_norm", "cumsum_of_columns", "max_pool2d_channels_last", "transpose", "embedding")


def test_there_are_a_hundred() -> None:
    assert len(OPERATORS) == 100
    assert newcomer_operators.exact_count(list(OPERATORS)) >= 65


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", RUN)
def test_it_is_what_numpy_computes(name: str) -> None:
    assert newcomer_operators.differences(OPERATORS[name]) == []


@pytest.mark.parametrize("target", ["hopper", "x86.avx512"])
@pytest.mark.parametrize("name", PLANNED)
def test_none_is_far_above_its_floor_unsaid(name: str, target: str) -> None:
    row = newcomer_operators.planned((name, target))
    assert not row.fault
    assert row.warning or not row.is_far
