"""`get_igemm_conv2d` against a loop over taps, on small integers: every result must be equal to the last bit."""

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright.errors import ArgumentError
from tilewright.ir.tile import parse_tile
from tilewright.problems import ConvProblem, conv_forward
from tilewright.wave.templates.conv import get_igemm_conv2d

FORMS = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "i8": np.int8, "i32": np.int32}
LAYOUTS = ("nhwc_hwcf", "nchw_fchw")

# n, h, w, c, hf, wf, nf, stride, padding, dilation, input, output
CASES = [
    (1, 1, 1, 1, 1, 1, 1, 1, 0, 1, "f16", "f32"),
    (1, 1, 9, 3, 1, 3, 2, 1, 0, 1, "f16", "f32"),
    (1, 9, 1, 3, 3, 1, 2, 1, 0, 1, "f16", "f16"),
    (3, 5, 7, 1, 3, 3, 5, 1, 0, 1, "f16", "f32"),
    (2, 7, 5, 3, 2, 3, 4, 1, 0, 1, "bf16", "f32"),
    (1, 8, 6, 5, 3, 2, 7, 1, 0, 1, "f32", "f32"),
    (1, 6, 8, 20, 1, 1, 3, 1, 0, 1, "i8", "i32"),
    (1, 4, 7, 33, 2, 2, 2, 1, 0, 1, "f16", "f32"),
    (3, 6, 9, 5, 3, 3, 1, (1, 2), 0, 1, "f16", "f16"),
    (2, 9, 6, 3, 3, 3, 4, (2, 1), 0, 1, "bf16", "f32"),
    (1, 10, 7, 4, 2, 3, 3, (3, 2), 0, 1, "i8", "i32"),
    (1, 9, 11, 2, 2, 2, 3, (4, 5), 0, 1, "f32", "f32"),
    (1, 5, 4, 3, 3, 3, 2, 1, 1, 1, "f16", "f32"),
    (3, 4, 6, 1, 3, 3, 2, 1, (1, 0), 1, "f16", "f32"),
    (2, 6, 4, 5, 1, 3, 3, 1, (0, 1), 1, "i8", "i32"),
    (1, 7, 9, 3, 7, 7, 2, 2, 3, 1, "f16", "f32"),
    (1, 2, 3, 2, 3, 4, 2, 1, (4, 5), 1, "f32", "f16"),
    (1, 9, 8, 3, 3, 3, 2, 1, 0, 2, "f16", "f32"),
    (3, 11, 7, 5, 3, 2, 3, 1, 0, (2, 3), "bf16", "f32"),
    (1, 9, 12, 3, 2, 3, 4, (2, 3), (1, 2), (3, 2), "f16", "f32"),
    (2, 10, 9, 1, 3, 3, 3, (1, 2), (2, 1), (2, 1), "i8", "i32"),
    (1, 5, 6, 3, 5, 6, 4, 1, 0, 1, "f16", "f32"),
    (3, 4, 3, 33, 4, 3, 1, 2, 0, 1, "bf16", "f32"),
    (1, 1, 1, 5, 3, 3, 2, 1, 1, 1, "f32", "f32"),
    (1, 6, 5, 20, 5, 5, 3, 1, 2, 1, "f16", "f16"),
    (2, 5, 8, 2, 1, 1, 3, (2, 3), 0, 1, "i8", "f32"),
    (1, 6, 7, 3, 2, 2, 127, 1, 0, 1, "f16", "f32"),
    (1, 3, 14, 64, 3, 1, 16, 1, (1, 0), 1, "f32", "f32"),
]


def pair(x):
    return (x, x) if isinstance(x, int) else x


def convolution(x, w, stride, padding, dilation):
    """x as [n, h, w, c] and w as [hf, wf, c, nf], in int64: the padded image is shifted once for each tap."""
    (sh, sw), (ph, pw), (dh, dw) = stride, padding, dilation
    x = np.pad(x.astype(np.int64), ((0, 0), (ph, ph), (pw, pw), (0, 0)))
    w = w.astype(np.int64)
    hf, wf, _, filters = w.shape
    p = (x.shape[1] - (hf - 1) * dh - 1) // sh + 1
    q = (x.shape[2] - (wf - 1) * dw - 1) // sw + 1
    y = np.zeros((x.shape[0], p, q, filters), np.int64)
    for r in range(hf):
        for s in range(wf):
            seen = x[:, r * dh : r * dh + (p - 1) * sh + 1 : sh, s * dw : s * dw + (q - 1) * sw + 1 : sw]
            y += np.tensordot(seen, w[r, s], axes=1)
    return y


def poison(shape, dtype):
    return np.full(shape, -77 if dtype in ("i8", "i32") else np.nan, FORMS[dtype])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("n", "h", "w", "c", "hf", "wf", "nf", "stride", "padding", "dilation", "input_dtype", "output_dtype"), CASES
)
def test_convolution_is_exact(layout, n, h, w, c, hf, wf, nf, stride, padding, dilation, input_dtype, output_dtype):
    rng = np.random.default_rng(h * w + c)
    x = rng.integers(-2, 3, (n, h, w, c)).astype(FORMS[input_dtype])
    we = rng.integers(-2, 3, (hf, wf, c, nf)).astype(FORMS[input_dtype])
    expected = convolution(x, we, pair(stride), pair(padding), pair(dilation))
    assert np.abs(expected).max() <= 2048  # f16 holds all integers up to here

    problem = ConvProblem(
        mb=n,
        ic=c,
        oc=nf,
        i=(h, w),
        k=(hf, wf),
        s=pair(stride),
        p=pair(padding),
        d=tuple(far - 1 for far in pair(dilation)),
        o=expected.shape[1:3],
    )
    reference = conv_forward(problem, x, we, x_layout="nhwc", w_layout="hwio", y_layout="nhwc")
    np.testing.assert_array_equal(reference.astype(np.int64), expected)

    conv, symbols = get_igemm_conv2d(
        layout, n, h, w, c, hf, wf, nf, stride, input_dtype, output_dtype, padding=padding, dilation=dilation
    )
    if layout == "nchw_fchw":
        x, we = np.ascontiguousarray(x.transpose(0, 3, 1, 2)), np.ascontiguousarray(we.transpose(3, 2, 0, 1))
        expected = expected.transpose(0, 3, 1, 2)
    executable = tilewright.compile(conv, symbols, strict=True, target="executor")
    out = poison(expected.shape, output_dtype)
    executable(x, we, out)
    np.testing.assert_array_equal(out.astype(np.int64), expected)

    text = executable.text()
    assert str(parse_tile(text)) == text
    again = poison(expected.shape, output_dtype)
    tilewright.compile(text, strict=True, target="executor")(x, we, again)
    assert again.tobytes() == out.tobytes()


def test_blocks_and_ratios_change_nothing():
    rng = np.random.default_rng(1)
    x = rng.integers(-2, 3, (2, 7, 6, 5)).astype(np.float16)
    we = rng.integers(-2, 3, (3, 2, 5, 9)).astype(np.float16)
    shape = (2, 7, 6, 5, 3, 2, 9, (2, 1))
    plain = tilewright.compile(*get_igemm_conv2d("nhwc_hwcf", *shape), target="executor")(x, we)
    for block in ({"block_m": 4, "block_n": 3, "block_k": 7}, {"block_m": 64, "ratio_m": 2, "ratio_n": 2}):
        blocked = tilewright.compile(*get_igemm_conv2d("nhwc_hwcf", *shape, **block), target="executor")(x, we)
        np.testing.assert_array_equal(blocked, plain)


@pytest.mark.parametrize("layout", ["nchw", "nhwc_fchw", ""])
def test_an_unknown_layout_is_named(layout):
    with pytest.raises(ArgumentError, match="nchw_fchw, nhwc_hwcf"):
        get_igemm_conv2d(layout, 1, 4, 4, 1, 3, 3, 1, 1)


@pytest.mark.parametrize(
    ("image", "taps", "options"),
    [
        ((4, 5), (5, 3), {}),
        ((5, 4), (3, 5), {}),
        ((5, 5), (3, 3), {"dilation": (1, 3)}),
        ((1, 9), (4, 1), {"padding": 1}),
    ],
)
def test_a_filter_larger_than_the_image_is_refused(image, taps, options):
    with pytest.raises(ArgumentError, match="larger than the padded image"):
        get_igemm_conv2d("nhwc_hwcf", 1, *image, 2, *taps, 3, 1, **options)


def test_wrong_arguments_are_named():
    conv, symbols = get_igemm_conv2d("nhwc_hwcf", 1, 4, 5, 2, 3, 2, 3, 1)
    executable = tilewright.compile(conv, symbols, target="executor")
    x, we = np.ones((1, 4, 5, 2), np.float16), np.ones((3, 2, 2, 3), np.float16)
    with pytest.raises(ArgumentError, match="argument x has shape"):
        executable(np.ones((1, 5, 4, 2), np.float16), we)
    with pytest.raises(ArgumentError, match="argument we holds f32"):
        executable(x, we.astype(np.float32))
