"""The cost of a call under jax.jit: kernels beside XLA's own product, in microseconds (extra `jax`).

    python benchmarks/jax_calls.py

Each time is the least of many rounds that take turns, with the result waited for. `plain` is the same kernel called
without JAX, `empty` a jitted function that adds 1 to one element: what JAX itself takes.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tilewright
import tilewright.jax

SHAPES = [(8, 8, 8), (64, 96, 80), (256, 256, 256), (1000, 512, 300)]
LIMIT = 10.0
"""Microseconds that a call at 64x96x80 may take beyond XLA's."""


def least(calls: dict[str, Callable[[], Any]], rounds: int = 60, seconds: float = 0.004) -> dict[str, float]:
    """Microseconds of each call: the shortest mean of a round."""
    counts = {}
    for name, call in calls.items():
        call()
        start = perf_counter()
        call()
        counts[name] = max(1, int(seconds / (perf_counter() - start)))
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = perf_counter()
            for _ in range(counts[name]):
                call()
            found[name] = min(found[name], (perf_counter() - start) / counts[name] * 1e6)
    return found


def main() -> None:
    dot, product = jax.jit(jnp.dot), jax.jit(tilewright.jax.matmul)
    kernel = jax.jit(tilewright.jax.function(tilewright.compile(tilewright.kernels.gemm("nn", "f32"))))
    empty, one = jax.jit(lambda x: x + 1), jnp.zeros(1)
    print(f"{'shape':>14}  {'XLA dot':>9}  {'matmul':>9}  {'function':>9}  {'plain':>9}  {'empty':>9}")
    for m, k, n in SHAPES:
        rng = np.random.default_rng(0)
        a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
        x, y = jnp.asarray(a), jnp.asarray(b)
        assert np.array_equal(product(x, y), a @ b)
        times = least(
            {
                "XLA dot": lambda x=x, y=y: dot(x, y).block_until_ready(),
                "matmul": lambda x=x, y=y: product(x, y).block_until_ready(),
                "function": lambda x=x, y=y: kernel(x, y).block_until_ready(),
                "plain": lambda a=a, b=b: tilewright.matmul(a, b),
                "empty": lambda: empty(one).block_until_ready(),
            }
        )
        print(f"{f'{m}x{k}x{n}':>14}  " + "  ".join(f"{t:9.1f}" for t in times.values()))
        if (m, k, n) == (64, 96, 80):
            beyond = times["matmul"] - times["XLA dot"]
            verdict = "met" if beyond <= LIMIT else "MISSED"
            print(f"{'':>14}  beyond XLA's: {beyond:+.1f} us; at most {LIMIT:.0f}: {verdict}")


if __name__ == "__main__":
    main()
