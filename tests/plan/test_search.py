"""The search: recorded plans of programs that libraries have, and plans of programs that no form of theirs covers."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import search_programs as programs
from search_programs import facts

from tilewright.driver.request_facts import facts_of_request
from tilewright.plan.model import microseconds
from tilewright.plan.search import Rejected, as_plan, cycles_on, explain_ranking, limits_of, search_facts
from tilewright.targets.registry import gpu_machine

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
from corpus_plans import machine_of  # noqa: E402
from corpus_problems import problems  # noqa: E402
from corpus_requests import MACHINE, best_plan, request_of, why_not_lowered  # noqa: E402
from corpus_text import read  # noqa: E402

HOPPER = gpu_machine("gpu:hopper")
AGREED = (
    ("products", "bf16 nt 4096x4096x4096"),
    ("products", "bf16 nn 4096x4096x4096"),
    ("products", "bf16 nt 1000x1000x1000"),
    ("products", "bf16 nt 64x64x8192"),
    ("products", "bf16 nt 16x8192x8192"),
    ("products", "bf16 nt 64x512x512x512"),
    ("products", "f32 nt 333x777x555"),
    ("products", "bf16 nt 1x4096x4096"),
    ("hopper_8", "bf16 mb32ic64ih56oc64oh56kh3ph1"),
    ("hopper_8", "bf16 mb32ic256ih14oc256oh14kh3ph1"),
    ("layers", "bf16 mb32ic256ih56oc512oh28kh1sh2ph0"),
    ("layers", "bf16 g32mb16ic512ih28oc512oh28kh3ph1"),
    ("layers", "bf16 g256mb32ic256ih28oc256oh28kh3ph1"),
    ("mixed", "bf16 mb448ic3ih224oc768oh14kh16sh16ph0"),
    ("attention", "bf16 attention 2x16x4096x128"),
    ("attention", "bf16 attention 2x16x4096x128 causal"),
    ("attention", "bf16 scores 2x8x1024x64"),
    ("rows", "bf16 softmax 8192x8192"),
    ("rows", "bf16 transpose 021 of 64x256x3136"),
    ("fused", "product and softmax 8200x256x1024"),
    ("fused", "i8 with scales 256x4096x4096"),
)
"""Problems whose plan is that of today's planners, and about their predicted time: rows and attention have a cost of
their own in the search."""


WITHOUT_PIPELINE = (
    ("products", "f64 nt 2048x2048x2048"),
    ("grouped_dilated", "bf16 g4ic20ih5oc20oh5kh3ph1"),
    ("fused", "weights of i8, a scale a column 33x200x264"),
)
"""Problems with products that no pipeline takes."""
LOWERED = (
    ("mixed", "bf16 mb1ic1ih640iw1024oc16oh640ow1024kh7kw7ph3pw3"),
    ("mixed", "f32 mb1ic144ih56oc24oh56kh1ph0"),
    ("fused", "row energy f32 4096x512x1024"),
    ("fused", "filter_gradient bf16 16x56x56 64-64"),
    ("fused", "3x3 and 1x1 32x55x57 32-64-128"),
    ("products", "matrix by vector bf16 16384x8192"),
)
"""Problems whose best plan the lowering refused: a tile, a part or a row that it does not do."""


@pytest.fixture(scope="module")
def corpus():
    return problems(), read()


def ranked(corpus, kind, name):
    """(ranking, request, today's record) of a problem."""
    every, record = corpus
    machine = machine_of(MACHINE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        request = request_of(every[kind, name], machine)
    return search_facts(facts_of_request(request), machine), request, record[kind, name, MACHINE]


@pytest.mark.parametrize(("kind", "name"), WITHOUT_PIPELINE, ids=[name for _, name in WITHOUT_PIPELINE])
def test_products_that_no_pipeline_takes_have_todays_plan(kind, name, corpus):
    ranking, _, today = ranked(corpus, kind, name)
    plan, _ = best_plan(ranking)
    assert plan.lines() == today.plan.splitlines()


def test_sums_of_few_columns_are_done_in_parts(corpus):
    ranking, _, today = ranked(corpus, "rows", "f32 column_sums 65536x256")
    plan, _ = best_plan(ranking)
    assert plan.lines() == today.plan.splitlines()
    assert plan.parts == ("M", 16)


@pytest.mark.parametrize(
    "name", ["product bf16, MNK", "attention bf16, MN", "3x3 convolution bf16, NHW", "softmax f32, M"]
)
def test_open_sizes_have_the_plan_of_typical_ones(name, corpus):
    ranking, request, today = ranked(corpus, "dynamic", name)
    plan, _ = best_plan(ranking)
    assert plan.with_open({str(d) for d in request.open_extents}).lines() == today.plan.splitlines()


@pytest.mark.parametrize(("kind", "name"), LOWERED, ids=[name for _, name in LOWERED])
def test_the_best_plan_is_lowered_where_it_was_refused(kind, name, corpus):
    ranking, _, today = ranked(corpus, kind, name)
    plan, _ = best_plan(ranking)
    text = "\n".join(plan.lines())
    assert text == today.plan or not why_not_lowered(corpus[0][kind, name], machine_of(MACHINE), text)


@pytest.mark.parametrize(
    ("kind", "name", "limiter"),
    [
        ("products", "bf16 nt 4096x4096x4096", "products"),
        ("products", "bf16 nt 512x512x16384", "L2"),
        ("rows", "f32 column_sums 65536x256", "HBM"),
        ("attention", "bf16 attention 2x32x4096x64", "lanes"),
    ],
)
def test_the_cost_says_what_limits_a_plan(kind, name, limiter, corpus):
    ranking, _, _ = ranked(corpus, kind, name)
    machine = machine_of(MACHINE)
    assert cycles_on(ranking.best, machine) == pytest.approx(ranking.best.cycles)
    assert next(iter(limits_of(ranking.best, machine))) == limiter


def test_a_ranking_says_why_every_other_family_is_not_chosen(corpus):
    ranking, _, _ = ranked(corpus, "products", "bf16 nt 512x512x16384")
    lines = explain_ranking(ranking, machine_of(MACHINE))
    assert lines[1].startswith("limited by L2")
    refused = [line for line in lines if line.startswith("refused")]
    assert any("a pipeline, bulk copies" in line and "of the time" in line for line in refused)
    assert any("no pipeline: " in line and "of the time" in line for line in refused)
    assert any("registers: " in line for line in refused)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("kind", "name"), AGREED, ids=[name for _, name in AGREED])
def test_the_search_agrees_with_todays_planners(kind, name, corpus):
    every, record = corpus
    machine, today = machine_of(MACHINE), record[kind, name, MACHINE]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        request = request_of(every[kind, name], machine)
    plan, cycles = best_plan(search_facts(facts_of_request(request), machine))
    assert plan.lines() == today.plan.splitlines()
    assert cycles == pytest.approx(today.cycles, rel=0.04)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kernel", "sizes", "us"),
    [
        (programs.attention(), {"B": 2, "KV": 8, "GQ": 4, "M": 4096, "N": 4096, "D": 128, "E": 128}, 425),
        (programs.attention(window=1024), {"B": 2, "KV": 8, "GQ": 4, "M": 8192, "N": 8192, "D": 128, "E": 128}, 470),
        (programs.attention(causal=False), {"B": 32, "KV": 8, "GQ": 8, "M": 1, "N": 8192, "D": 128, "E": 128}, 262),
        (programs.attention(causal=False), {"B": 1, "KV": 8, "GQ": 1, "M": 128, "N": 32768, "D": 128, "E": 128}, 40),
        (programs.attention(causal=False), {"B": 2, "KV": 16, "GQ": 1, "M": 4096, "N": 4096, "D": 256, "E": 256}, 830),
        (programs.gated, {"M": 4096, "K": 4096, "N": 11008}, 1010),
        (programs.matrix_vector, {"N": 16384, "K": 8192}, 67),
    ],
    ids=["grouped queries", "window", "decoding", "few queries", "heads of 256", "gated unit", "matrix by vector"],
)
def test_programs_that_todays_planners_miss_come_near_their_roofline(kernel, sizes, us):
    ranking = search_facts(facts(kernel, **sizes), HOPPER, only_lowered=False)
    assert ranking.best is not None
    assert microseconds(ranking.best.cycles, HOPPER) <= us
    assert ranking.best.cycles < 2.1 * ranking.roofline


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (programs.unlooped, {"M": 4096, "N": 4096, "K": 4096}),
        (programs.exchanged, {"M": 4096, "N": 4096, "K": 4096}),
        (programs.split_m, {"M1": 64, "M2": 64, "N": 4096, "K": 4096}),
        (programs.split_n, {"M": 4096, "N1": 64, "N2": 64, "K": 4096}),
        (programs.split_k, {"M": 4096, "N": 4096, "K1": 64, "K2": 64}),
        (programs.unit_batch, {"U": 1, "M": 4096, "N": 4096, "K": 4096}),
    ],
    ids=["no loop", "operands exchanged", "M split", "N split", "K split", "unit batch"],
)
def test_programs_that_mean_the_same_take_the_same_time(kernel, sizes):
    whole = search_facts(facts(programs.looped, M=4096, N=4096, K=4096), HOPPER, only_lowered=False)
    again = search_facts(facts(kernel, **sizes), HOPPER, only_lowered=False)
    assert again.best.cycles == pytest.approx(whole.best.cycles, rel=1e-3)


def test_what_todays_lowering_lacks_is_rejected_with_the_reason():
    sizes = {"B": 2, "KV": 8, "GQ": 4, "M": 4096, "N": 4096, "D": 64, "E": 64}
    found = facts(programs.attention(tile=32), **sizes)
    best = search_facts(found, HOPPER, only_lowered=False).best
    plan = as_plan(best)
    assert isinstance(plan, Rejected)
    assert plan.why.startswith("lowering lacks")
    assert search_facts(found, HOPPER).rejected


def test_no_candidate_is_faster_than_the_roofline():
    ranking = search_facts(facts(programs.looped, M=1000, N=777, K=333), HOPPER, only_lowered=False)
    assert ranking.best.cycles >= ranking.roofline
    assert [c.key for c in ranking.candidates] == sorted(c.key for c in ranking.candidates)
