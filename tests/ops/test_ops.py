"""Convolution and matrix product on arrays: exact, for what users pass; mistakes are named."""

from __future__ import annotations

import ctypes

import ml_dtypes
import numpy as np
import pytest

import tilewright
from tilewright.errors import ArgumentError

BF16 = np.dtype(ml_dtypes.bfloat16)


def small(rng, *shape, dtype=np.float32, largest=2):
    return rng.integers(-largest, largest + 1, shape).astype(dtype)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "f16"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (5, 7, 3), (33, 64, 17), (70, 96, 130), (3, 200, 64)])
def test_matrix_products_are_exact(m, k, n, dtype):
    form = {"f32": np.float32, "bf16": BF16, "f64": np.float64, "f16": np.float16}[dtype]
    rng = np.random.default_rng(m + n)
    a, b = small(rng, m, k, dtype=form, largest=1), small(rng, k, n, dtype=form, largest=1)
    bias = small(rng, n)
    wanted = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(tilewright.matmul(a, b), wanted.astype(form))
    with_bias = tilewright.matmul(a, b, bias, activation="relu", out_dtype="f64" if dtype == "f64" else "f32")
    assert np.array_equal(with_bias, np.maximum(wanted + bias, 0))


def test_integer_products_are_exact():
    rng = np.random.default_rng(0)
    a, b = small(rng, 19, 130, dtype=np.int8, largest=100), small(rng, 130, 40, dtype=np.int8, largest=100)
    wanted = a.astype(np.int64) @ b.astype(np.int64)
    assert np.array_equal(tilewright.matmul(a, b, out_dtype="i32"), wanted)


def convolution(x, w, *, stride, ends, dilation, groups=1):
    """Channels last, in int64, over any number of axes: the padded image is shifted once for each tap."""
    x, w = x.astype(np.int64), w.astype(np.int64)
    padded = np.pad(x, ((0, 0), *ends, (0, 0)))
    taps = w.shape[1:-1]
    sizes = [
        (n - (k - 1) * d - 1) // s + 1 for n, k, d, s in zip(padded.shape[1:-1], taps, dilation, stride, strict=True)
    ]
    y = np.zeros((x.shape[0], *sizes, w.shape[0]), np.int64)
    c, f = w.shape[-1], w.shape[0] // groups
    for tap in np.ndindex(*taps):
        window = tuple(
            slice(r * d, r * d + (n - 1) * s + 1, s) for r, d, n, s in zip(tap, dilation, sizes, stride, strict=True)
        )
        for g in range(groups):
            seen = padded[(slice(None), *window, slice(g * c, g * c + c))]
            y[..., g * f : g * f + f] += seen @ w[(slice(g * f, g * f + f), *tap)].T
    return y


CONVOLUTIONS = [
    # image, filter, filters, channels of a group, groups, stride, padding, the same as pairs, dilation
    ((11,), (3,), 5, 4, 1, 1, 1, ((1, 1),), 1),
    ((11,), (4,), 17, 3, 2, 2, ((3, 0),), ((3, 0),), 1),
    ((9,), (2,), 3, 1, 5, 1, "same", ((1, 2),), 3),
    ((6, 9), (3, 2), 7, 5, 1, 1, ((2, 0), (0, 1)), ((2, 0), (0, 1)), (1, 2)),
    ((7, 5), (3, 3), 20, 16, 1, (2, 1), (1, (0, 2)), ((1, 1), (0, 2)), 1),
    ((7, 5), (2, 3), 3, 3, 3, 1, "same", ((0, 1), (1, 1)), 1),
    ((7, 5), (2, 3), 3, 2, 1, 2, "valid", ((0, 0), (0, 0)), 1),
    ((4, 5, 7), (3, 2, 3), 6, 5, 1, 1, "same", ((1, 1), (0, 1), (1, 1)), 1),
    ((5, 4, 6), (2, 3, 2), 4, 3, 2, (2, 1, 1), ((0, 1), 1, (2, 0)), ((0, 1), (1, 1), (2, 0)), (1, 1, 2)),
    ((3, 4, 5), (1, 1, 1), 33, 32, 1, 1, 0, ((0, 0),) * 3, 1),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int8])
@pytest.mark.parametrize(("image", "taps", "f", "c", "groups", "stride", "padding", "ends", "dilation"), CONVOLUTIONS)
def test_convolutions_are_exact(image, taps, f, c, groups, stride, padding, ends, dilation, dtype):
    rng = np.random.default_rng(len(image) + c)
    rank, f = len(image), f * groups
    x = small(rng, 2, *image, c * groups, dtype=dtype, largest=1)
    w, bias = small(rng, f, *taps, c, dtype=dtype, largest=1), small(rng, f)
    all_axes = [(v,) * rank if isinstance(v, int) else v for v in (stride, dilation)]
    wanted = convolution(x, w, stride=all_axes[0], ends=ends, dilation=all_axes[1], groups=groups)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    call = (tilewright.conv1d, tilewright.conv2d, tilewright.conv3d)[rank - 1]
    out_dtype = "i32" if dtype is np.int8 else "f32"
    assert np.array_equal(call(x, w, **options, out_dtype=out_dtype), wanted)
    layer = tilewright.Conv(w, bias, activation="relu", out_dtype=out_dtype, **options)
    assert np.array_equal(layer(x), np.maximum(wanted + bias.astype(np.int64), 0))
    residual = small(rng, *wanted.shape, dtype=np.int32 if dtype is np.int8 else np.float32)
    for _ in range(2):  # the second call is like the first one
        added = wanted + bias.astype(np.int64) + residual.astype(np.int64)
        assert np.array_equal(layer(x, residual), np.maximum(added, 0))
        residual = residual + residual.dtype.type(1)


def test_a_residual_is_as_the_result_or_named():
    rng = np.random.default_rng(7)
    layer, x = tilewright.Linear(small(rng, 5, 3)), small(rng, 2, 7, 3)
    residual = small(rng, 2, 7, 5)
    assert np.array_equal(layer(x, residual), layer(x) + residual)
    assert np.array_equal(layer(x, residual.transpose(2, 1, 0).copy().transpose(2, 1, 0)), layer(x) + residual)
    with pytest.raises(ArgumentError, match="residual is 2x7x4 of float32; it must be as the result, 2x7x5 of f32"):
        layer(x, residual[..., :4])
    with pytest.raises(ArgumentError, match="residual is 2x7x5 of float64"):
        layer(x, residual.astype(np.float64))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", [np.float32, BF16, np.int8])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 5, 7), (3, 7, 4)),
        ((2, 3, 33, 40), (2, 3, 40, 17)),
        ((4, 3, 9), (9, 20)),
        ((2, 1, 5, 8), (8, 3)),
        ((1, 5, 8), (1, 8, 3)),
        ((2, 1, 64), (2, 64, 1)),
    ],
)
def test_batches_of_products_are_exact(a, b, dtype):
    rng = np.random.default_rng(a[-1])
    left, right = small(rng, *a, dtype=dtype, largest=1), small(rng, *b, dtype=dtype, largest=1)
    bias = small(rng, b[-1])
    wanted = left.astype(np.int64) @ right.astype(np.int64)
    out_dtype = "i32" if dtype is np.int8 else "f32"
    assert np.array_equal(tilewright.matmul(left, right, out_dtype=out_dtype), wanted)
    with_bias = tilewright.matmul(left, right, bias, activation="relu", out_dtype=out_dtype)
    assert np.array_equal(with_bias, np.maximum(wanted + bias.astype(np.int64), 0))


def test_a_sum_of_nothing_is_zero():
    for a, b in (((2, 0), (0, 3)), ((4, 2, 0), (4, 0, 3)), ((4, 2, 0), (0, 3))):
        a, b = np.zeros(a, np.float32), np.zeros(b, np.float32)
        assert np.array_equal(tilewright.matmul(a, b), a @ b)
        bias = np.array([-1, 0, 2], np.float32)
        wanted = np.broadcast_to(np.maximum(bias, 0), (a @ b).shape)
        assert np.array_equal(tilewright.matmul(a, b, bias, activation="relu"), wanted)


def test_arrays_may_lie_in_memory_in_any_way():
    rng = np.random.default_rng(1)
    x, w = small(rng, 1, 8, 5, 6), small(rng, 4, 3, 3, 8)
    wanted = tilewright.conv2d(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), w, padding=1)
    assert np.array_equal(tilewright.conv2d(x.transpose(0, 2, 3, 1), w, padding=1), wanted)
    assert np.array_equal(tilewright.conv2d(x.transpose(0, 2, 3, 1), np.asfortranarray(w), padding=1), wanted)


def test_anything_with_dlpack_is_taken():
    class Foreign:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((3, 4), np.float32)
    assert np.array_equal(tilewright.matmul(Foreign(a), Foreign(b)), a @ b)


class ForeignBfloats:
    """A library's array of bf16, as DLPack describes it: numpy exports its bits, and the code says what they are."""

    def __init__(self, array, code=4):
        self.bits, self.code = array.view(np.uint16), code

    def __dlpack__(self, **_options):
        capsule = self.bits.__dlpack__()
        get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
        address = get(("PyCapsule_GetPointer", ctypes.pythonapi))(capsule, b"dltensor")
        ctypes.c_uint8.from_address(address + 20).value = self.code
        return capsule

    def __dlpack_device__(self):
        return 1, 0


def test_bf16_of_other_libraries_is_taken():
    rng = np.random.default_rng(3)
    a, b = small(rng, 5, 8, dtype=BF16), small(rng, 8, 6, dtype=BF16)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    foreign = ForeignBfloats(a.T.copy().T), ForeignBfloats(b)
    assert np.array_equal(tilewright.matmul(*foreign, out_dtype="f32"), wanted)
    with pytest.raises(ArgumentError, match="a cannot be read by way of DLPack"):
        tilewright.matmul(ForeignBfloats(a, code=77), b)


def test_torch_tensors_are_taken():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x, w = small(rng, 1, 4, 5, 6, 3), small(rng, 4, 2, 3, 2, 3)
    wanted = convolution(x, w, stride=(1, 1, 1), ends=((0, 0), (1, 1), (1, 0)), dilation=(1, 1, 1))
    for form in (torch.float32, torch.bfloat16):
        image, filters = torch.from_numpy(x).to(form), torch.from_numpy(w).to(form)
        made = tilewright.conv3d(image, filters, padding=(0, 1, (1, 0)), out_dtype="f32")
        assert isinstance(made, torch.Tensor)
        assert np.array_equal(made, wanted)


def test_a_layer_packs_its_weights_once_for_each_size(monkeypatch):
    from tilewright.targets.cpu.entry_executor import EntryExecutor

    packed = []
    once = EntryExecutor.keep
    monkeypatch.setattr(EntryExecutor, "keep", lambda *given: packed.append(1) or once(*given))
    layer = tilewright.Conv2d(np.ones((4, 1, 1, 3), np.float32))
    for _ in range(3):
        assert np.array_equal(layer(np.ones((1, 2, 5, 3), np.float32)), np.full((1, 2, 5, 4), 3, np.float32))
    assert len(packed) == 1
    layer(np.ones((1, 5, 2, 3), np.float32))
    assert len(packed) == 2


@pytest.mark.parametrize(
    ("arguments", "options", "says"),
    [
        (((1, 4, 4, 3), (2, 3, 3, 4)), {}, "x has 3 channels; the weights take 4 in each of 1 groups"),
        (((4, 4, 3), (2, 3, 3, 3)), {}, "x has shape (4, 4, 3), 3 dimensions; it takes 4"),
        (((1, 1, 1, 3), (2, 3, 3, 3)), {}, "x is 1x1: a filter of 3x3 does not fit"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"stride": 0}, "stride=0: an integer of at least 1"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"stride": (1, 2, 1)}, "stride=(1, 2, 1): an integer of at least 1, or one for"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"dilation": "same"}, "dilation='same': an integer of at least 1, or one for"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"padding": (1, 2, 3)}, "padding=(1, 2, 3)"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"padding": -1}, "padding=-1: no number is below 0"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"padding": ((1, 2, 3), 0)}, "((before, after), (before, after)), 'same' or"),
        (
            ((1, 4, 4, 3), (2, 3, 3, 3)),
            {"padding": "full"},
            "padding='full': an integer, or one for each axis: (height",
        ),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"padding": "same", "stride": 2}, "padding='same' needs a stride of 1"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"out_dtype": "f13"}, "out_dtype='f13': there is no element type f13"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"bias": [1.0]}, "bias has 1 elements; there are 2 filters"),
        (((1, 4, 3), (2, 3, 3)), {}, "weight has shape (2, 3, 3), 3 dimensions; it takes 4"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"groups": 3}, "groups=3: it must divide the 2 filters"),
        (((1, 4, 4, 3), (2, 3, 3, 3)), {"activation": "swish"}, "activation='swish': there are relu"),
        (((1, 4, 4, 3), (2, 0, 3, 3)), {}, "weight has the shape (2, 0, 3, 3): a filter has a tap along each axis"),
    ],
)
def test_mistakes_are_named(arguments, options, says):
    x, w = (np.zeros(shape, np.float32) for shape in arguments)
    with pytest.raises(ArgumentError) as report:
        tilewright.conv2d(x, w, **options)
    assert says in str(report.value)


def test_empty_batches_give_empty_results():
    assert tilewright.conv2d(np.zeros((0, 4, 5, 3), np.float32), np.zeros((2, 3, 3, 3), np.float32)).shape == (
        0,
        2,
        3,
        2,
    )
    assert tilewright.conv1d(np.zeros((0, 4, 3), np.float32), np.zeros((2, 3, 3), np.float32)).shape == (0, 2, 2)
    assert tilewright.matmul(np.zeros((0, 3), np.float32), np.zeros((3, 2), np.float32)).shape == (0, 2)
    assert tilewright.matmul(np.zeros((0, 4, 3), np.float32), np.zeros((0, 3, 2), np.float32)).shape == (0, 4, 2)


@pytest.mark.parametrize(
    ("image", "weight", "padding", "shape"),
    [
        ((1, 2, 5, 3), (2, 3, 3, 3), 0, (1, 0, 3, 2)),  # no filter fits
        ((1, 4, 5, 3), (0, 3, 3, 3), 1, (1, 4, 5, 0)),  # no filters
        ((2, 4, 5, 0), (2, 3, 3, 0), 1, (2, 4, 5, 2)),  # no channels: sums of nothing
        ((2, 0, 5, 3), (2, 3, 3, 3), 2, (2, 2, 7, 2)),  # no image, but zeros around it
    ],
)
@pytest.mark.parametrize("dynamic", [None, "batch", "image"])
def test_convolutions_of_nothing_are_empty_or_sums_of_nothing(image, weight, padding, shape, dynamic):
    x, w, bias = np.ones(image, np.float32), np.ones(weight, np.float32), np.arange(weight[0], dtype=np.float32)
    found = tilewright.conv2d(x, w, bias, padding=padding, dynamic=dynamic)
    assert np.array_equal(found, np.broadcast_to(bias, shape))


def test_layers_of_nothing_are_empty_or_sums_of_nothing():
    x = np.ones((2, 3, 4), np.float32)
    assert tilewright.Linear(np.ones((0, 4), np.float32))(x).shape == (2, 3, 0)
    layer = tilewright.Linear(np.ones((5, 0), np.float32), np.arange(5, dtype=np.float32))
    assert np.array_equal(layer(x[..., :0]), np.broadcast_to(np.arange(5, dtype=np.float32), (2, 3, 5)))
    assert np.array_equal(tilewright.matmul(x[..., :0], x[0, :0]), np.zeros((2, 3, 4), np.float32))


def test_element_types_must_agree():
    with pytest.raises(ArgumentError, match="x holds float64, the weights float32: convert one"):
        tilewright.conv2d(np.zeros((1, 3, 3, 1)), np.zeros((1, 1, 1, 1), np.float32))
    with pytest.raises(ArgumentError, match="a is 2x3, b 2x3: they do not fit"):
        tilewright.matmul(np.zeros((2, 3), np.float32), np.zeros((2, 3), np.float32))


def test_mistakes_of_batches_are_named():
    a, b = np.zeros((2, 3, 4), np.float32), np.zeros((3, 4, 5), np.float32)
    with pytest.raises(ArgumentError, match="a is 2x3x4, b 3x4x5: their batches must be equal, or b one matrix"):
        tilewright.matmul(a, b)
    with pytest.raises(ArgumentError, match=r"a has shape \(.*\), 1 dimensions; it takes at least 2"):
        tilewright.matmul(a[0, 0], b[0])
    with pytest.raises(ArgumentError, match="bias has 4 elements; there are 5 columns"):
        tilewright.matmul(a, b[0], np.zeros(4, np.float32))


def test_an_element_type_may_be_given_as_it_is():
    import tilewright.lang as tkl

    a, b = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
    for kind in (tkl.f32, "f32", np.float32, np.dtype(np.float32)):
        assert tilewright.matmul(a, b, out_dtype=kind).dtype == np.float32
    with pytest.raises(ArgumentError, match="out_dtype='f13': there is no element type f13; there are bool, "):
        tilewright.matmul(a, b, out_dtype="f13")


def test_weights_that_are_no_array_are_named():
    for given, says in ((None, "NoneType"), ("w", "str"), (object(), "object")):
        with pytest.raises(ArgumentError, match=f"weight is {says}; it must be an array"):
            tilewright.Conv2d(given)


def test_an_activation_that_there_is_not_is_refused_when_the_layer_is_made():
    with pytest.raises(ArgumentError, match="activation='foo': there are relu, gelu, gelu_tanh, silu, and None"):
        tilewright.Conv2d(np.ones((2, 1, 1, 3), np.float32), activation="foo")
