import numpy as np
import pytest
from attention_checks import attention_with_bound
from kernel_checks import normal, run, within

import tilewright
from tilewright import kernels

# batch, heads, queries, keys, width of q and k, width of v, tile of keys
SHAPES = [
    (1, 1, 1, 1, 1, 1, 4),
    (1, 1, 1, 13, 3, 5, 4),
    (2, 1, 7, 1, 5, 1, 2),
    (1, 3, 5, 9, 4, 6, 1),
    (3, 2, 9, 17, 8, 3, 5),
    (1, 2, 20, 33, 16, 10, 8),
    (2, 2, 6, 12, 7, 7, 64),
]


def operands(rng, shape, dtype):
    b, h, m, n, d, e, _ = shape
    return [normal(rng, (b, h, *size), dtype) for size in ((m, d), (n, d), (n, e))]


def out_shape(shape):
    b, h, m, _, _, e, _ = shape
    return b, h, m, e


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
def test_attention(shape, dtype):
    q, k, v = operands(np.random.default_rng(1), shape, dtype)
    exact, bound = attention_with_bound(q, k, v, shape[-1], dtype)
    within(run(kernels.attention(shape[-1], dtype), (q, k, v), out_shape(shape), dtype), exact, bound, dtype)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("first", [0, 1, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_causal_attention(shape, first, dtype):
    q, k, v = operands(np.random.default_rng(2), shape, dtype)
    exact, bound = attention_with_bound(q, k, v, shape[-1], dtype, last_key=lambda m: m + first)
    made = kernels.attention(shape[-1], dtype, "f32", causal=True, first_query=first)
    within(run(made, (q, k, v), out_shape(shape), "f32"), exact, bound, "f32")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_bias_and_scale(shape, causal):
    rng = np.random.default_rng(3)
    q, k, v = operands(rng, shape, "f32")
    b, h, m, n, _, _, tile = shape
    bias = normal(rng, (b, h, m, n), "f32", 2.0)
    seen = (lambda m: m) if causal else None
    exact, bound = attention_with_bound(q, k, v, tile, "f32", scale=0.3, bias=bias, last_key=seen)
    made = kernels.attention(tile, "f32", bias=True, scale=0.3, causal=causal)
    within(run(made, (q, k, v, bias), out_shape(shape), "f32"), exact, bound, "f32")


@pytest.mark.parametrize("tile", [1, 2, 3, 7])
def test_keys_hidden_by_the_bias_have_no_weight_even_in_the_first_tile(tile):
    shape = (1, 1, 4, 7, 5, 2, tile)
    q, k, v = operands(np.random.default_rng(4), shape, "f32")
    bias = np.zeros((1, 1, 4, 7), np.float32)
    bias[..., :3] = -np.inf
    k[:, :, :3], v[:, :, :3] = 50, 1000
    exact, bound = attention_with_bound(q, k[:, :, 3:], v[:, :, 3:], tile, "f32")
    made = kernels.attention(tile, "f32", bias=True)
    within(run(made, (q, k, v, bias), out_shape(shape), "f32"), exact, 2 * bound, "f32")


@pytest.mark.parametrize("level", [-3000.0, 3000.0])
def test_only_differences_of_scores_matter(level):
    """A maximum that starts at 0, or is not subtracted, ends in 0 / 0 or in overflow here."""
    shape = (1, 2, 3, 11, 4, 5, 4)
    q, k, v = operands(np.random.default_rng(7), shape, "f32")
    bias = np.full((1, 2, 3, 11), level, np.float32)
    exact, bound = attention_with_bound(q, k, v, 4, "f32", bias=bias)
    within(run(kernels.attention(4, "f32", bias=True), (q, k, v, bias), out_shape(shape), "f32"), exact, bound, "f32")


def test_equal_scores_give_the_mean_exactly():
    """Weights are 1, sums of small integers are exact, and so is a division by a power of two."""
    v = np.random.default_rng(5).integers(-8, 8, (2, 3, 8, 5)).astype(np.float16)
    q, k = np.zeros((2, 3, 4, 6), np.float16), np.ones((2, 3, 8, 6), np.float16)
    for tile in (1, 3, 8):
        result = run(kernels.attention(tile), (q, k, v), (2, 3, 4, 5), "f16")
        assert (result == v.astype(np.int64).sum(axis=2, keepdims=True) / 8).all()


def test_tile_sizes_agree():
    q, k, v = operands(np.random.default_rng(6), (2, 2, 5, 19, 8, 4, 1), "f32")
    results = [
        tilewright.compile(kernels.attention(tile, "f32", causal=True, first_query=14), strict=True, target="executor")(
            q, k, v
        )
        for tile in (1, 2, 7, 18, 19, 100)
    ]
    for result in results:
        assert np.abs(result - results[0]).max() < 1e-5
