"""The convolution kernel over one to three axes against the reference: equal to the last bit; mistakes are named."""

import numpy as np
import pytest
from kernel_checks import run, same, small_integers

import tilewright
from tilewright.errors import ArgumentError
from tilewright.kernels import conv
from tilewright.problems import ConvProblem, conv_forward

# image, filter, channels, filters, groups, stride, (before, after) for each axis, dilation
CASES = [
    ((7,), (3,), 3, 5, 1, (1,), ((1, 1),), (1,)),
    ((9,), (2,), 4, 6, 2, (2,), ((0, 3),), (3,)),
    ((8,), (1,), 5, 2, 1, (3,), ((-1, 0),), (1,)),
    ((4, 6), (3, 2), 3, 5, 1, (1, 2), ((2, 0), (0, 1)), (1, 1)),
    ((6, 5), (2, 3), 6, 9, 3, (1, 1), ((0, 1), (2, -1)), (2, 1)),
    ((3, 4, 5), (2, 3, 2), 3, 4, 1, (1, 1, 1), ((1, 0), (1, 1), (0, 2)), (1, 1, 1)),
    ((5, 3, 4), (3, 1, 2), 4, 4, 4, (2, 1, 1), ((1, 1), (0, 0), (1, 0)), (1, 1, 2)),
]


@pytest.mark.parametrize(("bias", "residual"), [(False, False), (True, False), (False, True), (True, True)])
@pytest.mark.parametrize(("image", "taps", "c", "f", "groups", "stride", "ends", "dilation"), CASES)
def test_convolutions_are_exact(image, taps, c, f, groups, stride, ends, dilation, bias, residual):
    rng = np.random.default_rng(len(image))
    x, w = small_integers(rng, (2, *image, c), "bf16"), small_integers(rng, (f, *taps, c // groups), "bf16")
    padded = tuple(n + sum(pair) for n, pair in zip(image, ends, strict=True))
    sizes = tuple((n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(padded, taps, dilation, stride, strict=True))
    # the padding is put around the image by hand, so that the reference needs none; below 0, the image is cut
    around = np.pad(x.astype(np.int64), ((0, 0), *[(max(0, a), max(0, b)) for a, b in ends], (0, 0)))
    cut = tuple(slice(max(0, -a), max(0, -a) + n) for (a, _), n in zip(ends, padded, strict=True))
    problem = ConvProblem(
        mb=2, ic=c, oc=f, i=padded, k=taps, s=stride, p=(0,) * len(image), d=tuple(d - 1 for d in dilation), g=groups
    )
    assert problem.o == sizes
    whole = around[(slice(None), *cut)]
    wanted = conv_forward(problem, whole, w.astype(np.int64), x_layout="nxc", w_layout="oxi", y_layout="nxc")
    options = {"stride": stride, "padding": ends, "dilation": dilation, "groups": groups}
    kernel = conv(taps, "bf16", "f32", bias=bias, residual=residual, **options)
    inputs = [x, w]
    for is_added, shape in ((bias, (f,)), (residual, wanted.shape)):
        if is_added:
            inputs.append(small_integers(rng, shape, "f32"))
            wanted = wanted + inputs[-1].astype(np.int64)
    same(run(kernel, tuple(inputs), wanted.shape, "f32"), wanted)


@pytest.mark.parametrize("target", ["executor", "cpu"])
@pytest.mark.parametrize("batched", [("x",), ("w",), ("x", "w"), ("bias",), ("w", "bias"), ("x", "w", "bias")])
@pytest.mark.parametrize(("image", "taps", "c", "f", "groups", "stride", "ends", "dilation"), CASES)
def test_a_batch_of_convolutions_is_that_of_each_member(
    image, taps, c, f, groups, stride, ends, dilation, batched, target
):
    rng = np.random.default_rng(len(image))
    options = {"stride": stride, "padding": ends, "dilation": dilation, "groups": groups, "bias": True}
    kernel = tilewright.compile(conv(taps, "bf16", "f32", residual=True, batched=batched, **options), target=target)
    shapes = {"x": (2, *image, c), "w": (f, *taps, c // groups), "bias": (f,)}
    given = {
        name: small_integers(rng, (*(3,) * (name in batched), *shape), "f32" if name == "bias" else "bf16")
        for name, shape in shapes.items()
    }
    members = [{name: a[n] if name in batched else a for name, a in given.items()} for n in range(3)]
    plain = tilewright.compile(conv(taps, "bf16", "f32", **options), target="executor")
    wanted = np.stack([plain(*member.values()) for member in members])
    residual = small_integers(rng, wanted.shape, "f32")
    out = np.full(wanted.shape, np.nan, np.float32)
    kernel(*given.values(), residual, out=out)
    same(out, wanted + residual)


@pytest.mark.parametrize(
    ("size", "options", "says"),
    [
        ((), {}, r"filter_size=\(\): one to three integers of at least 1"),
        ((1, 1, 1, 1), {}, "one to three integers"),
        ((3, 0), {}, r"filter_size=\(3, 0\)"),
        ((3, 3), {"stride": (1,)}, r"stride=\(1,\): an integer of at least 1, or one for each axis: \(height, width\)"),
        ((3,), {"dilation": 0}, r"dilation=0: an integer of at least 1, or one for each axis: \(width,\)"),
        ((3,), {"padding": (1, 2)}, r"padding=\(1, 2\): an integer, .* or \(\(before, after\),\), 'same' or 'valid'"),
        ((3, 3, 3), {"padding": ((1, 2), 1, 1.5)}, r"padding=\(\(1, 2\), 1, 1.5\): .* \(depth, height, width\)"),
        ((3, 3), {"padding": "same", "stride": (1, 2)}, r"padding='same' needs a stride of 1, not \(1, 2\)"),
        ((3,), {"groups": 0}, "groups=0 is not an integer of at least 1"),
        ((3,), {"batched": ("x", "y")}, r"batched=\('x', 'y'\): a list of names among 'x', 'w' and 'bias'"),
        ((3,), {"batched": "xw"}, "batched='xw': a list of names"),
    ],
)
def test_mistakes_are_named(size, options, says):
    with pytest.raises(ArgumentError, match=says):
        conv(size, "f32", **options)
