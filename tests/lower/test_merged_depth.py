"""Dimensions that a product sums over, merged to one: exactly, on Hopper's interpreter, with bulk copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import kernels
from tilewright.compiler.native import Compiled, kernel_for
from tilewright.targets.registry import machine

HOPPER = machine("hopper")


def made(batch: int, rows: int, columns: int, stride: int, channels: int, filters: int) -> Compiled:
    """The gradient of 3x3 filters with padding 1."""
    sizes = {"N": batch, "H": rows, "W": columns, "C": channels, "F": filters}
    sizes |= {"P": (rows - 1) // stride + 1, "Q": (columns - 1) // stride + 1}
    kernel = kernels.conv_filter_gradient((3, 3), "bf16", stride=stride, padding=1)
    return kernel_for(kernel, sizes, machine=HOPPER)


def wanted(x: Any, dy: Any, stride: int) -> Any:
    """The same, tap by tap."""
    (_, rows, columns, _), x = dy.shape, np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    dw = np.zeros((dy.shape[-1], 3, 3, x.shape[-1]))
    for r, s in np.ndindex(3, 3):
        seen = x[:, r : r + stride * rows : stride, s : s + stride * columns : stride][:, :rows, :columns]
        dw[:, r, s] = np.einsum("npqf,npqc->fc", dy.astype(np.float64), seen)
    return dw


def check(kernel: Compiled, stride: int, seed: int) -> None:
    """Compares a result with NumPy's, for small integers."""
    rng = np.random.default_rng(seed)
    *given, result = kernel.module.host.args
    x, dy = (rng.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy) for a in given)
    dw = np.full([int(n) for n in result.type.shape], np.nan, np.float32).astype(result.type.dtype.numpy)
    kernel.bind({"x": x, "dy": dy, "dw": dw})()
    assert np.array_equal(dw.astype(np.float32), wanted(x, dy, stride).astype(dw.dtype).astype(np.float32))


@pytest.mark.parametrize(
    "shape",
    [(3, 7, 9, 1, 64, 72), (2, 9, 6, 2, 72, 64), (5, 16, 16, 1, 64, 64), (4, 5, 3, 3, 128, 64)],
    ids=["ragged", "stride 2", "in parts", "stride 3"],
)
def test_steps_over_pixels_ended_with_each_row(shape: tuple[int, ...]):
    kernel = made(*shape)
    assert kernel.plan is not None
    assert kernel.plan.pipeline is not None
    assert kernel.plan.pipeline.producer[0] == 1
    assert any(axis.name.startswith("N_P_Q") for axis in kernel.plan.axes)
    check(kernel, shape[3], seed=sum(shape))


def test_parts_of_merged_pixels_are_read_from_a_plan():
    kernel = made(32, 14, 14, 1, 256, 256)
    assert kernel.plan is not None
    assert kernel.plan.parts is not None
    assert kernel.plan.parts[0] == "N_P_Q"
    again = kernel_for(
        kernels.conv_filter_gradient((3, 3), "bf16", padding=1),
        {"N": 32, "C": 256, "F": 256} | dict.fromkeys("HWPQ", 14),
        machine=HOPPER,
        plan=kernel.text("plan"),
    )
    assert again.text("block") == kernel.text("block")


def test_the_last_part_of_merged_pixels_is_shorter():
    """315 pixels are five K steps: a part of three, and one of two that ends past the last image."""
    sizes = {"N": 5, "H": 7, "W": 9, "P": 7, "Q": 9, "C": 64, "F": 72}
    whole = kernel_for(kernels.conv_filter_gradient((3, 3), "bf16", padding=1), sizes, machine=HOPPER)
    lines = [line for line in whole.text("plan").splitlines() if not line.startswith(("axis N_P_Q", "grid", "parts"))]
    split = [
        "axis N_P_Q_split = (N_P_Q_split 2): task 1",
        *lines[:4],
        "axis N_P_Q_part = (N_P_Q_part 192): loop 64",
        "grid N_P_Q_split, F, R, S, C",
        *(line for line in lines[4:] if not line.startswith("launch")),
        "parts N_P_Q 2",
    ]
    kernel = kernel_for(
        kernels.conv_filter_gradient((3, 3), "bf16", padding=1), sizes, machine=HOPPER, plan="\n".join(split)
    )
    check(kernel, 1, seed=3)
