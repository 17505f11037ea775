"""Factors that TMA cannot read as they lie: copied to other rows first, with zeros, or by waves, as the model says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from every_plan import plans_from_the_best

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.cli.workload import Workload, read_problem, read_types
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.kernels.conv import conv
from tilewright.plan.schedule import ALIGNED, PANELS
from tilewright.plan.search import repack
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
PATIENT = replace(HOPPER, limits=replace(HOPPER.limits, gather_cycles=1e6))
"""A machine whose waves copy so slowly that factors are always copied to other rows first."""
OURS = {"bf16": ("bf16", "f32"), "f16": ("f16", "f32"), "s8": ("i8", "i32"), "f8e4m3fn": ("f8e4m3fn", "bf16")}
PROBLEMS = [
    "mb2ic3ih9iw13oc10kh3kw3ph1pw1",
    "mb1ic3ih11iw8oc17kh5kw3sh2sw1ph2pw0",
    "mb1ic5ih6iw7oc9kh1kw1",
    "mb2ic7ih5iw9oc8kh2kw3ph1pw1dh1dw0",
    "mb1ic1ih8iw12oc16kh3kw3ph1pw1",
    "mb2ic3ih9iw13oc10kh3kw3ph1pw1sh3sw3",
    "mb2ic3ih9iw13oc10kh3kw3ph2pw2dh1dw1",
    "mb2ic3ih15iw13oc40kh7kw7ph3pw3sh2sw2",
    "mb1ic6ih9iw13oc10kh3kw3ph1pw1sh1sw4",
    "mb1ic2ih7iw21oc12kh1kw5ph0pw4sw2",
    "mb2ic4ih12iw5oc24kh4kw1ph3pw0sh2",
    "mb3ic3iw37oc11kw7pw2sw3",
    "mb1ic3id5ih6iw7oc13kd2kh3kw2pd1ph1pw1sd1sh2sw1",
    "mb2ic12ih5iw6oc20kh3kw3ph1pw1",
]


def plan_with(kernel, sizes, form, row=PATIENT, constant=(), parts=None):
    """The best plan that copies operands to a form first, of those in so many parts if `parts` says how many."""

    def wanted(plan):
        return f": {form}" in str(plan) and (parts is None or plan.parts == parts)

    plan = next(plans_from_the_best(kernel, sizes, row, wanted, constant=constant))
    return str(plan)


def made(line: str, dt: str = "bf16", row=PATIENT, plan=ALIGNED, constant=("w",), parts=None):
    """(the kernel of a convolution by a plan, or by the best of a form; its arguments, what it must give)."""
    problem = read_problem(line)
    work = Workload(problem, read_types(f"{dt}:{dt}:{'s32' if dt == 's8' else 'bf16' if 'f8' in dt else 'f32'}"))
    _, sizes = work.kernel
    arrays = work.arrays(np.random.default_rng(7), exact=True)
    ends = list(zip(problem.p, problem.p_right, strict=True))
    kernel = conv(problem.k, *OURS[dt], stride=problem.s, padding=ends, dilation=problem.dilation)
    plan = plan_with(kernel, sizes, plan, row, constant, parts) if plan in (ALIGNED, PANELS) else plan
    found = kernel_for(kernel, sizes, machine=row, plan=plan, constant=constant)
    return found, arrays, work.reference(arrays).astype(arrays["y"].dtype)


def require_exact(found, arrays, wanted) -> None:
    arrays["y"][...] = 99
    found.bind(arrays)()
    assert np.array_equal(arrays["y"], wanted)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("line", "form"),
    [(line, form) for line in PROBLEMS for form in (ALIGNED, PANELS) if form == ALIGNED or "kh1kw1" not in line],
)
def test_few_channels_are_exact_in_rows(line: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repack, "MOST_COPIED", float("inf"))
    found, arrays, wanted = made(line, plan=form)
    assert str(found.plan).count(f": {form}") == 2
    assert "by tma.load" in found.text("block")
    require_exact(found, arrays, wanted)
    again, *_ = made(line, plan=str(found.plan))
    assert str(again.plan) == str(found.plan)
    assert again.text("block") == found.text("block")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dt", ["f16", "s8", "f8e4m3fn"])
@pytest.mark.parametrize("line", [PROBLEMS[0], PROBLEMS[7]])
def test_other_types_are_exact_in_rows(line: str, dt: str) -> None:
    found, arrays, wanted = made(line, dt)
    assert "repack x: aligned rows" in str(found.plan)
    require_exact(found, arrays, wanted)


def test_taps_and_channels_of_a_line_are_one_axis() -> None:
    found, *_ = made("mb32ic3ih224iw224oc64kh7kw7ph3pw3sh2sw2", constant=())
    text = found.text("host")
    assert "%x_rows = workspace global bf16 (6594560)" in text
    assert "restride %x_rows global bf16 (32, 224, 112, 28):(206080, 920, 8, 1)" in text
    assert "restride %w_rows global bf16 (64, 7, 28):(224, 32, 1)" in text
    assert found.plan.axis("K_0").padded_extent == 28
    assert [a.name for a in found.plan.axes] == ["M", "F", "K_2", "K_0"]


def test_what_lies_beside_a_window_does_not_reach_it() -> None:
    """The channels and taps that a row has too much meet zeros in memory, not numbers that are multiplied by zero."""
    kernel = conv((1, 3), "f32", "f32", precision="tf32")
    x, w = np.ones((1, 2, 24, 3), np.float32), np.ones((8, 1, 3, 3), np.float32)
    x[0, 0, 10, 1] = np.inf
    y = np.zeros((1, 2, 22, 8), np.float32)
    sizes = {"N": 1, "H": 2, "W": 24, "C": 3, "F": 8}
    found = kernel_for(kernel, sizes, machine=PATIENT, plan=plan_with(kernel, sizes, ALIGNED))
    assert "repack x: aligned rows" in str(found.plan)
    found.bind({"x": x, "w": w, "y": y})()
    assert np.array_equal(y, tilewright.compile(kernel, target="executor")(x, w))
    assert not np.isnan(y).any()
    assert np.isinf(y).any(axis=(0, 1, 3)).sum() == 3


def test_weights_that_never_change_are_copied_when_they_are_bound() -> None:
    once, *_ = made(PROBLEMS[0])
    bind = once.text("host").partition("bind {")[2].partition("}")[0]
    assert "launch conv_w_rows(" in bind
    assert "x_rows" not in bind
    assert "w is copied with zeros to rows of 8 in (10, 3, 3, 8), from 3 in (10, 3, 3, 3): when it is bound" in (
        once.explain()
    )
    often, arrays, wanted = made(PROBLEMS[0], constant=())
    assert "bind {" not in often.text("host")
    assert set(often.module.programs) == {"conv", "conv_rows"}  # then both are copied by one launch
    require_exact(often, arrays, wanted)


def test_windows_that_lie_side_by_side_are_read_where_they_are() -> None:
    found, arrays, wanted = made("mb2ic3ih16iw32oc24kh8kw8ph0pw0sh8sw8")
    text = found.text("host")
    assert "_rows" not in text
    assert set(found.module.programs) <= {"conv", "conv_parts"}  # nothing is copied
    assert "restride %x global bf16 (2, 16, 4, 24):(1536, 96, 24, 1)" in text
    require_exact(found, arrays, wanted)


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ("mb2ic3ih48iw32oc24kh16kw16ph0pw0sh16sw16", "%x global bf16 (2, 3, 16, 2, 48):(4608, 1536, 96, 48, 1)"),
        ("mb3ic3ih29iw31oc16kh9kw5ph1pw1sh10sw6", "%x_rows global bf16 (3, 3, 9, 5, 20):(3480, 1200, 120, 24, 1)"),
    ],
)
def test_windows_far_apart_have_an_axis_of_their_own(line: str, seen: str) -> None:
    found, arrays, wanted = made(line)
    assert f"restride {seen}" in found.text("host")
    require_exact(found, arrays, wanted)


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("mb2ic3ih48iw32oc24kh16kw16ph0pw0sh16sw16", 16),
        ("mb2ic3ih48iw32oc24kh16kw16ph0pw0sh16sw16", 4),
        ("mb3ic3ih29iw31oc16kh9kw5ph1pw1sh10sw6", 9),
    ],
)
def test_lines_of_windows_far_apart_are_summed_in_parts(line: str, count: int) -> None:
    """Parts of lines were whole rows of shared memory, as parts of K are: plans that the search lists were refused."""
    found, arrays, wanted = made(line, parts=("K_2", count))
    assert found.plan.parts == ("K_2", count)
    require_exact(found, arrays, wanted)


RAGGED = [(33, 41, 77), (70, 129, 136), (65, 64, 131)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("transposes", "sizes"), list(zip(["nt", "nn", "tn", "tt", "nt", "nn"], 2 * RAGGED, strict=True))
)
def test_products_of_ragged_rows_are_exact(transposes: str, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    rng = np.random.default_rng(3)
    kernel, extents = kernels.gemm(transposes, "bf16", "f32"), {"M": m, "N": n, "K": k}
    plan = next(plans_from_the_best(kernel, extents, PATIENT, lambda plan: ": aligned rows" in str(plan)), None)
    found = kernel_for(kernel, extents, machine=PATIENT, plan=None if plan is None else str(plan))
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    bf16 = found.module.host.args[0].type.dtype.numpy
    c = np.full((m, n), np.nan, np.float32)
    given = [x.T if t == "t" else x for x, t in zip((a, b), transposes, strict=True)]
    given = [np.ascontiguousarray(x).astype(bf16) for x in given]
    askew = [name for name, x in zip("ab", given, strict=True) if x.shape[1] % 8]
    said = [p.name for p in found.plan.values]
    assert said == askew
    found.bind({"a": given[0], "b": given[1], "c": c})()
    assert np.array_equal(c, a @ b)


def test_the_model_counts_what_waves_copy_word_by_word() -> None:
    """Times of an H200 in microseconds, of plans whose waves copy: what is predicted is not half, and not twice."""
    for line, took in (
        ("mb32ic3ih224iw224oc64kh7kw7ph3pw3sh2sw2", 1457.6),
        ("mb1ic3ih1080iw1920oc32kh3kw3sh2sw2ph1pw1", 413.4),
        ("mb4ic4ih64iw64oc320kh3kw3ph1pw1", 21.2),
    ):
        problem = read_problem(line)
        kernel = conv(problem.k, "bf16", stride=problem.s, padding=problem.p)
        sizes = {"N": problem.mb, "H": problem.i[0], "W": problem.i[1], "C": problem.ic, "F": problem.oc}
        text = kernel_for(kernel, sizes, machine=HOPPER).explain()
        copied = float(text.partition("predicted ")[2].split()[0])
        ratio = float(text.partition("a pipeline, lanes copy: ")[2].split()[0])
        assert took / 2 < copied * ratio < 2 * took
        assert ratio > 1


def test_a_plan_that_says_rows_where_there_are_none_is_refused() -> None:
    found, *_ = made(PROBLEMS[0])
    plan = str(found.plan)
    with pytest.raises(ArgumentError, match=r"repack x: aligned rows.*rows lie far enough apart"):
        made("mb2ic8ih9iw13oc10kh3kw3ph1pw1dh1dw1", plan=plan)


def test_small_problems_are_copied_by_waves() -> None:
    found, arrays, wanted = made("mb1ic3ih5iw5oc8kh1kw1", row=HOPPER, plan=None)
    assert "aligned rows" not in str(found.plan)
    assert "refused  operands in aligned rows" in found.explain()
    require_exact(found, arrays, wanted)


def test_the_host_program_of_rows_runs_as_text() -> None:
    found, arrays, wanted = made(PROBLEMS[7])
    arrays["y"][...] = 99
    tilewright.compile_text(found.text("host"), "interpreter")(*(arrays[n] for n in "xwy"))
    assert np.array_equal(arrays["y"], wanted)


def test_long_sums_of_ragged_rows_are_taken_apart() -> None:
    kernel, sizes = kernels.gemm("nt", "bf16", "f32"), {"M": 24, "N": 48, "K": 1538}
    found = kernel_for(kernel, sizes, machine=PATIENT)
    assert found.plan.parts is not None
    assert [p.name for p in found.plan.values] == ["a", "b"]
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-1, 2, (n, 1538)).astype(np.float32) for n in (24, 48))
    bf16 = found.module.host.args[0].type.dtype.numpy
    for made_of in (found, kernel_for(kernel, sizes, machine=PATIENT, plan=str(found.plan))):
        c = np.full((24, 48), np.nan, np.float32)
        made_of.bind({"a": a.astype(bf16), "b": b.astype(bf16), "c": c})()
        assert np.array_equal(c, a @ b.T)


def test_a_halo_tile_that_an_atom_does_not_read_is_refused() -> None:
    problem = read_problem("ic4id4ih14iw12oc96od8oh16ow15kd2kh4kw2pd1ph2pw0")
    ends = list(zip(problem.p, problem.p_right, strict=True))
    kernel = conv(problem.k, "f32", "f32", stride=problem.s, padding=ends, precision="tf32")
    depth, height, width = problem.i
    sizes = {"N": problem.mb, "D": depth, "H": height, "W": width, "C": problem.ic, "F": problem.oc}
    even = replace(HOPPER, limits=replace(HOPPER.limits, sector_bytes=1))  # nothing is padded first
    plan = next(
        plans_from_the_best(kernel, sizes, even, lambda plan: plan.pipeline is not None and plan.pipeline.halo_stages)
    )
    with pytest.raises(ArgumentError, match=r"halo stages .*: mma: wgmma.* reads a by .*; the places of %halo_view"):
        kernel_for(kernel, sizes, machine=even, plan=plan)
    plan = str(kernel_for(kernel, sizes, machine=even).plan)
    assert "halo" not in plan
    found = kernel_for(kernel, sizes, target="gpu:hopper", plan=plan)
    for name in found.module.programs:
        found.executor.prepared(name, {})


M, N, J, K, GLOBAL = tkl.sym.M, tkl.sym.N, tkl.sym.J, tkl.sym.K, tkl.GLOBAL_ADDRESS_SPACE


@tkw.wave([tkw.TilingConstraint(J, 3), tkw.TilingConstraint(K, 1)])
def of_nested_loops(
    x: tkl.Memory[M, J, K, GLOBAL, tkl.bf16],
    w: tkl.Memory[K, N, J, GLOBAL, tkl.bf16],
    y: tkl.Memory[M, N, GLOBAL, tkl.f32],
):
    """y[m, n] = the sum of x[m, j, k] * w[k, n, j], in a loop over j around one over k."""

    @tkw.iterate(J, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(outer):
        @tkw.iterate(K, init_args=[outer])
        def inner(acc):
            return tkw.mma(tkw.read(x), tkw.read(w), acc)

        return inner

    tkw.write(total, y)


@pytest.mark.filterwarnings("ignore::tilewright.errors.SlowPlanWarning")
def test_a_loop_around_the_loop_of_a_product_was_a_key_error():
    """All of K was merged to one dimension of the copies, and the outer loop had none."""
    data = np.random.default_rng(0)
    x, w = (data.integers(-2, 3, shape).astype(tkl.bf16.numpy) for shape in ((16, 5, 3), (3, 17, 5)))
    y = np.full((16, 17), np.nan, np.float32)
    kernel = kernel_for(of_nested_loops, {"M": 16, "N": 17, "J": 5, "K": 3}, machine=machine("hopper"))
    kernel.bind({"x": x, "w": w, "y": y})()
    assert np.array_equal(y, np.einsum("mjk,knj->mn", x.astype(np.float32), w.astype(np.float32)))
