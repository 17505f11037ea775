"""Tile kernels as machine code, without a pipeline: every kernel against the executor or its float64 bound."""

import math
from itertools import permutations

import numpy as np
import pytest
from kernel_checks import F32, form, normal, small_integers, within
from test_attention_kernel import SHAPES as ATTENTION
from test_attention_kernel import attention_with_bound, operands, out_shape
from test_data_movement_kernels import IM2COL
from test_data_movement_kernels import SIZES as MOVED
from test_gemm_kernel import SIZES as PRODUCTS
from test_gemm_kernel import TRANSPOSES, as_stored
from test_rowwise_kernels import (
    SIZES,
    gelu,
    layer_norm_with_bound,
    silu,
    softmax_bound,
    softmax_in_float64,
)
from tile_checks import interpreted, native, no_atoms_today, own_cache, run_native, same_bits
from tile_fuzz import TileFuzz
from wide_fuzz import WideFuzz

import tilewright
from tilewright import kernels
from tilewright.errors import ExecutionError

pytestmark = no_atoms_today
__all__ = ["own_cache"]


# -- exact --------------------------------------------------------------------------------------------------


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i8", "f64"])
@pytest.mark.parametrize("transposes", TRANSPOSES)
def test_products(transposes, dtype):
    rng = np.random.default_rng(1)
    out = {"i8": "i32", "f64": "f64"}.get(dtype, "f32")
    made = kernels.gemm(transposes, dtype)
    for m, n, k in PRODUCTS:
        a, b = small_integers(rng, (m, k), dtype), small_integers(rng, (k, n), dtype)
        same_bits(made, as_stored(a, b, transposes), (m, n), out)


@pytest.mark.parametrize("transposes", ["nn", "tt"])
def test_batches_with_bias_and_activation_in_narrow_types(transposes):
    rng = np.random.default_rng(2)
    a, b = small_integers(rng, (3, 5, 9), "bf16"), small_integers(rng, (3, 9, 7), "bf16")
    bias = small_integers(rng, (7,), "f32", 40)
    made = kernels.gemm(transposes, "bf16", "f16", batched=True, bias=True, activation="relu")
    same_bits(made, (*as_stored(a, b, transposes), bias), (3, 5, 7), "f16")


def test_a_sum_is_rounded_once_at_the_end():
    a = np.array([[2048, 1, 1]], np.float16)
    found = run_native(kernels.gemm("nn", "f16", "f16"), (a, np.ones((3, 1), np.float16)), (1, 1), "f16")
    assert found.tolist() == [[2050]]


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(("image", "size", "stride", "padding", "dilation"), IM2COL)
def test_im2col(image, size, stride, padding, dilation, layout):
    x = small_integers(np.random.default_rng(3), image, "f16", 100)
    given = x if layout == "nhwc" else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    made = kernels.im2col(size, "f16", layout, stride=stride, padding=padding, dilation=dilation)
    wanted = tilewright.compile(made, target="executor")(given)
    same_bits(made, (given,), wanted.shape, "f16")


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i8"])
def test_transposes(dtype):
    rng = np.random.default_rng(4)
    made = kernels.transpose(dtype=dtype)
    for shape in [*MOVED, (40, 96)]:
        same_bits(made, (small_integers(rng, shape, dtype, 100),), shape[::-1], dtype)


@pytest.mark.parametrize("axes", [(0,), *permutations(range(3)), (3, 1, 0, 2)])
def test_transposes_in_any_order(axes):
    x = small_integers(np.random.default_rng(5), (2, 5, 3, 4)[: len(axes)], "f32", 100)
    same_bits(kernels.transpose(axes), (x,), np.transpose(x, axes).shape, "f32")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i8"])
@pytest.mark.parametrize("over", ["columns", "rows"])
@pytest.mark.parametrize("combine", ["max", "min", "sum"])
def test_reductions(combine, over, dtype):
    rng = np.random.default_rng(6)
    out = "i32" if dtype == "i8" else "f32"
    made = kernels.reduction(combine, over, dtype, out)
    for shape in [*MOVED, (5, 259), (300, 3)]:
        kept = shape[:1] if over == "columns" else shape[1:]
        # all of one sign too: a padding of 0 would win the maximum
        for x in (small_integers(rng, shape, dtype), small_integers(rng, shape, dtype, 1) - form(dtype).type(2)):
            same_bits(made, (x,), kept, out)


@pytest.mark.parametrize("over", ["columns", "rows"])
def test_products_of_elements(over):
    rng = np.random.default_rng(7)
    made = kernels.reduction("prod", over, "i8", "i32")
    for shape in MOVED:
        x = np.where(rng.random(shape) < 0.2, 2, np.where(rng.random(shape) < 0.5, -1, 1))
        kept = shape[:1] if over == "columns" else shape[1:]
        same_bits(made, (x.astype(np.int8),), kept, "i32")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("dtype", "out"), [("f32", "f32"), ("f16", "f16"), ("bf16", "f32"), ("i8", "i32")])
def test_running_sums(dtype, out):
    rng = np.random.default_rng(8)
    whole, tiled = kernels.running_sum(dtype, out), [kernels.tiled_running_sum(n, dtype, out) for n in (1, 2, 5, 64)]
    for shape in MOVED:
        x = small_integers(rng, shape, dtype)
        for made in (whole, *tiled):
            same_bits(made, (x,), shape, out)


@pytest.mark.parametrize("dtype", ["f16", "f32", "i8"])
def test_gather_and_scatter(dtype):
    rng = np.random.default_rng(9)
    gather, scatter = kernels.gather_rows(dtype), kernels.scatter_rows(dtype)
    for rows, count, width in [(1, 1, 1), (5, 1, 7), (6, 6, 1), (7, 4, 3), (9, 9, 20)]:
        table = small_integers(rng, (rows, width), dtype, 100)
        index = rng.integers(0, rows, 2 * count).astype(np.int32)
        same_bits(gather, (table, index), (2 * count, width), dtype)
        places = rng.permutation(rows)[:count].astype(np.int32)
        x = small_integers(rng, (count, width), dtype, 100)
        same_bits(scatter, (x, places), table.shape, dtype, fresh=table)
    x, places = np.array([[1], [2], [3]], np.float32), np.array([-1, 1, 4], np.int32)
    same_bits(kernels.scatter_rows(), (x, places), (4, 1), "f32", fresh=9)


@pytest.mark.parametrize("index", [-1, 2])
def test_gathering_outside_the_table_is_an_error_natively_too(index):
    run = native(kernels.gather_rows())
    table = np.ones((2, 3), np.float32)
    with pytest.raises(ExecutionError, match="read leaves its tensor of 2 x 3") as caught:
        run(table, np.array([0, index], np.int32))
    assert "tkw.read(table" in str(caught.value)
    assert (run(table, np.array([0, 1], np.int32)) == 1).all()


def test_histograms():
    rng = np.random.default_rng(10)
    made = kernels.histogram()
    for count, bins in [(1, 1), (50, 3), (7, 20), (10000, 11)]:
        x = rng.integers(-2, bins + 2, count).astype(np.int32)
        same_bits(made, (x,), (bins,), "i32", fresh=5)


# -- within bounds of float64 -------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_softmax(dtype, scale):
    rng = np.random.default_rng(11)
    whole, tiled = kernels.softmax(dtype), {tile: kernels.online_softmax(tile, dtype) for tile in (1, 2, 7, 64)}
    for shape in SIZES:
        x = normal(rng, shape, dtype, scale)
        exact = softmax_in_float64(x)
        within(run_native(whole, (x,), shape, dtype), exact, softmax_bound(x, exact), dtype)
        for tile, made in tiled.items():
            bound = softmax_bound(x, exact, walks=-(-shape[1] // tile))
            within(run_native(made, (x,), shape, dtype), exact, bound, dtype)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_norms(dtype):
    rng = np.random.default_rng(12)
    layer, root = kernels.layer_norm(dtype, 1e-3), kernels.rms_norm(dtype, 1e-6)
    for shape in SIZES:
        x = (normal(rng, shape, "f64") * 3 + 2).astype(form(dtype))
        weight, bias = normal(rng, shape[1:], dtype), normal(rng, shape[1:], dtype)
        wide = [a.astype(np.float64) for a in (x, weight, bias)]
        exact, bound = layer_norm_with_bound(*wide, 1e-3)
        within(run_native(layer, (x, weight, bias), shape, dtype), exact, bound, dtype)
        squares = np.array([math.fsum(row**2) / shape[1] for row in wide[0]])
        exact = wide[0] / np.sqrt(squares + 1e-6)[:, None] * wide[1]
        bound = (shape[1] / 2 + 8) * F32 * np.abs(exact)
        within(run_native(root, (x, weight), shape, dtype), exact, bound, dtype)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("name", "function"), [("gelu", gelu), ("silu", silu), ("relu", lambda x: max(x, 0.0))])
def test_activations(name, function, dtype):
    rng = np.random.default_rng(13)
    made = kernels.activation(name, dtype)
    for shape in [*SIZES, (1, 6)]:
        x = normal(rng, shape, dtype, 4.0)
        if shape == (1, 6):
            x[...] = [-100.0, -10.0, -0.0, 0.0, 10.0, 100.0]
        exact = np.vectorize(function, otypes=[np.float64])(x.astype(np.float64))
        bound = 4 * F32 * np.abs(x.astype(np.float64)) if name == "gelu" else 8 * F32 * np.abs(exact)
        within(run_native(made, (x,), shape, dtype), exact, bound, dtype)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_gated_silu(dtype):
    rng = np.random.default_rng(14)
    gate, x = normal(rng, (7, 13), dtype, 3.0), normal(rng, (7, 13), dtype, 3.0)
    exact = np.vectorize(silu)(gate.astype(np.float64)) * x.astype(np.float64)
    within(run_native(kernels.gated_silu(dtype), (gate, x), (7, 13), dtype), exact, 10 * F32 * np.abs(exact), dtype)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", ATTENTION)
def test_attention(shape, dtype):
    q, k, v = operands(np.random.default_rng(15), shape, dtype)
    exact, bound = attention_with_bound(q, k, v, shape[-1], dtype)
    within(run_native(kernels.attention(shape[-1], dtype), (q, k, v), out_shape(shape), dtype), exact, bound, dtype)


@pytest.mark.parametrize("shape", ATTENTION)
def test_causal_attention_with_bias(shape):
    rng = np.random.default_rng(16)
    q, k, v = operands(rng, shape, "f32")
    b, h, m, n, _, _, tile = shape
    bias = normal(rng, (b, h, m, n), "f32", 2.0)
    exact, bound = attention_with_bound(q, k, v, tile, "f32", scale=0.3, bias=bias, last_key=lambda m: m)
    made = kernels.attention(tile, "f32", bias=True, scale=0.3, causal=True)
    within(run_native(made, (q, k, v, bias), out_shape(shape), "f32"), exact, bound, "f32")


# -- on the block interpreter: what machine code must give too ---------------------------------------------


def cases():
    rng = np.random.default_rng(17)
    x = small_integers(rng, (6, 40), "f32")
    rows = small_integers(rng, (4, 5), "f32")
    att = [small_integers(rng, s, "f32", 1) for s in ((1, 2, 5, 3), (1, 2, 7, 3), (1, 2, 7, 4))]
    yield "gemm", kernels.gemm("nt", "f16"), (x.astype(np.float16)[:5, :9], x.astype(np.float16)[:4, :9])
    yield "im2col", kernels.im2col((3, 2), "i8", padding=(1, 1)), (small_integers(rng, (1, 4, 5, 3), "i8"),)
    yield "attention", kernels.attention(3, "f32", causal=True), tuple(att)
    yield "softmax", kernels.softmax(), (x,)
    yield "online softmax", kernels.online_softmax(7), (x,)
    yield "layer norm", kernels.layer_norm(), (x, x[0].copy(), x[1].copy())
    yield "rms norm", kernels.rms_norm("f16"), (x.astype(np.float16), x[0].astype(np.float16))
    yield "gelu", kernels.activation("gelu"), (x,)
    yield "gated silu", kernels.gated_silu(), (x, x + 1)
    yield "sum", kernels.reduction("sum"), (x,)
    yield "running sum", kernels.running_sum(), (x,)
    yield "tiled running sum", kernels.tiled_running_sum(7), (x,)
    yield "transpose", kernels.transpose(), (x,)
    yield "gather", kernels.gather_rows(), (rows, np.array([3, 0, 3], np.int32))
    yield "scatter", kernels.scatter_rows(), (rows[:2], np.array([3, 0], np.int32), rows.copy())
    yield "histogram", kernels.histogram(), (np.array([1, 2, 2, -5], np.int32), np.zeros(3, np.int32))


CASES = list(cases())


@pytest.mark.parametrize(("made", "args"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_block_interpreter_gives_what_machine_code_does(made, args):
    """Exactly where no transcendental function occurs; these differ in the last bits."""
    run = native(made)
    mine, its = ([np.ascontiguousarray(a) for a in args] for _ in range(2))
    mine, its = ([a.copy() for a in given] for given in (mine, its))
    found = [run(*mine), *mine]
    wanted = [interpreted(run, tuple(its)), *its]
    for a, b in zip(found, wanted, strict=True):
        if a is not None:
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=2e-6, atol=2e-6)


# -- random programs ------------------------------------------------------------------------------------------


@pytest.mark.sampled(16)
@pytest.mark.parametrize("fuzz", [TileFuzz, WideFuzz])
@pytest.mark.parametrize("seed", [*range(50), 623, 1247])  # the last two: a sum goes on transposed
def test_random_programs(seed, fuzz):
    program = fuzz(seed).program()
    rng = np.random.default_rng(seed)
    sizes = {"M": 5, "N": 7, "K": 4} if seed % 2 else {"M": 6, "N": 40, "K": 9}
    shapes = [tuple(sizes[str(d)] for d in a.type.dims) for a in program.args]
    arrays = [rng.integers(-3, 4, s).astype(program.args[0].type.dtype.numpy) for s in shapes[:3]]
    wanted = tilewright.compile(program, target="executor")(*arrays)
    run = native(program)
    np.testing.assert_array_equal(run(*arrays), wanted)
    if seed % 3 == 0:
        np.testing.assert_array_equal(interpreted(run, tuple(arrays), workers=1 + seed % 4, seed=seed), wanted)
