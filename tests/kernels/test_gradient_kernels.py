"""Gradients in f64 against float64 formulas, and against differences of the forward kernels; in f32 by machine code."""

import numpy as np
import pytest
from kernel_checks import run

import tilewright
from tilewright import kernels

SHAPES = [(1, 1), (5, 7), (33, 130)]
TIGHT = 1e-13


def executor(kernel):
    return tilewright.compile(kernel, strict=True, target="executor")


def close(result, exact, scale=1.0):
    assert result.shape == exact.shape
    assert np.abs(result - exact).max() <= TIGHT * max(scale, np.abs(exact).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_softmax_gradient(shape):
    x, dy = np.random.default_rng(1).standard_normal((2, *shape))
    y = executor(kernels.softmax("f64"))(x)
    exact = y * (dy - (y * dy).sum(axis=1, keepdims=True))
    close(run(kernels.softmax_gradient("f64"), (y, dy), shape, "f64"), exact)


@pytest.mark.parametrize("shape", SHAPES)
def test_layer_norm_gradients(shape):
    rng = np.random.default_rng(2)
    x, dy = rng.standard_normal((2, *shape))
    weight = rng.standard_normal(shape[1])
    scale = 1 / np.sqrt(x.var(axis=1, keepdims=True) + 0.1)
    normal, slope = (x - x.mean(axis=1, keepdims=True)) * scale, dy * weight
    along = (slope * normal).mean(axis=1, keepdims=True)
    exact = scale * (slope - slope.mean(axis=1, keepdims=True) - normal * along)
    close(run(kernels.layer_norm_gradient("f64", 0.1), (x, weight, dy), shape, "f64"), exact)
    dweight, dbias = executor(kernels.layer_norm_weight_gradient("f64", 0.1))(x, dy)
    close(dweight, (dy * normal).sum(axis=0), scale=shape[0])
    close(dbias, dy.sum(axis=0), scale=shape[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm_gradients(shape):
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((2, *shape))
    weight = rng.standard_normal(shape[1])
    scale = 1 / np.sqrt((x * x).mean(axis=1, keepdims=True) + 0.1)
    normal, slope = x * scale, dy * weight
    exact = scale * (slope - normal * (slope * normal).mean(axis=1, keepdims=True))
    close(run(kernels.rms_norm_gradient("f64", 0.1), (x, weight, dy), shape, "f64"), exact)
    dweight = run(kernels.rms_norm_weight_gradient("f64", 0.1), (x, dy), shape[1:], "f64")
    close(dweight, (dy * normal).sum(axis=0), scale=shape[0])


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 2, 5, 7), (2, 3, 4, 33), (5, 1, 3, 130)])
def test_group_norm_gradients(shape):
    rng = np.random.default_rng(6)
    x, dy = rng.standard_normal((2, *shape))
    weight = rng.standard_normal(shape[1:3])
    scale = 1 / np.sqrt(x.var(axis=(2, 3), keepdims=True) + 0.1)
    normal, slope = (x - x.mean(axis=(2, 3), keepdims=True)) * scale, dy * weight[..., None]
    along = (slope * normal).mean(axis=(2, 3), keepdims=True)
    exact = scale * (slope - slope.mean(axis=(2, 3), keepdims=True) - normal * along)
    close(run(kernels.group_norm_gradient("f64", 0.1), (x, weight, dy), shape, "f64"), exact)
    for target in ("executor", "cpu"):
        kernel = tilewright.compile(kernels.group_norm_weight_gradient("f64", 0.1), strict=True, target=target)
        dweight, dbias = kernel(x, dy)
        close(dweight, (dy * normal).sum(axis=(0, 3)), scale=shape[0] * shape[3])
        close(dbias, dy.sum(axis=(0, 3)), scale=shape[0] * shape[3])


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_gradients_of_norms_are_the_slopes_of_the_norms(norm):
    """The sum of dy * norm(x) grows along a direction by the sum of dx * direction: the forward kernel says so too."""
    rng = np.random.default_rng(4)
    x, dy, direction = rng.standard_normal((3, 4, 9))
    weight, bias = rng.standard_normal((2, 9))
    forward = executor(getattr(kernels, norm)("f64", 0.5))
    others = (weight, bias) if norm == "layer_norm" else (weight,)
    step = 1e-5
    ends = [(forward(x + s * direction, *others) * dy).sum() for s in (step, -step)]
    gradient = executor(getattr(kernels, f"{norm}_gradient")("f64", 0.5))(x, weight, dy)
    assert abs((ends[0] - ends[1]) / (2 * step) - (gradient * direction).sum()) < 1e-8


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", ["executor", "cpu"])
@pytest.mark.parametrize("tile", [1, 4, 64])
@pytest.mark.parametrize(("has_bias", "scale"), [(False, None), (True, None), (True, 0.3)])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_gradients(causal, has_bias, scale, tile, target):
    rng = np.random.default_rng(5)
    queries, keys = 7, 13
    q, k, v, dout = (rng.standard_normal((2, 3, *s)) for s in ((queries, 5), (keys, 5), (keys, 6), (queries, 6)))
    factor = 1 / np.sqrt(5) if scale is None else scale
    scores = q @ k.swapaxes(2, 3) * factor
    bias = np.where(rng.random(scores.shape) < 0.2, -np.inf, rng.standard_normal(scores.shape))
    bias[..., 0] = 0.5  # every query has a visible key
    extra = (bias,) if has_bias else ()
    scores = scores + bias if has_bias else scores
    if causal:
        scores = np.where(np.arange(keys) <= np.arange(queries)[:, None], scores, -np.inf)
    logs = np.log(np.exp(scores).sum(axis=-1))
    weights = np.exp(scores - logs[..., None])
    along = (weights @ v * dout).sum(axis=-1)
    slope = weights * (dout @ v.swapaxes(2, 3) - along[..., None]) * factor

    def call(make, *arguments):
        kernel = make(tile, "f64", causal=causal, bias=has_bias, scale=scale)
        return tilewright.compile(kernel, strict=True, target=target)(*arguments, *extra)

    close(call(kernels.attention_sums, q, k), logs)
    arguments = (q, k, v, dout, logs, along)
    close(call(kernels.attention_query_gradient, *arguments), slope @ k, scale=10)
    dk, dv = call(kernels.attention_key_gradient, *arguments)
    close(dk, slope.swapaxes(2, 3) @ q, scale=10)
    close(dv, weights.swapaxes(2, 3) @ dout, scale=10)
