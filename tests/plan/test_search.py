"""The search: agreement with today's plans where those are good, and programs that today's planners miss."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
import search_programs as programs
from search_programs import facts

from tilewright.plan.model import microseconds
from tilewright.plan.search import Rejected, as_plan, search_facts
from tilewright.targets.registry import gpu_machine

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
from corpus_plans import machine_of  # noqa: E402
from corpus_problems import problems  # noqa: E402
from corpus_text import read  # noqa: E402
from shadow import MACHINE, best_plan, job_of  # noqa: E402

from tilewright.plan.search import search  # noqa: E402

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
"""Problems whose plan and predicted time are those of today's planners."""


@pytest.fixture(scope="module")
def corpus():
    return problems(), read()


@pytest.mark.parametrize(("kind", "name"), AGREED, ids=[name for _, name in AGREED])
def test_the_search_agrees_with_todays_planners(kind, name, corpus):
    every, record = corpus
    machine, today = machine_of(MACHINE), record[kind, name, MACHINE]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job = job_of(every[kind, name], machine)
    plan, cycles = best_plan(search(job.program, job.sizes, machine, job.free, constant=job.constant))
    assert plan.lines() == today.plan.splitlines()
    assert cycles == pytest.approx(today.cycles, rel=1e-3)


@pytest.mark.parametrize(
    ("kernel", "sizes", "us"),
    [
        (programs.attention(), {"B": 2, "KV": 8, "GQ": 4, "M": 4096, "N": 4096, "D": 128, "E": 128}, 390),
        (programs.attention(window=1024), {"B": 2, "KV": 8, "GQ": 4, "M": 8192, "N": 8192, "D": 128, "E": 128}, 440),
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
