"""Short rows that lie beside each other in memory, windows that overlap among them: every lane has whole rows."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.compiler.text import compile_text

N, C, H, W, P, Q, R, S = (getattr(tkl.sym, name) for name in "NCHWPQRS")
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
bf16 = tkl.bf16


def memory(*dims: Any) -> Any:
    """The type of an argument in bf16."""
    return tkl.Memory[(*dims, GLOBAL, bf16)]


def pooled(stride: int, order: str = "NHWC") -> Any:
    """The largest of 3x3 places, of images in the order NHWC or NCHW."""
    n, p, q, r, s, c = (tkw.IndexMapping.iterator(i) for i in range(6))
    image, result = ((N, H, W, C), (N, P, Q, C)) if order == "NHWC" else ((N, C, H, W), (N, C, P, Q))
    at = {N: n, H: stride * p + r - 1, W: stride * q + s - 1, C: c}
    window = tkw.IndexMapping(6, inputs={d: at[d] for d in image}, outputs={N: n, P: p, Q: q, R: r, S: s, C: c})

    @tkw.wave()
    def pooled(x: memory(*image), y: memory(*result)) -> None:
        values = tkw.cast(tkw.read(x, mapping=window, otherwise=float("-inf")), tkl.f32)
        tkw.write(tkw.cast(tkw.max(tkw.max(values, dim=R), dim=S), bf16), y)

    return pooled.bound({P: (H - 1) // stride + 1, Q: (W - 1) // stride + 1, R: 3, S: 3})


def depthwise() -> Any:
    """Every channel of an image in the order NCHW with a filter of its own, as a product."""
    n, c, p, q, r, s = (tkw.IndexMapping.iterator(i) for i in range(6))
    window = tkw.IndexMapping(
        6, inputs={N: n, C: c, H: p + r - 1, W: q + s - 1}, outputs={N: n, C: c, P: p, Q: q, R: r, S: s}
    )

    @tkw.wave()
    def depthwise(x: memory(N, C, H, W), w: memory(C, R, S), y: memory(N, C, P, Q)) -> None:
        image = tkw.read(x, mapping=window, otherwise=0)
        total = tkw.mma(image, tkw.read(w), tkl.Register[N, C, P, Q, tkl.f32](0))
        tkw.write(tkw.cast(total, bf16), y)

    return depthwise.bound({P: H, Q: W, R: 3, S: 3})


def planned(kernel: Any, n: int, h: int, w: int, c: int) -> tuple[Any, int]:
    """(the kernel on Hopper, its number of tasks)."""
    made = kernel_for(kernel, {"N": n, "H": h, "W": w, "C": c}, target="gpu:hopper")
    axes = re.findall(r"= \(\w+ (\d+)\): task (\d+)$", made.text("plan"), re.M)
    return made, prod(-(-int(extent) // int(width)) for extent, width in axes)


@pytest.mark.parametrize(
    ("kernel", "shape", "most"),
    [
        (pooled(2), (64, 112, 112, 64), 6272),
        (pooled(2), (64, 110, 110, 64), 6272),  # 55 x 55 places: the last tasks are smaller
        (pooled(2, "NCHW"), (64, 112, 112, 64), 12544),
        (depthwise(), (32, 56, 56, 256), 14336),
    ],
)
def test_windows_were_one_place_to_a_task_and_combined_by_shuffles(
    kernel: Any, shape: tuple[int, int, int, int], most: int
) -> None:
    """200,704 tasks of 576 elements, three quarters of whose lanes were idle, took 7 times what a copy does."""
    made, tasks = planned(kernel, *shape)
    text = made.text("loop")
    assert tasks <= most
    assert "^" not in text  # no lane exchanges anything with another


def test_windows_of_channels_are_read_and_written_by_vectors() -> None:
    ptx = planned(pooled(2), 64, 112, 112, 64)[0].text("ptx")
    assert set(re.findall(r"(?:ld|st)\.(?:global|shared)\.(?:cs\.)?(\S+)", ptx)) == {"v4.b32"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("order", ["NHWC", "NCHW"])
@pytest.mark.parametrize("shape", [(2, 9, 13, 24), (3, 16, 16, 64), (1, 30, 33, 3), (40, 8, 7, 8)])
def test_largest_of_windows_is_what_the_executor_says(
    stride: int, order: str, shape: tuple[int, int, int, int]
) -> None:
    kernel, (n, h, w, c) = pooled(stride, order), shape
    x = np.random.default_rng(sum(shape)).integers(-99, 100, (n, h, w, c) if order == "NHWC" else (n, c, h, w))
    x = x.astype(bf16.numpy)
    wanted = tilewright.compile(kernel, target="executor")(x)
    made, _ = planned(kernel, *shape)
    for level in ("block", "loop"):
        y = np.full(wanted.shape, np.nan, x.dtype)
        compile_text(made.text(level), "interpreter")(x, y)
        assert (y == wanted).all()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(2, 9, 13, 3), (4, 16, 16, 4), (2, 7, 8, 5), (3, 27, 29, 8)])
def test_channels_by_themselves_are_what_the_executor_says(shape: tuple[int, int, int, int]) -> None:
    n, h, w, c = shape
    rng = np.random.default_rng(sum(shape))
    x = rng.integers(-9, 10, (n, c, h, w)).astype(bf16.numpy)
    taps = rng.integers(-2, 3, (c, 3, 3)).astype(bf16.numpy)
    wanted = tilewright.compile(depthwise(), target="executor")(x, taps)
    made, _ = planned(depthwise(), *shape)
    for level in ("block", "loop"):
        y = np.full(wanted.shape, np.nan, x.dtype)
        compile_text(made.text(level), "interpreter")(x, taps, y)
        assert (y == wanted).all()
