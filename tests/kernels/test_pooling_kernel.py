"""Pooling over one to three axes beside numpy: exact on small integers, ragged sizes, windows with holes, NaN."""

import itertools

import numpy as np
import pytest
from kernel_checks import form, same, small_integers

import tilewright
from tilewright import kernels
from tilewright.errors import ArgumentError

TARGETS = ["executor", "cpu"]
OPTIONS = {
    "strided": ((3, 2, 2), {"stride": (2, 1, 3), "padding": (1, 0, 1)}),
    "dilated": ((2, 3, 2), {"stride": 1, "padding": (0, 2, 0), "dilation": (3, 2, 1)}),
    "side by side": ((2, 3, 1), {}),
    "as large as the image": ((5, 7, 6), {}),
}
"""Windows over three axes, and options; with fewer axes, the last ones."""
IMAGE = (5, 7, 6)


def last(value, rank):
    return value[-rank:] if isinstance(value, tuple) else (value,) * rank


def geometry(name, rank):
    """(window, stride, padding, dilation), each with a number for each axis."""
    window, options = OPTIONS[name]
    window = last(window, rank)
    return (
        window,
        last(options.get("stride", window), rank),
        *(last(options.get(option, least), rank) for option, least in (("padding", 0), ("dilation", 1))),
    )


def windows(x, window, stride, padding, dilation, outside):
    """[..., elements of the window] of x[n, ..., c], as f64: those of each place of the result."""
    pairs = ((0, 0), *((n, n) for n in padding), (0, 0))
    padded = np.pad(x.astype(np.float64), pairs, constant_values=outside)
    axes = list(zip(padded.shape[1:-1], window, stride, dilation, strict=True))
    sizes = [(size - d * (r - 1) - 1) // s + 1 for size, r, s, d in axes]
    taps = []
    for tap in itertools.product(*map(range, window)):
        starts = [t * d for t, d in zip(tap, dilation, strict=True)]
        steps = (slice(a, a + s * (n - 1) + 1, s) for a, s, n in zip(starts, stride, sizes, strict=True))
        taps.append(padded[(slice(None), *steps)])
    return np.stack(taps, axis=-1)


def pooled(kind, name, rank, dtype, target, layout, x):
    """The result of the kernel for images x[n, ..., c], which get `layout`; with the channels last again."""
    window, *_ = numbers = geometry(name, rank)
    options = dict(zip(("stride", "padding", "dilation"), numbers[1:], strict=True))
    shape = windows(x, *numbers, 0).shape[:-1]
    given = "N" + "DHW"[-rank:] + "C" if layout == "last" else "NC" + "DHW"[-rank:]
    kernel = kernels.pooling(kind, window, dtype, **options, layout=given)
    y = np.full(shape, np.nan if dtype.startswith(("f", "b")) else -77, form(dtype))
    if layout == "second":
        x, y = (np.ascontiguousarray(np.moveaxis(a, -1, 1)) for a in (x, y))
    tilewright.compile(kernel, target=target)(x, y)
    return y if layout == "last" else np.moveaxis(y, 1, -1)


@pytest.mark.sampled(12)
@pytest.mark.filterwarnings("ignore::tilewright.errors.SlowPlanWarning")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "i8"])
@pytest.mark.parametrize("layout", ["last", "second"])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_maximum_is_that_of_each_window(rank, name, layout, dtype, target):
    x = small_integers(np.random.default_rng(rank), (2, *IMAGE[-rank:], 5), dtype, 9)
    exact = windows(x, *geometry(name, rank), -np.inf).max(axis=-1)
    same(pooled("max", name, rank, dtype, target, layout, x), exact)


@pytest.mark.sampled(6)
@pytest.mark.filterwarnings("ignore::tilewright.errors.SlowPlanWarning")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("layout", ["last", "second"])
@pytest.mark.parametrize("name", ["strided", "dilated"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_a_mean_counts_the_padding(rank, name, layout, target):
    x = 24 * small_integers(np.random.default_rng(rank), (2, *IMAGE[-rank:], 5), "f32", 9)
    exact = windows(x, *geometry(name, rank), 0).mean(axis=-1)
    same(pooled("mean", name, rank, "f32", target, layout, x), exact)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_a_maximum_with_nan_is_nan_and_padding_counts_for_nothing(dtype, target):
    x = np.full((1, 5, 7, 3), -np.inf, np.float64)
    x[0, 2, 3, 1] = np.nan
    x[0, 0, 0, 0] = -5
    y = pooled("max", "strided", 2, dtype, target, "last", x.astype(form(dtype))).astype(np.float64)
    np.testing.assert_array_equal(y, windows(x, *geometry("strided", 2), -np.inf).max(axis=-1))
    assert np.isnan(y).any()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64"])
@pytest.mark.parametrize("layout", ["NWC", "NCW"])
@pytest.mark.parametrize(("n", "pixels", "channels"), [(2, 49, 37), (3, 1, 5), (1, 521, 3), (1, 256, 70)])
def test_a_mean_of_an_image_is_rounded_once(n, pixels, channels, layout, dtype, target):
    x = small_integers(np.random.default_rng(pixels), (n, pixels, channels), dtype, 5)
    exact = (x.astype(np.float32).sum(axis=1, dtype=np.float32) / np.float32(pixels)).astype(form(dtype))
    if dtype == "f64":
        exact = x.sum(axis=1) / pixels
    given = x if layout == "NWC" else np.ascontiguousarray(x.transpose(0, 2, 1))
    y = np.full((n, channels), np.nan, form(dtype))
    tilewright.compile(kernels.image_mean(dtype, layout), target=target)(given, y)
    np.testing.assert_array_equal(y.astype(np.float64), exact.astype(np.float64))


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (((2, 2, 2, 2),), {}, r"window=\(2, 2, 2, 2\): one to three integers of at least 1"),
        (((2, 0),), {}, r"window=\(2, 0\): an integer of at least 1, or one for each axis: \(height, width\)"),
        (((2,),), {"stride": 0}, r"stride=0: an integer of at least 1"),
        (((2, 2),), {"padding": (1, -1)}, r"padding=\(1, -1\): an integer of at least 0"),
        (((2, 2),), {"dilation": (1, 2, 3)}, r"dilation=\(1, 2, 3\): an integer of at least 1"),
        (((2, 2, 2),), {"layout": "NHWC"}, r"layout='NHWC': there are NDHWC, NCDHW"),
    ],
)
def test_what_is_wrong_is_named(args, options, message):
    with pytest.raises(ArgumentError, match=message):
        kernels.pooling("max", *args, **options)
    with pytest.raises(ArgumentError, match="layout='NHWC': there are NWC, NCW"):
        kernels.image_mean(layout="NHWC")
