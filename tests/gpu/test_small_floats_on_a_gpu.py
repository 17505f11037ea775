"""Floats of eight bits on a Hopper GPU: rounded as the executor rounds them. Run by `make test-gpu`."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.ir import dtypes
from tilewright.targets.nvidia.driver import device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(isinstance(device(), str), reason=f"no GPU: {device()}"),
]

CAST = """tile kernel(%x: global f32[M], %y: global KIND[M])
  symbols M
{
  %0 = read %x : f32[M]
  %1 = cast %0 dtype=KIND : KIND[M]
  write %1, %y
}
"""


def numbers(kind: str) -> np.ndarray:
    """Every code's number, the middles between them, what lies beyond the range, their neighbours, and random bits."""
    own = np.arange(256, dtype=np.uint8).view(dtypes.dtype(kind).numpy).astype(np.float64)
    own = np.unique(own[np.isfinite(own)])
    edges = np.array([own.max() * f for f in (1.01, 1.03, 1.0357142857, 1.0625, 1.07, 1.125, 2, 1e30)])
    near = np.concatenate([own, (own[1:] + own[:-1]) / 2, edges, -edges, [0.0, -0.0, np.inf, -np.inf, np.nan]])
    near = near.astype(np.float32)
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint64).astype(np.uint32)
    beside = [np.nextafter(near, np.float32(way)) for way in (np.inf, -np.inf)]
    x = np.concatenate([near, *beside, bits.view(np.float32)])
    return x[: x.size // 2 * 2]


@pytest.mark.parametrize("kind", ["f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("less", [0, 1])
def test_numbers_are_rounded_as_the_executor_rounds_them(kind: str, less: int) -> None:
    """Two at a time, and one by one at an odd number of them; what is no number may be so with either sign."""
    x = numbers(kind)
    x = x[: x.size - less]
    program = CAST.replace("KIND", kind)
    wanted = tilewright.compile(program, target="executor")(x)
    made = tilewright.compile(program, target="gpu").of_sizes({"M": x.size})
    found = np.zeros(x.size, dtypes.dtype(kind).numpy)
    made.bind({"x": x, "y": found})()
    nothing = np.isnan(wanted.astype(np.float32)) & np.isnan(found.astype(np.float32))
    wrong = (wanted.view(np.uint8) != found.view(np.uint8)) & ~nothing
    assert not wrong.any(), [(a, b, c) for a, b, c in zip(x[wrong], wanted[wrong], found[wrong], strict=True)][:9]
