"""Test data: integers so small that every sum is exact, real numbers with a stated error bound.

Exact data find every error of indexing: whatever the order of the sums, the tiling or the machine, the result is
the reference to the last bit. They say nothing of accuracy; for that there are real data and `real_bound`.

Directions are "forward" (operands x and w), "dgrad" (y and w) and "wgrad" (x and y); a matrix product has only
"forward" (src and wei).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import ProblemError
from tilewright.problems.batch import Problem
from tilewright.problems.conv import ConvProblem
from tilewright.problems.dtypes import Dtype
from tilewright.problems.dtypes import dtype as find_dtype
from tilewright.problems.matmul import MatmulProblem
from tilewright.problems.reference import conv_dgrad, conv_forward

Array = npt.NDArray[Any]

# The largest magnitude of the first and of the second operand.
_RANGES = {
    "f64": (32, 32),
    "f32": (32, 32),
    "bf16": (4, 4),
    "f16": (4, 2),
    "f8e4m3fn": (4, 2),
    "f8e5m2": (4, 2),
    "s8": (4, 4),
    "u8": (8, 8),
}
_MATMUL_RANGES = {"f64": (64, 128), "f32": (64, 128)}
_WIDE_U8 = 160


def operand_shapes(problem: Problem, direction: str = "forward") -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shapes of the two operands, in the usual layouts ("ncx" and "oix" or "goix"; "mk" and "kn").

    >>> from tilewright.problems.conv import parse_conv
    >>> operand_shapes(parse_conv("mb1ic3ih8oc4kh3"), "dgrad")
    ((1, 4, 6, 6), (4, 3, 3, 3))
    """
    _check_direction(problem, direction)
    if isinstance(problem, MatmulProblem):
        return problem.src, problem.wei
    return (
        problem.y_shape if direction == "dgrad" else problem.x_shape,
        problem.y_shape if direction == "wgrad" else problem.w_shape,
    )


def terms(problem: Problem, direction: str = "forward") -> int:
    """How many products the longest sum of the problem may have: its K.

    >>> from tilewright.problems.conv import parse_conv
    >>> problem = parse_conv("mb5ic3ih8oc4kh3")
    >>> terms(problem), terms(problem, "dgrad"), terms(problem, "wgrad")
    (27, 36, 180)
    """
    _check_direction(problem, direction)
    if isinstance(problem, MatmulProblem):
        return problem.k
    if direction == "wgrad":
        return problem.mb * prod(problem.o)
    channels = problem.ic_per_group if direction == "forward" else problem.oc_per_group
    return channels * prod(problem.k)


def exact_data(
    problem: Problem,
    dtype: str,
    rng: np.random.Generator,
    *,
    direction: str = "forward",
    accumulator: str = "",
    result: str = "",
) -> tuple[Array, Array]:
    """Two operands of small integers for which every sum is exact, in any order and with any grouping.

    `dtype` is the operands' type, or two of them as in "u8:s8". The accumulator is f32 (f64, s32 for f64 and integer
    data), the result as the operands (s32 for integers), unless said otherwise. For each element of the result the
    magnitudes of all its products add up to no more than the integers that accumulator and result both hold without
    a gap. Where the ranges of the values do not ensure that, one operand is made sparse: x going forward, y going
    back, src of a matrix product.

    >>> from tilewright.problems.conv import parse_conv
    >>> problem = parse_conv("mb1ic64ih9oc8kh3ph1")
    >>> x, w = exact_data(problem, "bf16", np.random.default_rng(0))
    >>> x.dtype, x.shape, w.shape
    (dtype(bfloat16), (1, 64, 9, 9), (8, 64, 3, 3))
    >>> bool(conv_forward(problem, abs(x), abs(w)).max() <= 256)
    True
    """
    kinds = _two_types(dtype)
    integer = kinds[0].is_integer
    adds_in = find_dtype(accumulator or ("s32" if integer else "f64" if kinds[0].name == "f64" else "f32"))
    ends_in = find_dtype(result or ("s32" if integer else kinds[0].name))
    shapes = operand_shapes(problem, direction)
    largest = _largest(problem, kinds, ends_in)
    # Weights are even where both operands are s8, for machines that first multiply with halved weights.
    halved = direction != "wgrad" and all(kind.name == "s8" for kind in kinds)
    values = [
        _integers(rng, shape, bound, kind.signed and ends_in.signed, 2 if halved and place == 1 else 1)
        for place, (shape, bound, kind) in enumerate(zip(shapes, largest, kinds, strict=True))
    ]
    thin, full = (1, 0) if direction == "wgrad" else (0, 1)
    limit = min(adds_in.exact_limit, ends_in.exact_limit) // largest[full]
    values[thin] = _thinned(values[thin], largest[thin], limit, problem, direction, rng)
    first, second = (value.astype(kind.numpy) for value, kind in zip(values, kinds, strict=True))
    return first, second


def real_data(
    problem: Problem, dtype: str, rng: np.random.Generator, *, direction: str = "forward"
) -> tuple[Array, Array]:
    """Two operands of real numbers, normally distributed and rounded to `dtype`; integer types in their full range.

    >>> from tilewright.problems.matmul import parse_matmul
    >>> a, b = real_data(parse_matmul("30x64:64x5"), "f16", np.random.default_rng(0))
    >>> a.dtype, a.shape, b.shape
    (dtype('float16'), (30, 64), (64, 5))
    """
    made = []
    for kind, shape in zip(_two_types(dtype), operand_shapes(problem, direction), strict=True):
        if kind.is_integer:
            lowest = -kind.exact_limit - 1 if kind.signed else 0
            made.append(rng.integers(lowest, kind.exact_limit, shape, endpoint=True).astype(kind.numpy))
        else:
            made.append(rng.standard_normal(shape).astype(kind.numpy))
    first, second = made
    return first, second


def real_bound(
    terms: int,
    magnitude: Array,
    exact: Array,
    *,
    accumulator: str = "f32",
    result: str = "f32",
    eps: float | None = None,
    inputs: str = "",
) -> Array:
    """How far a computed result may lie from `exact`, element by element, when nothing but rounding is wrong.

    `exact` is the reference in float64, `magnitude` the same reference of the operands' absolute values, `terms` the
    length K of the sums. With e the accumulator's eps (or the given one, for machines that add with fewer bits) and
    t its smallest normal number, the bound is the sum of

    - gamma * magnitude, gamma = K*e / (1 - K*e): K roundings or truncations on the way of each product into its
      sum, in any order and grouping (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1);
    - 2*K*t: products and sums too small for the accumulator;
    - (2*u + u*u) * (1 + gamma) * magnitude, if `inputs` names a type to which the operands are rounded before they
      are multiplied, u being half its eps;
    - v * (abs(exact) + all of the above) + v * the result's smallest normal number, for the rounding of the result,
      v being half its eps; nothing where the result is of the accumulator's type.

    It holds while neither accumulator nor result overflows. The roundings of the reference itself, K times 2**-53,
    are covered by using eps, twice the error of rounding to nearest, unless the accumulator is f64: then gamma is
    doubled. Integer results have no rounding: the bound is 0.

    >>> bound = real_bound(64, np.array([50.0]), np.array([3.0]))
    >>> bound.item() < 50 * 64 * 2**-22
    True
    >>> real_bound(64, np.array([50.0]), np.array([3.0]), result="bf16").item() > 3 * 2**-9
    True
    """
    adds_in, ends_in = find_dtype(accumulator), find_dtype(result)
    size = np.abs(np.asarray(magnitude, dtype=np.float64))
    if adds_in.is_integer:
        return np.zeros_like(size)
    unit = adds_in.eps if eps is None else eps
    if terms * unit >= 0.5:
        raise ProblemError(f"a sum of {terms} terms has no useful bound with eps = {unit}; use a shorter one")
    gamma = terms * unit / (1 - terms * unit)
    if adds_in.name == "f64":
        gamma *= 2
    bound = gamma * size + 2 * terms * adds_in.tiny
    if inputs:
        half = find_dtype(inputs).eps / 2
        bound += (2 * half + half * half) * (1 + gamma) * size
    if ends_in != adds_in:
        bound += ends_in.eps / 2 * (np.abs(exact) + bound + ends_in.tiny)
    return np.asarray(bound)


def nearest_bound(terms: int, magnitude: Array, accumulator: str) -> Array:
    """How far a sum in the accumulator's type may lie from the exact one, when every rounding is to nearest.

    With v half the accumulator's eps and s its smallest number above 0, it is K * (v * magnitude + s), whatever the
    order of the sum and however long it is (Jeannerod and Rump, Improved error bounds for inner products in
    floating-point arithmetic, 2013), while nothing overflows. Of long sums of f16 `real_bound` says nothing; this does.

    >>> nearest_bound(1000, np.array([50.0]), "f16").item() < 50 * 1000 * 2.0**-10
    True
    """
    adds_in = find_dtype(accumulator)
    size = np.abs(np.asarray(magnitude, dtype=np.float64))
    return np.asarray(terms * (adds_in.eps / 2 * size + adds_in.tiny * adds_in.eps))


def _check_direction(problem: Problem, direction: str) -> None:
    allowed = ("forward",) if isinstance(problem, MatmulProblem) else ("forward", "dgrad", "wgrad")
    if direction not in allowed:
        raise ProblemError(f"the direction is {direction!r}; this problem has {', '.join(allowed)}")


def _two_types(text: str) -> tuple[Dtype, Dtype]:
    kinds = [find_dtype(name) for name in text.split(":")]
    if len(kinds) > 2 or kinds[0].is_integer != kinds[-1].is_integer:
        raise ProblemError(f"the operands' types are {text!r}; give one type, or two of a kind as in u8:s8")
    if any(kind.name not in _RANGES for kind in kinds):
        raise ProblemError(f"the operands' types are {text!r}; there are {', '.join(_RANGES)}")
    return kinds[0], kinds[-1]


def _largest(problem: Problem, kinds: tuple[Dtype, Dtype], result: Dtype) -> tuple[int, int]:
    """The largest magnitude of each operand."""
    found = []
    for place, kind in enumerate(kinds):
        ranges = _RANGES
        if isinstance(problem, MatmulProblem) and kind.name in _MATMUL_RANGES:
            ranges = _MATMUL_RANGES
        wide = kind.name == "u8" and result.numpy.itemsize >= 4
        found.append(_WIDE_U8 if wide else ranges[kind.name][place])
    return found[0], found[1]


def _integers(rng: np.random.Generator, shape: tuple[int, ...], largest: int, signed: bool, step: int) -> Array:
    """Random multiples of `step` up to `largest` in magnitude."""
    steps = largest // step
    return step * rng.integers(-steps if signed else 0, steps, shape, endpoint=True)


def _thinned(
    values: Array, largest: int, limit: int, problem: Problem, direction: str, rng: np.random.Generator
) -> Array:
    """The values with so many replaced by 0 that the magnitudes of those that meet in one sum add up to `limit`.

    Kept is a random share of them: at first as many as would do if all were largest and evenly spread; then fewer
    of those that have part in a sum that is still too large, until none is.
    """
    length = terms(problem, direction)
    if length * largest <= limit or not values.size:
        return values
    values = np.clip(values, -limit, limit)
    draw = rng.random(values.shape)
    share = np.full(values.shape, limit / (length * largest))
    while True:
        kept = np.where(draw < share, values, 0)
        too_large = _sums(np.abs(kept), problem, direction) > limit
        if not too_large.any():
            return kept
        share[_members(too_large, problem, direction)] *= 0.8


def _sums(magnitudes: Array, problem: Problem, direction: str) -> Array:
    """What the magnitudes that meet in one sum add up to, for all sums that differ in more than the other operand."""
    if isinstance(problem, MatmulProblem):
        return np.asarray(magnitudes.sum(axis=-1))
    if direction == "wgrad":
        return np.asarray(magnitudes.sum(axis=(0, *range(2, magnitudes.ndim))))
    channels = magnitudes.reshape(problem.mb, problem.groups, -1, *magnitudes.shape[2:]).sum(axis=2)
    return _through_ones(channels, problem, forward=direction == "forward")


def _members(sums: Array, problem: Problem, direction: str) -> Array:
    """Which elements have part in one of the sums that are marked."""
    shape = operand_shapes(problem, direction)[1 if direction == "wgrad" else 0]
    if isinstance(problem, MatmulProblem):
        return np.broadcast_to(sums[..., None], shape)
    if direction == "wgrad":
        return np.broadcast_to(sums.reshape(-1, *(1,) * problem.rank), shape)
    met = _through_ones(sums.astype(np.int64), problem, forward=direction != "forward") > 0
    return np.repeat(met, shape[1] // problem.groups, axis=1)


def _through_ones(array: Array, problem: ConvProblem, *, forward: bool) -> Array:
    """One channel for each group, through a filter of ones, forward or back."""
    depthwise = replace(problem, ic=problem.groups, oc=problem.groups, g=problem.groups)
    return (conv_forward if forward else conv_dgrad)(depthwise, array, np.ones(depthwise.w_shape, np.int64))
