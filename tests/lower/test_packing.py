"""Programs that pack operand B at every launch: B contiguous along N is read by whole rows, ragged N and K included."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.ir import dtypes
from tilewright.targets.registry import machine

PLAN = "axis M = (M 37): task 16; axis N = (N {n}): task {n}; axis K = (K {k}): whole; grid M, N"


@pytest.mark.parametrize("row", ["x86.avx2", "x86.avx512", "x86.amx", "aarch64.neon"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "i8"])
@pytest.mark.parametrize(("n", "k"), [(257, 40), (96, 64), (70, 1)])
def test_whole_rows_are_packed(row: str, dtype: str, n: int, k: int) -> None:
    kernel = kernels.gemm("nn", dtype, {"bf16": "f32", "i8": "i32"}.get(dtype, dtype))
    made = kernel_for(kernel, {"M": 37, "N": n, "K": k}, machine=machine(row), plan=PLAN.format(n=n, k=k))
    rng, kind = np.random.default_rng(n + k), dtypes.dtype(dtype).numpy
    a, b = rng.integers(-4, 5, (37, k)), rng.integers(-4, 5, (k, n))
    c = np.full((37, n), -9999, np.int32) if dtype == "i8" else np.full((37, n), np.nan, np.float32)
    made.executor.bind([a.astype(kind), b.astype(kind), c], {})()
    assert (c == a @ b).all()
    packs = [str(program) for name, program in made.module.programs.items() if name.startswith("pack")]
    assert all("tasks e in" in text for text in packs)
    assert packs or (dtype, n) == ("f32", 96)  # whole vectors of f32 are read in place
