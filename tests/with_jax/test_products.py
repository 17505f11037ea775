"""`tilewright.jax.matmul`: products, their derivatives and batches, exactly as JAX's own on small integers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import assert_same, small, squares, two_devices
from jax.sharding import PartitionSpec as Spec

from tilewright.errors import ArgumentError
from tilewright.jax import matmul

SHAPES = [((7, 12), (12, 5)), ((2, 3, 7, 12), (12, 5)), ((2, 3, 7, 12), (2, 3, 12, 5)), ((1, 7, 3), (1, 3, 5))]


@pytest.mark.parametrize("shapes", SHAPES)
def test_products_and_their_derivatives(shapes):
    a, b = small(*shapes[0]), small(*shapes[1], seed=1)
    assert_same(matmul(a, b), a @ b)
    assert_same(jax.jit(squares(matmul))(a, b), squares(jnp.matmul)(a, b))


def test_derivatives_have_derivatives():
    a, b = small(3, 4), small(4, 2, seed=1)

    def twice(product: Any) -> Any:
        inner = jax.grad(lambda a, b: (product(a, b) ** 3).sum(), (0, 1))
        return jax.grad(lambda a, b: sum((x**2).sum() for x in inner(a, b)) / 1024, (0, 1))

    for found, wanted in zip(twice(matmul)(a, b), twice(jnp.matmul)(a, b), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "silu"])
def test_bias_and_activation_have_derivatives(name):
    a, b, bias = small(2, 7, 12), small(12, 5, seed=1), small(5, seed=2)
    function = getattr(jax.nn, name.removesuffix("_tanh"))
    options = {"approximate": name.endswith("tanh")} if name.startswith("gelu") else {}

    def ours(a: Any, b: Any, bias: Any) -> Any:
        return matmul(a, b, bias, activation=name)

    def theirs(a: Any, b: Any, bias: Any) -> Any:
        return function(a @ b + bias, **options)

    for mine, other in zip(squares(ours)(a, b, bias), squares(theirs)(a, b, bias), strict=True):
        if name == "relu":
            assert_same(mine, other)
        else:
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (2, 1)])
@pytest.mark.parametrize("inner", [False, True])
def test_vmap_is_one_product(axes, inner):
    def batch(axis: int | None, *shape: int) -> Any:
        own = shape if inner or len(shape) == 2 else shape[1:]
        return small(*own) if axis is None else np.moveaxis(small(3, *own, seed=axis), 0, axis)

    a, b = batch(axes[0], 2, 5, 6), batch(axes[1], 2, 6, 4)
    batched = jax.vmap(matmul, axes)
    assert_same(batched(a, b), jax.vmap(jnp.matmul, axes)(a, b))
    assert_same(jax.vmap(squares(matmul), axes)(a, b), jax.vmap(squares(jnp.matmul), axes)(a, b))
    assert str(jax.make_jaxpr(batched)(a, b)).count("tilewright_kernel") == 1


def test_rows_of_a_batch_become_rows_of_one_product():
    a, b = small(3, 5, 6), small(6, 4, seed=1)
    text = jax.jit(jax.vmap(matmul, (0, None))).lower(a, b).as_text()
    assert "tensor<15x6xf32>, tensor<6x4xf32>) -> tensor<15x4xf32>" in text
    assert_same(jax.vmap(matmul, (0, None, 0))(a, b, small(3, 4)), a @ b + small(3, 4)[:, None])


def test_shard_map_sums_the_derivative_by_what_is_shared():
    mesh = two_devices()
    a, b = small(14, 12), small(12, 5, seed=1)
    parted = jax.shard_map(matmul, mesh=mesh, in_specs=(Spec("i"), Spec()), out_specs=Spec("i"))
    assert_same(jax.jit(parted)(a, b), a @ b)
    assert_same(jax.jit(squares(parted))(a, b), squares(jnp.matmul)(a, b))


def test_bf16_and_its_derivatives():
    a, b = (jnp.asarray(x, jnp.bfloat16) for x in (small(5, 12), small(12, 4, seed=1)))
    assert_same(matmul(a, b), jnp.asarray(small(5, 12) @ small(12, 4, seed=1), jnp.bfloat16))
    wide = matmul(a, b, out_dtype="f32")
    assert_same(wide, jnp.asarray(small(5, 12) @ small(12, 4, seed=1)))
    for out in (None, "f32"):
        found = jax.grad(lambda a, b, out=out: matmul(a, b, out_dtype=out).sum(), (0, 1))(a, b)
        assert_same(found, jax.grad(lambda a, b: jnp.matmul(a, b).sum(), (0, 1))(a, b))


def test_integers_and_empty_products():
    a, b = small(5, 12, dtype=np.int8), small(12, 4, seed=1, dtype=np.int8)
    assert_same(matmul(a, b, out_dtype="i32"), a.astype(np.int32) @ b.astype(np.int32))
    assert_same(matmul(small(0, 4), small(4, 3)), np.zeros((0, 3), np.float32))
    assert_same(matmul(small(2, 0), small(0, 3)), np.zeros((2, 3), np.float32))
    assert_same(squares(matmul)(small(2, 0), small(0, 3)), (small(2, 0), small(0, 3)))


def test_wrong_arguments_are_refused_by_name():
    a, b = small(3, 4), small(4, 2)
    for call, says in (
        (lambda: matmul(a, a), "a is 3x4, b 3x4: they do not fit"),
        (lambda: matmul(a, b.astype(np.float16)), "a holds float32, b float16: convert one"),
        (lambda: matmul(a, b, small(4)), "bias has 4 elements; there are 2 columns"),
        (lambda: matmul(a[0], b), r"a has shape \(4,\), 1 dimensions; it takes at least 2"),
        (lambda: matmul(a, b, activation="tanh"), "activation='tanh': there are relu"),
        (lambda: matmul(a, b, out_dtype="f3"), "f3"),
        (lambda: matmul(a, b, precision="bf16"), "precision='bf16'"),
        (lambda: matmul(a, b, out_dtype="f64"), "the result holds float64, which JAX narrows now"),
        (
            lambda: matmul(jnp.ones((2, 2), jnp.int4), jnp.ones((2, 2), jnp.int4)),
            "a holds i4, of which XLA puts several",
        ),
        (lambda: matmul(jax.random.key(0).reshape(1, 1), b), "a holds key.*, which are no numbers"),
        (lambda: matmul(jnp.ones((2, 2), jnp.complex64), b), "a holds complex64"),
        (lambda: matmul([[1.0]], b), "a is a list; tilewright.jax takes arrays of JAX and numpy"),
    ):
        with pytest.raises(ArgumentError, match=says):
            call()
