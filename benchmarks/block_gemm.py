"""Products written in the block language for this CPU, beside `tilewright.matmul`: `python benchmarks/block_gemm.py`.

1024^3 in f32 by vectors and, where the CPU has it, in bf16 by AMX; seconds of the best of some calls, and their ratio.
"""

from __future__ import annotations

import sys
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "examples" / "cpu")]

import ml_dtypes  # noqa: E402
import numpy as np  # noqa: E402
from amx_gemm import amx_gemm  # noqa: E402
from vector_gemm import VECTORS, vector_gemm  # noqa: E402

import tilewright  # noqa: E402
from tilewright.targets.names import CPU  # noqa: E402
from tilewright.targets.registry import native  # noqa: E402


def best(call: Any) -> float:
    """The seconds of the best of twenty calls."""
    times = []
    for _ in range(20):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)


def compare(name: str, kernel: Any, a: Any, b: Any) -> None:
    params = {"M": a.shape[0], "K": a.shape[1], "N": b.shape[1]}
    ours = tilewright.compile(kernel, params).bind(a, b, mine := np.zeros((params["M"], params["N"]), a.dtype))
    theirs = tilewright.matmul(a, b)
    seconds = best(ours), best(lambda: tilewright.matmul(a, b))
    same = "the same numbers" if np.array_equal(mine, theirs) else "other numbers"
    print(
        f"{name}: {1e3 * seconds[0]:.2f} ms, matmul {1e3 * seconds[1]:.2f} ms: {seconds[1] / seconds[0]:.2f}x, {same}"
    )


def main() -> None:
    size = int(sys.argv[1]) if sys.argv[1:] else 1024
    here = native(CPU).machine.multiply
    a, b = (np.random.default_rng(i).integers(-2, 3, (size, size)).astype(np.float32) for i in range(2))
    for vectors, (_, atom, *_) in VECTORS.items():
        if atom in here:
            compare(vectors, vector_gemm(vectors), a, b)
    if "amx.bf16" in here:
        compare("amx", amx_gemm, a.astype(ml_dtypes.bfloat16), b.astype(ml_dtypes.bfloat16))


if __name__ == "__main__":
    main()
