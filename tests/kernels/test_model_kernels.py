"""Kernels of language models and of images: rotary embedding, pooling, weights of few bits, losses, gating, caches."""

import itertools

import numpy as np
import pytest
from kernel_checks import form, run, same, small_integers

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.targets.registry import machine

TARGETS = ["executor", "cpu"]


def executable(kernel, target):
    return tilewright.compile(kernel, strict=True, target=target)


def test_rotary():
    rng = np.random.default_rng(1)
    x = small_integers(rng, (2, 3, 5, 2, 7), "f32")
    cosines, sines = small_integers(rng, (2, 3, 7), "f32")
    first, second, c, s = x[..., 0, :], x[..., 1, :], cosines[:, None], sines[:, None]
    exact = np.stack([first * c - second * s, second * c + first * s], axis=-2)
    for dtype in ("f32", "f16"):
        same(run(kernels.rotary(dtype), (x.astype(form(dtype)), cosines, sines), x.shape, dtype), exact)
    same(executable(kernels.rotary("f32"), "cpu")(x, cosines, sines), exact)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "i8"])
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("window", "stride", "padding"), [((3, 2), (2, 1), (1, 0)), ((2, 2), None, (0, 0))])
def test_max_pooling(window, stride, padding, layout, dtype, target):
    x = small_integers(np.random.default_rng(2), (2, 9, 7, 5), dtype, 100)
    windows = _windows(x, window, stride or window, padding, np.iinfo(np.int8).min)
    exact = windows.max(axis=3)
    if layout == "NCHW":
        x, exact = (np.ascontiguousarray(a.transpose(0, 3, 1, 2)) for a in (x, exact))
    y = np.full(exact.shape, -77, form(dtype))
    executable(kernels.pooling("max", window, dtype, stride=stride, padding=padding, layout=layout), target)(x, y)
    same(y, exact)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_mean_pooling(layout, target):
    x = small_integers(np.random.default_rng(3), (2, 9, 7, 5), "f32")
    exact = _windows(x, (2, 4), (2, 1), (0, 1), 0).sum(axis=3) / 8
    if layout == "NCHW":
        x, exact = (np.ascontiguousarray(a.transpose(0, 3, 1, 2)) for a in (x, exact))
    y = np.full(exact.shape, np.nan, np.float32)
    executable(kernels.pooling("mean", (2, 4), stride=(2, 1), padding=(0, 1), layout=layout), target)(x, y)
    same(y, exact)


def _windows(x, window, stride, padding, otherwise):
    """[n, p, q, elements of the window, c]."""
    (r, s), (up, right) = window, stride
    around = ((0, 0), (padding[0], padding[0]), (padding[1], padding[1]), (0, 0))
    padded = np.pad(x.astype(np.int64), around, constant_values=otherwise)
    places = itertools.product(range(r), range(s))
    rows, columns = ((padded.shape[1 + n] - window[n]) // stride[n] + 1 for n in (0, 1))
    taps = [padded[:, a : a + up * rows : up, b : b + right * columns : right][:, :rows, :columns] for a, b in places]
    return np.stack(taps, axis=3)


def test_pooling_names_what_is_wrong():
    with pytest.raises(ArgumentError, match="kind='sum': there are max, mean"):
        kernels.pooling("sum", (2, 2))
    with pytest.raises(ArgumentError, match="layout='CHWN': there are NHWC, NCHW"):
        kernels.pooling("max", (2, 2), layout="CHWN")


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 7, 13), (17, 33, 70)])
def test_weights_of_8_bits_with_a_scale_for_each_column(m, n, k, target):
    rng = np.random.default_rng(4)
    a, b = small_integers(rng, (m, k), "f32"), small_integers(rng, (n, k), "i8", 127)
    scales = small_integers(rng, n, "f32")
    exact = (a.astype(np.int64) @ b.T.astype(np.int64)) * scales.astype(np.int64)
    same(executable(kernels.gemm_of_scaled_columns("i8", "f32"), target)(a, b, scales), exact)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("m", "n", "blocks", "block"), [(1, 1, 1, 1), (5, 7, 3, 4), (17, 33, 2, 35)])
def test_weights_of_8_bits_with_a_scale_for_each_block(m, n, blocks, block, target):
    rng = np.random.default_rng(5)
    a, b = (small_integers(rng, (x, blocks, block), kind) for x, kind in ((m, "f32"), (n, "f8e4m3fn")))
    scales = small_integers(rng, (n, blocks), "f32")
    exact = np.einsum("mjk,njk,nj->mn", a, b.astype(np.float32), scales)
    same(executable(kernels.gemm_of_scaled_blocks(block, "f8e4m3fn", "f32"), target)(a, b, scales), exact)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tile", [1, 4, 64])
def test_linear_cross_entropy(tile, target):
    rng = np.random.default_rng(6)
    x, w = rng.standard_normal((5, 7)), 30 * rng.standard_normal((13, 7))
    labels = np.array([0, 12, 5, -1, 13], np.int32)
    logits = x @ w.T
    highest = logits.max(axis=1)
    sums = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
    chosen = np.where((labels >= 0) & (labels < 13), logits[np.arange(5), labels.clip(0, 12)], 0)
    loss = executable(kernels.linear_cross_entropy(tile, "f64"), target)(x, w, labels)
    assert np.abs(loss - (sums - chosen)).max() < 1e-12 * np.abs(logits).max()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("chunks", "chunk"), [(1, 1), (1, 5), (4, 5), (5, 1)])
def test_linear_attention(chunks, chunk, target):
    q, k, v = (small_integers(np.random.default_rng(n), (2, 3, chunks, chunk, 4 + n), "f32") for n in (1, 1, 2))
    flat = [a.reshape(2, 3, chunks * chunk, -1) for a in (q, k, v)]
    scores = np.tril(flat[0] @ flat[1].swapaxes(2, 3))
    exact = (scores @ flat[2]).reshape(v.shape)
    same(executable(kernels.linear_attention(chunk, "f32"), target)(q, k, v), exact)


@pytest.mark.parametrize("target", TARGETS)
def test_top_k_gating(target):
    scores = np.random.default_rng(7).permutation(7 * 11).reshape(7, 11) / 16
    shares, experts = executable(kernels.top_k_gating(3, "f64"), target)(scores)
    best = np.argsort(-scores, axis=1)[:, :3]
    weights = np.exp(np.take_along_axis(scores, best, axis=1))
    same(experts, best)
    assert np.abs(shares - weights / weights.sum(axis=1, keepdims=True)).max() < 1e-15


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("together", [1, 2, 3])
def test_paged_attention(together, target):
    rng = np.random.default_rng(8)
    sequences, heads, group, width, values, pages, page, blocks = 3, 2, 4, 5, 6, 11, 4, 3
    q = rng.standard_normal((sequences, heads, group, width))
    k, v = (rng.standard_normal((pages, page, heads, n)) for n in (width, values))
    table = rng.integers(0, pages, (sequences, blocks)).astype(np.int32)
    lengths = np.array([0, 7, 12], np.int32)
    keys, means = (a[table].reshape(sequences, blocks * page, heads, -1) for a in (k, v))
    exact = np.zeros((sequences, heads, group, values))
    for b, length in enumerate(lengths):
        if length:
            weights = np.exp(np.einsum("jgd,njd->jgn", q[b], keys[b, :length]) / np.sqrt(width))
            exact[b] = np.einsum("jgn,nje->jge", weights / weights.sum(axis=-1, keepdims=True), means[b, :length])
    result = executable(kernels.paged_attention(together, "f64"), target)(q, k, v, table, lengths)
    assert np.abs(result - exact).max() < 1e-14


@pytest.mark.sampled(3)
@pytest.mark.parametrize("row", ["hopper", "xe", "x86.amx"])
@pytest.mark.parametrize("form_of", ["rotary", "pooling", "image mean", "scaled blocks", "gating"])
def test_block_programs_of_other_machines_give_the_same(form_of, row):
    rng = np.random.default_rng(9)
    integers = {shape: small_integers(rng, shape, "f32") for shape in [(2, 5, 3, 2, 36), (5, 36), (2, 10, 9, 7)]}
    x, angles, image = integers.values()
    a, b, scales = (
        small_integers(rng, s, t) for s, t in (((37, 3, 32), "bf16"), ((70, 3, 32), "i8"), ((70, 3), "f32"))
    )
    kernel, sizes, arrays, results = {
        "rotary": (kernels.rotary("f32"), {"B": 2, "M": 5, "H": 3, "D": 36}, [x, angles, angles], [x]),
        "pooling": (
            kernels.pooling("max", (3, 3), stride=(2, 1), padding=(1, 1), layout="NCHW"),
            {"N": 2, "C": 10, "H": 9, "W": 7, "P": 5, "Q": 7},
            [image],
            [np.zeros((2, 10, 5, 7), np.float32)],
        ),
        "image mean": (
            kernels.image_mean("bf16"),
            {"N": 37, "W": 3, "C": 32},
            [a],
            [np.zeros((37, 32), form("bf16"))],
        ),
        "scaled blocks": (
            kernels.gemm_of_scaled_blocks(32),
            {"M": 37, "N": 70, "BLOCKS": 3},
            [a, b, scales],
            [np.zeros((37, 70), form("bf16"))],
        ),
        "gating": (  # equal scores: shares are exact, and the first experts win
            kernels.top_k_gating(4),
            {"M": 13, "N": 20},
            [np.zeros((13, 20), np.float32)],
            [np.zeros((13, 4), np.float32), np.zeros((13, 4), np.int32)],
        ),
    }[form_of]
    wanted, written = ([np.full_like(y, -77) for y in results] for _ in range(2))
    tilewright.compile(kernel, target="executor")(*arrays, *wanted)
    kernel_for(kernel, sizes, machine=machine(row)).executor.bind([*arrays, *written])()
    for exact, result in zip(wanted, written, strict=True):
        same(result, exact)
