"""Grouped attention against float64: masks, slopes and sinks are a bias there, and a sink is one more key."""

import numpy as np
import pytest
from attention_checks import attention_with_bound
from kernel_checks import normal, poisoned, run, within

import tilewright
from tilewright import kernels
from tilewright.errors import ArgumentError

# batch, heads of keys, queries' heads in a group, queries, keys, width of q and k, width of v, tile of keys
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1, 4),
    (1, 2, 4, 1, 13, 8, 3, 4),
    (2, 1, 3, 7, 9, 5, 6, 2),
    (1, 2, 2, 5, 11, 3, 8, 16),
]
FORMS = {
    "plain": {},
    "causal": {"causal": True},
    "later queries": {"causal": True, "first_query": 3},
    "window": {"causal": True, "window": 2, "first_query": 1},
    "softcap": {"softcap": 1.5},
    "softcap, causal": {"softcap": 0.5, "causal": True, "scale": 2.0},
    "slopes": {"extra": "slopes"},
    "slopes, window": {"extra": "slopes", "causal": True, "window": 3},
    "sinks": {"extra": "sinks"},
    "sinks, causal": {"extra": "sinks", "causal": True},
    "segments": {"extra": "segments"},
    "segments, causal": {"extra": "segments", "causal": True},
}


def operands(shape, dtype):
    b, j, g, m, n, d, e, _ = shape
    rng = np.random.default_rng(sum(shape))
    return [normal(rng, size, dtype) for size in ((b, j, g, m, d), (b, j, n, d), (b, j, n, e))]


def extra_arguments(extra, shape):
    b, j, g, m, n, *_ = shape
    rng = np.random.default_rng(8)
    if extra == "segments":
        return [rng.integers(0, count, size).astype(np.int32) for count, size in ((3, (b, m)), (2, (b, n)))]
    return [] if extra is None else [normal(rng, (j, g), "f32")]


def exact_with_bound(arrays, extras, shape, dtype, options):
    """As `attention_with_bound`, one head a query head; rows that see no key are zeros."""
    b, j, g, m, n, _, e, tile = shape
    q, k, v = arrays
    q, k, v = q.reshape(b, j * g, m, -1), np.repeat(k, g, axis=1), np.repeat(v, g, axis=1)
    key, last = np.arange(n), np.arange(m)[:, None] + options.get("first_query", 0)
    bias = np.zeros((b, j, g, m, n))
    if options.get("extra") == "slopes":
        bias = bias + extras[0].astype(np.float64)[:, :, None, None] * (key - last)
    hidden = np.zeros((b, 1, 1, m, n), bool)
    if options.get("causal"):
        hidden |= key > last
    if "window" in options:
        hidden |= key <= last - options["window"]
    if options.get("extra") == "segments":
        hidden |= (extras[0][:, :, None] != extras[1][:, None, :])[:, None, None]
    bias = np.where(hidden, -np.inf, bias)
    if options.get("extra") == "sinks":
        k, v = (np.concatenate([a, np.zeros_like(a[:, :, :1])], axis=2) for a in (k, v))
        sinks = np.broadcast_to(extras[0][:, :, None, None], (b, j, g, m, 1))
        bias = np.concatenate([bias, sinks], axis=-1)
    bias = bias.reshape(b, j * g, m, -1)
    sees = np.isfinite(bias).any(axis=-1)
    bias[~sees] = 0
    settings = {"scale": options.get("scale"), "cap": options.get("softcap")}
    exact, bound = attention_with_bound(q, k, v, tile, dtype, bias=bias, **settings)
    return [np.where(sees[..., None], a, 0).reshape(b, j, g, m, e) for a in (exact, bound)]


@pytest.mark.sampled(24)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_grouped_attention(shape, form, dtype):
    options = FORMS[form]
    arrays, extras = operands(shape, dtype), extra_arguments(options.get("extra"), shape)
    exact, bound = exact_with_bound(arrays, extras, shape, dtype, options)
    kernel = kernels.grouped_attention(shape[-1], dtype, "f32", **options)
    within(run(kernel, (*arrays, *extras), exact.shape, "f32"), exact, bound, "f32")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
def test_machine_code_gives_the_same(form):
    options, shape = FORMS[form], (2, 2, 3, 7, 37, 16, 9, 8)
    arrays, extras = operands(shape, "f32"), extra_arguments(options.get("extra"), shape)
    exact, bound = exact_with_bound(arrays, extras, shape, "f32", options)
    out, buffer = poisoned(exact.shape, "f32")
    guards = buffer[:32].tobytes() + buffer[-32:].tobytes()
    tilewright.compile(kernels.grouped_attention(shape[-1], "f32", **options))(*arrays, *extras, out)
    assert buffer[:32].tobytes() + buffer[-32:].tobytes() == guards
    within(out, exact, bound, "f32")


def test_wrong_options_are_named():
    with pytest.raises(ArgumentError, match="extra='bias': there are sinks, slopes, segments"):
        kernels.grouped_attention(4, extra="bias")
    with pytest.raises(ArgumentError, match="window=3 without causal=True"):
        kernels.grouped_attention(4, window=3)
