"""What convolution and matrix product mean, in float64 or exactly in integers: the references for tests.

Plain and sure: a loop over the filter taps, each joining whole slices. Nothing here is shared with the compiler.
Data of integer types are computed in int64, everything else in float64.

Tensors come in any order of their axes, said by a string of letters, outermost first:

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
    """The output y: y[n, o, q] is the sum over channels c and taps r of x[n, c, q*s + r*dilation - p] * w[o, c, r].

    Where the index lies outside the image nothing is added. The usual layout of w is "goix" for problems with a
    group axis, "oix" for others.

    >>> from tilewright.problems.conv import parse_conv
    >>> problem = parse_conv("mb1ic1iw4oc1kw3pw1")
    >>> conv_forward(problem, np.array([[[1, 2, 3, 4]]]), np.array([[[1, 10, 100]]])).tolist()
    [[[210, 321, 432, 43]]]
    """
    _check_layouts(problem, x=x_layout, w=w_layout, y=y_layout)
    images, filters = _operands(
        _grouped_image(problem, x, x_layout, "x"), _grouped_weights(problem, w, w_layout), _longest_sum(problem)
    )
    result = np.zeros(_image_shape(problem, "y"), images.dtype)
    for first in range(0, problem.o[0], _lines(problem)):
        part = result[:, :, :, first : first + _lines(problem)]
        for taps in _several(_taps(problem, first, part.shape[3]), problem):
            pixels = np.zeros((*images.shape[:2], len(taps), images.shape[2], *part.shape[3:]), images.dtype)
            for place, (_, inside, outside) in enumerate(taps):
                pixels[:, :, place][outside] = images[inside]
            rows = np.concatenate([filters[tap] for tap, _, _ in taps], axis=-1)
            flat = pixels.reshape(*pixels.shape[:2], rows.shape[-1], prod(part.shape[3:]))
            part += _product(rows, flat).reshape(part.shape)
    return _ungrouped_image(problem, _finish(result, x, w), y_layout)


def conv_dgrad(
    problem: ConvProblem,
    y: Array,
    w: Array,
    *,
    y_layout: str = "ncx",
    w_layout: str = "",
    x_layout: str = "ncx",
) -> Array:
    """The gradient of the input: what each input pixel gets back from all outputs y that it has part in.

    >>> from tilewright.problems.conv import parse_conv
    >>> problem = parse_conv("mb1ic1iw4oc1kw3pw1")
    >>> conv_dgrad(problem, np.array([[[1, 2, 3, 4]]]), np.array([[[1, 10, 100]]])).tolist()
    [[[12, 123, 234, 340]]]
    """
    _check_layouts(problem, x=x_layout, w=w_layout, y=y_layout)
    outputs, filters = _operands(
        _grouped_image(problem, y, y_layout, "y"), _grouped_weights(problem, w, w_layout), _longest_sum(problem)
    )
    result = np.zeros(_image_shape(problem, "x"), outputs.dtype)
    for tap, inside, outside in _taps(problem):
        pixels = outputs[outside]
        part = _product(filters[tap].swapaxes(1, 2), _flat(pixels))
        result[inside] += part.reshape(result[inside].shape)
    return _ungrouped_image(problem, _finish(result, y, w), x_layout)


def conv_wgrad(
    problem: ConvProblem,
    x: Array,
    y: Array,
    *,
    x_layout: str = "ncx",
    y_layout: str = "ncx",
    w_layout: str = "",
) -> Array:
    """The gradient of the weights: for each tap the sum over all images and output pixels of input times output.

    >>> from tilewright.problems.conv import parse_conv
    >>> problem = parse_conv("mb1ic1iw4oc1kw3pw1")
    >>> conv_wgrad(problem, np.array([[[1, 2, 3, 4]]]), np.array([[[1, 10, 100, 1000]]])).tolist()
    [[[3210, 4321, 432]]]
    """
    _check_layouts(problem, x=x_layout, w=w_layout, y=y_layout)
    images, outputs = _operands(
        _grouped_image(problem, x, x_layout, "x"), _grouped_image(problem, y, y_layout, "y"), _longest_sum(problem)
    )
    groups, ic, oc = problem.groups, problem.ic_per_group, problem.oc_per_group
    result = np.zeros((groups, oc, ic, *problem.k), images.dtype)
    for tap, inside, outside in _taps(problem):
        left = np.moveaxis(outputs[outside], 0, 2)
        right = np.moveaxis(images[inside], 0, 2)
        length = prod(left.shape[2:])
        result[tap] = left.reshape(groups, oc, length) @ right.reshape(groups, ic, length).swapaxes(1, 2)
    result = _finish(result, x, y)
    if "g" not in _weights_layout(problem, w_layout):
        result = result.reshape(problem.oc, *result.shape[2:])
        return _to_layout(result, _letters("oix", problem), _weights_layout(problem, w_layout))
    return _to_layout(result, _letters("goix", problem), _weights_layout(problem, w_layout))


def matmul_reference(
    problem: MatmulProblem,
    src: Array,
    wei: Array,
    *,
    src_layout: str = "mk",
    wei_layout: str = "kn",
    dst_layout: str = "mn",
) -> Array:
    """The product of src and wei; batch extents of 1 are repeated.

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
    left, right = _operands(left, right, problem.k)
    result = np.broadcast_to(_finish(left @ right, src, wei), problem.dst)
    return np.ascontiguousarray(result if dst_layout == "mn" else result.swapaxes(-1, -2))


_PIXELS = 1 << 22
"""How many input pixels are gathered for one product."""


def _lines(problem: ConvProblem) -> int:
    """Outputs along the first axis that are computed at a time."""
    return max(1, _PIXELS // (problem.mb * problem.ic * prod(problem.o[1:]) * prod(problem.k) or 1))


def _several(taps: list[tuple[Index, Index, Index]], problem: ConvProblem) -> list[list[tuple[Index, Index, Index]]]:
    """The taps, in groups that are gathered together."""
    count = max(1, _PIXELS // (problem.mb * problem.ic * prod(problem.o[1:]) * _lines(problem) or 1))
    return [taps[n : n + count] for n in range(0, len(taps), count)]


def _taps(problem: ConvProblem, begin_at: int = 0, lines: int | None = None) -> list[tuple[Index, Index, Index]]:
    """Each filter tap that meets the image, with the input pixels and the output pixels that it joins.

    All three as an index of the last axes of an array. Of the outputs' first axis only so many lines are looked at, and
    counted from the first of them.
    """
    axes = []
    outputs_of = (problem.o[0] if lines is None else lines, *problem.o[1:])
    shifted = (problem.p[0] - begin_at * problem.s[0], *problem.p[1:])
    for o, i, k, s, p, dilation in zip(
        outputs_of, problem.i, problem.k, problem.s, shifted, problem.dilation, strict=True
    ):
        found = []
        for tap in range(k):
            first = tap * dilation - p  # the input pixel that output 0 meets
            skipped = (-first + s - 1) // s if first < 0 else 0
            begin = first + skipped * s
            count = min(o - skipped, (i - begin + s - 1) // s)
            if count > 0:
                inside = slice(begin, begin + (count - 1) * s + 1, s)
                found.append((tap, inside, slice(skipped, skipped + count)))
        axes.append(found)
    joined = []
    for choice in product(*axes):
        taps, inputs, outputs = zip(*choice, strict=True)
        joined.append(((..., *taps), (..., *inputs), (..., *outputs)))
    return joined


def _flat(pixels: Array) -> Array:
    """The image of each channel as one row."""
    return pixels.reshape(*pixels.shape[:3], prod(pixels.shape[3:]))


def _product(left: Array, right: Array) -> Array:
    """Matrix products [g, a, b] times [n, g, b, pixels]."""
    if left.shape[-1] == 1:
        return np.asarray(left * right)
    return np.asarray(left @ right)


def _longest_sum(problem: ConvProblem) -> int:
    """No sum of any direction has more terms than this."""
    taps = prod(problem.k)
    return max(problem.ic_per_group * taps, problem.oc_per_group * taps, problem.mb * prod(problem.o))


def _is_integer(array: Array) -> bool:
    return array.dtype.kind in "iub" or array.dtype.name in ("int2", "uint2", "int4", "uint4")


def _operands(left: Array, right: Array, terms: int) -> tuple[Array, Array]:
    """The operands in the type to compute in.

    For integers that is float64 where no sum can leave the range in which it is exact, because numpy multiplies
    float64 matrices very much faster; else int64.
    """
    if not (_is_integer(left) and _is_integer(right)):
        return left.astype(np.float64), right.astype(np.float64)
    largest = max(1, terms) * _largest(left) * _largest(right)
    if largest < 2**53:
        return left.astype(np.float64), right.astype(np.float64)
    if largest < 2**63:
        return left.astype(np.int64), right.astype(np.int64)
    raise ProblemError(f"sums may reach {largest}, beyond int64; use smaller values")


def _largest(array: Array) -> int:
    if not array.size:
        return 0
    return max(int(array.max()), -int(array.min()))


def _finish(result: Array, *operands: Array) -> Array:
    """The result as int64 where all operands hold integers."""
    return result.astype(np.int64) if all(map(_is_integer, operands)) else result


def _letters(layout: str, problem: ConvProblem) -> str:
    return layout.replace("x", problem.axes)


def _weights_layout(problem: ConvProblem, layout: str) -> str:
    return _letters(layout or ("goix" if problem.has_groups else "oix"), problem)


def _check_layouts(problem: ConvProblem, *, x: str, w: str, y: str) -> None:
    for what, layout in (("x", x), ("y", y)):
        if sorted(_letters(layout, problem)) != sorted("nc" + problem.axes):
            raise ProblemError(f"the {what} layout is {layout!r}; it has each of n, c, {', '.join(problem.axes)} once")
    if sorted(_weights_layout(problem, w).replace("g", "", 1)) != sorted("oi" + problem.axes):
        raise ProblemError(
            f"the w layout is {w!r}; it has each of o, i, {', '.join(problem.axes)} once, and may have g"
        )


def _check_shape(array: Array, expected: tuple[int, ...], what: str) -> None:
    if array.shape != expected:
        raise ProblemError(f"{what} has shape {array.shape}; the problem asks for {expected}")


def _to_layout(array: Array, old: str, new: str) -> Array:
    return np.ascontiguousarray(array.transpose([old.index(letter) for letter in new]))


def _image_shape(problem: ConvProblem, tensor: str) -> tuple[int, ...]:
    """Batch, groups, channels of one group, image."""
    channels = problem.ic_per_group if tensor == "x" else problem.oc_per_group
    return (problem.mb, problem.groups, channels, *(problem.i if tensor == "x" else problem.o))


def _grouped_image(problem: ConvProblem, array: Array, layout: str, tensor: str) -> Array:
    letters = _letters(layout, problem)
    shape = problem.x_shape if tensor == "x" else problem.y_shape
    extents = dict(zip("nc" + problem.axes, shape, strict=True))
    _check_shape(array, tuple(extents[letter] for letter in letters), f"{tensor}, as {letters},")
    first = array.transpose([letters.index(letter) for letter in "nc" + problem.axes])
    return first.reshape(_image_shape(problem, tensor))


def _ungrouped_image(problem: ConvProblem, array: Array, layout: str) -> Array:
    flat = array.reshape(array.shape[0], array.shape[1] * array.shape[2], *array.shape[3:])
    return _to_layout(flat, "nc" + problem.axes, _letters(layout, problem))


def _grouped_weights(problem: ConvProblem, array: Array, layout: str) -> Array:
    """Groups, output channels of one group, input channels of one group, filter."""
    letters = _weights_layout(problem, layout)
    outputs = problem.oc_per_group if "g" in letters else problem.oc
    values = (problem.groups, outputs, problem.ic_per_group, *problem.k)
    extents = dict(zip("goi" + problem.axes, values, strict=True))
    _check_shape(array, tuple(extents[letter] for letter in letters), f"w, as {letters},")
    order = [letter for letter in "goi" + problem.axes if letter in letters]
    first = array.transpose([letters.index(letter) for letter in order])
    return first.reshape(problem.groups, problem.oc_per_group, problem.ic_per_group, *problem.k)
