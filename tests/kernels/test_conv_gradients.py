"""The gradients of images and filters against the reference: equal to the last bit; mistakes are named."""

import numpy as np
import pytest
from kernel_checks import run, same, small_integers

import tilewright
from tilewright.errors import ArgumentError
from tilewright.kernels import conv_filter_gradient, conv_image_gradient
from tilewright.problems import ConvProblem, conv_dgrad, conv_wgrad

LAYOUTS = {"x_layout": "nxc", "w_layout": "oxi", "y_layout": "nxc"}
# image, filter, channels, filters, groups, stride, padding before, dilation
CASES = [
    ((7,), (3,), 3, 5, 1, (1,), (1,), (1,)),
    ((9,), (2,), 4, 6, 2, (2,), (0,), (3,)),
    ((11,), (3,), 3, 2, 1, (3,), (0,), (2,)),  # pixels past the last output meet none
    ((4, 6), (3, 2), 3, 5, 1, (1, 2), (1, 0), (1, 1)),
    ((6, 5), (2, 3), 6, 9, 3, (2, 1), (0, 2), (2, 1)),
    ((3, 4, 5), (2, 3, 2), 3, 4, 1, (1, 1, 1), (1, 1, 0), (1, 1, 1)),
    ((5, 3, 4), (3, 1, 2), 4, 4, 4, (2, 1, 3), (1, 0, 1), (1, 1, 2)),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(("image", "taps", "c", "f", "groups", "stride", "padding", "dilation"), CASES)
def test_gradients_are_exact(image, taps, c, f, groups, stride, padding, dilation, dtype):
    rng = np.random.default_rng(len(image))
    problem = ConvProblem(
        mb=2, ic=c, oc=f, i=image, k=taps, s=stride, p=padding, d=tuple(d - 1 for d in dilation), g=groups
    )
    x, w = small_integers(rng, (2, *image, c), dtype), small_integers(rng, (f, *taps, c // groups), dtype)
    dy = small_integers(rng, (2, *problem.o, f), dtype)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    whole = [a.astype(np.int64) for a in (x, w, dy)]
    of_image = conv_dgrad(problem, whole[2], whole[1], **LAYOUTS)
    of_filter = conv_wgrad(problem, whole[0], whole[2], **LAYOUTS)
    for make, inputs, expected in (
        (conv_image_gradient, (dy, w), of_image),
        (conv_filter_gradient, (x, dy), of_filter),
    ):
        kernel = make(taps, dtype, **options)
        same(run(kernel, inputs, expected.shape, dtype), expected.astype(dy.dtype))
        goal = np.empty(expected.shape, dy.dtype)
        tilewright.compile(kernel, strict=True)(*inputs, goal)
        same(goal, expected.astype(dy.dtype))


@pytest.mark.parametrize("make", [conv_image_gradient, conv_filter_gradient])
def test_mistakes_are_named(make):
    for size, options, says in (
        ((), {}, r"filter_size=\(\): one to three integers of at least 1"),
        ((3, 0), {}, r"filter_size=\(3, 0\): one to three integers"),
        ((3,), {"groups": 0}, "groups=0 is not an integer of at least 1"),
        ((3,), {"stride": 0}, "stride=0: an integer of at least 1"),
    ):
        with pytest.raises(ArgumentError, match=says):
            make(size, **options)
