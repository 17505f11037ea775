"""Plans that are edited: a share of `benchmarks/edited_plans.py`, and the reader that finds what is done otherwise."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import edited_plans
from block_reader import contradictions, read

from tilewright.errors import ArgumentError


def test_edited_plans_are_done_as_they_say_or_refused_by_the_line():
    said = [edited_plans.outcome(number, seed=3) for number in range(45)]
    assert [more for what, more in said if what.isupper()] == []
    counts = Counter(what for what, _ in said)
    assert 2 * counts["done"] >= len(said)


@pytest.mark.parametrize("number", [0, 4, 6])
def test_edited_plans_give_the_same(number):
    """Of the first edits of a case that are done, one is run."""
    cases = len(edited_plans.CASES)
    for again in range(8):
        what, _ = edited_plans.outcome(number + again * cases, seed=5)
        if what == "done":
            assert edited_plans.outcome(number + again * cases, seed=5, run=True)[0] == "done"
            return
    raise AssertionError("no edit of this case was done")


def product():
    """A plan of the first case: its product in tiles of 64x64."""
    plan = re.sub(r"axis ([MN]) = (.*): task \d+", r"axis \1 = \2: task 64", edited_plans.chosen(0))
    plan = re.sub(r"ring \d+", "ring 8", plan)
    return re.sub(r"mma by .*", "mma by wgmma.m64n64k16.bf16, block 64x64", plan)


WRONG = [
    ("ring 8", "ring 7"),
    ("stored 2", "stored 1"),
    ("multiply 4 waves", "multiply 8 waves"),
    ("56 registers", "48 registers"),
    ("m64n64k16", "m64n128k16"),
    ("block 64x64", "block 128x64"),
    ("axis M = (M 200): task 64", "axis M = (M 200): task 32"),
    ("axis K = (K 192): loop 64", "axis K = (K 192): loop 32"),
    ("launch early", "launch plain"),
]


@pytest.mark.parametrize(("said", "other"), WRONG)
def test_the_reader_finds_what_a_plan_does_not_say(said, other):
    plan, block = product(), edited_plans.CASES[0].kernel(product()).text("block")
    assert contradictions(plan, block, {"mma": ("M", "N")}) == []
    assert said in plan
    assert contradictions(plan.replace(said, other), block, {"mma": ("M", "N")}) != []


def test_the_reader_reads_roles_channels_and_loops():
    found = read(edited_plans.CASES[0].kernel(product()).text("block"))
    assert found.roles == {"load": (1, 56), "multiply": (4, 240)}
    assert found.channels == {("load", "multiply"): 8, ("multiply", "multiply"): 2}
    assert [(name, count) for name, count, _ in found.loops] == [("e", 3), ("e", 3)]
    assert found.atoms == {"wgmma.m64n64k16.bf16"}


EDITS = [
    (
        "axis K = (K 192): loop 64",
        "axis K = (K 192): loop 96",
        "a K step of 96 is no multiple of a row of shared memory",
    ),
    ("axis N = (N 136): task 64", "axis N = (N 136): task 136", "a task has the columns of `mma by wgmma.m64n64k16"),
    ("240 registers", "236 registers", "registers are given in multiples of 8"),
    ("240 registers", "32 registers", "a lane's sums alone take 32 registers"),
]


@pytest.mark.parametrize(("said", "other", "why"), EDITS)
def test_a_line_that_roles_do_not_do_is_refused(said, other, why):
    """Axes and tasks of a plan with roles were not looked at: what they said was left aside without a word."""
    with pytest.raises(ArgumentError) as fault:
        edited_plans.CASES[0].kernel(product().replace(said, other))
    assert why in str(fault.value)


def test_roles_take_other_stages_and_registers_and_another_walk():
    """Only the planner's own numbers were taken."""
    plan = product().replace("ring 8, stored 2", "ring 3, stored 1").replace("56 registers", "40 registers")
    plan = plan.replace("tasks M, N", "tasks M, N group 2 contiguous")
    kernel = edited_plans.CASES[0].kernel(plan)
    assert kernel.text("plan").strip() == plan
    assert contradictions(plan, kernel.text("block"), {"mma": ("M", "N")}) == []


def test_a_refusal_names_the_line_that_differs_from_the_plan_that_is_chosen():
    """`3 x 2 tiles of sums take 11 registers of 8` did not say where."""
    number = next(n for n, case in enumerate(edited_plans.CASES) if (case.name, case.row) == ("softmax", "x86.avx512"))
    plan = edited_plans.chosen(number).replace("axis N = (N 200): whole", "axis N = (N 200): task 100")
    with pytest.raises(ArgumentError, match=r"max goes along it; in `axis N = \(N 200\): task 100`"):
        edited_plans.CASES[number].kernel(plan)


def test_lines_of_rows_that_do_not_slide_are_refused():
    """It ended in an assertion of the compiler's own."""
    number = next(n for n, case in enumerate(edited_plans.CASES) if (case.name, case.row) == ("gemm", "x86.amx"))
    plan = edited_plans.chosen(number).replace("a in place", "a staged at task as lines")
    with pytest.raises(ArgumentError, match=r"`a staged at task as lines, .*`: rows do not slide"):
        edited_plans.CASES[number].kernel(plan)
