"""Neighbouring products of few channels as one, with B in blocks on a diagonal: exact, pinned, explained, refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from every_plan import Problem, every_plan, plans_from_the_best, request_of

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.driver import kernels as lowering
from tilewright.driver import repack
from tilewright.driver.request_facts import facts_of_request
from tilewright.errors import ArgumentError, DimensionMismatch, ExecutionError, ProgramError
from tilewright.plan.microkernel import mmas_by_name
from tilewright.plan.schedule import Schedule, Split
from tilewright.plan.search import as_plan, search_facts
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
Sizes = dict[str, int]


def planned(kernel: Any, sizes: Sizes, count: int) -> str:
    """The best plan with `count` blocks on a diagonal, whatever others should take."""
    request = request_of(Problem("test", "kernel", lambda: kernel, sizes), HOPPER)
    repacked = repack.repacked(request, None, f"block-diagonal {count}")
    assert not isinstance(repacked, str), repacked
    (product,) = mmas_by_name(repacked.main.program).values()
    n = product.result.type.dims[-1]
    width = repacked.main.size(n)
    ranking = search_facts(facts_of_request(repacked.main), HOPPER, keeps_all=True)
    for plan in map(as_plan, ranking.candidates):
        whole = isinstance(plan, Schedule) and plan.pipeline is not None and plan.parts is None
        if not whole or plan.products[0].columns < width or plan.products[0].transposed:
            continue
        (line,) = plan.products
        atom = re.sub(r"n\d+k", f"n{width // count}k", line.atom)
        axes = [replace(a, splits=(Split("task", width),)) if a.name == str(n) else a for a in plan.axes]
        line = replace(line, atom=atom, columns=width)
        return str(replace(plan, axes=tuple(axes), values=(*repacked.placed, *plan.values), products=(line,)))
    raise AssertionError("no task has all blocks")


def require_exact(kernel: Any, sizes: Sizes, plan: str, constant: tuple[str, ...] = ()) -> Any:
    """That a kernel by a plan gives what the executor gives, for small integers; the kernel."""
    found = kernel_for(kernel, sizes, machine=HOPPER, plan=plan, constant=constant)
    assert str(found.plan) == plan == str(parse_plan(plan))
    rng = np.random.default_rng(5)
    arrays = {
        a.name: rng.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy)
        for a in found.module.host.args
    }
    *given, out = arrays
    wanted = tilewright.compile(kernel, target="executor")(*(arrays[name] for name in given))
    arrays[out][...] = 99
    found.bind(arrays)()
    assert np.array_equal(arrays[out], wanted)
    assert np.count_nonzero(wanted)
    return found


def conv(groups: int, each: int, filters: int, taps: tuple[int, ...] = (3, 3), bias: bool = False, **options: Any):
    """(the kernel of a convolution of so many groups, channels and filters a group; its sizes, for a ragged image)."""
    if bias:
        options |= {"bias": True, "activation": "relu"}
    kernel = kernels.conv(taps, "bf16", "f32", groups=groups, **options)
    image = dict(zip("DHW"[-len(taps) :], (4, 7, 11)[-len(taps) :], strict=True))
    channels = {"CG": each} if groups > 1 else {"C": each}
    return kernel, {"N": 2, **image, **channels, "F": groups * filters}


GROUPED = [
    (conv(4, 16, 16, padding=1), 2),
    (conv(8, 16, 16, padding=1, bias=True), 4),
    (conv(2, 32, 32, padding=1, bias=True), 2),
    (conv(4, 16, 16, padding=1, stride=2, bias=True), 4),
    (conv(4, 16, 16, padding=2, dilation=2), 4),
    (conv(4, 16, 8, padding=1, bias=True), 4),
    (conv(4, 16, 24, padding=(1, 0)), 2),
    (conv(8, 16, 16, (1, 1)), 4),
    (conv(8, 16, 8, (3,), padding=1), 8),
    (conv(4, 16, 16, (2, 2, 2), padding=1), 4),
]


SHORT = [
    (conv(8, 8, 8, padding=1, bias=True), 4),
    (conv(4, 8, 24, padding=1, stride=2), 2),
    (conv(4, 4, 8, padding=2, dilation=2), 4),
    (conv(4, 24, 16, padding=1), 2),
    (conv(4, 3, 8, (3,), padding=1), 4),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("problem", "count"), SHORT)
def test_groups_shorter_than_an_atom_are_padded_first(problem: Any, count: int) -> None:
    plan = planned(*problem, count)
    assert f"repack w: block-diagonal {count}; repack x: padded rows" in plan
    require_exact(*problem, plan, constant=("w",))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("problem", "count"), GROUPED)
def test_groups_side_by_side_are_exact(problem: Any, count: int) -> None:
    plan = planned(*problem, count)
    assert f"repack w: block-diagonal {count}" in plan
    found = require_exact(*problem, plan, constant=("w",))
    assert "by tma.load" in found.text("block")
    assert "reshape %x" not in found.text("host")  # images are where they were
    assert "launch conv" in found.text("host").partition("bind {")[2].partition("}")[0]


POINTWISE = [
    (conv(1, 16, 16, (1, 1)), 2),
    (conv(1, 16, 40, (1, 1), bias=True), 2),
    (conv(1, 32, 24, (1, 1), bias=True), 2),
    (conv(1, 16, 8, (1,), bias=True), 2),
    ((kernels.gemm("nt", "bf16"), {"M": 72, "N": 24, "K": 16}), 8),
    ((kernels.gemm("nn", "bf16", bias=True, activation="relu"), {"M": 76, "N": 40, "K": 16}), 4),
    ((kernels.gemm("nt", "bf16", "bf16", batched=True), {"B": 3, "M": 36, "N": 16, "K": 16}), 4),
    ((kernels.gemm("nt", "bf16", batched=("ab", "a")), {"B0": 3, "B1": 2, "M": 20, "N": 24, "K": 16}), 4),
    ((kernels.gemm("nt", "i8", bias=True), {"M": 44, "N": 64, "K": 32}), 4),
    ((kernels.gemm("nt", "f32", precision="tf32"), {"M": 44, "N": 64, "K": 8}), 4),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("problem", "count"), POINTWISE)
def test_rows_side_by_side_are_exact(problem: Any, count: int) -> None:
    plan = planned(*problem, count)
    assert f": block-diagonal {count}" in plan
    found = require_exact(*problem, plan)
    assert "by tma.load" in found.text("block")
    assert "bind {" not in found.text("host")


M, N, K, F, GLOBAL = *(getattr(tkl.sym, name) for name in "MNKF"), tkl.GLOBAL_ADDRESS_SPACE


def epilogue(name: str):
    """A product with something behind it."""

    @tkw.wave()
    def added(
        a: tkl.Memory[M, K, GLOBAL, tkl.bf16],
        b: tkl.Memory[N, K, GLOBAL, tkl.bf16],
        r: tkl.Memory[M, N, GLOBAL, tkl.bf16],
        y: tkl.Memory[M, N, GLOBAL, tkl.bf16],
    ):
        c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0))
        tkw.write(tkw.cast(tkw.maximum(c + tkw.cast(tkw.read(r), tkl.f32), c * c), tkl.bf16), y)

    @tkw.wave()
    def turned(
        a: tkl.Memory[M, K, GLOBAL, tkl.bf16],
        b: tkl.Memory[N, K, GLOBAL, tkl.bf16],
        r: tkl.Memory[N, M, GLOBAL, tkl.bf16],
        y: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ):
        c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0))
        tkw.write(c + tkw.permute(tkw.cast(tkw.read(r), tkl.f32), target_shape=[M, N]), y)

    @tkw.wave()
    def scaled(
        a: tkl.Memory[M, K, GLOBAL, tkl.bf16],
        b: tkl.Memory[N, K, GLOBAL, tkl.bf16],
        s: tkl.Memory[M, GLOBAL, tkl.f32],
        y: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ):
        c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0))
        tkw.write(c * tkw.read(s), y)

    @tkw.wave()
    def summed(
        a: tkl.Memory[M, K, GLOBAL, tkl.bf16],
        b: tkl.Memory[N, K, GLOBAL, tkl.bf16],
        y: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ):
        c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0))
        tkw.write(c + tkw.sum(c, dim=N), y)

    @tkw.wave()
    def across(
        a: tkl.Memory[M, K, GLOBAL, tkl.bf16],
        b: tkl.Memory[N, K, GLOBAL, tkl.bf16],
        y: tkl.Memory[N, M, GLOBAL, tkl.f32],
    ):
        c = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0))
        tkw.write(tkw.permute(c, target_shape=[N, M]), y)

    return {x.__name__: x for x in (added, turned, scaled, summed, across)}[name]


FEW = {"M": 48, "N": 24, "K": 16}


@pytest.mark.parametrize("name", ["added", "turned"])
def test_what_stands_behind_the_product_reads_its_own_elements(name: str) -> None:
    kernel = epilogue(name)
    found = require_exact(kernel, FEW, planned(kernel, FEW, 4))
    assert ("reshape %r" in found.text("host")) is (name == "added")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [FEW, {"M": 400, "N": 16, "K": 32}])
def test_every_plan_of_rows_as_blocks_is_exact(sizes: Sizes) -> None:
    """Groups of waves with several atoms of rows held what is added, and sums, in other lanes: it was not compiled."""
    kernel = epilogue("added")
    plans = every_plan(kernel, sizes, HOPPER, lambda plan: "block-diagonal" in str(plan))
    assert any("tile 128x" in str(plan) and "consumer 4 waves" in str(plan) for plan in plans)
    for plan in plans:
        require_exact(kernel, sizes, str(plan))


def test_many_rows_of_few_channels_are_done_four_at_a_time() -> None:
    """The search had blocks of batches only: 72.1 us."""
    kernel, sizes = kernels.conv((1, 1), "bf16"), {"N": 1, "H": 1080, "W": 1920, "C": 16, "F": 16}
    found = kernel_for(kernel, sizes, machine=HOPPER, constant=("w",))
    assert "repack w: block-diagonal 4" in str(found.plan)
    assert "so that 4 neighbours along M are one product: when it is bound" in found.explain()
    assert _above_roofline(found) < 1.02
    whole = re.search(r"refused  a pipeline, bulk copies: ([\d.]+) of the time", found.explain())
    assert whole is not None
    assert 2 < float(whole[1]) < 2.6
    pinned = kernel_for(kernel, sizes, machine=HOPPER, constant=("w",), plan=str(found.plan))
    assert _above_roofline(pinned) < 1.02


def _above_roofline(kernel: Any) -> float:
    """The predicted time of a kernel / its roofline, as `explain` prints both."""
    times = re.search(r"predicted ([\d.]+) us; roofline ([\d.]+) us", kernel.explain())
    assert times is not None
    return float(times[1]) / float(times[2])


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("scaled", "a tile has M, and not N"),
        ("summed", "it has sum, which is no function of elements alone"),
        ("across", "the operands that are repacked, without a hint, are `repack a: block-diagonal 2`"),
    ],
)
def test_programs_that_have_no_such_form_say_why(name: str, why: str) -> None:
    plan = planned(epilogue("added"), FEW, 2)
    with pytest.raises(ArgumentError, match=f"repack b: block-diagonal 2`: {why}"):
        kernel_for(epilogue(name), FEW, machine=HOPPER, plan=plan)


def with_halos(kernel: Any, sizes: Sizes, form: str = "") -> list[str]:
    """The plans with a halo tile, of those that say `form`; the one that should take least first."""
    plans = every_plan(kernel, sizes, HOPPER, lambda plan: plan.pipeline is not None and plan.pipeline.halo_stages)
    return [str(plan) for plan in plans if form in str(plan)]


@pytest.mark.parametrize("options", [{"padding": 1, "bias": True}, {"padding": 2, "dilation": 2}])
def test_halo_tiles_of_groups_are_exact(options: dict[str, Any]) -> None:
    """The channels of a group begin where those of the one before end."""
    problem = conv(3, 64, 24, **options)
    require_exact(*problem, with_halos(*problem)[0])


def test_halo_tiles_of_groups_side_by_side_are_exact() -> None:
    problem = conv(8, 16, 16, padding=1, bias=True)
    plan = with_halos(*problem, form="block-diagonal 4")[0]
    assert "w_diagonal panel" in plan
    require_exact(*problem, plan)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ("tile 64x64", "tile 64x64 transposed", "blocks on a diagonal lie along the atom's columns"),
        ("tile 64x64", "tile 64x32", "a task has all 4 blocks of the diagonal: 64 columns"),
        ("wgmma.m64n16k16", "wgmma.m64n64k16", "does not multiply blocks of 16x16 one by one"),
    ],
)
@pytest.mark.parametrize("taps", [(3, 3), (1, 1)])
def test_tasks_without_all_blocks_were_wrong(before: str, after: str, why: str, taps: tuple[int, ...]) -> None:
    """Of transposed tiles results were others, and views of tiles with some blocks left them."""
    kernel, sizes = conv(8, 16, 16, taps)
    plans = map(str, plans_from_the_best(kernel, sizes, HOPPER))
    plans = (plan for plan in plans if "diagonal 4" in plan and "tile 64x64;" in plan)
    plan = next(plan for plan in plans if "halo" not in plan or "transposed" not in after)  # halo tiles never are
    task = re.compile(r"(axis FG = \(FG 64\): task) 64")
    changed = task.sub(r"\1 32", plan) if "x32" in after else plan
    with pytest.raises(ArgumentError, match=why):
        kernel_for(kernel, sizes, machine=HOPPER, plan=changed.replace(before, after))


def test_halo_tiles_of_groups_may_end_within_a_slab() -> None:
    problem = conv(4, 40, 24, padding=1)
    require_exact(*problem, with_halos(*problem)[0])


def test_blocks_that_end_within_a_slab_are_refused() -> None:
    kernel, sizes = conv(12, 16, 16, padding=1)
    plan = planned(kernel, sizes, 4).replace("block-diagonal 4", "block-diagonal 6")
    with pytest.raises(ArgumentError, match="`repack w: block-diagonal 6`: no atom multiplies blocks of 16x16"):
        kernel_for(kernel, sizes, machine=HOPPER, plan=plan)


def test_what_does_not_divide_is_refused() -> None:
    kernel, sizes = conv(8, 16, 16, padding=1)
    plan = planned(kernel, sizes, 4)
    for count, why in (
        (3, "3 does not divide G, which is 8"),
        (1, "1 does not divide G"),
        (16, "16 does not divide G"),
    ):
        with pytest.raises(ArgumentError, match=f"`repack w: block-diagonal {count}`: {why}"):
            kernel_for(kernel, sizes, machine=HOPPER, plan=plan.replace("block-diagonal 4", f"block-diagonal {count}"))


def test_columns_that_do_not_lie_in_rows_are_refused() -> None:
    kernel = kernels.gemm("nt", "bf16")
    plan = planned(kernel, {"M": 72, "N": 24, "K": 16}, 4)
    with pytest.raises(ArgumentError, match="neighbours of a along no dimension lie behind each other"):
        kernel_for(kernels.gemm("tt", "bf16"), {"M": 72, "N": 24, "K": 16}, machine=HOPPER, plan=plan)


@pytest.mark.parametrize("problem", [conv(8, 8, 4, padding=1), conv(4, 16, 20, padding=1)])
def test_blocks_that_no_atom_multiplies_by_themselves_are_refused(problem: Any) -> None:
    kernel, sizes = problem
    assert "diagonal" not in kernel_for(kernel, sizes, machine=HOPPER).explain()
    plan = planned(*conv(4, 16, 16, padding=1), 2)
    with pytest.raises(ArgumentError, match=r"no atom multiplies blocks of \d+x\d+ by themselves, and an infinite"):
        kernel_for(kernel, sizes, machine=HOPPER, plan=plan)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("problem", "count"), [(GROUPED[0][0], 4), (POINTWISE[0][0], 2), (SHORT[0][0], 4)])
def test_an_infinite_element_stays_with_its_own_product(problem: Any, count: int) -> None:
    kernel, sizes = problem
    found = kernel_for(kernel, sizes, machine=HOPPER, plan=planned(kernel, sizes, count))
    arrays = {a.name: np.ones([int(n) for n in a.type.shape], a.type.dtype.numpy) for a in found.module.host.args}
    arrays["x"][1, 3, 5, 7], arrays["x"][0, 2, 2, 1] = np.inf, np.nan
    found.bind(arrays)()
    *given, y = arrays.values()
    wanted = tilewright.compile(kernel, target="executor")(*given)
    assert np.array_equal(y, wanted, equal_nan=True)
    assert 0 < np.isfinite(y).sum() < y.size


BLOCKS = """
tile blocks(%a: global f32[M, K], %b: global f32[N, K], %c: global f32[M, N])
  symbols K, M, N
{
  %0 = fill value=0 : f32[M, N]
  %1 = read %a : f32[M, K]
  %2 = read %b : f32[N, K]
  %3 = mma %1, %2, %0 blocks=4 : f32[M, N]
  write %3, %c
}
"""


def test_blocks_mean_products_side_by_side() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(-3, 4, (5, 12)).astype(np.float32), rng.integers(-3, 4, (8, 12)).astype(np.float32)
    a[2, 4] = np.inf
    wanted = [a[:, 3 * j : 3 * j + 3] @ b[2 * j : 2 * j + 2, 3 * j : 3 * j + 3].T for j in range(4)]
    found = tilewright.compile(BLOCKS, target="executor")(a, b)
    assert np.array_equal(found, np.concatenate(wanted, 1), equal_nan=True)
    assert np.isfinite(found[:, 4:]).all()


@pytest.mark.parametrize(
    ("text", "shapes", "fault", "why"),
    [
        (BLOCKS, ((5, 12), (6, 12)), ExecutionError, "blocks=4 do not divide N, which is 6"),
        (BLOCKS, ((5, 10), (8, 10)), ExecutionError, "blocks=4 do not divide K, which is 10"),
        (BLOCKS.replace("=4", "=0"), ((5, 12), (8, 12)), DimensionMismatch, "blocks=0; at least 1"),
        (
            BLOCKS.replace("[N, K]", "[M, N, K]").replace("[M, K]", "[M, N, K]"),
            ((5, 8, 12), (5, 8, 12)),
            DimensionMismatch,
            "blocks=4: the accumulator's last dimension must be in one factor",
        ),
    ],
)
def test_blocks_that_do_not_fit_are_refused(text: str, shapes: Any, fault: type[Exception], why: str) -> None:
    with pytest.raises(fault, match=why):
        tilewright.compile(text, target="executor")(*(np.ones(shape, np.float32) for shape in shapes))


def test_blocks_that_a_program_asks_for_are_refused_where_nothing_multiplies_them() -> None:
    a, b = np.ones((5, 12), np.float32), np.ones((8, 12), np.float32)
    with pytest.raises(ProgramError, match="mma in 4 blocks: nothing here multiplies them by themselves"):
        tilewright.compile(BLOCKS)(a, b)


GROUPS = kernels.conv((3, 3), "bf16", padding=1, groups=32), {"N": 32, "H": 28, "W": 28, "CG": 16, "F": 512}


def test_the_plan_is_explained() -> None:
    kernel, sizes = GROUPS
    found = kernel_for(kernel, sizes, machine=HOPPER, constant=("w",))
    said = found.explain()
    assert (
        "w is copied to 4 blocks on a diagonal, 16x16 each, with zeros beside them, in (512, 3, 3, 64), so that 4 "
        "neighbours along G are one product: when it is bound" in said
    )
    assert "refused  block-diagonal; a pipeline, bulk copies: " in said
    assert "refused  halo tiles, bulk copies: " in said  # operands as they lie
    again = kernel_for(kernel, sizes, machine=HOPPER, constant=("w",), plan=str(found.plan))
    assert again.text("block") == found.text("block")


@pytest.mark.parametrize(
    "line",
    [
        "repack x: block-diagonal 0004",
        "repack x: block-diagonal",
        "repack x: diagonal 4",
        f"repack x: block-diagonal {10**30}",
    ],
)
def test_lines_that_are_none_are_refused(line: str) -> None:
    with pytest.raises(ArgumentError):
        parse_plan(f"axis m = (m 8): task 4; grid m; {line}")


@pytest.mark.parametrize(("sizes", "options"), [({"CG": 64}, {"groups": 4}), ({"C": 64}, {})])
def test_products_of_whole_rows_of_shared_memory_are_not_asked(sizes: Sizes, options: dict[str, Any]) -> None:
    kernel = kernels.conv((3, 3), "bf16", padding=1, **options)
    found = kernel_for(kernel, {"N": 2, "H": 9, "W": 11, "F": 256, **sizes}, machine=HOPPER)
    assert "diagonal" not in found.explain()


@pytest.mark.parametrize("row", ["cdna3", "xe"])
@pytest.mark.parametrize("problem", [GROUPED[1][0], POINTWISE[1][0]])
def test_machines_whose_copies_are_waves_have_plans_as_before(row: str, problem: Any) -> None:
    found = kernel_for(*problem, machine=machine(row))
    assert found.plan is not None
    assert "diagonal" not in found.explain()


@pytest.mark.parametrize("problem", [POINTWISE[1][0], POINTWISE[2][0]])
def test_a_bias_is_added_in_registers(problem: Any) -> None:
    """Columns of neighbours have the same bias, at `i%40`: sums do not go through memory for it."""
    found = kernel_for(*problem, machine=HOPPER, plan=planned(*problem, 2))
    text = found.text("block")
    assert "%bias_view = view %bias (" in text
    assert "_held = alloc shared" not in text


def test_the_host_program_of_diagonals_runs_as_text() -> None:
    kernel, sizes = POINTWISE[0][0]
    found = kernel_for(kernel, sizes, machine=HOPPER, plan=planned(kernel, sizes, 2))
    x, w = np.arange(2 * 7 * 11 * 16).reshape(2, 7, 11, 16) % 5, np.arange(256).reshape(16, 1, 1, 16) % 7 - 3
    x, w = (v.astype(found.module.host.args[0].type.dtype.numpy) for v in (x, w))
    y = np.full((2, 7, 11, 16), np.nan, np.float32)
    tilewright.compile_text(found.text("host"), "interpreter")(x, w, y)
    assert np.array_equal(y, tilewright.compile(kernel, target="executor")(x, w))


def test_one_image_has_tiles_that_go_past_its_end() -> None:
    kernel, sizes = conv(8, 16, 16, padding=1, bias=True)
    sizes["N"] = 1
    plan = planned(kernel, sizes, 4)
    assert parse_plan(plan).pipeline is not None
    require_exact(kernel, sizes, plan)


def test_halo_tiles_have_columns_of_one_group() -> None:
    """Behind the 48 columns of a group lie those of the next."""
    problem = conv(2, 64, 48, padding=1)
    for text in with_halos(*problem)[:40]:
        width = parse_plan(text).axis("FG").split("task")
        assert width is not None
        assert 48 % width.size == 0
    require_exact(*problem, with_halos(*problem)[0])


def test_groups_of_eight_columns_had_no_pipeline() -> None:
    """Their results do not leave through shared memory, and cannot be padded: the next group's follow."""
    kernel = kernels.conv((3, 3), "bf16", padding=1, groups=2)
    sizes = {"N": 8, "H": 28, "W": 28, "CG": 64, "F": 16}
    found = kernel_for(kernel, sizes, machine=HOPPER)
    assert found.plan.pipeline is not None
    again = kernel_for(kernel, sizes, machine=HOPPER, plan=str(found.plan))
    assert again.text("block") == found.text("block")
    few = {"N": 2, "H": 7, "W": 9, "CG": 64, "F": 16}
    plans = every_plan(kernel, few, HOPPER, lambda plan: plan.pipeline is not None)
    for stages in (True, False):
        require_exact(kernel, few, str(next(plan for plan in plans if bool(plan.pipeline.halo_stages) is stages)))


def test_a_plan_that_is_made_again_is_the_one_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That an atom does not read a halo tile is found out when the program is written: the next plan is taken then."""
    kernel, sizes = GROUPS
    assert "x halo at K_0" in str(kernel_for(kernel, sizes, machine=HOPPER).plan)

    def refuse(program, machine):
        raise ProgramError("no halo tile in this test")

    with monkeypatch.context() as patch:
        patch.setattr(lowering, "check", refuse)
        found = kernel_for(kernel, sizes, machine=HOPPER)
    assert "repack w: block-diagonal 4" in str(found.plan)
    assert "halo" not in str(found.plan)
    assert "refused  block-diagonal; halo tiles, bulk copies; mma by wgmma.m64n16k16.bf16" in found.explain()
    assert "no halo tile in this test" in found.explain()
    assert "halo" not in kernel_for(kernel, sizes, machine=HOPPER, plan=str(found.plan)).text("block")


def test_forms_that_cannot_be_done_are_left_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, sizes = GROUPS
    own = lowering._lower_repacked

    def refuse(bound, repacked, lower):
        if any(value.form == "block-diagonal 4" for value in bound.plan.values):
            raise ProgramError("no four in this test")
        return own(bound, repacked, lower)

    monkeypatch.setattr(lowering, "_lower_repacked", refuse)
    other = kernel_for(kernel, sizes, machine=HOPPER, constant=("w",))
    assert "block-diagonal" not in str(other.plan)
    assert other.plan.pipeline is not None
    assert "no four in this test" in other.explain()
