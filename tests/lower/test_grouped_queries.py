"""Attention over grouped heads, windows and single queries: planned in roles as plain attention is, and exact.

Scores are multiples of 512, so that weights are exactly 1 or 0, and sums and results compare by ==.
"""

import sys
from pathlib import Path

import numpy as np
import pytest
from pinned_plans import on_operands_as_they_lie, planned_as

import tilewright
import tilewright.lang as tkl
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from corpus_kernels import grouped_query

BF16 = tkl.bf16.numpy
NAMES = ("B", "KV", "GQ", "M", "N", "D", "E")


def inputs(sizes):
    """Queries, keys and values: 0 or 64, and small integers."""
    rng = np.random.default_rng(sum(sizes.values()))
    b, kv, gq, m, n, d, e = (sizes[name] for name in NAMES)
    q, k = ((rng.random(s) < 0.3) * 64.0 for s in ((b, kv, gq, m, d), (b, kv, n, d)))
    return [x.astype(BF16) for x in (q, k, rng.integers(-4, 5, (b, kv, n, e)))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("extents", "more"),
    [
        ((1, 2, 3, 130, 150, 64, 64), {}),  # four dimensions of rows had no plan in roles: 50 times as slow
        ((2, 1, 2, 96, 200, 64, 72), {"causal": True}),
        ((1, 1, 2, 260, 260, 64, 64), {"causal": True, "window": 70}),  # a mask of a mask hid no tile
        ((2, 2, 8, 1, 200, 64, 64), {}),  # one query a head: the heads of a group are the rows
        ((3, 2, 1, 1, 150, 64, 64), {}),  # a single row
    ],
)
def test_heads_that_share_keys_are_done_in_roles_exactly(extents, more):
    sizes, kernel = dict(zip(NAMES, extents, strict=True)), grouped_query(64, **more)
    made = planned_as(kernel, sizes, machine("hopper"), on_operands_as_they_lie)
    assert len(made.module.programs) == 1
    arrays = inputs(sizes)
    expected = tilewright.compile(kernel, target="executor")(*arrays)
    result = np.zeros_like(expected)
    made.executor.bind([*arrays, result])()  # its program has one dimension of rows
    assert (result.view(np.uint16) == expected.view(np.uint16)).all()


def test_both_ends_of_a_window_bound_the_loop():
    sizes = dict(zip(NAMES, (4, 8, 4, 1024, 1024, 64, 64), strict=True))  # every core has tasks: no parts of N
    both, causal = (
        kernel_for(grouped_query(64, causal=True, window=window), sizes, machine=machine("hopper")).choice.cycles
        for window in (128, None)
    )
    assert both < causal


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "more", [{"causal": True, "first_query": 290, "window": 9}, {"causal": True, "first_query": 290}]
)
def test_few_rows_of_each_head_under_a_mask_had_tasks_of_their_own(more):
    sizes, kernel = dict(zip(NAMES, (1, 2, 3, 5, 300, 64, 72), strict=True)), grouped_query(64, **more)
    made = kernel_for(kernel, sizes, machine=machine("hopper"))
    assert made.plan.axis("GQ_M").split("task").size >= 15
    arrays = inputs(sizes)
    expected = tilewright.compile(kernel, target="executor")(*arrays)
    result = np.zeros_like(expected)
    made.executor.bind([*arrays, result])()
    assert (result.view(np.uint16) == expected.view(np.uint16)).all()


def test_many_rows_under_a_mask_are_not_merged_with_heads():
    sizes = dict(zip(NAMES, (1, 2, 4, 512, 512, 64, 64), strict=True))
    made = kernel_for(grouped_query(64, causal=True), sizes, machine=machine("hopper"))
    assert "GQ_M" not in [axis.name for axis in made.plan.axes]
