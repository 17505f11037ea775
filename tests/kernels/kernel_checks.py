"""Running a kernel under test: poisoned outputs between guards, and the same again from its printed text."""

import numpy as np

import tilewright
from tilewright.ir.dtypes import dtype as element_type
from tilewright.ir.tile import parse_tile

GUARD = 32
POISON = -77


def form(name):
    return element_type(name).numpy


def poisoned(shape, dtype):
    """An array full of NaN (of -77 for integers) inside a larger buffer full of it; both."""
    value = np.nan if element_type(dtype).is_float else POISON
    buffer = np.full(int(np.prod(shape)) + 2 * GUARD, value, form(dtype))
    return buffer[GUARD:-GUARD].reshape(shape), buffer


def run(made, inputs, shape, dtype, *, fresh=None):
    """The output of a kernel (or of a kernel with its symbols) for these inputs, an array of this shape and type.

    The kernel runs three times: as traced, from the program its text parses to, and from the text. All must agree,
    write nothing outside the output and leave the inputs alone. `fresh` is what the output holds before.
    """
    kernel, symbols = made if isinstance(made, tuple) else (made, {})
    executable = tilewright.compile(kernel, symbols, strict=True, target="executor")
    text = executable.text()
    program = parse_tile(text)
    assert str(program) == text
    before = [x.copy() for x in inputs]
    results = []
    for each in (
        executable,
        tilewright.compile(program, strict=True, target="executor"),
        tilewright.compile(text, strict=True, target="executor"),
    ):
        out, buffer = poisoned(shape, dtype)
        if fresh is not None:
            out[...] = fresh
        guards = buffer[:GUARD].tobytes() + buffer[-GUARD:].tobytes()
        assert each(*inputs, out) is None
        assert buffer[:GUARD].tobytes() + buffer[-GUARD:].tobytes() == guards
        results.append(out)
    assert all(r.tobytes() == results[0].tobytes() for r in results)
    assert all(x.tobytes() == y.tobytes() for x, y in zip(inputs, before, strict=True))
    return results[0]


def small_integers(rng, shape, dtype, largest=3):
    return rng.integers(-largest, largest, shape, endpoint=True).astype(form(dtype))


def normal(rng, shape, dtype, scale=1.0):
    return (scale * rng.standard_normal(shape)).astype(form(dtype))


def same(result, expected):
    """Equal to the last bit, as numbers: `expected` holds int64 or float64."""
    assert result.shape == expected.shape
    np.testing.assert_array_equal(result.astype(np.float64), expected.astype(np.float64))


F32 = 2.0**-23
"""Twice the largest error of rounding to f32."""


def rounding(dtype):
    """The largest relative error of rounding to this type, and the smallest normal number."""
    import ml_dtypes

    info = ml_dtypes.finfo(form(dtype))
    return float(info.eps) / 2, float(info.smallest_normal)


def within(result, exact, bound, dtype):
    """No further from `exact` than `bound` and the rounding to the result's type."""
    assert result.shape == exact.shape
    assert np.isfinite(exact).all()
    unit, tiny = rounding(dtype)
    distance = np.abs(result.astype(np.float64) - exact)
    allowed = bound + unit * (np.abs(exact) + bound) + tiny
    assert np.all(distance <= allowed), f"{np.max(distance / allowed)} times the bound"
