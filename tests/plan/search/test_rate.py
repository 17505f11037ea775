"""The time of a given plan: that of the search for its own plans, and some time for plans that it never lists."""

from __future__ import annotations

import math
import sys
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tilewright.driver.request_facts import facts_of_request
from tilewright.plan.facts import Facts
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import as_plan, rate_plan, search_facts
from tilewright.plan.text import parse_plan

sys.path[:0] = [str(Path(__file__).parents[3] / "benchmarks")]
from corpus_plans import machine_of  # noqa: E402
from corpus_problems import problems  # noqa: E402
from corpus_requests import MACHINE, request_of  # noqa: E402

HOPPER = machine_of(MACHINE)
PROGRAMS = (
    ("products", "bf16 nt 4096x4096x4096"),  # ping-pong, raster
    ("products", "bf16 nt 1000x1000x1000"),  # padded rows
    ("products", "bf16 nt 64x64x8192"),  # parts of K
    ("products", "bf16 nt 16x8192x8192"),  # transposed
    ("products", "f32 nt 333x777x555"),  # lanes copy, and multiply
    ("products", "i8 tn 33x65x257"),  # no pipeline
    ("products", "bf16 nt 64x512x512x512"),  # a batch
    ("hopper_8", "bf16 mb32ic64ih56oc64oh56kh3ph1"),  # halo tiles
    ("layers", "bf16 g32mb16ic512ih28oc512oh28kh3ph1"),  # blocks on a diagonal
    ("layers", "bf16 g256mb32ic256ih28oc256oh28kh3ph1"),  # terms in boxes
    ("mixed", "bf16 mb448ic3ih224oc768oh14kh16sh16ph0"),  # im2col
    ("mixed", "f32 g1mb1ic32ih272oc64oh136kh2sh2ph0"),  # runs, not boxes, of rows
    ("attention", "bf16 attention 2x16x4096x128 causal"),  # tasks of several lengths
    ("attention", "bf16 scores 2x8x1024x64"),  # two kernels
    ("rows", "bf16 softmax 8192x8192"),
    ("rows", "bf16 column_sums 8192x8192"),  # a reduction in parts
    ("fused", "product and softmax 520x256x512"),  # a reduction after a product
    ("fused", "image_gradient f32 16x56x56 64-64"),  # boxes, not runs, of several dimensions
    ("fused", "filter_gradient bf16 32x14x14 256-256"),  # parts of dimensions merged to one
    ("fused", "low rank bf16 100x777x333"),
    ("dynamic", "product f32, MN"),
)


@cache
def _facts(kind: str, name: str) -> Facts:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        request = request_of(_problems()[kind, name], HOPPER)
    return facts_of_request(request)


@cache
def _problems():
    return problems()


def _plans(kind: str, name: str) -> list[tuple[Schedule, float]]:
    ranking = search_facts(_facts(kind, name), HOPPER)
    plans = [(as_plan(c), c.cycles) for c in ranking.candidates]
    return [(plan, cycles) for plan, cycles in plans if isinstance(plan, Schedule)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("kind", "name"), PROGRAMS)
def test_a_plan_of_the_search_has_the_time_of_its_candidate(kind, name):
    facts = _facts(kind, name)
    for plan, cycles in _plans(kind, name):
        candidate = rate_plan(facts, HOPPER, plan)
        assert not isinstance(candidate, str), (candidate, str(plan))
        assert candidate.cycles == pytest.approx(cycles, rel=1e-9), str(plan)
        assert (
            replace(as_plan(candidate), early=plan.early) == plan
        )  # a plain launch is rated as on a machine without others


def test_plans_of_one_text_do_not_have_two_times():
    """Boxes of a run, runs of several dimensions, and cuts after a reduction had the text of other plans."""
    for kind, name in (
        ("mixed", "f32 mb1ic16ih112oc96oh112kh1ph0"),
        ("fused", "image_gradient f32 16x56x56 64-64"),
        ("fused", "product and layer norm 8200x256x1024"),
    ):
        times: dict[str, set[int]] = {}
        for plan, cycles in _plans(kind, name):
            times.setdefault(str(plan), set()).add(round(cycles))
        assert all(len(each) == 1 for each in times.values())


GEMM = """axis M = (M 4096): task 128; axis N = (N 4096): task 256; axis K = (K 4096): loop {step}; grid M, N;
    raster {raster}; mma by wgmma.m64n256k16.bf16, tile 128x256;
    producer 1 wave {registers} registers, consumer 8 waves 232 registers, stages {stages}, epilogue stages 1{launch}"""
SAID = {"step": 64, "raster": 16, "registers": 40, "stages": 4, "launch": ""}


def _rated(kind: str, name: str, plan: str) -> float:
    candidate = rate_plan(_facts(kind, name), HOPPER, parse_plan(plan))
    assert not isinstance(candidate, str), candidate
    assert math.isfinite(candidate.cycles)
    return candidate.cycles


@pytest.mark.parametrize(
    "edit", [{"step": 128, "stages": 2}, {"raster": 3}, {"registers": 24}, {"stages": 3}, {"launch": "; launch plain"}]
)
def test_a_plan_that_the_search_does_not_list_has_a_time(edit):
    assert _rated(*PROGRAMS[0], GEMM.format(**SAID | edit)) > 0


def test_few_stages_take_longer():
    times = [_rated(*PROGRAMS[0], GEMM.format(**SAID | {"stages": n})) for n in (4, 2)]
    assert times[0] < times[1]


def test_a_launch_that_waits_for_the_kernel_before_it_takes_longer():
    early, plain = (
        _rated("products", "bf16 nt 64x512x512x512", str(replace(plan, early=early)))
        for plan, _ in _plans("products", "bf16 nt 64x512x512x512")[:1]
        for early in (True, False)
    )
    assert plain - early == HOPPER.limits.launch_cycles - HOPPER.limits.following_cycles


SHARED_COLUMNS = """axis M = (M 100): task 64; axis N = (N 777): task 832, loop 64; axis L = (L 64): whole;
axis K = (K 333): whole; grid M, N; mma by wgmma.m64n64k16.bf16.ra, tile 64x64;
mma2 by wgmma.m64n64k16.bf16.ra, tile 64x64; mma3 by wgmma.m64n64k16.bf16.ra, tile 64x64;
producer 4 waves 96 registers, consumer 4 waves 240 registers, stages 2, epilogue stages 1; launch early"""


def test_tasks_that_share_columns_have_a_part_of_them_each():
    """One task has all columns in its loop; or two tasks share them."""
    kind, name = "fused", "low rank bf16 100x777x333"
    whole = " ".join(SHARED_COLUMNS.split())
    half = whole.replace("task 832, loop 64", "task 448, loop 64")
    assert _rated(kind, name, half) < 0.6 * _rated(kind, name, whole)


def test_results_whose_rows_leave_in_narrow_pieces_have_a_time():
    wide = GEMM.format(**SAID).replace("task 256", "task 200").replace("n256", "n200").replace("x256", "x200")
    assert _rated(*PROGRAMS[0], wide) > _rated(*PROGRAMS[0], GEMM.format(**SAID))


def test_a_plan_for_another_program_is_no_exception():
    facts = _facts("rows", "bf16 softmax 8192x8192")
    why = rate_plan(facts, HOPPER, parse_plan(GEMM.format(**SAID)))
    assert isinstance(why, str)
    assert "product" in why


def test_copies_that_nothing_makes_are_named():
    facts = _facts(*PROGRAMS[0])
    plan = parse_plan(GEMM.format(**SAID) + "; repack a: aligned rows")
    assert rate_plan(facts, HOPPER, plan) == "no copies are `repack a: aligned rows`"
