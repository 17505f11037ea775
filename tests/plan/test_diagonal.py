"""Neighbouring products of few channels as one, with B in blocks on a diagonal: exact, pinned, explained, refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError, DimensionMismatch, ExecutionError, ProgramError
from tilewright.passes import choosing, pipeline
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
Sizes = dict[str, int]


def planned(kernel: Any, sizes: Sizes, count: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """The plan with so many diagonal blocks that should take least, whatever others should take."""

    def only(job, forms):
        found = choosing.perhaps_in_rows(job, [f"block-diagonal {count}"], choosing.choose_plan)
        assert not isinstance(found, str), found
        return found

    with monkeypatch.context() as patch:
        patch.setattr(choosing, "forms_of", lambda job: () if job.no_rows else ("blocks",))
        patch.setattr(choosing, "_perhaps_copied", only)
        return str(kernel_for(kernel, sizes, machine=HOPPER).plan)


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


@pytest.mark.parametrize(("problem", "count"), SHORT)
def test_groups_shorter_than_an_atom_are_padded_first(
    problem: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(*problem, count, monkeypatch)
    assert f"repack w: block-diagonal {count}; repack x: padded rows" in plan
    require_exact(*problem, plan, constant=("w",))


@pytest.mark.parametrize(("problem", "count"), GROUPED)
def test_groups_side_by_side_are_exact(problem: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(*problem, count, monkeypatch)
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


@pytest.mark.parametrize(("problem", "count"), POINTWISE)
def test_rows_side_by_side_are_exact(problem: Any, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(*problem, count, monkeypatch)
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
def test_what_stands_behind_the_product_reads_its_own_elements(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = epilogue(name)
    found = require_exact(kernel, FEW, planned(kernel, FEW, 4, monkeypatch))
    assert ("reshape %r" in found.text("host")) is (name == "added")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("scaled", "a tile has M, and not N"),
        ("summed", "it has sum, which is no function of elements alone"),
        ("across", "the operands that are repacked, without a hint, are `repack a: block-diagonal 2`"),
    ],
)
def test_programs_that_have_no_such_form_say_why(name: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(epilogue("added"), FEW, 2, monkeypatch)
    with pytest.raises(ArgumentError, match=f"repack b: block-diagonal 2`: {why}"):
        kernel_for(epilogue(name), FEW, machine=HOPPER, plan=plan)


def with_halos(kernel: Any, sizes: Sizes, block: str = "") -> list[str]:
    """The plans with a halo tile, of those with a block; the one that should take least first."""
    found = kernel_for(kernel, sizes, machine=HOPPER).choice.candidates
    return [str(x) for x in found if x.pipeline is not None and x.pipeline.halo_stages and block in str(x.products[0])]


@pytest.mark.parametrize("options", [{"padding": 1, "bias": True}, {"padding": 2, "dilation": 2}])
def test_halo_tiles_of_groups_are_exact(options: dict[str, Any]) -> None:
    """The channels of a group begin where those of the one before end."""
    problem = conv(3, 64, 24, **options)
    require_exact(*problem, with_halos(*problem)[0])


def test_halo_tiles_of_groups_side_by_side_are_exact() -> None:
    few, many = conv(8, 16, 16, padding=1, bias=True), conv(2, 64, 64, padding=1, bias=True)
    plan = (
        with_halos(*many, block="tile 128x64")[0]
        .replace("; x halo", "; repack w: block-diagonal 4; x halo")
        .replace("w panel", "w_diagonal panel")
        .replace("m64n64k16", "m64n16k16")
    )
    require_exact(*few, plan)


def test_halo_tiles_of_groups_may_end_within_a_slab() -> None:
    problem = conv(4, 40, 24, padding=1)
    require_exact(*problem, with_halos(*problem)[0])


def test_blocks_that_end_within_a_slab_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, sizes = conv(12, 16, 16, padding=1)
    plan = planned(kernel, sizes, 4, monkeypatch).replace("block-diagonal 4", "block-diagonal 6")
    with pytest.raises(ArgumentError, match="`repack w: block-diagonal 6`: no atom multiplies blocks of 16x16"):
        kernel_for(kernel, sizes, machine=HOPPER, plan=plan)


def test_what_does_not_divide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, sizes = conv(8, 16, 16, padding=1)
    plan = planned(kernel, sizes, 4, monkeypatch)
    for count, why in (
        (3, "3 does not divide G, which is 8"),
        (1, "1 does not divide G"),
        (16, "16 does not divide G"),
    ):
        with pytest.raises(ArgumentError, match=f"`repack w: block-diagonal {count}`: {why}"):
            kernel_for(kernel, sizes, machine=HOPPER, plan=plan.replace("block-diagonal 4", f"block-diagonal {count}"))


def test_columns_that_do_not_lie_in_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = kernels.gemm("nt", "bf16")
    plan = planned(kernel, {"M": 72, "N": 24, "K": 16}, 4, monkeypatch)
    with pytest.raises(ArgumentError, match="neighbours of a along no dimension lie behind each other"):
        kernel_for(kernels.gemm("tt", "bf16"), {"M": 72, "N": 24, "K": 16}, machine=HOPPER, plan=plan)


@pytest.mark.parametrize("problem", [conv(8, 8, 4, padding=1), conv(4, 16, 20, padding=1)])
def test_blocks_that_no_atom_multiplies_by_themselves_are_refused(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, sizes = problem
    assert "diagonal" not in kernel_for(kernel, sizes, machine=HOPPER).explain()
    plan = planned(*conv(4, 16, 16, padding=1), 2, monkeypatch)
    with pytest.raises(ArgumentError, match=r"no atom multiplies blocks of \d+x\d+ by themselves, and an infinite"):
        kernel_for(kernel, sizes, machine=HOPPER, plan=plan)


@pytest.mark.parametrize(("problem", "count"), [(GROUPED[0][0], 4), (POINTWISE[0][0], 2), (SHORT[0][0], 4)])
def test_an_infinite_element_stays_with_its_own_product(
    problem: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, sizes = problem
    found = kernel_for(kernel, sizes, machine=HOPPER, plan=planned(kernel, sizes, count, monkeypatch))
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


def test_the_plan_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, sizes = kernels.conv((1, 1), "bf16"), {"N": 1, "H": 1080, "W": 1920, "C": 16, "F": 16}
    found = kernel_for(kernel, sizes, machine=HOPPER, constant=("w",))
    said = found.explain()
    assert (
        "w is copied to 4 blocks on a diagonal, 16x16 each, with zeros beside them, in (64, 64), so that 4 neighbours "
        "along M are one product: when it is bound" in said
    )
    assert "refused  repack w: block-diagonal 2: " in said
    assert "refused  factors as they lie: " in said
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
def test_a_bias_is_added_in_registers(problem: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of neighbours have the same bias, at `i%40`: sums do not go through memory for it."""
    found = kernel_for(*problem, machine=HOPPER, plan=planned(*problem, 2, monkeypatch))
    text = found.text("block")
    assert "%bias_view = view %bias (" in text
    assert "_held = alloc shared" not in text


def test_the_host_program_of_diagonals_runs_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, sizes = POINTWISE[0][0]
    found = kernel_for(kernel, sizes, machine=HOPPER, plan=planned(kernel, sizes, 2, monkeypatch))
    x, w = np.arange(2 * 7 * 11 * 16).reshape(2, 7, 11, 16) % 5, np.arange(256).reshape(16, 1, 1, 16) % 7 - 3
    x, w = (v.astype(found.module.host.args[0].type.dtype.numpy) for v in (x, w))
    y = np.full((2, 7, 11, 16), np.nan, np.float32)
    tilewright.compile_text(found.text("host"), "interpreter")(x, w, y)
    assert np.array_equal(y, tilewright.compile(kernel, target="executor")(x, w))


def test_one_image_has_tiles_that_go_past_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, sizes = conv(8, 16, 16, padding=1, bias=True)
    sizes["N"] = 1
    plan = planned(kernel, sizes, 4, monkeypatch)
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


def test_a_chain_of_one_product_can_be_pinned() -> None:
    """Results of eight columns do not leave through shared memory: such products are planned as chains are."""
    kernel = kernels.conv((3, 3), "bf16", padding=1, groups=2)
    sizes = {"N": 8, "H": 28, "W": 28, "CG": 64, "F": 16}
    found = kernel_for(kernel, sizes, machine=HOPPER)
    assert "store per group" in str(found.plan)
    again = kernel_for(kernel, sizes, machine=HOPPER, plan=str(found.plan))
    assert again.text("block") == found.text("block")


def test_a_plan_that_is_made_again_is_the_one_that_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """That an atom does not read a halo tile is found out when the program is written: it is planned without then."""
    kernel, sizes = kernels.conv((3, 3), "bf16", padding=1, groups=8), {"N": 32, "H": 56, "W": 56, "CG": 16, "F": 128}
    assert "x halo at K_0" in planned(kernel, sizes, 4, monkeypatch)

    def refuse(program, machine):
        raise ProgramError("no halo tile in this test")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "check", refuse)
        plan = planned(kernel, sizes, 4, monkeypatch)
    assert "repack w: block-diagonal 4" in plan
    assert "halo" not in plan
    assert "halo" not in kernel_for(kernel, sizes, machine=HOPPER, plan=plan).text("block")


def test_forms_that_cannot_be_done_are_left_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, sizes = kernels.conv((1, 1), "bf16"), {"N": 1, "H": 1080, "W": 1920, "C": 16, "F": 16}
    first = kernel_for(kernel, sizes, machine=HOPPER, constant=("w",))
    assert "repack w: block-diagonal 4" in str(first.plan)
    own = pipeline._lower_in_rows

    def refuse(job, found, choice):
        if found.placed[0].form == "block-diagonal 4":
            raise ProgramError("no four in this test")
        own(job, found, choice)

    monkeypatch.setattr(pipeline, "_lower_in_rows", refuse)
    other = kernel_for(kernel, sizes, machine=HOPPER, constant=("w",))
    assert "block-diagonal" in str(other.plan)
    assert "repack w: block-diagonal 4" not in str(other.plan)
    assert "refused  operands repacked: block-diagonal 4: no four in this test" in other.explain()
