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
from tilewright.ir.dtypes import element_type
from tilewright.jax import matmul
from tilewright.jax.operators import differentiable
from tilewright.jax.products import _Product

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
        own = shape if inner else shape[1:]
        return small(*own) if axis is None else np.moveaxis(small(3, *own, seed=axis), 0, axis)

    a, b = batch(axes[0], 2, 5, 6), batch(axes[1], 2, 6, 4)
    batched = jax.vmap(matmul, axes)
    assert_same(batched(a, b), jax.vmap(jnp.matmul, axes)(a, b))
    assert_same(jax.vmap(squares(matmul), axes)(a, b), jax.vmap(squares(jnp.matmul), axes)(a, b))
    assert str(jax.make_jaxpr(batched)(a, b)).count("tilewright_kernel") == 1


def custom_call(function: Any, *arrays: Any) -> str:
    """Return the types of the arguments and the result of the only custom call in a function's lowered program."""
    (line,) = [x for x in jax.jit(function).lower(*arrays).as_text().splitlines() if "custom_call @tilewright" in x]
    return line.rpartition(" : ")[2].replace("tensor", "")


A, B, BIAS = (5, 6), (6, 4), (4,)


@pytest.mark.parametrize(
    ("axes", "call"),
    [
        ((0, None, None), "(<15x6xf32>, <6x4xf32>, <4xf32>) -> <15x4xf32>"),
        ((None, 0, None), "(<5x6xf32>, <3x6x4xf32>, <4xf32>) -> <3x5x4xf32>"),
        ((None, None, 0), "(<3x5x6xf32>, <6x4xf32>, <3x4xf32>) -> <3x5x4xf32>"),
        ((0, 0, None), "(<3x5x6xf32>, <3x6x4xf32>, <4xf32>) -> <3x5x4xf32>"),
        ((0, None, 0), "(<3x5x6xf32>, <6x4xf32>, <3x4xf32>) -> <3x5x4xf32>"),
        ((None, 0, 0), "(<5x6xf32>, <3x6x4xf32>, <3x4xf32>) -> <3x5x4xf32>"),
        ((0, 0, 0), "(<3x5x6xf32>, <3x6x4xf32>, <3x4xf32>) -> <3x5x4xf32>"),
    ],
)
def test_each_batch_is_one_run_of_a_kernel(axes, call):
    """XLA's buffers are all that the kernel reads and writes: nothing is left for a loop over members."""
    arrays = [
        small(*(3,) * (axis == 0), *shape, seed=n)
        for n, (axis, shape) in enumerate(zip(axes, (A, B, BIAS), strict=True))
    ]

    def theirs(a: Any, b: Any, bias: Any) -> Any:
        return jax.nn.relu(a @ b + bias)

    def ours(a: Any, b: Any, bias: Any) -> Any:
        return matmul(a, b, bias, activation="relu")

    assert_same(jax.vmap(ours, axes)(*arrays), jax.vmap(theirs, axes)(*arrays))
    assert_same(jax.vmap(squares(ours), axes)(*arrays), jax.vmap(squares(theirs), axes)(*arrays))
    assert custom_call(jax.vmap(ours, axes), *arrays) == call


@pytest.mark.parametrize("outer", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0)])
@pytest.mark.parametrize("inner", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, None)])
def test_batches_within_batches_are_one_call(outer, inner):
    arrays = [
        small(*(2,) * (o == 0), *(3,) * (i == 0), *shape, seed=n)
        for n, (o, i, shape) in enumerate(zip(outer, inner, (A, B, BIAS), strict=True))
    ]
    found = jax.vmap(jax.vmap(matmul, inner), outer)
    wanted = jax.vmap(jax.vmap(lambda a, b, bias: a @ b + bias, inner), outer)
    assert_same(found(*arrays), wanted(*arrays))
    assert custom_call(found, *arrays).count("->") == 1


@pytest.mark.parametrize("transposes", ["nn", "nt", "tn"])
@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)])
def test_products_of_gradients_take_batches(transposes, axes):
    """Gradients are products of transposed operands, which have the batch or not."""
    product = differentiable(_Product(kind=element_type("f32"), out=element_type("f32"), transposes=transposes))
    a, b = (
        small(*(3,) * (axis == 0), *(shape if letter == "n" else shape[::-1]), seed=n)
        for n, (axis, shape, letter) in enumerate(zip(axes, (A, B), transposes, strict=True))
    )

    def plain(a: Any, b: Any) -> Any:
        return (a if transposes[0] == "n" else a.T) @ (b if transposes[1] == "n" else b.T)

    assert_same(jax.vmap(product, axes)(a, b), jax.vmap(plain, axes)(a, b))
    assert custom_call(jax.vmap(product, axes), a, b).count("->") == 1


def test_an_empty_batch():
    a, b = small(0, 5, 6), small(6, 4)
    assert_same(jax.vmap(matmul, (0, None))(a, b), np.zeros((0, 5, 4), np.float32))
    assert_same(jax.vmap(matmul, (None, 0))(a[:, 0], small(3, 6, 4)), np.zeros((3, 0, 4), np.float32))
    assert_same(jax.vmap(matmul, (0, None))(small(3, 5, 0), small(0, 4)), np.zeros((3, 5, 4), np.float32))


def test_forward_mode_is_refused():
    a, b = small(5, 6), small(6, 4)
    with pytest.raises(TypeError, match=r"forward-mode autodiff \(jvp\)"):
        jax.jvp(matmul, (a, b), (a, b))


def test_an_operator_runs_without_jit():
    a, b = small(5, 6), small(6, 4)
    with jax.disable_jit():
        assert_same(matmul(a, b), a @ b)


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
