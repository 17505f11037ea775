"""Small integers, so that sums are exact, and comparisons of what JAX gives."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest


def small(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    """Integers from -4 to 4 as numbers of a type."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


def assert_same(found: Any, wanted: Any) -> None:
    """Equal element by element, in shape and in type; one array, or tuples of them."""
    found, wanted = (x if isinstance(x, tuple) else (x,) for x in (found, wanted))
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.shape == theirs.shape
        assert np.dtype(mine.dtype) == np.dtype(theirs.dtype)
        assert np.array_equal(np.asarray(mine), np.asarray(theirs))


def squares(function: Any) -> Any:
    """The derivatives by all arrays of the sum of the squares of a function."""

    def gradients(*arrays: Any) -> Any:
        return jax.grad(lambda *x: (function(*x) ** 2).sum(), tuple(range(len(arrays))))(*arrays)

    return gradients


def two_devices() -> Any:
    """A mesh of two devices of the host."""
    if len(jax.devices("cpu")) < 2:
        pytest.skip("XLA was used before it was told of two devices")
    return jax.make_mesh((2,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
