"""Operands of which no dimension of K is contiguous, as in NCHW, are copied first so that one is: exact, pinned."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from every_plan import every_plan, plans_from_the_best

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.lang import bf16, f32
from tilewright.plan.schedule import K_ROWS
from tilewright.targets.registry import machine

N, C, F, D, H, W, Z, P, Q, T, R, S = (getattr(tkl.sym, name) for name in "NCFDHWZPQTRS")
GLOBAL = tkl.AddressSpace.GLOBAL_MEMORY
HOPPER = machine("hopper")


def conv_nchw(taps: tuple[int, ...], stride: int, padding: int, extents: tuple[int, ...], dtype: Any = bf16) -> Any:
    """A convolution of channels first with filters [F, C, taps], over one to three axes."""
    rank = len(taps)
    images, outputs, filters = ((D, H, W)[-rank:], (Z, P, Q)[-rank:], (T, R, S)[-rank:])
    iterators = [tkw.IndexMapping.iterator(i) for i in range(2 + 2 * rank)]
    n, c, places, windows = iterators[0], iterators[1], iterators[2 : 2 + rank], iterators[2 + rank :]
    inputs = {d: stride * p + r - padding for d, p, r in zip(images, places, windows, strict=True)}
    window = tkw.IndexMapping(
        2 + 2 * rank,
        inputs={N: n, C: c, **inputs},
        outputs={N: n, **dict(zip(outputs, places, strict=True)), C: c, **dict(zip(filters, windows, strict=True))},
    )

    @tkw.wave()
    def conv_nchw(
        x: tkl.Memory[N, C, *images, GLOBAL, dtype],
        w: tkl.Memory[F, C, *filters, GLOBAL, dtype],
        y: tkl.Memory[N, F, *outputs, GLOBAL, f32],
    ) -> None:
        image = tkw.read(x, mapping=window, otherwise=0)
        tkw.write(tkw.mma(tkw.read(w), image, tkl.Register[N, F, *outputs, f32](0)), y)

    sizes = {out: (n + 2 * padding - t) // stride + 1 for out, n, t in zip(outputs, extents, taps, strict=True)}
    return conv_nchw.bound({**dict(zip(filters, taps, strict=True)), **sizes})


def case(
    batch: int, channels: int, extents: tuple[int, ...], filters: int, taps: tuple[int, ...], stride: int, padding: int
) -> tuple[Any, dict[str, int]]:
    sizes = {"N": batch, "C": channels, "F": filters} | dict(zip("DHW"[-len(taps) :], extents, strict=True))
    return conv_nchw(taps, stride, padding, extents), sizes


CASES = {
    "3x3": case(2, 24, (5, 7), 40, (3, 3), 1, 1),
    "3x3 strided": case(2, 16, (7, 9), 24, (3, 3), 2, 1),
    "2x5 not padded": case(1, 72, (6, 11), 8, (2, 5), 1, 0),
    "3 channels": case(2, 3, (9, 13), 24, (7, 7), 2, 3),
    "5 channels": case(2, 5, (6, 7), 9, (3, 3), 1, 1),
    "1-D": case(3, 40, (19,), 16, (5,), 1, 2),
    "3-D": case(1, 8, (3, 4, 5), 24, (2, 3, 3), 1, 1),
    "1x1": case(2, 40, (5, 7), 24, (1, 1), 1, 0),
    "1x3": case(2, 8, (4, 8), 24, (1, 3), 1, 1),
}
COPIED = [name for name in CASES if name != "1x1"]


def arguments(found: Any, poison: float = np.nan) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    arrays = {
        a.name: rng.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy)
        for a in found.module.host.args
    }
    arrays["y"][...] = poison
    return arrays


def require_exact(found: Any, kernel: Any) -> None:
    arrays = arguments(found)
    wanted = tilewright.compile(kernel, target="executor")(arrays["x"], arrays["w"])
    found.bind(arrays)()
    assert np.array_equal(arrays["y"], wanted)


def copied_plans(kernel: Any, sizes: dict[str, int]) -> list[str]:
    """The plans that copy operands to rows of K, the best first."""
    return [str(plan) for plan in every_plan(kernel, sizes, HOPPER, lambda plan: f": {K_ROWS}" in str(plan))]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", COPIED)
def test_copies_with_k_last_are_exact(name: str) -> None:
    kernel, sizes = CASES[name]
    plans = copied_plans(kernel, sizes)
    for plan in (plans[0], plans[len(plans) // 2]):
        found = kernel_for(kernel, sizes, machine=HOPPER, plan=plan)
        assert "repack x: rows of K" in str(found.plan)
        assert any("by tma.load" in str(program) for program in found.module.programs.values())
        require_exact(found, kernel)
        again = kernel_for(kernel, sizes, machine=HOPPER, plan=str(found.plan))
        assert str(again.plan) == str(found.plan)
        assert again.text("block") == found.text("block")


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", ["hopper", "cdna3", "xe"])
def test_the_chosen_plan_is_exact(name: str, target: str) -> None:
    kernel, sizes = CASES[name]
    row = machine(target)
    few = replace(row, limits=replace(row.limits, cores=8))  # few tasks: each takes long to interpret
    require_exact(kernel_for(kernel, sizes, machine=few), kernel)


def test_a_layer_of_a_network_is_copied_and_one_of_one_tap_is_not() -> None:
    sizes = {"N": 32, "C": 128, "H": 28, "W": 28, "F": 128}
    found = kernel_for(conv_nchw((3, 3), 1, 1, (28, 28)), sizes, machine=HOPPER)
    assert "repack x: rows of K" in str(found.plan)
    assert "repack w: rows of K" in str(found.plan)
    assert found.plan.axis("P_Q").padded_extent == 784
    assert "by tma.load.im2col" in found.text("block")
    assert "by tma.store" in found.text("block")
    assert "x is copied to (32, 28, 28, 128), from (32, 128, 28, 28)" in found.explain()
    one = kernel_for(conv_nchw((1, 1), 1, 0, (28, 28)), sizes, machine=HOPPER)
    assert "repack" not in str(one.plan)
    assert [axis.name for axis in one.plan.axes] == ["N", "F", "P_Q", "C"]


def test_copies_of_images_and_filters_were_two_launches() -> None:
    kernel, sizes = CASES["3x3"]
    found = kernel_for(kernel, sizes, machine=HOPPER, plan=copied_plans(kernel, sizes)[0])
    launches = [line.split()[1].split("(")[0] for line in found.text("host").splitlines() if " launch " in line]
    assert launches[0] == "conv_nchw_rows"
    assert not {"conv_nchw_x_rows", "conv_nchw_w_rows"} & set(launches)
    require_exact(found, kernel)


def test_weights_that_never_change_are_copied_when_they_are_bound() -> None:
    kernel, sizes = CASES["3x3"]
    plan = next(plans_from_the_best(kernel, sizes, HOPPER, lambda plan: f": {K_ROWS}" in str(plan), constant=("w",)))
    found = kernel_for(kernel, sizes, machine=HOPPER, plan=str(plan), constant=("w",))
    bind = found.text("host").partition("bind {")[2].partition("}")[0]
    assert "launch conv_nchw_w_rows(" in bind
    assert "x_rows" not in bind
    require_exact(found, kernel)


def test_a_product_whose_operands_have_k_last_is_refused_such_a_line() -> None:
    kernel, sizes = CASES["3x3"]
    (plan, *_) = copied_plans(kernel, sizes)
    with pytest.raises(ArgumentError, match="K_0 is the last dimension of both factors"):
        kernel_for(kernels.conv((3, 3), "bf16", "f32", padding=1), sizes, machine=HOPPER, plan=plan)


def test_the_predicted_time_counts_the_copies() -> None:
    kernel, sizes = conv_nchw((3, 3), 1, 1, (28, 28)), {"N": 32, "C": 128, "H": 28, "W": 28, "F": 128}
    chosen = kernel_for(kernel, sizes, machine=HOPPER)
    pinned = kernel_for(kernel, sizes, machine=HOPPER, plan=str(chosen.plan))
    assert pinned.choice.cycles == pytest.approx(chosen.choice.cycles)
    bytes_copied = 2 * 2 * (prod((32, 128, 28, 28)) + prod((128, 128, 3, 3)))
    alone = kernel_for(kernel, sizes, machine=HOPPER, plan=str(chosen.plan), constant=("x", "w"))
    assert chosen.choice.cycles - alone.choice.cycles > 0.5 * bytes_copied / HOPPER.limits.far_rate / 132


NARROW = {"i8": ("i8", "i32", None), "tf32": ("f32", "f32", "tf32"), "e4m3": ("f8e4m3fn", "f32", None)}
"""Types of operands that Hopper's atoms read contiguous along K only: their (operand, result, precision)."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("sizes", [(136, 264, 320), (130, 70, 600)], ids=["aligned", "ragged"])
@pytest.mark.parametrize("transposes", ["nn", "tn", "tt"])
@pytest.mark.parametrize("dtype", NARROW)
def test_operands_that_atoms_read_along_k_only_are_copied(dtype: str, transposes: str, sizes: Any) -> None:
    operand, result, precision = NARROW[dtype]
    kernel = kernels.gemm(transposes, operand, result, precision=precision)
    found = kernel_for(kernel, dict(zip("MNK", sizes, strict=True)), machine=HOPPER)
    assert f": {K_ROWS}" in str(found.plan)
    rng = np.random.default_rng(7)
    arrays = {
        a.name: rng.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy)
        for a in found.module.host.args
    }
    arrays["c"][...] = 77
    found.bind(arrays)()
    a, b = (arrays[name].astype(np.float64) for name in "ab")
    assert np.array_equal(arrays["c"], (a if transposes[0] == "n" else a.T) @ (b if transposes[1] == "n" else b.T))


@pytest.mark.parametrize("dtype", NARROW)
def test_a_product_of_matrices_as_torch_has_them_is_near_its_roofline(dtype: str) -> None:
    operand, result, precision = NARROW[dtype]
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    choice = kernel_for(kernels.gemm("nn", operand, result, precision=precision), sizes, machine=HOPPER).choice
    assert choice.cycles < 1.5 * choice.bound
