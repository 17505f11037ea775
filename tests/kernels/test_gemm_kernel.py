import numpy as np
import pytest
from kernel_checks import F32, normal, run, same, small_integers, within

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError, DtypeMismatch
from tilewright.problems import matmul_reference, parse_matmul
from tilewright.targets.registry import machine

TRANSPOSES = ("nn", "nt", "tn", "tt")
SIZES = [(1, 1, 1), (1, 7, 5), (9, 1, 4), (5, 3, 1), (3, 5, 7), (17, 33, 20), (31, 2, 65)]


def as_stored(a, b, transposes):
    """[.., M, K] and [.., K, N] laid out as the kernel wants them."""
    a = a if transposes[0] == "n" else np.ascontiguousarray(a.swapaxes(-1, -2))
    b = b if transposes[1] == "n" else np.ascontiguousarray(b.swapaxes(-1, -2))
    return a, b


def product(a, b):
    """The matrix product in int64, one outer product after another."""
    a, b = a.astype(np.int64), b.astype(np.int64)
    total = np.zeros((*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1]), np.int64)
    for k in range(a.shape[-1]):
        total += a[..., :, k, None] * b[..., k, None, :]
    return total


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "i8", "f64"])
@pytest.mark.parametrize("transposes", TRANSPOSES)
def test_products_of_integers_are_exact(transposes, dtype):
    rng = np.random.default_rng(1)
    out = {"i8": "i32", "f64": "f64"}.get(dtype, "f32")
    for m, n, k in SIZES:
        a, b = small_integers(rng, (m, k), dtype), small_integers(rng, (k, n), dtype)
        result = run(kernels.gemm(transposes, dtype), as_stored(a, b, transposes), (m, n), out)
        same(result, product(a, b))
        same(result, matmul_reference(parse_matmul(f"{m}x{k}:{k}x{n}"), a, b))


@pytest.mark.parametrize(
    ("dtype", "out"),
    [("f16", "f16"), ("f16", "bf16"), ("bf16", "bf16"), ("bf16", "f16"), ("f32", "f16"), ("i8", "i8"), ("i8", "f32")],
)
def test_the_output_may_have_another_type(dtype, out):
    rng = np.random.default_rng(2)
    a, b = small_integers(rng, (13, 11), dtype), small_integers(rng, (11, 6), dtype)
    result = run(kernels.gemm("nt", dtype, out), as_stored(a, b, "nt"), (13, 6), out)
    same(result, product(a, b))


def test_a_sum_is_rounded_once_at_the_end():
    """2048 + 1 + 1 is 2050 in f16; rounded at every step it would stay 2048."""
    a = np.array([[2048, 1, 1]], np.float16)
    same(run(kernels.gemm("nn", "f16", "f16"), (a, np.ones((3, 1), np.float16)), (1, 1), "f16"), np.array([[2050]]))


@pytest.mark.parametrize("transposes", TRANSPOSES)
@pytest.mark.parametrize("batch", [1, 3])
def test_batches(transposes, batch):
    rng = np.random.default_rng(3)
    a, b = small_integers(rng, (batch, 5, 9), "bf16"), small_integers(rng, (batch, 9, 7), "bf16")
    result = run(kernels.gemm(transposes, "bf16", batched=True), as_stored(a, b, transposes), (batch, 5, 7), "f32")
    same(result, product(a, b))


@pytest.mark.parametrize("transposes", TRANSPOSES)
@pytest.mark.parametrize("batched", [("ab", "b"), ("a", "ab"), ("b",), ("a", "b"), ("ab", "ab")])
def test_a_factor_is_repeated_along_batches_that_it_has_not(transposes, batched):
    rng = np.random.default_rng(8)
    extents = (2, 3)[: len(batched)]
    a_batch, b_batch = (tuple(n if f in axis else 1 for n, axis in zip(extents, batched, strict=True)) for f in "ab")
    a, b = small_integers(rng, (*a_batch, 4, 5), "f16"), small_integers(rng, (*b_batch, 5, 3), "f16")
    stored = as_stored(a, b, transposes)
    own = [
        x.reshape(*(n for n, axis in zip(extents, batched, strict=True) if f in axis), *x.shape[-2:])
        for f, x in zip("ab", stored, strict=True)
    ]
    same(run(kernels.gemm(transposes, "f16", batched=batched), own, (*extents, 4, 3), "f32"), product(a, b))


@pytest.mark.parametrize("dtype", ["f16", "i8"])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_a_bias_a_residual_and_an_activation_come_last(dtype, batched, activation, residual):
    rng = np.random.default_rng(4)
    batch = (2,) if batched else ()
    sums = "i32" if dtype == "i8" else "f32"
    a, b = small_integers(rng, (*batch, 6, 10), dtype), small_integers(rng, (*batch, 10, 11), dtype)
    bias = small_integers(rng, (11,), sums, 40)
    kernel = kernels.gemm("tt", dtype, batched=batched, bias=True, residual=residual, activation=activation)
    expected = product(a, b) + bias.astype(np.int64)
    inputs = [*as_stored(a, b, "tt"), bias]
    if residual:
        inputs.append(small_integers(rng, (*batch, 6, 11), sums, 40))
        expected += inputs[-1].astype(np.int64)
    if activation == "relu":
        assert (expected < 0).any()
        expected[expected < 0] = 0
    same(run(kernel, tuple(inputs), (*batch, 6, 11), sums), expected)


@pytest.mark.parametrize("target", ["executor", "cpu"])
@pytest.mark.parametrize("batched", [True, ("ab",), ("a",), ("b",), ("ab", "b")])
def test_a_bias_may_have_the_batch(batched, target):
    rng = np.random.default_rng(9)
    axes = ("ab",) if batched is True else batched
    extents = (2, 3)[: len(axes)]
    own = [tuple(n for n, axis in zip(extents, axes, strict=True) if f in axis) for f in "ab"]
    a, b = small_integers(rng, (*own[0], 5, 9), "f16"), small_integers(rng, (*own[1], 9, 7), "f16")
    bias = small_integers(rng, (*extents, 7), "f32", 40)
    wide = [x.reshape(*x.shape[:-2], *(1,) * (len(extents) - x.ndim + 2), *x.shape[-2:]) for x in (a, b)]
    kernel = tilewright.compile(kernels.gemm("nn", "f16", batched=batched, bias="batched"), target=target)
    out = np.full((*extents, 5, 7), np.nan, np.float32)
    kernel(a, b, bias, out=out)
    same(out, product(*wide) + bias[..., None, :].astype(np.int64))


@pytest.mark.parametrize("bias", [False, True, "batched"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_batch_of_few_rows_by_one_matrix_was_as_many_products(rows, bias):
    """The rows of a batch are rows of one product: each element of b that is loaded is used by several."""
    sizes = {"B0": 17, "M": rows, "N": 136, "K": 72}
    kernel = kernel_for(kernels.gemm("nt", "f32", batched=("a",), bias=bias), sizes, machine=machine("x86.avx512"))
    together = {"M": 17 * rows, "N": 136, "K": 72}
    whole = kernel_for(kernels.gemm("nt", "f32", bias=bool(bias)), together, machine=machine("x86.avx512"))
    assert kernel.choice.cycles < 1.5 * whole.choice.cycles
    rng = np.random.default_rng(2)
    arrays = [small_integers(rng, shape, "f32") for shape in ((17, rows, 72), (136, 72), (17, 136))]
    a, b, added = arrays[0], arrays[1], {False: None, True: arrays[2][0], "batched": arrays[2]}[bias]
    c = np.full((17, rows, 136), np.nan, np.float32)
    kernel.bind({"a": a, "b": b, "c": c} | ({} if added is None else {"bias": added}))()
    same(c, product(a, b.T) + (0 if added is None else np.atleast_2d(added)[:, None, :].astype(np.int64)))


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_real_numbers_stay_within_the_bound(dtype):
    rng = np.random.default_rng(5)
    a, b = normal(rng, (9, 300), dtype), normal(rng, (300, 14), dtype)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    for out in ("f32", "f16"):
        result = run(kernels.gemm("tn", dtype, out), as_stored(a, b, "tn"), (9, 14), out)
        within(result, wide_a @ wide_b, 300 * F32 * (np.abs(wide_a) @ np.abs(wide_b)), out)


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_activations_of_a_product(name):
    rng = np.random.default_rng(6)
    a, b = small_integers(rng, (4, 5), "f32", 1), small_integers(rng, (5, 6), "f32", 1)
    x = product(a, b).astype(np.float32)
    expected = run(kernels.activation(name), (x,), x.shape, "f32")
    assert (run(kernels.gemm("nn", "f32", activation=name), (a, b), x.shape, "f32") == expected).all()


def test_arrays_may_lie_in_memory_in_any_way():
    rng = np.random.default_rng(7)
    a, b = small_integers(rng, (20, 14), "f16")[::2, ::-1], small_integers(rng, (9, 28), "f16")[:, ::2].T
    same(tilewright.compile(kernels.gemm(), target="executor")(a, b), product(a, b))


def test_an_empty_sum_is_zero():
    a, b = np.empty((3, 0), np.float16), np.empty((0, 2), np.float16)
    same(run(kernels.gemm(), (a, b), (3, 2), "f32"), np.zeros((3, 2)))


def test_mistakes_are_named():
    with pytest.raises(ArgumentError, match="transposes='nx'"):
        kernels.gemm("nx")
    with pytest.raises(ArgumentError, match=r"batched=\['ab', 'c'\]: True, or 'ab', 'a' or 'b' for each"):
        kernels.gemm(batched=["ab", "c"])
    with pytest.raises(ArgumentError, match="bias='rows': True, False or 'batched'"):
        kernels.gemm(bias="rows")
    with pytest.raises(ArgumentError, match="activation='swish'"):
        tilewright.compile(kernels.gemm(activation="swish"), target="executor")
    with pytest.raises(DtypeMismatch, match="i32"):
        tilewright.compile(kernels.gemm(dtype="i8", activation="gelu"), target="executor")
    with pytest.raises(ArgumentError, match="argument b"):
        tilewright.compile(kernels.gemm(), target="executor")(np.ones((2, 3), np.float16), np.ones((4, 5), np.float16))


@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_tf32_is_rounded_to_only_where_it_is_asked_for(target):
    a = np.array([[1 + 2.0**-10, 1 + 2.0**-11, 1 + 2.0**-11 + 2.0**-12]], np.float32)
    b = np.eye(3, dtype=np.float32)
    plain, rounded = (
        tilewright.compile(kernels.gemm("nn", "f32", precision=p), target=target)(a, b) for p in (None, "tf32")
    )
    assert plain.tolist() == a.tolist()
    assert rounded.tolist() == [[1 + 2.0**-10, 1, 1 + 2.0**-10]]
    conv = tilewright.compile(kernels.conv((1,), "f32", precision="tf32"), target=target)
    assert conv(a.reshape(1, 1, 3), b.reshape(3, 1, 3)).tolist() == [rounded.tolist()]
