"""Softmax, norms and activations against float64, within bounds that follow from rounding alone."""

import math

import numpy as np
import pytest
from kernel_checks import F32, form, normal, run, within

import tilewright
from tilewright import kernels
from tilewright.errors import ArgumentError, MissingTiling

DTYPES = ["f32", "f16", "bf16"]
SIZES = [(1, 1), (1, 9), (7, 1), (3, 5), (17, 33), (2, 130)]


# -- softmax ----------------------------------------------------------------------------------------------


def softmax_in_float64(x):
    x = x.astype(np.float64)
    rows = []
    for row in x:
        weights = [math.exp(value - max(row)) for value in row]
        rows.append([weight / math.fsum(weights) for weight in weights])
    return np.array(rows)


def softmax_bound(x, exact, walks=1):
    """Relative: the sum's roundings, the exponent's (its size times eps), a few of exp and of the division."""
    finite = np.where(np.isfinite(x.astype(np.float64)), x.astype(np.float64), 0)
    exponent = np.abs(finite).max() * 2
    return (x.shape[1] + (2 + walks) * exponent + 8 * (1 + walks)) * F32 * exact


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_softmax(dtype, scale):
    rng = np.random.default_rng(1)
    for shape in SIZES:
        x = normal(rng, shape, dtype, scale)
        exact = softmax_in_float64(x)
        within(run(kernels.softmax(dtype), (x,), shape, dtype), exact, softmax_bound(x, exact), dtype)
        for tile in (1, 2, 7, 64):
            bound = softmax_bound(x, exact, walks=-(-shape[1] // tile))
            within(run(kernels.online_softmax(tile, dtype), (x,), shape, dtype), exact, bound, dtype)


def test_softmax_in_f64():
    x = np.random.default_rng(2).standard_normal((5, 11))
    for made in (kernels.softmax("f64"), kernels.online_softmax(3, "f64")):
        within(run(made, (x,), x.shape, "f64"), softmax_in_float64(x), 1e-14, "f64")


def test_softmax_of_large_numbers_does_not_overflow():
    x = np.array([[1e30, 1e30, -1e30], [-3e38, -3e38, -3e38]], np.float32)
    expected = np.array([[0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]])
    for made in (kernels.softmax(), kernels.online_softmax(1), kernels.online_softmax(2)):
        within(run(made, (x,), x.shape, "f32"), expected, 8 * F32, "f32")


@pytest.mark.parametrize("tile", [1, 2, 4])
def test_a_first_tile_of_hidden_elements_does_not_spoil_the_row(tile):
    x = np.array([[-np.inf, -np.inf, -np.inf, 1.0, 1.0, -np.inf]], np.float32)
    expected = np.array([[0, 0, 0, 0.5, 0.5, 0]])
    within(run(kernels.online_softmax(tile), (x,), x.shape, "f32"), expected, 0, "f32")


def test_the_tile_of_the_online_kernel_is_part_of_its_meaning():
    kernel = kernels.online_softmax(4)
    kernel.constraints = ()
    with pytest.raises(MissingTiling, match="TilingConstraint"):
        tilewright.compile(kernel, target="executor")


# -- norms ------------------------------------------------------------------------------------------------


def layer_norm_with_bound(x, weight, bias, epsilon):
    """In float64, and how far f32 may be off: the errors of mean and variance go through to the result."""
    n = x.shape[1]
    exact, bound = [], []
    for row in x:
        mean = math.fsum(row) / n
        centred = row - mean
        variance = math.fsum(centred**2) / n
        scale = 1 / math.sqrt(variance + epsilon)
        y = centred * scale * weight + bias
        off_centre = (n + 2) * F32 * (np.abs(row).mean() + np.abs(row))
        off_variance = 2 * (off_centre * np.abs(centred)).mean() + (off_centre**2).mean() + (n + 4) * F32 * variance
        relative = off_variance / (variance + epsilon) + 6 * F32
        off = scale * (off_centre + np.abs(centred) * relative) * np.abs(weight)
        exact.append(y)
        bound.append(off + 4 * F32 * (np.abs(y) + np.abs(bias)))
    return np.array(exact), np.array(bound)


@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype):
    rng = np.random.default_rng(3)
    for shape in SIZES:
        x = (normal(rng, shape, "f64") * 3 + 2).astype(form(dtype))
        weight, bias = normal(rng, shape[1:], dtype), normal(rng, shape[1:], dtype)
        wide = [a.astype(np.float64) for a in (x, weight, bias)]
        exact, bound = layer_norm_with_bound(*wide, 1e-3)
        within(run(kernels.layer_norm(dtype, 1e-3), (x, weight, bias), shape, dtype), exact, bound, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm(dtype):
    rng = np.random.default_rng(4)
    for shape in SIZES:
        x, weight = normal(rng, shape, dtype, 5.0), normal(rng, shape[1:], dtype)
        wide = x.astype(np.float64)
        squares = np.array([math.fsum(row**2) / shape[1] for row in wide])
        exact = wide / np.sqrt(squares + 1e-6)[:, None] * weight.astype(np.float64)
        bound = (shape[1] / 2 + 8) * F32 * np.abs(exact)
        within(run(kernels.rms_norm(dtype, 1e-6), (x, weight), shape, dtype), exact, bound, dtype)


def test_a_constant_row_becomes_the_bias():
    x, weight, bias = np.full((2, 4), 7, np.float32), np.full(4, 3, np.float32), np.arange(4, dtype=np.float32)
    result = run(kernels.layer_norm(), (x, weight, bias), (2, 4), "f32")
    assert (result == bias).all()


# -- activations ------------------------------------------------------------------------------------------


def gelu(x):
    return x * 0.5 * math.erfc(-x * math.sqrt(0.5))


def gelu_tanh(x):
    return x * 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x):
    return x / (1 + math.exp(-x)) if x > -700 else 0.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "function"),
    [("gelu", gelu), ("gelu_tanh", gelu_tanh), ("silu", silu), ("relu", lambda x: max(x, 0.0))],
)
def test_activations(name, function, dtype):
    rng = np.random.default_rng(5)
    for shape in [*SIZES, (1, 6)]:
        x = normal(rng, shape, dtype, 4.0)
        if shape == (1, 6):
            x[...] = [-100.0, -10.0, -0.0, 0.0, 10.0, 100.0]
        exact = np.vectorize(function, otypes=[np.float64])(x.astype(np.float64))
        # gelu far below 0 is a difference of nearly equal numbers: its error follows x, not the result
        bound = 4 * F32 * np.abs(x.astype(np.float64)) if name.startswith("gelu") else 8 * F32 * np.abs(exact)
        within(run(kernels.activation(name, dtype), (x,), shape, dtype), exact, bound, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gated_silu_of_signed_numbers(dtype):
    rng = np.random.default_rng(6)
    gate, x = normal(rng, (7, 13), dtype, 3.0), normal(rng, (7, 13), dtype, 3.0)
    exact = np.vectorize(silu)(gate.astype(np.float64)) * x.astype(np.float64)
    within(run(kernels.gated_silu(dtype), (gate, x), (7, 13), dtype), exact, 10 * F32 * np.abs(exact), dtype)


def test_an_unknown_activation_is_named():
    with pytest.raises(ArgumentError, match="activation='swish'"):
        tilewright.compile(kernels.activation("swish"), target="executor")


@pytest.mark.parametrize("dtype", DTYPES)
def test_group_norm(dtype):
    rng = np.random.default_rng(11)
    for n, g, c, s in ((1, 1, 1, 2), (2, 3, 5, 7), (3, 2, 4, 33)):
        x, weight, bias = (normal(rng, shape, dtype) for shape in ((n, g, c, s), (g, c), (g, c)))
        wide = x.astype(np.float64)
        centred = wide - wide.mean((2, 3), keepdims=True)
        deviation = np.sqrt((centred**2).mean((2, 3), keepdims=True) + 1e-5)
        scaled = centred / deviation * weight.astype(np.float64)[..., None]
        exact = scaled + bias.astype(np.float64)[..., None]
        bound = (c * s + 16) * F32 * (np.abs(wide).max() / deviation + np.abs(scaled) + np.abs(exact))
        within(run(kernels.group_norm(dtype), (x, weight, bias), x.shape, dtype), exact, bound, dtype)
