"""Contractions by lanes: depthwise convolutions exactly, within their arrays, in registers; why others have no form."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from contraction_checks import Problem
from tile_checks import own_cache

import tilewright
from tilewright.cli.workload import read_problem, read_types
from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError
from tilewright.ops import Conv2d
from tilewright.plan.block_list import blockings
from tilewright.plan.blocking import plan_of
from tilewright.plan.fixed import FREE, StatedTiles
from tilewright.plan.lanes import default_steps, input_window, lane_block_unit, out_of_bounds_blocks, why_no_lanes
from tilewright.plan.search.block_choice import choose
from tilewright.plan.search.ranked_blocks import compare_blocks
from tilewright.plan.text import parse_plan
from tilewright.plan.validate import validate, why_illegal
from tilewright.problems import ConvProblem, conv_forward
from tilewright.targets.cpu import host
from tilewright.targets.registry import machine

sys.path.insert(0, str(Path(__file__).parents[1] / "runtime"))
from guarded import guarded

__all__ = ["own_cache"]
on_avx512 = pytest.mark.skipif("avx512bw" not in host.features(), reason="needs AVX-512: plans of 16 lanes")
AMX = replace(machine("x86.amx"), limits=replace(machine("x86.amx").limits, cores=2))
SMALL = "g20mb1ic20ih5iw9oc20kh3kw3ph1pw1"


def workload(problem, dt="f32"):
    return Problem(read_problem(problem) if isinstance(problem, str) else problem, read_types(dt))


def check(work, plan=None, at=None):
    """Runs a problem under a plan, its arrays perhaps beside protected pages, and compares every element."""
    arrays = work.arrays(np.random.default_rng(0), exact=True)
    *_, out = arrays
    kernel = work.compiled(plan)
    wanted = work.reference(arrays).astype(arrays[out].dtype)
    held = {name: guarded(array, at) for name, array in arrays.items()} if at else arrays
    if at:  # packed filters too
        kernel.executor.device.empty = lambda shape, dtype: guarded(np.zeros(shape, dtype), at)
    kernel.bind(held)()
    assert np.array_equal(held[out], wanted), str(kernel.plan)


# -- exact ----------------------------------------------------------------------------------------------------

PROBLEMS = [
    ConvProblem(mb=2, ic=3, oc=3, g=3, i=(4, 7), k=(3, 3), p=(1, 1)),
    ConvProblem(mb=1, ic=17, oc=17, g=17, i=(6, 9), k=(2, 3), s=(2, 1), d=(1, 0), p=(0, 2)),
    ConvProblem(mb=1, ic=33, oc=33, g=33, i=(9, 31), k=(3, 5), s=(1, 2), p=(2, 2)),
    ConvProblem(mb=1, ic=127, oc=127, g=127, i=(5, 6), k=(3, 3), p=(1, 1)),
    ConvProblem(mb=1, ic=32, oc=64, g=32, i=(5, 8), k=(3, 3), p=(1, 1)),
    ConvProblem(mb=1, ic=21, oc=42, g=21, i=(7, 20), k=(1, 9), d=(0, 1), p=(0, 8)),
    ConvProblem(mb=1, ic=48, oc=48, g=48, i=(1, 40), k=(1, 3), p=(0, 1)),
    ConvProblem(mb=2, ic=40, oc=40, g=40, i=(5, 7), k=(1, 1)),
    ConvProblem(mb=1, ic=16, oc=16, g=16, i=(2, 2), k=(5, 5), p=(3, 3)),
    ConvProblem(mb=1, ic=64, oc=64, g=64, i=(6, 11), k=(3, 3), s=(3, 3), d=(1, 1), p=(3, 3)),
]


TYPES = ["f32", "bf16", "f16", "s8", "f64"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("problem", "dt"), [(p, TYPES[(2 * n + k) % 5]) for n, p in enumerate(PROBLEMS) for k in (0, 1)]
)
def test_depthwise_convolutions_are_exact_and_stay_within_their_arrays(problem, dt):
    work = workload(problem, dt)
    found = choose(work.contraction, host.host_machine()).candidates
    plan = str(next(x.plan for x in found if x.blocking.by_lanes))
    for at in ("begin", "end"):
        check(work, plan, at)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("number", range(12))
def test_random_depthwise_convolutions_under_a_random_form(number):
    rng = np.random.default_rng(number)

    def two(*choices):
        return tuple(int(n) for n in rng.choice(choices, 2))

    channels = int(rng.choice([2, 3, 16, 17, 33, 64, 127]))
    k, s, d, p = two(1, 2, 3, 5), two(1, 1, 2, 3), two(0, 0, 1), two(0, 1, 2, 3)
    i = tuple(int(rng.integers(1, most)) + (tap - 1) * (far + 1) for most, tap, far in zip((6, 30), k, d, strict=True))
    more = int(rng.choice([1, 1, 2]))
    mb, shape = int(rng.integers(1, 3)), {"i": i, "k": k, "s": s, "d": d, "p": p}
    problem = ConvProblem(mb=mb, ic=channels, oc=more * channels, g=channels, **shape)
    work = workload(problem, str(rng.choice(["f32", "bf16", "f16", "s8"])))
    found = [x for x in choose(work.contraction, host.host_machine()).candidates if x.blocking.by_lanes]
    check(work, str(found[int(rng.integers(len(found)))].plan), at="end")


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("channels", "more"), [(5, 1), (32, 1), (35, 1), (19, 2)])
def test_bias_and_activation_end_a_block(channels, more, dtype):
    rng = np.random.default_rng(channels)
    x = rng.integers(-2, 3, (1, 6, 11, channels)).astype(dtype)
    w = rng.integers(-2, 3, (more * channels, 3, 3, 1)).astype(dtype)
    bias = rng.integers(-9, 10, more * channels).astype(np.float32)
    layer = Conv2d(w, bias, padding=1, groups=channels, activation="relu")
    problem = ConvProblem(mb=1, ic=channels, oc=more * channels, g=channels, i=(6, 11), k=(3, 3), p=(1, 1))
    sums = conv_forward(problem, x, w, x_layout="nxc", w_layout="oxi", y_layout="nxc")
    assert np.array_equal(layer(x), np.maximum(sums + bias, 0).astype(dtype))
    assert layer.kernel(x)[0].plan.atom.startswith("lanes.") or more > 1  # 2 columns to a row: some CPUs broadcast it


def test_a_task_with_the_last_lanes_alone_stays_within_its_arrays():
    """The channels are 4 units and 1, a block 2 units, a task 2 blocks: the second task has a unit and no block."""
    first = workload("g65mb1ic65ih3iw7oc65kh3kw3ph1pw1")
    plans = [str(x.plan) for x in choose(first.contraction, host.host_machine()).candidates if x.blocking.by_lanes]
    unit = int(re.search(r"axis lanes = .*?unit (\d+)", plans[0])[1])
    count = 4 * unit + 1
    work = workload(f"g{count}mb1ic{count}ih3iw7oc{count}kh3kw3ph1pw1")
    lanes = f"axis lanes = (g_0 {5 * unit} of {count}): task {4 * unit}, loop {2 * unit}, unit {unit}"
    check(work, re.sub(r"axis lanes = [^;]*", lanes, plans[0]), at="end")


def test_the_interpreter_agrees():
    work = workload("g18mb1ic18ih3iw7oc36kh3kw3sw2ph1pw1")
    kernel = work.compiled(target="interpreter")
    assert kernel.plan.atom.startswith("lanes.")
    arrays = work.arrays(np.random.default_rng(3), exact=True)
    *_, out = arrays.values()
    kernel.bind(arrays)()
    assert np.array_equal(out, work.reference(arrays).astype(out.dtype))


@pytest.mark.parametrize("dt", ["f32", "bf16", "s8"])
def test_a_kernel_and_its_host_text_pack_filters_in_the_type_of_the_sums(dt):
    work = workload("g18mb2ic18ih5iw7oc18kh3kw3ph1pw1", dt)
    x, w, y = (work.arrays(np.random.default_rng(5), exact=True)[name] for name in "xwy")
    kernel, _ = work._make_kernel()
    made = tilewright.compile(kernel, target="cpu")
    wanted = work.reference({"x": x, "w": w, "y": y}).astype(y.dtype)
    made(x, w, y)
    assert np.array_equal(y, wanted)
    sums = "i32" if dt == "s8" else "f32"
    assert f"atom lanes.{sums}" in made.text("plan")
    host = made.text("host")
    assert f"%packed_w = workspace global {sums} (" in host
    y[...] = 0
    tilewright.compile_text(host, "cpu")(x, w, y)
    assert np.array_equal(y, wanted)


@pytest.mark.sampled(3)
@on_avx512
@pytest.mark.parametrize("size", [14, 56, 112])
@pytest.mark.parametrize("dt", ["f32", "bf16", "s8"])
def test_sums_stay_in_registers_over_all_taps(dt, size):
    kernel = workload(f"g64mb1ic64ih{size}iw{size}oc64kh3kw3ph1pw1", dt).compiled()
    text = kernel.text("loop")
    assert "alloc shared" not in text
    loops = re.findall(r"for k_k_1\S* in[^\n]*\{\n(.*?)\n\s*\}", text, re.DOTALL)
    assert loops
    assert all("store" not in loop for loop in loops)
    if dt != "bf16" or host.host_machine().rounds_bf16:  # rounding by integers takes registers, after the sums
        assert not re.findall(r".*mm\d.*rsp.*|.*rsp.*mm\d.*", kernel.text("asm"))


# -- the choice -----------------------------------------------------------------------------------------------


def test_depthwise_convolutions_take_lanes():
    for dt in ("f32", "bf16", "f16", "s8"):
        assert choose(workload(SMALL, dt).contraction, AMX).best.blocking.by_lanes


def test_many_filters_of_a_channel_take_vectors_of_columns():
    assert choose(workload("g2mb1ic2ih14oc256kh3ph1").contraction, AMX).best.plan.atom == "avx512.f32"


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        ("mb1ic8ih5oc8kh3ph1", "no digit is in both operands and the result"),
        ("g4mb1ic8ih5oc8kh3ph1", "no digit of both operands and the result is contiguous in x"),
        ("g1mb1ic1ih5oc1kh3ph1", "no digit is in both operands and the result"),
    ],
)
def test_what_has_no_form_is_told_why(problem, why):
    c = workload(problem).contraction
    assert why_no_lanes(c, AMX) == why
    assert not any(x.blocking.by_lanes for x in choose(c, AMX).candidates)
    assert f"lanes: {why}" in map(str, choose(c, AMX).unfit)


def test_forms_fit_the_registers_there_are():
    c = workload("g64mb1ic64ih28iw28oc64kh3kw3ph1pw1").contraction
    for registers in (16, 32):
        machine = replace(AMX, limits=replace(AMX.limits, registers=registers))
        forms = list(blockings(c, lane_block_unit(c, machine), machine, FREE))
        assert forms
        assert all(why_illegal(c, form, machine) is None for form in forms)
        assert max(form.rows * form.vectors for form in forms) < registers
        assert any(f"registers of {registers}" in str(r) for r in compare_blocks(choose(c, machine)).refused)


def test_rows_that_slide_by_one_share_what_they_load():
    near, far, apart = (workload(f"g16mb1ic16ih9iw40oc16kh3kw3{more}").contraction for more in ("", "sw2", "sw3"))
    assert [input_window(c, 4, default_steps(c)) for c in (near, far, apart)] == [(6, 3), (9, 3), (12, 0)]


def test_blocks_whose_taps_fall_outside_are_at_the_ends():
    c = workload("g16mb1ic16ih9iw40oc16kh3kw3ph1pw1").contraction
    assert out_of_bounds_blocks(c, 8) == (1, 1)
    assert out_of_bounds_blocks(c, 1) == (1, 1)
    assert out_of_bounds_blocks(c, 7) == (1, 0)  # the last rows are no whole block
    assert out_of_bounds_blocks(workload("g16mb1ic16ih9iw40oc16kh3kw3").contraction, 8) == (0, 0)
    assert out_of_bounds_blocks(workload("g16mb1ic16ih9iw40oc16kh3kw9ph1pw4").contraction, 2) == (2, 2)


def test_what_is_fixed_holds():
    c = workload(SMALL).contraction
    lines = [x.blocking for x in choose(c, AMX, fixed=StatedTiles(rows=9, columns=1)).candidates if x.blocking.by_lanes]
    parts = [x.blocking for x in choose(c, AMX, fixed=StatedTiles(rows=4)).candidates]
    assert lines
    assert parts
    assert {form.strip for form in lines} == {9}
    assert {form.strip for form in parts} == {4}
    assert {form.rows for form in parts} == {1, 2, 4}


def test_the_choice_is_explained():
    found = choose(workload("g64mb1ic64ih14iw14oc64kh3kw3ph1pw1", "f16").contraction, AMX)
    text = "\n".join(compare_blocks(found).times)
    assert found.best.plan.atom == "lanes.f32"
    assert "predicted" in text
    assert "with lanes.f32" in text  # no atom takes f16: lanes are all that there is
    assert found.bound.cycles <= found.best.cost.cycles


# -- plans that are given -------------------------------------------------------------------------------------

PROBLEM = "g40mb2ic40ih5iw9oc80kh3kw2ph1pw1ow9"
PLAN = """axis m_2 = (m_2 2): task 1
axis m_1 = (m_1 5): task 1
axis lanes = (g_0 48 of 40): task 32, loop 32, unit 16
axis rows = (m_0 9): task 9, loop 4, unit 1
axis columns = (fg_0 2): loop 1
axis depth = (k_1 3, k_0 2): loop k_1 1, unit k_0 1
grid lanes, m_2, m_1, rows
raster contiguous
loops rows, lanes, columns, depth
x in place
w packed at bind
atom lanes.f32"""


def test_the_plan_above_is_fine_and_says_what_is_done():
    c = workload(PROBLEM).contraction
    form = validate(parse_plan(PLAN), c, AMX)
    assert (form.rows, form.columns, form.vectors, form.strip, form.task_columns) == (4, 32, 2, 9, 32)
    assert plan_of(c, form).lines() == PLAN.splitlines()


EDITS = {
    "rows of a block": ("task 9, loop 4", "task 9, loop 3"),
    "vectors of a block": ("task 32, loop 32", "task 48, loop 48"),
    "a task of the lanes": ("task 32, loop 32", "task 64, loop 32"),
    "a task of a line": ("task 9, loop 4", "task 4, loop 4"),
    "a tap kept as a loop": ("unit k_0 1", "loop k_0 1"),
    "a tap written out": ("loop k_1 1", "unit k_1 1"),
    "the order of the depth": ("loop k_1 1, unit k_0 1", "unit k_0 1, loop k_1 1"),
    "the order of tasks": ("grid lanes, m_2, m_1, rows\nraster contiguous", "grid m_1, m_2, rows, lanes"),
}


@pytest.mark.sampled(4)
@on_avx512
@pytest.mark.parametrize("dt", ["f32", "bf16"])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_plan_changes_the_program_and_stays_exact(edit, dt):
    old, new = EDITS[edit]
    assert old in PLAN
    work = workload(PROBLEM, dt)
    changed = PLAN.replace(old, new)
    check(work, changed, "end")
    before, after = work.compiled(PLAN), work.compiled(changed)
    assert before.text("block") != after.text("block")
    assert before.object_code != after.object_code


BROKEN = {
    "more sums than registers": (
        "task 32, loop 32",
        "task 128, loop 128",
        "4 rows of 8 vectors take 41 registers of 32",
    ),
    "more than a line": ("task 9, loop 4", "task 9, loop 10", "longer than a line of 9"),
    "half blocks of rows": ("task 9, loop 4", "task 6, loop 4", "neither a line nor whole blocks of 4"),
    "half blocks of lanes": ("task 32, loop 32", "task 48, loop 32", "no whole blocks of 32"),
    "half a vector": ("loop 32, unit 16", "loop 32, unit 8", "the atom takes `unit 16`"),
    "another type": ("atom lanes.f32", "atom lanes.i32", "`atom lanes.i32`: here the sum is f32"),
    "another digit": ("lanes = (g_0 48 of 40)", "lanes = (m_0 48 of 40)", "the program has `(g_0 48 of 40)`"),
    "another walk": (
        "48 of 40",
        "64 of 40",
        "lines to the next: `(g_0 48 of 40)`",
    ),
    "several columns at once": (
        "(fg_0 2): loop 1",
        "(fg_0 2): loop 2",
        "lanes compute one column after the other: `loop 1`",
    ),
    "another order": (
        "loops rows, lanes",
        "loops lanes, rows",
        "`loops rows, lanes, columns, depth`",
    ),
    "a task left out": ("grid lanes, m_2", "grid m_2", "tasks go over m_2, m_1, lanes, rows"),
    "a loop over lines": ("(m_1 5): task 1", "(m_1 5): loop 1", "tasks take some of m_1"),
    "two taps at once": ("unit k_0 1", "unit k_0 2", "every digit of the depth is cut once, by 1"),
    "a digit left out": ("loop k_1 1, ", "", "every digit of the depth is cut once, by 1"),
    "tasks over the depth": ("loop k_1 1", "task k_1 1", "would add to one result"),
    "rows that are staged": ("x in place", "x strip at task", "rows do not slide"),
    "filters that are not packed": (
        "w packed at bind",
        "w in place",
        "columns lie packed",
    ),
    "a hint": ("x in place", "x in place, stream", "loads of vectors have no hint"),
    "overlap": ("atom lanes.f32", "atom lanes.f32\noverlap delayed store", "lanes are stored as they are"),
    "one statement more": ("x in place", "x in place\ny in place", "`y in place`"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_plan_that_does_not_fit_is_refused_by_name(case):
    old, new, why = BROKEN[case]
    assert old in PLAN
    with pytest.raises(ArgumentError, match="plan: ") as caught:
        validate(parse_plan(PLAN.replace(old, new)), workload(PROBLEM).contraction, AMX)
    assert why in str(caught.value)


def test_a_long_program_is_refused():
    few = replace(AMX, limits=replace(AMX.limits, instructions=320))
    with pytest.raises(ArgumentError, match="instructions are written out; the budget is 320"):
        validate(parse_plan(PLAN), workload(PROBLEM).contraction, few)


def test_a_plan_for_another_contraction_is_refused():
    with pytest.raises(ArgumentError, match=r"`atom lanes\.f32`: no digit is in both operands and the result"):
        workload("mb1ic8ih5oc8kh3ph1").compiled(PLAN)


def test_narrow_factors_are_converted_first_only_for_another_strategy():
    by_lanes, by_columns = (workload(p, "f16").compiled() for p in (SMALL, "g2mb1ic2ih28oc256kh3ph1"))
    assert by_lanes.plan.atom.startswith("lanes.")
    assert not by_columns.plan.atom.startswith(("lanes.", "amx."))
    assert list(by_lanes.module.programs) == ["pack_w", "conv"]
    assert list(by_columns.module.programs) == ["widen_w", "pack_w", "widen_x", "conv"]


def test_a_plan_by_columns_may_be_given_all_the_same():
    work = workload(SMALL)
    plan = next(
        x.plan
        for x in choose(work.contraction, host.host_machine()).candidates
        if not (x.blocking.by_lanes or x.blocking.in_tiles)
    )
    check(work, str(plan))
    check(workload(SMALL, "f16"), str(plan))  # its operands are converted first


# -- fma ------------------------------------------------------------------------------------------------------

FMA = """block fused(%a: in global KIND (N), %b: in global KIND (N), %c: in global KIND (N), %y: out global KIND (N))
  param N = 999
{
  tasks t in 0..1 {
    map %y = fma(%a, %b, %c)
  }
}
"""


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_a_fused_product_is_rounded_once(kind, target):
    dtype = {"f32": np.float32, "f64": np.float64}[kind]
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(999).astype(dtype) for _ in range(2))
    c = (-a * b * (1 + rng.integers(-2, 3, 999) * np.finfo(dtype).eps)).astype(dtype)
    found = compile_text(FMA.replace("KIND", kind), target)(a, b, c)
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    wanted = np.array([float(e) for e in exact]).astype(dtype)
    assert np.array_equal(found, wanted)
    assert not np.array_equal(found, a * b + c)


@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_a_fused_product_of_integers_wraps(target):
    a, b, c = (np.arange(999, dtype=np.int32) * k for k in (70_000, 90_000, 3))
    with np.errstate(over="ignore"):
        assert np.array_equal(compile_text(FMA.replace("KIND", "i32"), target)(a, b, c), a * b + c)
