"""The products of examples/cpu: exact, ragged in rows and columns, on the interpreter and as machine code."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from amx_gemm import amx_gemm
from vector_gemm import VECTORS, vector_gemm

import tilewright


@pytest.mark.filterwarnings("ignore::tilewright.errors.MissingAtomWarning")
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
@pytest.mark.parametrize("vectors", VECTORS)
def test_products_by_vectors(vectors, target):
    random = np.random.default_rng(5)
    a, b = random.integers(-3, 4, (31, 8)).astype(np.float32), random.integers(-3, 4, (8, 45)).astype(np.float32)
    run = tilewright.compile(vector_gemm(vectors), {"M": 31, "N": 45, "K": 8}, target=target)
    np.testing.assert_array_equal(run(a, b), a @ b)


@pytest.mark.filterwarnings("ignore::tilewright.errors.MissingAtomWarning")
@pytest.mark.parametrize("target", ["interpreter", "cpu"])
def test_products_by_tiles(target):
    random = np.random.default_rng(6)
    a, b = (random.integers(-2, 3, shape).astype(ml_dtypes.bfloat16) for shape in ((96, 64), (64, 32)))
    run = tilewright.compile(amx_gemm, {"M": 96, "N": 32, "K": 64}, target=target)
    wanted = (a.astype(np.float32) @ b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run(a, b), wanted)
