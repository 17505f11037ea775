"""Kernels on a GPU as functions of JAX, on the stream that XLA tells.

    python -m pytest -m gpu tests/with_jax/test_jax_on_a_gpu.py

It needs a Hopper GPU, cuda-bindings and a JAX with its CUDA plugin; it is skipped, with the reason, where one is
missing.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_memory import TEXT

import tilewright
import tilewright.jax
from tilewright.kernels import attention, gather_rows, gemm, layer_norm, softmax
from tilewright.targets.nvidia.driver import device


def why_not() -> str | None:
    """Why nothing runs here; None: it does."""
    if isinstance(device(), str):
        return f"no GPU: {device()}"
    try:
        jax.devices("gpu")
    except RuntimeError as fault:
        return f"JAX has no GPU: {str(fault).splitlines()[0]}"
    return None


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(why_not() is not None, reason=str(why_not()))]
REPORTED = (jax.errors.JaxRuntimeError, ValueError)


def small(*shape: int, dtype: str = "float16", seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng(seed).integers(-3, 4, shape), dtype)


def product(**options):
    return tilewright.jax.function(tilewright.compile(gemm("nn", "f16", "f32"), target="gpu", **options))


@pytest.mark.parametrize("sizes", [(256, 192, 64), (37, 40, 24), (1000, 264, 520), (1, 128, 64)])
def test_a_product_is_exact_under_jit(sizes):
    m, n, k = sizes
    a, b, run = small(m, k), small(k, n, seed=1), product()
    wanted = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    assert (np.asarray(jax.jit(run)(a, b)) == wanted).all()
    assert (np.asarray(run(a, b)) == wanted).all()


def test_work_before_and_after_is_in_order():
    """What XLA computes lies on the same stream: without it, the product would read what is not there yet."""
    a, b, run = small(512, 512), small(512, 512, seed=1), product()

    @jax.jit
    def chained(a, b):
        for _ in range(20):
            c = run(a, b)
            a = ((c % 5) - 2).astype(jnp.float16)
        return a

    mine, left = np.asarray(a, np.float32), np.asarray(b, np.float32)
    for _ in range(20):
        mine = (mine @ left) % 5 - 2
    assert (np.asarray(chained(a, b), np.float32) == mine).all()


def test_a_batch_by_vmap_is_one_call():
    a, b, run = small(3, 64, 128), small(128, 72, seed=1), product()
    wanted = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    assert (np.asarray(jax.jit(jax.vmap(run, in_axes=(0, None)))(a, b)) == wanted).all()


def test_a_batch_is_merged_with_a_dimension():
    a, b = small(3, 37, 128), small(128, 72, seed=1)
    run = tilewright.jax.function(tilewright.compile(gemm("nn", "f16", "f32"), target="gpu"), batch="M")
    wanted = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    assert (np.asarray(jax.jit(jax.vmap(run, in_axes=(0, None)))(a, b)) == wanted).all()


def test_workspaces_and_open_sizes():
    run = product(dynamic=["M"])
    for rows in (64, 200, 1):
        a, b = small(rows, 128), small(128, 256, seed=1)
        assert (np.asarray(jax.jit(run)(a, b)) == np.asarray(a, np.float32) @ np.asarray(b, np.float32)).all()


def test_a_deep_product_with_partial_sums():
    a, b, run = small(64, 8192), small(8192, 64, seed=1), product()
    assert (np.asarray(jax.jit(run)(a, b)) == np.asarray(a, np.float32) @ np.asarray(b, np.float32)).all()


@pytest.mark.parametrize("text", [TEXT, TEXT[TEXT.index("block moved") :]])
def test_texts_are_exact(text):
    run = tilewright.jax.function(tilewright.compile_text(text, "gpu"))
    x = small(3, 4, 32, dtype="float32")
    assert (np.asarray(jax.jit(run)(x[0])) == np.asarray(x[0])).all()
    assert (np.asarray(jax.jit(jax.vmap(run))(x)) == np.asarray(x)).all()
    assert (np.asarray(jax.jit(lambda x: run(x + 1) * 2)(x[1])) == 2 * (np.asarray(x[1]) + 1)).all()


def test_rows_and_attention_are_close():
    x = small(100, 384, dtype="float32")
    rows = tilewright.jax.function(tilewright.compile(softmax("f32"), target="gpu"))
    assert np.allclose(jax.jit(rows)(x), jax.nn.softmax(x, axis=-1), atol=1e-5)
    weight, bias = small(384, dtype="float32", seed=1), small(384, dtype="float32", seed=2)
    norm = tilewright.jax.function(tilewright.compile(layer_norm("f32"), target="gpu"))
    wanted = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5) * weight + bias
    assert np.allclose(jax.jit(norm)(x, weight, bias), wanted, atol=1e-4)
    q, k, v = (small(2, 3, 128, 64, seed=n) for n in range(3))
    attend = tilewright.jax.function(tilewright.compile(attention(64, "f16", scale=0.125), target="gpu"))
    scores = jnp.einsum("bhmd,bhnd->bhmn", q.astype(jnp.float32), k.astype(jnp.float32)) * 0.125
    wanted = jnp.einsum("bhmn,bhne->bhme", jax.nn.softmax(scores, axis=-1), v.astype(jnp.float32))
    assert np.allclose(np.asarray(jax.jit(attend)(q, k, v), np.float32), wanted, atol=2e-2)


def test_an_index_outside_its_table_is_an_error():
    run = jax.jit(tilewright.jax.function(tilewright.compile(gather_rows("f32"), target="gpu")))
    table = small(4, 64, dtype="float32")
    assert (np.asarray(run(table, jnp.array([3, 0], jnp.int32))) == np.asarray(table)[[3, 0]]).all()
    with pytest.raises(REPORTED, match="gather_rows: read leaves its tensor"):
        run(table, jnp.array([3, 4], jnp.int32)).block_until_ready()


def test_a_gradient_that_is_named():
    kernel = tilewright.compile(gemm("nn", "f16", "f32"), target="gpu")

    def backward(inputs, outputs, cotangents):
        a, b = inputs
        (c,) = cotangents
        return (c @ b.T.astype(jnp.float32)).astype(a.dtype), (a.T.astype(jnp.float32) @ c).astype(b.dtype)

    run = tilewright.jax.function(kernel, backward=backward)
    a, b = small(64, 32), small(32, 40, seed=1)
    by_a = jax.grad(lambda a: run(a, b).sum())(a)
    assert (np.asarray(by_a, np.float32) == np.asarray(b, np.float32).sum(1)).all()


# -- operators -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_an_operator_product_is_exact(dtype):
    a, b, bias = small(2, 37, 40, dtype=dtype), small(40, 24, dtype=dtype, seed=1), small(24, dtype="float32", seed=2)
    wanted = np.maximum(np.asarray(a, np.float32) @ np.asarray(b, np.float32) + np.asarray(bias), 0)
    run = functools.partial(tilewright.jax.matmul, activation="relu", out_dtype="f32")
    assert (np.asarray(run(a, b, bias)) == wanted).all()
    assert (np.asarray(jax.jit(run)(a, b, bias)) == wanted).all()
    assert jax.jit(run)(a, b, bias).devices() == {jax.devices("gpu")[0]}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_gradients_of_an_operator_product_are_exact(dtype):
    a, b = small(16, 8, dtype=dtype), small(8, 24, dtype=dtype, seed=1)

    def sums(product):
        return jax.jit(jax.grad(lambda a, b: (product(a, b) * (jnp.arange(24.0) % 2)).sum(), (0, 1)))(a, b)

    ours = sums(functools.partial(tilewright.jax.matmul, out_dtype="f32"))
    theirs = sums(lambda a, b: jnp.matmul(a, b, precision="highest", preferred_element_type=jnp.float32))
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        assert (np.asarray(mine, np.float32) == np.asarray(other, np.float32)).all()


@pytest.mark.parametrize(
    ("function", "image", "filters", "options"),
    [
        (tilewright.jax.conv1d, (2, 37, 16), (24, 3, 16), {"stride": 2}),
        (tilewright.jax.conv2d, (2, 17, 19, 16), (24, 3, 3, 16), {"padding": 1}),
        (tilewright.jax.conv2d, (2, 17, 19, 3), (4, 3, 2, 3), {"stride": (2, 1), "dilation": (1, 2)}),
        (tilewright.jax.conv2d, (1, 9, 8, 32), (48, 3, 3, 8), {"groups": 4, "padding": 1}),
        (tilewright.jax.conv3d, (1, 5, 6, 7, 8), (8, 2, 3, 3, 8), {"padding": 1}),
    ],
)
def test_an_operator_convolution_and_its_gradients_are_exact(function, image, filters, options):
    """The same operator on the host, whose results are tested against JAX's own, is the reference."""
    x, w = small(*image), small(*filters, seed=1)
    host = jax.devices("cpu")[0]

    def run(x, w):
        y = function(x, w, out_dtype="f32", **options)
        return y, *jax.grad(lambda x, w: (function(x, w, out_dtype="f32", **options) % 3).sum() / 2, (0, 1))(x, w)

    wanted = jax.jit(run)(*(jax.device_put(a, host) for a in (x, w)))
    for mine, other in zip(jax.jit(run)(x, w), wanted, strict=True):
        assert mine.devices() == {jax.devices("gpu")[0]}
        assert (np.asarray(mine, np.float32) == np.asarray(other, np.float32)).all()


def test_an_operator_is_compiled_for_where_its_arrays_are():
    """One traced function serves arrays on the host and on the GPU."""
    run = jax.jit(lambda a, b: tilewright.jax.matmul(a, b))
    a, b = small(19, 24, dtype="float32"), small(24, 16, dtype="float32", seed=1)
    for place in (jax.devices("gpu")[0], jax.devices("cpu")[0]):
        result = run(*(jax.device_put(x, place) for x in (a, b)))
        assert result.devices() == {place}
        assert (np.asarray(result) == np.asarray(a) @ np.asarray(b)).all()


@pytest.mark.parametrize("axes", [(None, None, 0), (0, None, 0), (None, 0, 0), (0, 0, 0), (None, 0, None)])
def test_batches_of_biases_are_exact(axes):
    def arrays(*shapes):
        return [
            small(*(3,) * (axis == 0), *shape, dtype="float32" if len(shape) == 1 else "float16", seed=n)
            for n, (axis, shape) in enumerate(zip(axes, shapes, strict=True))
        ]

    for run, shapes in (
        (functools.partial(tilewright.jax.matmul, out_dtype="f32"), ((37, 40), (40, 24), (24,))),
        (functools.partial(tilewright.jax.conv2d, out_dtype="f32"), ((2, 9, 8, 16), (24, 3, 3, 16), (24,))),
    ):
        given = arrays(*shapes)
        found = jax.jit(jax.vmap(run, axes))(*given)
        for member in range(3):
            wanted = run(*(x[member] if axis == 0 else x for x, axis in zip(given, axes, strict=True)))
            assert (np.asarray(found[member]) == np.asarray(wanted)).all()


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_batches_of_operators_are_exact(axes):
    a, b = small(*(3,) * (axes[0] == 0), 37, 40), small(*(3,) * (axes[1] == 0), 40, 24, seed=1)
    wanted = np.asarray(a, np.float32) @ np.asarray(b, np.float32)
    run = functools.partial(tilewright.jax.matmul, out_dtype="f32")
    assert (np.asarray(jax.jit(jax.vmap(run, axes))(a, b)) == wanted).all()
    x, w = small(*(3,) * (axes[0] == 0), 2, 9, 8, 16), small(*(3,) * (axes[1] == 0), 24, 3, 3, 16, seed=1)
    convolve = functools.partial(tilewright.jax.conv2d, out_dtype="f32", padding=1)
    found = jax.jit(jax.vmap(convolve, axes))(x, w)
    for member in range(3):
        wanted = convolve(*(v[member] if axis == 0 else v for v, axis in zip((x, w), axes, strict=True)))
        assert (np.asarray(found[member]) == np.asarray(wanted)).all()


def test_a_kernel_for_cpus_on_a_gpu_is_refused():
    run = tilewright.jax.function(tilewright.compile(gemm("nn", "f32")))
    a, b = small(8, 8, dtype="float32"), small(8, 8, dtype="float32")
    with pytest.raises(REPORTED, match="this kernel is compiled for CPUs, and its arrays lie on a GPU"):
        jax.jit(run)(a, b).block_until_ready()
