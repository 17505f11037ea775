"""Plans that are given and do not fit: no texts, other sizes, misspelt words and names; refusals say what to do."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.text import parse_plan
from tilewright.plan.words import WORDS
from tilewright.targets.registry import machine

GEMM = {"M": 300, "N": 136, "K": 100}
IMAGE = {"N": 2, "H": 9, "W": 14, "C": 64, "F": 64}
STATEMENTS = (
    "axis rows = (m_1 56, m_0 57 of 56): task m_1 28, loop 32, unit 16",
    "axis K = (k_0 64): whole",
    "grid columns, N, depth",
    "raster contiguous",
    "loops columns, N, depth",
    "x in place",
    "repack x: padded rows, stream",
    "repack w: block-diagonal 4",
    "w packed at bind",
    "x strip at task, stream",
    "mma by amx.bf16, tile 32x32 transposed",
    "mma by loops",
    "producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 4, joint, halo stages 2, resident stages 2, "
    "epilogue stages 2, store per group, pingpong",
    "a tile at task by cp.async.16 to shared 3, by ldmatrix.x4 to register 2",
    "p kept in register",
    "p computed again",
    "lanes vector 4, box 2x2",
    "occupancy workgroups 2, persistent, domains 8, registers 256",
    "split kernel after mma",
    "parts K 4",
    "waves 8",
    "overlap delayed store",
    "launch early",
)
AXES = "".join(f"axis {name} = (d 8): whole; " for name in ("M", "N", "columns", "rows_", "depth"))
AMBIGUOUS = "wavse"
"""As near to one wave as to two."""
NAMES = {
    "rows",
    "columns",
    "depth",
    "M",
    "N",
    "K",
    "m_",
    "x",
    "w",
    "mma",
    "amx",
    "bf",
    "task",
    "at",
    "as",
    "async",
    "ldmatrix",
}


def gemm(sizes=GEMM, plan=None, row="x86.avx512"):
    return kernel_for(kernels.gemm("nt", "f32"), sizes, machine=machine(row), plan=plan)


def conv(sizes=IMAGE, plan=None, row="x86.avx512"):
    return kernel_for(kernels.conv((3, 3), "bf16", padding=1), sizes, machine=machine(row), plan=plan)


@pytest.mark.parametrize("plan", [5, 0.5, True, b"axis", ["axis m = (m 8): whole"], {"M": 4}, np.ones(3), object, len])
def test_a_plan_that_is_no_text_was_an_attribute_error(plan):
    with pytest.raises(ArgumentError, match=r'^plan=.*: a plan is a text, as executable.text\("plan"\) prints it'):
        tilewright.compile(kernels.gemm("nt", "f32"), plan=plan)


def test_a_plan_for_the_executor_is_refused_whatever_it_is():
    with pytest.raises(ArgumentError, match="'executor' has no plans"):
        tilewright.compile(kernels.gemm("nt", "f32"), plan=5, target="executor")


def test_a_plan_for_other_sizes_was_not_done_here():
    plan = gemm({**GEMM, "M": 512}).text("plan")
    with pytest.raises(ArgumentError) as refused:
        gemm(plan=plan)
    line = next(line for line in plan.splitlines() if line.startswith("axis rows"))
    assert f"it is for other sizes: `{line}` says m_0 512, the program has m_0 300 (M 300)" in str(refused.value)
    assert str(refused.value).endswith('; without plan=, executable.text("plan") prints the plan for these sizes')


@pytest.mark.sampled(4)
@pytest.mark.parametrize("row", ["hopper", "x86.amx", "x86.avx512", "xe"])
@pytest.mark.parametrize(("size", "said"), [({"W": 18}, 18), ({"N": 3}, 3), ({"F": 48}, 48), ({"C": 32}, 32)])
def test_a_plan_for_another_image_names_the_size(row, size, said):
    plan = conv({**IMAGE, **size}, row=row).text("plan")
    with pytest.raises(ArgumentError, match=r"it is for other sizes: `axis .*` says .*, the program has") as refused:
        conv(plan=plan, row=row)
    assert re.search(rf"says .*\b({said}|{said * 126}|{said * 18})\b.*the program has", str(refused.value))


def test_several_sizes_are_all_named():
    plan = gemm({"M": 512, "N": 64, "K": 96}, row="xe").text("plan")
    with pytest.raises(ArgumentError) as refused:
        gemm(plan=plan, row="xe")
    for words in ("M 512, the program has M 300", "N 64, the program has N 136", "K 96, the program has K 100"):
        assert f"says {words}" in str(refused.value)


def test_a_split_plan_for_other_sizes_was_taken_and_done_otherwise():
    plan = gemm({"M": 512, "N": 64, "K": 96}, row="hopper").text("plan")
    assert "parts K 3\n" in plan
    with pytest.raises(ArgumentError, match=r"says M 512, the program has M 300; .* says N 64, the program has N 136"):
        gemm(plan=plan, row="hopper")
    own = gemm(row="hopper").text("plan")
    assert gemm(plan=own, row="hopper").text("plan") == own
    with pytest.raises(ArgumentError, match=r"in whole steps there are 2 parts|K_split"):
        gemm(plan=own.replace("parts K 4", "parts K 3"), row="hopper")


def test_the_size_of_a_call_is_the_one_that_differs():
    x, y = np.ones((40, 24), np.float32), np.ones((16, 24), np.float32)
    run = tilewright.compile(kernels.gemm("nt", "f32"))
    run(x, y)
    again = tilewright.compile(kernels.gemm("nt", "f32"), plan=run.text("plan"))
    assert np.array_equal(again(x, y), x @ y.T)
    with pytest.raises(ArgumentError, match="says m_0 40, the program has m_0 56"):
        again(np.ones((56, 24), np.float32), y)


def misspelt():
    """Statements with one word misspelt: its second letter left out, and its last two exchanged."""
    for statement in STATEMENTS:
        for place in re.finditer(r"[A-Za-z_]+", statement):
            word = place[0]
            if word in NAMES or len(word) < 4 or not word.islower():
                continue
            words = {word[0] + word[2:], word[:-2] + word[-1] + word[-2]}
            for other in sorted(words - {*WORDS, word, "wavse"}):  # which is as near to one wave as to two
                yield statement, statement[: place.start()] + other + statement[place.end() :]


@pytest.mark.parametrize(("right", "wrong"), misspelt())
def test_a_misspelt_word_was_answered_with_twenty_forms(right, wrong):
    parse_plan(f"{AXES}other by loops; grid N; {right}" if not right.startswith("grid") else AXES + right)
    with pytest.raises(ArgumentError) as refused:
        parse_plan(AXES + wrong)
    assert f"did you mean `{right}`?" in str(refused.value)
    assert f"`{wrong}`" in str(refused.value) or repr(wrong) in str(refused.value)
    assert len(str(refused.value)) < 3 * len(wrong) + 400


@pytest.mark.parametrize(
    ("right", "wrong", "near"),
    [
        ("grid columns, m_2, rows", "grid columns, m_2, row", "did you mean rows?"),
        ("loops columns", "loops colums", "did you mean columns?"),
        ("loop k_2 1", "loop k2 1", "did you mean k_2?"),
        ("m_0 14", "m0 14", "`m0`: did you mean m_0?"),
        ("x in place", "xx in place", "`xx`: did you mean x?"),
        ("atom avx512.bf16", "atom avx512.bf61", "`avx512.bf61`: did you mean avx512.bf16?"),
    ],
)
def test_a_misspelt_name_is_answered_with_a_near_one(right, wrong, near):
    plan = conv().text("plan")
    changed = plan.replace(right, wrong, 1)
    assert changed != plan
    line = next(line for line in changed.splitlines() if line not in plan.splitlines())
    with pytest.raises(ArgumentError) as refused:
        conv(plan=changed)
    assert near in str(refused.value)
    assert f"`{line}`" in str(refused.value)


@pytest.mark.parametrize(
    ("right", "wrong", "near"),
    [
        ("mma by", "mmma by", "`mmma`: did you mean mma?"),
        ("wgmma", "wgma", "did you mean wgmma."),
        ("(K ", "(KK ", "`KK`: did you mean K?"),
    ],
)
def test_names_of_a_plan_in_roles(right, wrong, near):
    kernel, sizes = kernels.gemm("nt", "bf16"), {"M": 200, "N": 136, "K": 192}
    plan = kernel_for(kernel, sizes, machine=machine("hopper")).text("plan")
    with pytest.raises(ArgumentError) as refused:
        kernel_for(kernel, sizes, machine=machine("hopper"), plan=plan.replace(right, wrong, 1))
    assert near in str(refused.value)


def test_roles_that_multiply_nothing_named_no_line():
    with pytest.raises(ArgumentError, match=r"`producer .*`: no line says what they multiply, `PRODUCT by ATOM"):
        parse_plan(AXES + next(line for line in STATEMENTS if line.startswith("producer")))


def test_a_long_statement_is_not_searched():
    with pytest.raises(ArgumentError) as refused:
        parse_plan("tsks " + "rowz, " * 100_000)
    assert len(str(refused.value)) < 1000
