"""Plans that are predicted far above their roofline: that is said at the author's line, with cause and way out."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tile_checks import own_cache  # noqa: F401

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.compiler.required import Required
from tilewright.errors import ArgumentError, SlowPlan, SlowPlanWarning
from tilewright.kernels.gemm import gemm
from tilewright.targets.registry import machine

M, N, K, B, H, R, S, W = (getattr(tkl.sym, name) for name in "MNKBHRSW")
GLOBAL, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.f32
MATRIX: Any = tkl.Memory[M, N, GLOBAL, f32]
COLUMNS = {"M": 8192, "N": 8192}
FEW, MANY = {"M": 64, "N": 64}, {"M": 16384, "N": 64, "K": 8}


@tkw.wave()
def running_columns(x: MATRIX, y: MATRIX) -> None:
    tkw.write(tkw.cumsum(tkw.read(x), dim=M), y)  # the author's line


@tkw.wave()
def largest(x: MATRIX, y: tkl.Memory[M, K, GLOBAL, f32]) -> None:
    values, _ = tkw.topk(tkw.read(x), K, N)
    tkw.write(values, y)


@tkw.wave()
def doubled(x: MATRIX, y: MATRIX) -> None:
    tkw.write(tkw.read(x) * 2.0, y)


@tkw.wave()
def softmax(x: MATRIX, y: MATRIX) -> None:
    row = tkw.read(x)
    weights = tkw.exp(row - tkw.max(row, dim=N))
    tkw.write(weights / tkw.sum(weights, dim=N), y)


def cpu(name: str = "x86.avx512", cores: int = 16) -> Any:
    """A CPU by name, with so many cores."""
    row = machine(name)
    return replace(row, limits=replace(row.limits, cores=cores))


def times_of_floor(kernel: Any, sizes: dict[str, int], **where: Any) -> float:
    """The predicted time of a kernel by its roofline."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPlanWarning)
        choice = kernel_for(kernel, sizes, **where).choice
    return float(choice.cycles / choice.bound)


def test_a_slow_plan_warns_once_at_the_authors_line() -> None:
    run = tilewright.compile(running_columns, target="gpu:hopper")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run.text("plan", COLUMNS)
        run.text("plan", {"M": 8192, "N": 4096})
    (only,) = said
    assert only.category is SlowPlanWarning
    assert only.filename == __file__
    assert "# the author's line" in Path(__file__).read_text().splitlines()[only.lineno - 1]
    assert re.search(r"28\.\d times the roofline of 130\.\d us: one lane walks each row of cumsum", str(only.message))
    assert "let M be the last dimension" in str(only.message)
    assert "require_fast=True" in str(only.message)


def test_explain_says_what_the_warning_says() -> None:
    run = tilewright.compile(running_columns, target="gpu:hopper")
    with pytest.warns(SlowPlanWarning) as said:
        text = run.of_sizes(COLUMNS).explain()
    line = next(line for line in text.splitlines() if line.startswith("slow"))
    assert "test_slow_plans.py:" in line
    assert line.partition("): ")[2] in str(said[0].message)


def test_require_fast_makes_it_an_error() -> None:
    run = tilewright.compile(running_columns, target="gpu:hopper", require_fast=True)
    with pytest.raises(SlowPlan, match="one lane walks each row") as fault:
        run.text("plan", COLUMNS)
    assert fault.value.location is not None
    assert fault.value.location.file == __file__
    with pytest.raises(SlowPlan):
        kernel_for(running_columns, COLUMNS, target="gpu:hopper", required=Required.FAST)


def test_plans_near_the_roofline_say_nothing() -> None:
    run = tilewright.compile(doubled, target="gpu:hopper", require_fast=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "slow" not in run.of_sizes(COLUMNS).explain()
        tilewright.compile(running_columns, target="gpu:hopper", require_fast=True).text("plan", FEW)  # 20 us at most


def test_a_plan_that_is_given_is_not_warned_of() -> None:
    plan = "axis M = (M 8192): task 1\naxis N = (N 8192): task 32\ngrid M, N\nwaves 1\nlaunch early\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kernel = tilewright.compile(doubled, target="gpu:hopper", plan=plan).of_sizes(COLUMNS)
        assert "slow" in kernel.explain()
    with pytest.raises(SlowPlan, match="starts 2097152 tasks"):
        tilewright.compile(doubled, target="gpu:hopper", plan=plan, require_fast=True).of_sizes(COLUMNS).explain()


def test_a_cpu_warns_too() -> None:
    with pytest.warns(SlowPlanWarning, match="topk of 131072 elements"):
        kernel_for(largest, MANY, target="interpreter", machine=cpu()).explain()


def test_a_kernel_that_warned_was_silent_when_it_was_found_in_the_cache() -> None:
    x = np.arange(MANY["M"] * MANY["N"], dtype=np.float32).reshape(MANY["M"], MANY["N"])
    y = np.empty((MANY["M"], MANY["K"]), np.float32)
    for _ in range(2):  # the second process, so to say
        with pytest.warns(SlowPlanWarning, match="topk"):
            tilewright.compile(largest, target="cpu")(x, y)
        with pytest.raises(SlowPlan, match="require_fast"):
            tilewright.compile(largest, target="cpu", require_fast=True)(x, y)
    assert np.array_equal(y, x[:, : -MANY["K"] - 1 : -1])


def test_a_product_on_a_short_dimension_names_it() -> None:
    program = gemm("nt", "bf16")
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowPlanWarning)
        kernel_for(program, {"M": 4096, "N": 4096, "K": 4096}, target="gpu:hopper").explain()


def test_only_booleans_and_targets_with_plans() -> None:
    with pytest.raises(ArgumentError, match="require_fast=1: True or False"):
        tilewright.compile(doubled, require_fast=1)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="require_fast"):
        tilewright.compile(doubled, require_fast=True, target="executor")


# -- what the predicted time counts -------------------------------------------------------------------------


def test_many_workgroups_were_free() -> None:
    plan = "axis M = (M 8192): task 1\naxis N = (N 8192): task {}\ngrid M, N\nwaves 1\nlaunch early\n"
    few, many, most = (
        times_of_floor(doubled, COLUMNS, target="gpu:hopper", plan=plan.format(n)) for n in (2048, 256, 32)
    )
    assert few < 1.2
    assert 2 < many < 3  # 262144 workgroups, 2.2 cycles each
    assert most > 15


def test_rows_that_no_core_keeps_were_read_once() -> None:
    short, long = ({"M": 1 << 26 - n, "N": 1 << n} for n in (12, 17))
    assert times_of_floor(softmax, short, target="gpu:hopper") < 1.2
    assert times_of_floor(softmax, long, target="gpu:hopper") > 2
    x86 = {"target": "interpreter", "machine": cpu()}
    assert times_of_floor(softmax, {"M": 1 << 14, "N": 1 << 12}, **x86) < 1.2
    assert times_of_floor(softmax, {"M": 64, "N": 1 << 20}, **x86) > 1.8


def test_a_row_that_one_lane_walks_was_free() -> None:
    by_columns = {"M": 1 << 20, "N": 64}
    assert times_of_floor(running_columns, by_columns, target="gpu:hopper") > 1000
    assert times_of_floor(running_columns, {"M": 64, "N": 1 << 20}, target="gpu:hopper") < 2


def test_a_table_was_moved_whole_for_a_few_of_its_elements() -> None:
    m = tkw.IndexMapping.iterator(0)
    hit = tkw.IndexMapping(
        1, inputs={M: m, N: tkw.IndexMapping.dynamic_val(0)}, outputs={M: m}, dynamic_val_mappings={M: m}
    )

    @tkw.wave()
    def picked(x: MATRIX, at: tkl.Memory[M, GLOBAL, tkl.i32], y: tkl.Memory[M, GLOBAL, f32]) -> None:
        tkw.write(tkw.read(x, mapping=hit, mapping_dynamic_vals=(tkw.read(at),)), y)

    assert times_of_floor(picked, {"M": 4096, "N": 32000}, target="gpu:hopper") < 4


@pytest.mark.parametrize(("last", "most"), [(512, 1.3), (3, 20)])
def test_short_last_dimensions_were_full_vectors(last: int, most: float) -> None:
    """A tile whose last dimension is 3 elements fills 3 of 16 lanes."""

    @tkw.wave()
    def functions(x: MATRIX, y: MATRIX) -> None:
        tkw.write(tkw.sin(tkw.read(x)), y)

    sizes = {"M": 3 * 512 * 512 // last, "N": last}
    ours = kernel_for(functions, sizes, target="interpreter", machine=cpu()).choice.cycles
    full = kernel_for(functions, {"M": 1536, "N": 512}, target="interpreter", machine=cpu()).choice.cycles
    assert ours / full < most
    assert last == 512 or ours / full > 4


def shuffled() -> tkw.Kernel:
    """Pixels of 2 x 2 channels beside each other: y[b, h, r, w, s] = x[b, r, s, h, w]."""
    b, h, r, w, s = (tkw.IndexMapping.iterator(i) for i in range(5))
    places = tkw.IndexMapping(5, inputs={B: b, R: r, S: s, H: h, W: w}, outputs={B: b, H: h, R: r, W: w, S: s})

    @tkw.wave()
    def shuffled(x: tkl.Memory[B, R, S, H, W, GLOBAL, f32], y: tkl.Memory[B, H, R, W, S, GLOBAL, f32]) -> None:
        tkw.write(tkw.read(x, mapping=places), y)

    return shuffled.bound({R: 2, S: 2})


def test_short_tasks_took_longer_to_start_than_their_bytes() -> None:
    kernel = kernel_for(shuffled(), {"B": 1024, "H": 64, "W": 64}, target="gpu:hopper")
    assert kernel.choice.cycles < 2 * kernel.choice.bound
    assert kernel.plan.axis("H").split("task").size > 1
    short = kernel.text("plan")
    for line in kernel.text("plan").splitlines():
        if line.startswith(("axis H", "axis R")):
            short = short.replace(line, re.sub(r"task \d+", "task 1", line))
    slow = kernel_for(shuffled(), {"B": 1024, "H": 64, "W": 64}, target="gpu:hopper", plan=short)
    assert slow.choice.cycles > 2 * kernel.choice.cycles
    plan = re.sub(r"\(H 64\): task \d+", "(H 6): task 4", kernel.text("plan")).replace("1024", "3")
    plan = re.sub(r"\(W 64\): task \d+", "(W 5): task 5", plan)
    small = kernel_for(shuffled(), {"B": 3, "H": 6, "W": 5}, target="interpreter", machine=machine("hopper"), plan=plan)
    x = np.arange(3 * 4 * 30, dtype=np.float32).reshape(3, 2, 2, 6, 5)
    y = np.full((3, 6, 2, 5, 2), np.nan, np.float32)
    small.bind({"x": x, "y": y})()
    assert np.array_equal(y, x.transpose(0, 3, 1, 4, 2))
