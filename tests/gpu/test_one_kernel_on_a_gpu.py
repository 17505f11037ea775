"""Families that are one kernel each, on a Hopper GPU: exactly what the executor gives. Run by `make test-gpu`."""

from __future__ import annotations

import numpy as np
import pytest
from fused_families import EXACT, layer_norm, product_and, rms_norm, softmax

import tilewright
from tilewright.targets.nvidia.driver import device

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(isinstance(device(), str), reason=f"no GPU: {device()}"),
]


@pytest.mark.parametrize("family", EXACT)
@pytest.mark.parametrize("rows", [1, 37])
def test_families_are_exact(family: str, rows: int) -> None:
    """At the sizes that the interpreters run, and with many more rows, so that cores have several tasks."""
    kernel, sizes = EXACT[family]
    if rows > 1 and "B" in sizes:
        pytest.skip("its rows are those of images")
    made = tilewright.compile(kernel, target="gpu").of_sizes(sizes | {"M": rows * sizes["M"]})
    *inputs, result = made.module.host.args
    rng = np.random.default_rng(rows)
    arrays = []
    for a in inputs:
        low, high = (0, 256) if a.type.dtype.name == "u8" else (-1, 2)
        arrays.append(rng.integers(low, high, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy))
    shape, dtype = [int(n) for n in result.type.shape], result.type.dtype.numpy
    wanted = np.empty(shape, dtype)
    tilewright.compile(kernel, target="executor")(*arrays, wanted)
    for _ in range(3):
        found = np.full(shape, np.nan, dtype)
        made.bind(dict(zip([a.name for a in made.module.host.args], [*arrays, found], strict=True)))()
        np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("family", ["softmax", "layer norm", "rms norm"])
@pytest.mark.parametrize("columns", [64, 128, 256, 512])
def test_norms_of_rows_are_within_what_roundings_explain(family: str, columns: int) -> None:
    m, k = 1031, 520
    function = {"softmax": softmax, "layer norm": layer_norm(columns), "rms norm": rms_norm(columns)}[family]
    made = tilewright.compile(product_and(function), target="gpu").of_sizes({"M": m, "N": columns, "K": k})
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-1, 2, (n, k)).astype(np.float64) for n in (m, columns))
    c = a @ b.T  # exact
    e, d = np.exp(c - c.max(1, keepdims=True)), c - c.mean(1, keepdims=True)
    wanted = {
        "softmax": e / e.sum(1, keepdims=True),
        "layer norm": d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5),
        "rms norm": c / np.sqrt((c * c).mean(1, keepdims=True) + 1e-5),
    }[family]
    dtype = made.module.host.args[-1].type.dtype.numpy
    found = np.full(wanted.shape, np.nan, dtype)
    names = [x.name for x in made.module.host.args]
    made.bind(dict(zip(names, [a.astype(dtype), b.astype(dtype), found], strict=True)))()
    # half a unit of bf16, a function that is rounded to it, and roundings of f32: of sums and of what is subtracted
    bound = 2.0**-8 + 2.0**-16 + (columns + 6 * np.abs(c).max() + 16) * 2.0**-24
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=bound, atol=bound * np.abs(d).max() * 2.0**-12)
