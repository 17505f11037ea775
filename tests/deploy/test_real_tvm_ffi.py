"""Exported libraries loaded by the package TVM-FFI itself (`pip install apache-tvm-ffi`); skipped without it."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright
from tilewright.kernels import gemm

tvm_ffi = pytest.importorskip("tvm_ffi")

SIZES = {"M": 64, "N": 48, "K": 32}


@pytest.fixture(scope="module")
def product(tmp_path_factory):
    path = tmp_path_factory.mktemp("library") / "product.so"
    tilewright.export(gemm("nn", "f32"), path, SIZES, name="product", tvm_ffi=True, dynamic=["M"])
    return tvm_ffi.load_module(str(path)).product


def operands(rows):
    rng = np.random.default_rng(rows)
    return rng.integers(-3, 4, (rows, 32)).astype(np.float32), rng.integers(-3, 4, (32, 48)).astype(np.float32)


@pytest.mark.parametrize("rows", [1, 37, 64, 333])
def test_a_module_of_tvm_ffi_computes_the_product(product, rows):
    a, b = operands(rows)
    c = np.full((rows, 48), np.nan, np.float32)
    product(*map(tvm_ffi.from_dlpack, (a, b, c)))
    assert (c == a @ b).all()


@pytest.mark.parametrize(
    ("result", "error", "says"),
    [
        (np.zeros((36, 48), np.float32), ValueError, "argument c: its dimension 0 is 36"),
        (np.zeros((37, 48)), TypeError, "argument c holds f64"),
        (None, TypeError, "3 arguments are needed"),
    ],
    ids=["rows", "type", "missing"],
)
def test_a_wrong_argument_is_an_exception_that_names_it(product, result, error, says):
    arguments = [*operands(37), *([] if result is None else [result])]
    with pytest.raises(error, match=says):
        product(*map(tvm_ffi.from_dlpack, arguments))
