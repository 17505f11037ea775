"""Residuals of products and convolutions on machines that are not at hand: in the atoms' kernels, and exact there."""

import ml_dtypes
import numpy as np
import pytest

from tilewright.compiler.native import kernel_for
from tilewright.kernels import conv, gemm
from tilewright.targets.registry import machine

BF16 = ml_dtypes.bfloat16


def small(*shape):
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape)


def run(kernel, sizes, arrays, row, shape):
    """The result of a kernel, interpreted as the machine would run it, on an atom."""
    compiled = kernel_for(kernel, sizes, target="interpreter", machine=machine(row))
    assert {"hopper": "mma by wgmma", "x86.amx": "atom amx"}[row] in str(compiled.plan)
    arrays = {name: a.astype(np.float32 if name == "bias" else BF16) for name, a in arrays.items()}
    out = np.full(shape, np.nan, BF16)
    launch, _ = compiled.bind_whole({**arrays, ("c" if "a" in arrays else "y"): out})
    launch()
    return out


@pytest.mark.parametrize("row", ["hopper", "x86.amx"])
def test_a_residual_of_a_product_is_exact(row):
    m, k, n = 70, 72, 40
    a, b, bias, residual = small(m, k), small(n, k), small(n), small(m, n)
    kernel = gemm("nt", "bf16", "bf16", bias=True, residual=True, activation="relu")
    arrays = {"a": a, "b": b, "bias": bias, "residual": residual}
    result = run(kernel, {"M": m, "K": k, "N": n}, arrays, row, (m, n))
    assert np.array_equal(result, np.maximum(a @ b.T + bias + residual, 0).astype(BF16))


@pytest.mark.parametrize("row", ["hopper", "x86.amx"])
def test_a_residual_of_a_convolution_is_exact(row):
    x, w, bias, residual = small(1, 8, 7, 16), small(24, 3, 3, 16), small(24), small(1, 8, 7, 24)
    kernel = conv((3, 3), "bf16", padding=1, bias=True, residual=True, activation="relu")
    arrays = {"x": x, "w": w, "bias": bias, "residual": residual}
    result = run(kernel, {"N": 1, "H": 8, "W": 7, "C": 16, "F": 24}, arrays, row, residual.shape)
    around = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    sums = sum(around[:, i : i + 8, j : j + 7] @ w[:, i, j].T for i in range(3) for j in range(3))
    assert np.array_equal(result, np.maximum(sums + bias + residual, 0).astype(BF16))
