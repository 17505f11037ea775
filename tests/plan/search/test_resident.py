"""What programs without products are predicted to take: what the printed program does, not what it might do."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

N, M, C, H, W, P, Q, R, S, G = (getattr(tkl.sym, name) for name in "NMCHWPQRSG")
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
bf16 = tkl.bf16


def microseconds(kernel: Any, sizes: dict[str, int], plan: str | None = None) -> float:
    """What a kernel is predicted to take on Hopper, by its best plan or a given one."""
    options = {} if plan is None else {"plan": plan}
    made = kernel_for(kernel, sizes, target="gpu:hopper", **options)
    return float(made.choice.cycles / machine("hopper").limits.clock_ghz / 1e3)


def pooled() -> Any:
    """The largest of 3x3 places, every other one."""
    n, p, q, r, s, c = (tkw.IndexMapping.iterator(i) for i in range(6))
    window = tkw.IndexMapping(
        6,
        inputs={N: n, H: 2 * p + r - 1, W: 2 * q + s - 1, C: c},
        outputs={N: n, P: p, Q: q, R: r, S: s, C: c},
    )

    @tkw.wave()
    def pooled(x: tkl.Memory[N, H, W, C, GLOBAL, bf16], y: tkl.Memory[N, P, Q, C, GLOBAL, bf16]) -> None:
        values = tkw.cast(tkw.read(x, mapping=window, otherwise=float("-inf")), tkl.f32)
        tkw.write(tkw.cast(tkw.max(tkw.max(values, dim=R), dim=S), bf16), y)

    return pooled.bound({P: (H - 1) // 2 + 1, Q: (W - 1) // 2 + 1, R: 3, S: 3})


ONE_PLACE = """axis N = (N 64): task 1
axis P = (P 56): task 1
axis Q = (Q 56): task 1
axis C = (C 64): task 64
axis R = (R 3): whole
axis S = (S 3): whole
grid N, P, Q, C
waves 4
launch early
"""


def test_two_hundred_thousand_tasks_were_predicted_at_a_third_of_their_time() -> None:
    """243 us on an H200, predicted at 92: waves exchange what they have of a window in each task."""
    sizes = {"N": 64, "H": 112, "W": 112, "C": 64}
    assert 200 < microseconds(pooled(), sizes, ONE_PLACE) < 320
    assert microseconds(pooled(), sizes) < 40


def depthwise_nchw() -> Any:
    """y[n, c, p, q] = the sum over r, s of x[n, c, p+r-1, q+s-1] * w[c, r, s]."""
    n, c, p, q, r, s = (tkw.IndexMapping.iterator(i) for i in range(6))
    window = tkw.IndexMapping(
        6,
        inputs={N: n, C: c, H: p + r - 1, W: q + s - 1},
        outputs={N: n, C: c, P: p, Q: q, R: r, S: s},
    )

    @tkw.wave()
    def depthwise_nchw(
        x: tkl.Memory[N, C, H, W, GLOBAL, bf16],
        w: tkl.Memory[C, R, S, GLOBAL, bf16],
        y: tkl.Memory[N, C, P, Q, GLOBAL, bf16],
    ) -> None:
        image = tkw.read(x, mapping=window, otherwise=0)
        total = tkw.mma(image, tkw.read(w), tkl.Register[N, C, P, Q, tkl.f32](0))
        tkw.write(tkw.cast(total, bf16), y)

    return depthwise_nchw.bound({P: H, Q: W, R: 3, S: 3})


def test_windows_along_rows_cost_the_loads_of_each_element() -> None:
    """Rows of images with a border of zeros lie at no multiple of a vector: lanes load their elements one by one."""
    sizes = {"N": 32, "C": 256, "H": 56, "W": 56}
    assert 65 < microseconds(depthwise_nchw(), sizes) < 100


@tkw.wave()
def group_norm(x: tkl.Memory[M, P, G, C, GLOBAL, bf16], y: tkl.Memory[M, P, G, C, GLOBAL, bf16]) -> None:
    """Over all places and the channels of a group."""
    values, count = tkw.cast(tkw.read(x), tkl.f32), P * C
    values = values - tkw.sum(tkw.sum(values, dim=C), dim=P) / count
    variance = tkw.sum(tkw.sum(values * values, dim=C), dim=P) / count
    tkw.write(tkw.cast(values * tkw.rsqrt(variance + 1e-5), bf16), y)


def test_short_runs_of_memory_cost_a_line_each() -> None:
    """The same elements in runs of 4 bytes and of 320: both were predicted at the floor."""
    short = microseconds(group_norm, {"M": 8, "P": 20480, "G": 32, "C": 2})
    long = microseconds(group_norm, {"M": 8, "P": 256, "G": 32, "C": 160})
    assert short > 2 * long


@pytest.mark.parametrize("kernel", [kernels.softmax, kernels.layer_norm])
def test_rows_that_are_read_again_cost_their_bytes_again(kernel: Any) -> None:
    """As many elements, in rows that a task keeps, and in longer ones that are read two or three times."""
    kept = microseconds(kernel("bf16"), {"M": 4200, "N": 56000})
    again = microseconds(kernel("bf16"), {"M": 3360, "N": 70000})
    assert again > 1.05 * kept
