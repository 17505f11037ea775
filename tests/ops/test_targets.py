"""Where functions on arrays run: where their arrays lie, or on the target that they name; and the layer Linear."""

from __future__ import annotations

import pickle

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright.errors import ArgumentError, TargetError
from tilewright.runtime.device_arrays import DeviceArray
from tilewright.targets.nvidia.driver import device

BF16 = np.dtype(ml_dtypes.bfloat16)
without_gpu = pytest.mark.skipif(not isinstance(device(), str), reason="there is a GPU here")
away = DeviceArray(4096, (2, 3), (3, 1), np.dtype("f4"), None)


def small(*shape, dtype=np.float32):
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int8])
@pytest.mark.parametrize(("rows", "k", "n"), [((1,), 1, 1), ((5,), 7, 3), ((2, 33), 64, 17), ((3, 1, 2), 130, 70)])
def test_a_linear_layer_is_exact(rows, k, n, dtype):
    x, w = small(*rows, k, dtype=dtype), small(n, k, dtype=dtype)
    out, sums = ("i32", np.int32) if dtype is np.int8 else ("f32", np.float32)
    bias = small(n, dtype=sums)
    layer = tilewright.Linear(w, bias, activation="relu", out_dtype=out)
    wanted = np.maximum(x.astype(np.float64) @ w.astype(np.float64).T + bias, 0)
    for _ in range(2):
        assert np.array_equal(layer(x), wanted)
    assert np.array_equal(pickle.loads(pickle.dumps(layer))(x), wanted)
    found = np.empty(wanted.shape, sums)
    layer.bind(x, found)()
    assert np.array_equal(found, wanted)


def test_mistakes_of_a_linear_layer_are_named():
    layer = tilewright.Linear(np.ones((4, 3), np.float32))
    with pytest.raises(ArgumentError, match="x is 2x5, the weights 4x3: they do not fit"):
        layer(np.ones((2, 5), np.float32))
    with pytest.raises(ArgumentError, match="x holds float64, the weights float32"):
        layer(np.ones((2, 3)))
    with pytest.raises(ArgumentError, match="bias has 3 elements; there are 4 rows of weights"):
        tilewright.Linear(np.ones((4, 3), np.float32), np.ones(3, np.float32))
    assert layer(np.ones((0, 3), np.float32)).shape == (0, 4)


@without_gpu
@pytest.mark.parametrize("target", ["cuda", "gpu"])
def test_without_a_gpu_one_line_says_so(target):
    x, w = np.ones((1, 4, 4, 3), np.float32), np.ones((2, 3, 3, 3), np.float32)
    for call in (
        lambda: tilewright.matmul(w[0, 0], w[0, 0], target=target),
        lambda: tilewright.conv2d(x, w, target=target),
        lambda: tilewright.Conv2d(w, target=target)(x),
        lambda: tilewright.Linear(w[0, 0], target=target)(x),
    ):
        with pytest.raises(TargetError, match=f"^target='{target}': .*, 'gpu:hopper', can be read anywhere$"):
            call()


def test_a_target_that_there_is_not_is_refused_when_the_layer_is_made():
    with pytest.raises(ArgumentError, match="target='cdua'"):
        tilewright.Conv1d(np.ones((1, 1, 1), np.float32), target="cdua")


def test_arrays_on_a_gpu_do_not_run_on_the_cpu():
    with pytest.raises(ArgumentError, match=r"target='cpu': a lies on a GPU; leave target= out to run there"):
        tilewright.matmul(away, np.ones((3, 2), np.float32), target="cpu")


@pytest.mark.parametrize("target", [None, "cpu"])
def test_a_residual_on_a_gpu_beside_an_input_on_the_host_was_passed_on(target):
    """Later code asked for the numpy interface of the residual."""
    residual = DeviceArray(4096, (2, 4), (4, 1), np.dtype("f4"), None, device=1)
    layer = tilewright.Linear(np.ones((4, 3), np.float32), target=target)
    with pytest.raises(ArgumentError, match="residual lies on GPU 1, x on the host, where the call runs; move x to"):
        layer(np.ones((2, 3), np.float32), residual)
    assert layer(np.ones((2, 3), np.float32), np.ones((2, 4), np.float32)).tolist() == [[4] * 4] * 2
    with pytest.raises(ArgumentError, match="residual lies on GPU 1, x on the host"):
        layer(np.ones((2, 3), np.float32), residual)  # also if calls of the host are remembered


def test_a_precision_that_there_is_not_is_refused():
    with pytest.raises(ArgumentError, match="precision='bf16': 'tf32', which rounds factors of f32, or None"):
        tilewright.matmul(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32), precision="bf16")
    x = np.array([[1 + 2.0**-11]], np.float32)
    one = np.ones((1, 1), np.float32)
    assert tilewright.matmul(x, one, precision="tf32").item() == 1
    assert tilewright.Linear(one, precision="tf32")(x).item() == 1
    assert tilewright.conv1d(x.reshape(1, 1, 1), one.reshape(1, 1, 1), precision="tf32").item() == 1
