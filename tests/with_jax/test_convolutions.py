"""`tilewright.jax.conv1d` to `conv3d`: as JAX's own convolutions and their derivatives, exactly on small integers."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import assert_same, small, squares

from tilewright.errors import ArgumentError
from tilewright.jax import conv1d, conv2d, conv3d

CASES: list[tuple[Any, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    (conv2d, (2, 9, 7, 3), (4, 3, 2, 3), {}),
    (conv2d, (2, 9, 8, 3), (4, 3, 2, 3), {"stride": 2, "padding": ((1, 0), 2)}),
    (conv2d, (1, 10, 9, 3), (4, 3, 3, 3), {"stride": (3, 2), "padding": 4, "dilation": (1, 2)}),
    (conv2d, (2, 6, 7, 6), (4, 3, 3, 3), {"groups": 2, "padding": "same"}),
    (conv2d, (2, 6, 7, 4), (8, 3, 3, 1), {"groups": 4, "padding": 1, "stride": 2}),
    (conv1d, (2, 11, 3), (5, 4, 3), {"stride": 3}),
    (conv3d, (1, 4, 5, 6, 2), (3, 2, 3, 1, 2), {"padding": 1}),
]


def reference(x: Any, w: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    axes = x.ndim - 2
    steps, far = ((v,) * axes if isinstance(v, int) else v for v in (stride, dilation))
    ends = padding.upper() if isinstance(padding, str) else (padding,) * axes if isinstance(padding, int) else padding
    if not isinstance(ends, str):
        ends = [(p, p) if isinstance(p, int) else p for p in ends]
    names = "DHW"[-axes:]
    dims = (f"N{names}C", f"O{names}I", f"N{names}C")
    return jax.lax.conv_general_dilated(
        x, w, steps, ends, rhs_dilation=far, feature_group_count=groups, dimension_numbers=dims
    )


@pytest.mark.parametrize(("function", "image", "filters", "options"), CASES)
def test_convolutions_their_derivatives_and_batches(function, image, filters, options):
    x, w, bias = small(*image), small(*filters, seed=1), small(filters[0], seed=2)
    assert_same(jax.jit(lambda x, w: function(x, w, **options))(x, w), reference(x, w, **options))
    ours = squares(lambda x, w, b: function(x, w, b, activation="relu", **options))
    assert_same(
        jax.jit(ours)(x, w, bias), squares(lambda x, w, b: jax.nn.relu(reference(x, w, **options) + b))(x, w, bias)
    )
    images, banks = small(3, *image), small(3, *filters, seed=1)
    by_image = jax.vmap(lambda x: function(x, w, **options))
    assert_same(by_image(images), jnp.stack([reference(x, w, **options) for x in images]))
    assert str(jax.make_jaxpr(by_image)(images)).count("tilewright_kernel") == 1
    by_both = jax.vmap(lambda x, w: function(x, w, **options))
    wanted = jnp.stack([reference(x, w, **options) for x, w in zip(images, banks, strict=True)])
    assert_same(by_both(images, banks), wanted)


@pytest.mark.parametrize(
    "axes", [(None, 0, None), (0, 0, None), (0, 0, 0), (0, None, 0), (None, None, 0), (None, 0, 0)]
)
@pytest.mark.parametrize(("function", "image", "filters", "options"), CASES[2:])
def test_a_batch_of_filters_or_biases_is_one_call(function, image, filters, options, axes):
    """Every buffer of the call has its batch, so that the kernel runs once."""
    shapes = (image, filters, filters[:1])
    arrays = [
        small(*(3,) * (axis == 0), *shape, seed=n) for n, (axis, shape) in enumerate(zip(axes, shapes, strict=True))
    ]
    batched = jax.vmap(lambda x, w, b: function(x, w, b, **options), axes)
    wanted = jax.vmap(lambda x, w, b: reference(x, w, **options) + b, axes)(*arrays)
    assert_same(batched(*arrays), wanted)
    calls = [x for x in jax.jit(batched).lower(*arrays).as_text().splitlines() if "custom_call @tilewright" in x]
    assert len(calls) == 1
    assert f"-> tensor<{'x'.join(map(str, wanted.shape))}xf32>" in calls[0]
    gradients = jax.vmap(squares(lambda x, w, b: function(x, w, b, **options)), axes)(*arrays)
    assert_same(gradients, jax.vmap(squares(lambda x, w, b: reference(x, w, **options) + b), axes)(*arrays))


def test_derivatives_have_derivatives():
    x, w = small(1, 5, 4, 2), small(3, 2, 3, 2, seed=1)

    def twice(convolution: Any) -> Any:
        inner = jax.grad(lambda x, w: (convolution(x, w) ** 3).sum(), (0, 1))
        return jax.grad(lambda x, w: sum((y**2).sum() for y in inner(x, w)) / 1024, (0, 1))

    ours, theirs = (partial(f, stride=2, padding=1) for f in (conv2d, reference))
    for found, wanted in zip(twice(ours)(x, w), twice(theirs)(x, w), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_bf16():
    x, w = small(2, 9, 7, 3), small(4, 3, 2, 3, seed=1)
    found = conv2d(jnp.asarray(x, jnp.bfloat16), jnp.asarray(w, jnp.bfloat16))
    assert_same(found, reference(x, w).astype(jnp.bfloat16))


def test_empty_images():
    x, w = small(0, 5, 5, 1), small(2, 3, 3, 1)
    assert_same(conv2d(x, w), np.zeros((0, 3, 3, 2), np.float32))
    assert_same(squares(conv2d)(x, w), (x, np.zeros_like(w)))


def test_wrong_arguments_are_refused_by_name():
    x, w = small(2, 9, 7, 3), small(4, 3, 2, 3)
    for call, says in (
        (lambda: conv2d(x, small(4, 3, 2, 5)), "x has 3 channels; the weights take 5"),
        (lambda: conv2d(x, w, dynamic="batch"), "dynamic='batch': shapes are known when JAX traces"),
        (lambda: conv2d(x, w, target="cuda"), "target='cuda': it runs where JAX does"),
        (lambda: conv2d(x, small(4, 3, 3)), r"w has shape \(4, 3, 3\), 3 dimensions; it takes 4"),
        (lambda: conv2d(x, small(4, 30, 2, 3)), "a filter of 30x2 does not fit"),
        (lambda: conv2d(x, w.astype(np.float16)), "x holds float32, the weights float16"),
        (lambda: conv2d(x, w, small(3)), "bias has 3 elements"),
    ):
        with pytest.raises(ArgumentError, match=says):
            call()
