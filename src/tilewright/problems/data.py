"""Test data: integers so small that every sum is exact, and real numbers with a stated error bound.

Exact data find every error of indexing: whatever the order of the sums, the tiling or the machine, the result is
the reference to the last bit. They do not test accuracy; for that there are real data and `real_bound`.

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
    """Return (shape of the first operand, shape of the second operand) of the problem for this `direction`.

    The operands are input and weights for "forward", output gradient and weights for "dgrad", input and output gradient
    for "wgrad". Images are in the order (batch, channels, spatial...), weights (groups if any, output, input channels,
    spatial...). A matrix product has only "forward": (..., m, k) and (..., k, n). Raise ProblemError for another
    direction.

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
    """Return the number of products in the longest sum of the problem, which is the K of the equivalent matrix product.

    `direction` is "forward", "dgrad" (gradient of the input) or "wgrad" (gradient of the weights). Products with
    padding are counted. Raise ProblemError for a direction that the problem lacks.

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
    """Return (first operand, second operand): random integers so small that every sum of products is exact, in any
    order.

    `dtype` is the operands' element type, or two types as in "u8:s8". `rng` draws the integers. `direction` is
    "forward", "dgrad" or "wgrad", which decides what the operands are (see `operand_shapes`). `accumulator` and
    `result` are element types; "" means f32 (f64 for f64, s32 for integers) for the accumulator and the first operand's
    type (s32 for integers) for the result.

    For each element of the result, the magnitudes of its products add up to at most n, where accumulator and result
    hold all integers up to n. If small values alone do not ensure that, elements of one operand are replaced by 0: of
    the input for "forward", of the output gradient for "dgrad" and "wgrad", of the left operand of a matrix product.
    Raise ProblemError for types or a direction that are not supported.

    >>> from tilewright.problems.conv import parse_conv
    >>> problem = parse_conv("mb1ic64ih9oc8kh3ph1")
    >>> x, w = exact_data(problem, "bf16", np.random.default_rng(0))
    >>> x.dtype, x.shape, w.shape
    (dtype(bfloat16), (1, 64, 9, 9), (8, 64, 3, 3))
    >>> bool(conv_forward(problem, abs(x), abs(w)).max() <= 256)
    True
    """
    types = _operand_types(dtype)
    integer = types[0].is_integer
    accumulator_type = find_dtype(accumulator or ("s32" if integer else "f64" if types[0].name == "f64" else "f32"))
    result_type = find_dtype(result or ("s32" if integer else types[0].name))
    shapes = operand_shapes(problem, direction)
    max_magnitudes = _max_magnitudes(problem, types, result_type)
    # Weights are even if both operands are s8, for machines that first multiply by halved weights.
    halved = direction != "wgrad" and all(element_type.name == "s8" for element_type in types)
    values = [
        _random_multiples(
            rng, shape, bound, element_type.signed and result_type.signed, 2 if halved and operand == 1 else 1
        )
        for operand, (shape, bound, element_type) in enumerate(zip(shapes, max_magnitudes, types, strict=True))
    ]
    sparse_operand, dense_operand = (1, 0) if direction == "wgrad" else (0, 1)
    limit = min(accumulator_type.exact_limit, result_type.exact_limit) // max_magnitudes[dense_operand]
    values[sparse_operand] = _make_sparse(
        values[sparse_operand], max_magnitudes[sparse_operand], limit, problem, direction, rng
    )
    first, second = (value.astype(element_type.numpy) for value, element_type in zip(values, types, strict=True))
    return first, second


def real_data(
    problem: Problem, dtype: str, rng: np.random.Generator, *, direction: str = "forward"
) -> tuple[Array, Array]:
    """Return (first operand, second operand): normally distributed random numbers, rounded to the element type.

    Integer types get uniformly distributed integers of their full range. `rng` draws the numbers. `dtype` is the
    operands' element type, or two types as in "u8:s8". `direction` is "forward", "dgrad" or "wgrad", which decides the
    operands' shapes (see `operand_shapes`). Raise ProblemError for types or a direction that are not supported.

    >>> from tilewright.problems.matmul import parse_matmul
    >>> a, b = real_data(parse_matmul("30x64:64x5"), "f16", np.random.default_rng(0))
    >>> a.dtype, a.shape, b.shape
    (dtype('float16'), (30, 64), (64, 5))
    """
    operands = []
    for element_type, shape in zip(_operand_types(dtype), operand_shapes(problem, direction), strict=True):
        if element_type.is_integer:
            lowest = -element_type.exact_limit - 1 if element_type.signed else 0
            operands.append(
                rng.integers(lowest, element_type.exact_limit, shape, endpoint=True).astype(element_type.numpy)
            )
        else:
            operands.append(rng.standard_normal(shape).astype(element_type.numpy))
    first, second = operands
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
    """Return, for each element, an upper bound of the distance of a computed result from `exact` if its only errors are
    roundings. Raise ProblemError if K*e (below) is 0.5 or more.

    `exact` is the reference in float64, `magnitude` the same reference of the operands' absolute values, `terms` the
    number K of products in each sum. `accumulator` and `result` are the element types in which products are summed and
    the result is stored. With e the accumulator's eps (or the given `eps`, for machines that add with fewer bits) and t
    its smallest normal number, the bound is the sum of

    - gamma * magnitude, gamma = K*e / (1 - K*e): K roundings or truncations on the way of each product into its
      sum, in any order and grouping (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1);
    - 2*K*t: products and sums too small for the accumulator;
    - (2*u + u*u) * (1 + gamma) * magnitude, if `inputs` names a type to which the operands are rounded before they
      are multiplied, u being half its eps;
    - v * (abs(exact) + all of the above) + v * the result's smallest normal number, for the rounding of the result,
      v being half its eps; nothing where the result is of the accumulator's type.

    It holds while neither accumulator nor result overflows. The roundings of the reference itself, K times 2**-53, are
    covered by using eps, twice the error of rounding to nearest, unless the accumulator is f64: then gamma is doubled.
    Integer results have no rounding: the bound is 0.

    >>> bound = real_bound(64, np.array([50.0]), np.array([3.0]))
    >>> bound.item() < 50 * 64 * 2**-22
    True
    >>> real_bound(64, np.array([50.0]), np.array([3.0]), result="bf16").item() > 3 * 2**-9
    True
    """
    accumulator_type, result_type = find_dtype(accumulator), find_dtype(result)
    magnitudes = np.abs(np.asarray(magnitude, dtype=np.float64))
    if accumulator_type.is_integer:
        return np.zeros_like(magnitudes)
    unit = accumulator_type.eps if eps is None else eps
    if terms * unit >= 0.5:
        raise ProblemError(f"a sum of {terms} terms has no useful bound with eps = {unit}; use a shorter one")
    gamma = terms * unit / (1 - terms * unit)
    if accumulator_type.name == "f64":
        gamma *= 2
    bound = gamma * magnitudes + 2 * terms * accumulator_type.tiny
    if inputs:
        half = find_dtype(inputs).eps / 2
        bound += (2 * half + half * half) * (1 + gamma) * magnitudes
    if result_type != accumulator_type:
        bound += result_type.eps / 2 * (np.abs(exact) + bound + result_type.tiny)
    return np.asarray(bound)


def nearest_bound(terms: int, magnitude: Array, accumulator: str) -> Array:
    """Return, for each element, an upper bound of the error of a sum of K = `terms` products in the type `accumulator`.

    It holds if every rounding is to nearest. `magnitude` has, for each element, the sum of the products' absolute
    values.

    The bound is K * (v * magnitude + s), v being half the accumulator's eps and s its smallest number above 0. It holds
    for any order and length of the sum (Jeannerod and Rump, Improved error bounds for inner products in floating-point
    arithmetic, 2013), while nothing overflows. For long sums in f16, `real_bound` has no bound; this has.

    >>> nearest_bound(1000, np.array([50.0]), "f16").item() < 50 * 1000 * 2.0**-10
    True
    """
    accumulator_type = find_dtype(accumulator)
    magnitudes = np.abs(np.asarray(magnitude, dtype=np.float64))
    return np.asarray(terms * (accumulator_type.eps / 2 * magnitudes + accumulator_type.tiny * accumulator_type.eps))


def _check_direction(problem: Problem, direction: str) -> None:
    """Raise ProblemError unless `direction` is "forward" or, for a convolution, "dgrad" or "wgrad"."""
    allowed = ("forward",) if isinstance(problem, MatmulProblem) else ("forward", "dgrad", "wgrad")
    if direction not in allowed:
        raise ProblemError(f"the direction is {direction!r}; this problem has {', '.join(allowed)}")


def _operand_types(text: str) -> tuple[Dtype, Dtype]:
    """Return (type of the first operand, type of the second operand) that `text` describes: one type for both, or two
    as in "u8:s8".

    The two must be both floats or both integers. Raise ProblemError for any other text.
    """
    types = [find_dtype(name) for name in text.split(":")]
    if len(types) > 2 or types[0].is_integer != types[-1].is_integer:
        raise ProblemError(f"the operands' types are {text!r}; give one type, or two of a kind as in u8:s8")
    if any(element_type.name not in _RANGES for element_type in types):
        raise ProblemError(f"the operands' types are {text!r}; there are {', '.join(_RANGES)}")
    return types[0], types[-1]


def _max_magnitudes(problem: Problem, types: tuple[Dtype, Dtype], result: Dtype) -> tuple[int, int]:
    """Return the largest magnitudes of the random integers of both operands: (of the first operand, of the second
    operand).

    `types` are the operands' element types, and `result` is that of the result. A u8 operand may be larger if the
    result's type has 32 bits or more.
    """
    limits = []
    for operand, element_type in enumerate(types):
        ranges = _RANGES
        if isinstance(problem, MatmulProblem) and element_type.name in _MATMUL_RANGES:
            ranges = _MATMUL_RANGES
        wide = element_type.name == "u8" and result.numpy.itemsize >= 4
        limits.append(_WIDE_U8 if wide else ranges[element_type.name][operand])
    return limits[0], limits[1]


def _random_multiples(rng: np.random.Generator, shape: tuple[int, ...], largest: int, signed: bool, step: int) -> Array:
    """Return an array of this `shape` with random multiples of `step`, at most `largest` in magnitude, drawn from
    `rng`.

    If `signed` is false, no element is negative.
    """
    steps = largest // step
    return step * rng.integers(-steps if signed else 0, steps, shape, endpoint=True)


def _make_sparse(
    values: Array, largest: int, limit: int, problem: Problem, direction: str, rng: np.random.Generator
) -> Array:
    """Return `values`, an operand of the problem, with random elements replaced by 0 so that sums stay small.

    For each result, the magnitudes of the elements that contribute to it add up to at most `limit`. Elements of larger
    magnitude than `limit` are clipped. `rng` chooses the elements that become 0, as many as needed. `largest` is the
    largest magnitude that `values` may have: if sums cannot exceed `limit`, `values` is returned unchanged. `direction`
    is "forward", "dgrad" or "wgrad".
    """
    term_count = terms(problem, direction)
    if term_count * largest <= limit or not values.size:
        return values
    values = np.clip(values, -limit, limit)
    random = rng.random(values.shape)
    share = np.full(values.shape, limit / (term_count * largest))
    while True:
        sparse = np.where(random < share, values, 0)
        too_large = _sum_magnitudes(np.abs(sparse), problem, direction) > limit
        if not too_large.any():
            return sparse
        share[_contributes_to(too_large, problem, direction)] *= 0.8


def _sum_magnitudes(magnitudes: Array, problem: Problem, direction: str) -> Array:
    """Return, for each result of the problem, the sum of the elements of `magnitudes` that contribute to it.

    `magnitudes` has the absolute values of one operand: the second for "wgrad", else the first. Results that differ
    only in an index of the other operand have the same sum, and share one element of the returned array.
    """
    if isinstance(problem, MatmulProblem):
        return np.asarray(magnitudes.sum(axis=-1))
    if direction == "wgrad":
        return np.asarray(magnitudes.sum(axis=(0, *range(2, magnitudes.ndim))))
    channels = magnitudes.reshape(problem.mb, problem.groups, -1, *magnitudes.shape[2:]).sum(axis=2)
    return _convolve_with_ones(channels, problem, forward=direction == "forward")


def _contributes_to(sums: Array, problem: Problem, direction: str) -> Array:
    """Return a boolean array with the shape of one operand: True for elements that contribute to a result marked in
    `sums`.

    `sums` is a boolean array of the form that `_sum_magnitudes` returns. The operand is the second for "wgrad", else
    the first.
    """
    shape = operand_shapes(problem, direction)[1 if direction == "wgrad" else 0]
    if isinstance(problem, MatmulProblem):
        return np.broadcast_to(sums[..., None], shape)
    if direction == "wgrad":
        return np.broadcast_to(sums.reshape(-1, *(1,) * problem.rank), shape)
    contributes = _convolve_with_ones(sums.astype(np.int64), problem, forward=direction != "forward") > 0
    return np.repeat(contributes, shape[1] // problem.groups, axis=1)


def _convolve_with_ones(array: Array, problem: ConvProblem, *, forward: bool) -> Array:
    """Return the convolution of `array`, which has one channel for each group of the problem, with a filter of ones.

    Each channel is convolved separately. If `forward` is false, `array` is the gradient of the output, and the gradient
    of the input is returned.
    """
    depthwise = replace(problem, ic=problem.groups, oc=problem.groups, g=problem.groups)
    return (conv_forward if forward else conv_dgrad)(depthwise, array, np.ones(depthwise.w_shape, np.int64))
