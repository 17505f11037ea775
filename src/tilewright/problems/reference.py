"""Reference results of convolution and matrix product, in float64 or exactly in integers, for tests.

Plain and safe: a loop over the filter taps, each a product of whole slices. No code is shared with the compiler.
Data of integer types are computed in int64, everything else in float64.

Tensors come in any order of their axes, given by a string of letters, outermost first:

| tensor      | letters                                           | also                 | examples               |
|-------------|---------------------------------------------------|----------------------|------------------------|
| x, y        | n batch, c channels, then d, h, w                 | x for all of d, h, w | nchw, nhwc, ncx, nxc   |
| w           | o and i channels out and in, g groups, d, h, w    | x for all of d, h, w | oihw, hwio, goix, xgio |
| src, wei, dst | m, n, k; the batch axes always come first       |                      | mk, km; kn, nk; mn, nm |

i counts the input channels of one group. With g in the string, o counts the output channels of one group; without,
the output channels of all groups, group after group.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.errors import ProblemError
from tilewright.problems.conv import ConvProblem
from tilewright.problems.matmul import MatmulProblem

Array = npt.NDArray[Any]
Index = tuple[Any, ...]


def conv_forward(
    problem: ConvProblem,
    x: Array,
    w: Array,
    *,
    x_layout: str = "ncx",
    w_layout: str = "",
    y_layout: str = "ncx",
) -> Array:
    """Return the output y of the convolution of the input `x` with the weights `w`.

    y[n, o, q] is the sum over channels c and taps r of x[n, c, q*s + r*dilation - p] * w[o, c, r]; pixels outside the
    image count as 0. With groups, c runs over the input channels of the group of o. y is in int64 if both operands hold
    integers, else in float64.

    Layouts give the order of axes by letters, as in "nhwc" and "oihw", with x for all spatial axes; "" for w is "goix"
    for problems with a group axis, "oix" for others. Raise ProblemError for wrong layouts or shapes.

    >>> from tilewright.problems.conv import parse_conv
    >>> problem = parse_conv("mb1ic1iw4oc1kw3pw1")
    >>> conv_forward(problem, np.array([[[1, 2, 3, 4]]]), np.array([[[1, 10, 100]]])).tolist()
    [[[210, 321, 432, 43]]]
    """
    _check_layouts(problem, x=x_layout, w=w_layout, y=y_layout)
    images, filters = _as_compute_type(
        _grouped_image(problem, x, x_layout, "x"), _grouped_weights(problem, w, w_layout), _max_terms(problem)
    )
    result = np.zeros(_image_shape(problem, "y"), images.dtype)
    for first in range(0, problem.o[0], _outputs_per_step(problem)):
        output_slice = result[:, :, :, first : first + _outputs_per_step(problem)]
        for taps in _tap_groups(_taps(problem, first, output_slice.shape[3]), problem):
            pixels = np.zeros((*images.shape[:2], len(taps), images.shape[2], *output_slice.shape[3:]), images.dtype)
            for tap_index, (_, inputs, outputs) in enumerate(taps):
                pixels[:, :, tap_index][outputs] = images[inputs]
            rows = np.concatenate([filters[tap] for tap, _, _ in taps], axis=-1)
            columns = pixels.reshape(*pixels.shape[:2], rows.shape[-1], prod(output_slice.shape[3:]))
            output_slice += _batched_matmul(rows, columns).reshape(output_slice.shape)
    return _ungrouped_image(problem, _as_int64_if_integers(result, x, w), y_layout)


def conv_dgrad(
    problem: ConvProblem,
    y: Array,
    w: Array,
    *,
    y_layout: str = "ncx",
    w_layout: str = "",
    x_layout: str = "ncx",
) -> Array:
    """Return the gradient of the convolution's input, given the gradient `y` of its output and the weights `w`.

    Each input pixel sums y times w over all outputs and taps that read the pixel. The result is in int64 if both
    operands hold integers, else in float64.

    Layouts give the order of axes by letters, as in "nhwc" and "oihw", with x for all spatial axes; "" for w is "goix"
    for problems with a group axis, "oix" for others. Raise ProblemError for wrong layouts or shapes.

    >>> from tilewright.problems.conv import parse_conv
    >>> problem = parse_conv("mb1ic1iw4oc1kw3pw1")
    >>> conv_dgrad(problem, np.array([[[1, 2, 3, 4]]]), np.array([[[1, 10, 100]]])).tolist()
    [[[12, 123, 234, 340]]]
    """
    _check_layouts(problem, x=x_layout, w=w_layout, y=y_layout)
    y_grouped, filters = _as_compute_type(
        _grouped_image(problem, y, y_layout, "y"), _grouped_weights(problem, w, w_layout), _max_terms(problem)
    )
    result = np.zeros(_image_shape(problem, "x"), y_grouped.dtype)
    for tap, inputs, outputs in _taps(problem):
        pixels = y_grouped[outputs]
        contribution = _batched_matmul(filters[tap].swapaxes(1, 2), _flatten_pixels(pixels))
        result[inputs] += contribution.reshape(result[inputs].shape)
    return _ungrouped_image(problem, _as_int64_if_integers(result, y, w), x_layout)


def conv_wgrad(
    problem: ConvProblem,
    x: Array,
    y: Array,
    *,
    x_layout: str = "ncx",
    y_layout: str = "ncx",
    w_layout: str = "",
) -> Array:
    """Return the gradient of the convolution's weights, given its input `x` and the gradient `y` of its output.

    Each weight sums x times y over all images and output pixels. The result is in int64 if both operands hold integers,
    else in float64.

    Layouts give the order of axes by letters, as in "nhwc" and "oihw", with x for all spatial axes; "" for w is "goix"
    for problems with a group axis, "oix" for others. Raise ProblemError for wrong layouts or shapes.

    >>> from tilewright.problems.conv import parse_conv
    >>> problem = parse_conv("mb1ic1iw4oc1kw3pw1")
    >>> conv_wgrad(problem, np.array([[[1, 2, 3, 4]]]), np.array([[[1, 10, 100, 1000]]])).tolist()
    [[[3210, 4321, 432]]]
    """
    _check_layouts(problem, x=x_layout, w=w_layout, y=y_layout)
    images, y_grouped = _as_compute_type(
        _grouped_image(problem, x, x_layout, "x"), _grouped_image(problem, y, y_layout, "y"), _max_terms(problem)
    )
    groups, ic, oc = problem.groups, problem.ic_per_group, problem.oc_per_group
    result = np.zeros((groups, oc, ic, *problem.k), images.dtype)
    for tap, inputs, outputs in _taps(problem):
        left = np.moveaxis(y_grouped[outputs], 0, 2)
        right = np.moveaxis(images[inputs], 0, 2)
        length = prod(left.shape[2:])
        result[tap] = left.reshape(groups, oc, length) @ right.reshape(groups, ic, length).swapaxes(1, 2)
    result = _as_int64_if_integers(result, x, y)
    if "g" not in _weights_layout(problem, w_layout):
        result = result.reshape(problem.oc, *result.shape[2:])
        return _transpose(result, _expand_layout("oix", problem), _weights_layout(problem, w_layout))
    return _transpose(result, _expand_layout("goix", problem), _weights_layout(problem, w_layout))


def matmul_reference(
    problem: MatmulProblem,
    src: Array,
    wei: Array,
    *,
    src_layout: str = "mk",
    wei_layout: str = "kn",
    dst_layout: str = "mn",
) -> Array:
    """Return the matrix product of `src` and `wei`, for each matrix of the problem's batch.

    Batch extents of 1 are broadcast. The result is in int64 if both operands hold integers, else in float64. Layouts
    give the order of the last two axes: "mk" or "km", "kn" or "nk", "mn" or "nm". Raise ProblemError for other layouts
    and for shapes that are not the problem's.

    >>> from tilewright.problems.matmul import parse_matmul
    >>> problem = parse_matmul("2x3:3x1")
    >>> matmul_reference(problem, np.array([[1, 2, 3], [4, 5, 6]]), np.array([[100], [10], [1]])).tolist()
    [[123], [456]]
    """
    for what, layout, usual in (("src", src_layout, "mk"), ("wei", wei_layout, "kn"), ("dst", dst_layout, "mn")):
        if layout not in (usual, usual[::-1]):
            raise ProblemError(f"the {what} layout is {layout!r}; it is {usual!r} or {usual[::-1]!r}")
    left = src if src_layout == "mk" else src.swapaxes(-1, -2)
    right = wei if wei_layout == "kn" else wei.swapaxes(-1, -2)
    _check_shape(left, problem.src, "src, as mk,")
    _check_shape(right, problem.wei, "wei, as kn,")
    left, right = _as_compute_type(left, right, problem.k)
    result = np.broadcast_to(_as_int64_if_integers(left @ right, src, wei), problem.dst)
    return np.ascontiguousarray(result if dst_layout == "mn" else result.swapaxes(-1, -2))


_MAX_PIXELS = 1 << 22
"""The largest number of input pixels that are gathered for one matrix product."""


def _outputs_per_step(problem: ConvProblem) -> int:
    """Return how many outputs along the first spatial axis are computed at a time, at least 1, so that
    memory suffices.
    """
    return max(1, _MAX_PIXELS // (problem.mb * problem.ic * prod(problem.o[1:]) * prod(problem.k) or 1))


def _tap_groups(taps: list[tuple[Index, Index, Index]], problem: ConvProblem) -> list[list[tuple[Index, Index, Index]]]:
    """Return `taps`, a list from `_taps`, split into lists of limited length.

    The reference gathers the input pixels of one list at a time, which limits the memory used.
    """
    count = max(1, _MAX_PIXELS // (problem.mb * problem.ic * prod(problem.o[1:]) * _outputs_per_step(problem) or 1))
    return [taps[n : n + count] for n in range(0, len(taps), count)]


def _taps(
    problem: ConvProblem, first_output: int = 0, output_count: int | None = None
) -> list[tuple[Index, Index, Index]]:
    """Return [(tap, inputs, outputs), ...] with one triple for each filter tap that reads the image.

    All three are numpy indices into the last axes of an array: by the filter tap at `tap`, the output pixels at
    `outputs` read the input pixels at `inputs`. Only `output_count` outputs (None: all) along the first spatial axis
    are considered, beginning with number `first_output`; `outputs` counts from that number.
    """
    axes = []
    output_extents = (problem.o[0] if output_count is None else output_count, *problem.o[1:])
    shifted = (problem.p[0] - first_output * problem.s[0], *problem.p[1:])
    for o, i, k, s, p, dilation in zip(
        output_extents, problem.i, problem.k, problem.s, shifted, problem.dilation, strict=True
    ):
        ranges = []
        for tap in range(k):
            first = tap * dilation - p  # the input pixel that output 0 meets
            skipped = (-first + s - 1) // s if first < 0 else 0
            begin = first + skipped * s
            count = min(o - skipped, (i - begin + s - 1) // s)
            if count > 0:
                inside = slice(begin, begin + (count - 1) * s + 1, s)
                ranges.append((tap, inside, slice(skipped, skipped + count)))
        axes.append(ranges)
    index_triples = []
    for range_of_axis in product(*axes):
        taps, inputs, outputs = zip(*range_of_axis, strict=True)
        index_triples.append(((..., *taps), (..., *inputs), (..., *outputs)))
    return index_triples


def _flatten_pixels(pixels: Array) -> Array:
    """Return `pixels`, an array [batch, groups, channels, spatial axes...], with the spatial axes merged into one."""
    return pixels.reshape(*pixels.shape[:3], prod(pixels.shape[3:]))


def _batched_matmul(left: Array, right: Array) -> Array:
    """Return the matrix product of `left` and `right` for each image n and group g.

    `left` is [g, a, b], `right` [n, g, b, pixels], the result [n, g, a, pixels].
    """
    if left.shape[-1] == 1:
        return np.asarray(left * right)
    return np.asarray(left @ right)


def _max_terms(problem: ConvProblem) -> int:
    """Return an upper limit of the number of products in any sum of the convolution, forward and in both gradients."""
    taps = prod(problem.k)
    return max(problem.ic_per_group * taps, problem.oc_per_group * taps, problem.mb * prod(problem.o))


def _is_integer(array: Array) -> bool:
    """Return True if the array's element type is an integer type (also of 2 or 4 bits) or bool."""
    return array.dtype.kind in "iub" or array.dtype.name in ("int2", "uint2", "int4", "uint4")


def _as_compute_type(left: Array, right: Array, term_count: int) -> tuple[Array, Array]:
    """Return (left, right), both converted to the type in which the reference computes: float64 or int64.

    int64 is for two arrays of integers whose sums of at most `term_count` products may reach 2**53; smaller sums are
    exact in float64, which is much faster in numpy. Raise ProblemError if sums of integers may reach 2**63.
    """
    if not (_is_integer(left) and _is_integer(right)):
        return left.astype(np.float64), right.astype(np.float64)
    largest = max(1, term_count) * _max_magnitude(left) * _max_magnitude(right)
    if largest < 2**53:
        return left.astype(np.float64), right.astype(np.float64)
    if largest < 2**63:
        return left.astype(np.int64), right.astype(np.int64)
    raise ProblemError(f"sums may reach {largest}, beyond int64; use smaller values")


def _max_magnitude(array: Array) -> int:
    """Return the largest absolute value in the array, as an int; 0 if it is empty."""
    if not array.size:
        return 0
    return max(int(array.max()), -int(array.min()))


def _as_int64_if_integers(result: Array, *operands: Array) -> Array:
    """Return `result` converted to int64 if all `operands` hold integers; otherwise return it unchanged."""
    return result.astype(np.int64) if all(map(_is_integer, operands)) else result


def _expand_layout(layout: str, problem: ConvProblem) -> str:
    """Return the letters of a layout with x replaced by the letters of the problem's spatial axes: "ncx" -> "nchw" for
    two axes.
    """
    return layout.replace("x", problem.axes)


def _weights_layout(problem: ConvProblem, layout: str) -> str:
    """Return the letters of the weights' layout with x replaced by those of the problem's spatial axes.

    "oix" -> "oihw" for two axes. "" stands for "goix" if the problem has a group axis, else for "oix".
    """
    return _expand_layout(layout or ("goix" if problem.has_groups else "oix"), problem)


def _check_layouts(problem: ConvProblem, *, x: str, w: str, y: str) -> None:
    """Raise ProblemError unless each of the layouts `x`, `w` and `y` has its letters once.

    The letters are n, c and the spatial axes for x and y; o, i and the spatial axes for w, which may also have g.
    """
    for what, layout in (("x", x), ("y", y)):
        if sorted(_expand_layout(layout, problem)) != sorted("nc" + problem.axes):
            raise ProblemError(f"the {what} layout is {layout!r}; it has each of n, c, {', '.join(problem.axes)} once")
    if sorted(_weights_layout(problem, w).replace("g", "", 1)) != sorted("oi" + problem.axes):
        raise ProblemError(
            f"the w layout is {w!r}; it has each of o, i, {', '.join(problem.axes)} once, and may have g"
        )


def _check_shape(array: Array, expected: tuple[int, ...], tensor: str) -> None:
    """Raise ProblemError unless the array has the shape `expected`; `tensor` names it in the error."""
    if array.shape != expected:
        raise ProblemError(f"{tensor} has shape {array.shape}; the problem asks for {expected}")


def _transpose(array: Array, old: str, new: str) -> Array:
    """Return the array with its axes in a new order, contiguous in memory.

    `old` has a letter for each axis of the array; `new` has the same letters in the order wanted, as in "nchw" and
    "nhwc".
    """
    return np.ascontiguousarray(array.transpose([old.index(letter) for letter in new]))


def _image_shape(problem: ConvProblem, tensor: str) -> tuple[int, ...]:
    """Return the shape (batch, groups, channels of a group, spatial extents...) of a convolution's input or output.

    `tensor` is "x" for the input, "y" for the output.
    """
    channels = problem.ic_per_group if tensor == "x" else problem.oc_per_group
    return (problem.mb, problem.groups, channels, *(problem.i if tensor == "x" else problem.o))


def _grouped_image(problem: ConvProblem, array: Array, layout: str, tensor: str) -> Array:
    """Return `array`, the convolution's input or output, reshaped to [batch, groups, channels of a group, spatial
    axes...].

    `tensor` is "x" for the input, "y" for the output. `layout` gives the order of the array's axes by letters, as in
    "nhwc". Raise ProblemError if the array's shape is not the problem's.
    """
    letters = _expand_layout(layout, problem)
    shape = problem.x_shape if tensor == "x" else problem.y_shape
    extents = dict(zip("nc" + problem.axes, shape, strict=True))
    _check_shape(array, tuple(extents[letter] for letter in letters), f"{tensor}, as {letters},")
    transposed = array.transpose([letters.index(letter) for letter in "nc" + problem.axes])
    return transposed.reshape(_image_shape(problem, tensor))


def _ungrouped_image(problem: ConvProblem, array: Array, layout: str) -> Array:
    """Return `array`, [batch, groups, channels of a group, spatial axes...], with groups and channels merged into one
    axis.

    The axes of the result are in the order `layout`, such as "nhwc".
    """
    merged = array.reshape(array.shape[0], array.shape[1] * array.shape[2], *array.shape[3:])
    return _transpose(merged, "nc" + problem.axes, _expand_layout(layout, problem))


def _grouped_weights(problem: ConvProblem, array: Array, layout: str) -> Array:
    """Return `array`, the convolution's weights, reshaped to [groups, output channels of a group, input channels of a
    group, filter axes...].

    `layout` gives the order of the array's axes by letters, as in "goihw"; "" is the usual order, "goix" or "oix".
    Raise ProblemError if the array's shape is not the problem's.
    """
    letters = _weights_layout(problem, layout)
    outputs = problem.oc_per_group if "g" in letters else problem.oc
    values = (problem.groups, outputs, problem.ic_per_group, *problem.k)
    extents = dict(zip("goi" + problem.axes, values, strict=True))
    _check_shape(array, tuple(extents[letter] for letter in letters), f"w, as {letters},")
    order = [letter for letter in "goi" + problem.axes if letter in letters]
    transposed = array.transpose([letters.index(letter) for letter in order])
    return transposed.reshape(problem.groups, problem.oc_per_group, problem.ic_per_group, *problem.k)
