"""Calls of each public kind on arrays of small integers, for tests with real frameworks: non-square, ragged sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw

M, N, GLOBAL = tkl.sym.M, tkl.sym.N, tkl.GLOBAL_ADDRESS_SPACE
DOUBLE = """block double(%x: in global f32 (3, 5), %y: out global f32 (3, 5))
{
  map %y = %x + %x
}
"""


def small(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@tkw.wave()
def negated(x: tkl.Memory[M, N, GLOBAL, tkl.f32], y: tkl.Memory[M, N, GLOBAL, tkl.f32]) -> None:
    tkw.write(-tkw.read(x), y)


def calls() -> dict[str, tuple[Callable[[Any], Any], str, tuple[int, ...]]]:
    """By name: a call of one array, what a message calls that array, and its shape."""
    weight = small(7, 5, seed=1)
    filters = small(4, 3, 2, 3, seed=2)
    linear, conv = tilewright.Linear(weight), tilewright.Conv2d(filters, padding=1)
    kernel = tilewright.compile(negated)
    executor = tilewright.compile(negated, target="executor")
    text = tilewright.compile_text(DOUBLE)
    return {
        "matmul": (lambda x: tilewright.matmul(x, weight.T.copy()), "a", (3, 5)),
        "conv2d": (lambda x: tilewright.conv2d(x, filters, padding=1), "x", (1, 5, 6, 3)),
        "Linear": (linear, "x", (3, 5)),
        "Conv2d": (conv, "x", (1, 5, 6, 3)),
        "weight": (lambda w: tilewright.Linear(w)(small(2, 5)), "weight", (3, 5)),
        "bias": (lambda b: tilewright.Linear(weight, b)(small(2, 5)), "bias", (7,)),
        "kernel": (kernel, "argument x", (3, 5)),
        "executor": (executor, "argument x", (3, 5)),
        "text": (text, "argument x", (3, 5)),
    }


def references(torch: Any) -> dict[str, Callable[[Any], Any]]:
    """What torch itself gives, for the calls that have a counterpart there."""
    weight, filters = (torch.from_numpy(a) for a in (small(7, 5, seed=1), small(4, 3, 2, 3, seed=2)))

    def convolved(x: Any) -> Any:
        made = torch.nn.functional.conv2d(x.movedim(-1, 1), filters.movedim(-1, 1), padding=1)
        return made.movedim(1, -1)

    return {
        "matmul": lambda x: x @ weight.T,
        "conv2d": convolved,
        "Linear": lambda x: x @ weight.T,
        "Conv2d": convolved,
        "kernel": lambda x: -x,
        "executor": lambda x: -x,
        "text": lambda x: x + x,
    }
