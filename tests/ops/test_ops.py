"""Convolution and matrix product on arrays: exact, for what users pass; mistakes are named."""

from __future__ import annotations

import platform

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright.errors import ArgumentError

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code for x86 runs on x86")

BF16 = np.dtype(ml_dtypes.bfloat16)


def small(rng, *shape, dtype=np.float32, largest=2):
    return rng.integers(-largest, largest + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "f16"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (5, 7, 3), (33, 64, 17), (70, 96, 130), (3, 200, 64)])
def test_matrix_products_are_exact(m, k, n, dtype):
    form = {"f32": np.float32, "bf16": BF16, "f64": np.float64, "f16": np.float16}[dtype]
    rng = np.random.default_rng(m + n)
    a, b = small(rng, m, k, dtype=form, largest=1), small(rng, k, n, dtype=form, largest=1)
    bias = small(rng, n)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(tilewright.matmul(a, b), wanted.astype(form))
    with_bias = tilewright.matmul(a, b, bias, activation="relu", out_dtype="f64" if dtype == "f64" else "f32")
    assert np.array_equal(with_bias, np.maximum(wanted + bias, 0))


def test_integer_products_are_exact():
    rng = np.random.default_rng(0)
    a, b = small(rng, 19, 130, dtype=np.int8, largest=100), small(rng, 130, 40, dtype=np.int8, largest=100)
    wanted = a.astype(np.int64) @ b.astype(np.int64)
    assert np.array_equal(tilewright.matmul(a, b, out_dtype="i32"), wanted)


def test_arrays_may_lie_in_memory_in_any_way():
    rng = np.random.default_rng(1)
    x, w = small(rng, 1, 8, 5, 6), small(rng, 4, 3, 3, 8)
    wanted = tilewright.conv2d(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), w, padding=1)
    assert np.array_equal(tilewright.conv2d(x.transpose(0, 2, 3, 1), w, padding=1), wanted)
    assert np.array_equal(tilewright.conv2d(x.transpose(0, 2, 3, 1), np.asfortranarray(w), padding=1), wanted)


def test_anything_with_dlpack_is_taken():
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
    assert np.array_equal(tilewright.matmul(Foreign(a), Foreign(b)), a @ b)


def test_a_layer_packs_its_weights_once_for_each_size(monkeypatch):
    from tilewright.compiler.contraction import ContractionKernel

    packed = []
    pack = ContractionKernel.pack
    monkeypatch.setattr(ContractionKernel, "pack", lambda self, w: packed.append(1) or pack(self, w))
    layer = tilewright.Conv2d(np.ones((4, 1, 1, 3), np.float32))
    for _ in range(3):
        assert np.array_equal(layer(np.ones((1, 2, 5, 3), np.float32)), np.full((1, 2, 5, 4), 3, np.float32))
    assert len(packed) == 1
    layer(np.ones((1, 5, 2, 3), np.float32))
    assert len(packed) == 2


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (((1, 4, 4, 3), (2, 3, 3, 4)), {}, "x has 3 channels; the weights take 4 in each of 1 groups"),
        (((4, 4, 3), (2, 3, 3, 3)), {}, "x has 3 dimensions; it takes 4"),
        (((1, 2, 2, 3), (2, 3, 3, 3)), {}, "x is 2x2: a filter of 3x3 does not fit"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"stride": 0}, "stride=0: an integer of at least 1"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"padding": (1, 2, 3)}, "padding=(1, 2, 3)"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"groups": 3}, "groups=3: it must divide the 2 filters"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"activation": "swish"}, "activation='swish': there are relu"),
        (((1, 4, 0, 3), (2, 3, 3, 3)), {}, "x has the shape (1, 4, 0, 3): nothing to compute"),
    ],
)
def test_mistakes_are_named(arguments, options, says):
    x, w = (np.zeros(shape, np.float32) for shape in arguments)
    with pytest.raises(ArgumentError) as report:
        tilewright.conv2d(x, w, **options)
    assert says in str(report.value)


def test_empty_batches_give_empty_results():
    assert tilewright.conv2d(np.zeros((0, 4, 5, 3), np.float32), np.zeros((2, 3, 3, 3), np.float32)).shape == (
        0,
        2,
        3,
        2,
    )
    assert tilewright.matmul(np.zeros((0, 3), np.float32), np.zeros((3, 2), np.float32)).shape == (0, 2)


def test_element_types_must_agree():
    with pytest.raises(ArgumentError, match="x holds float64, the weights float32: convert one"):
        tilewright.conv2d(np.zeros((1, 3, 3, 1)), np.zeros((1, 1, 1, 1), np.float32))
    with pytest.raises(ArgumentError, match="a is 2x3, b 2x3: they do not fit"):
        tilewright.matmul(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))
