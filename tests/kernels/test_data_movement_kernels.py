"""Kernels that move elements or combine integers: all exact."""

from itertools import permutations, product

import numpy as np
import pytest
from kernel_checks import form, run, same, small_integers

import tilewright
from tilewright import kernels
from tilewright.errors import ArgumentError, ExecutionError
from tilewright.wave.templates.conv import get_igemm_conv2d

DTYPES = ["f16", "bf16", "f32", "i8"]
SIZES = [(1, 1), (1, 9), (7, 1), (3, 5), (17, 4), (6, 33)]


# -- im2col ---------------------------------------------------------------------------------------------

IM2COL = [  # image (n, h, w, c), filter, stride, padding, dilation
    ((1, 1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 1, 1, 3), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((2, 1, 7, 1), (1, 3), (1, 2), (0, 1), (1, 1)),
    ((1, 8, 1, 5), (3, 1), (2, 1), (1, 0), (1, 1)),
    ((3, 5, 4, 2), (2, 3), (1, 1), (0, 0), (1, 1)),
    ((1, 6, 9, 3), (3, 2), (2, 3), (1, 2), (1, 1)),
    ((2, 9, 7, 1), (3, 3), (1, 2), (2, 1), (2, 3)),
    ((1, 4, 6, 2), (4, 6), (1, 1), (0, 0), (1, 1)),
    ((1, 5, 6, 2), (2, 2), (3, 4), (0, 0), (1, 1)),
    ((1, 2, 3, 2), (1, 1), (1, 1), (4, 5), (1, 1)),
]


def columns_of(x, size, stride, padding, dilation):
    """x as [n, h, w, c]: one row after another, element by element."""
    batch, h, w, channels = x.shape
    outputs = [
        (extent + 2 * pad - far * (taps - 1) - 1) // step + 1
        for extent, taps, step, pad, far in zip((h, w), size, stride, padding, dilation, strict=True)
    ]
    rows = []
    for n, p, q in product(range(batch), *map(range, outputs)):
        row = []
        for r, s, c in product(*map(range, size), range(channels)):
            at = p * stride[0] + r * dilation[0] - padding[0], q * stride[1] + s * dilation[1] - padding[1]
            row.append(int(x[n, at[0], at[1], c]) if 0 <= at[0] < h and 0 <= at[1] < w else 0)
        rows.append(row)
    return np.array(rows, np.int64)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize(("image", "size", "stride", "padding", "dilation"), IM2COL)
def test_im2col(image, size, stride, padding, dilation, layout):
    rng = np.random.default_rng(1)
    for dtype in ("f16", "i8"):
        x = small_integers(rng, image, dtype, 100)
        expected = columns_of(x, size, stride, padding, dilation)
        made = kernels.im2col(size, dtype, layout, stride=stride, padding=padding, dilation=dilation)
        given = x if layout == "nhwc" else np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        same(run(made, (given,), expected.shape, dtype), expected)


def test_im2col_times_the_filters_is_a_convolution():
    rng = np.random.default_rng(2)
    x, w = small_integers(rng, (2, 6, 5, 3), "f16"), small_integers(rng, (3, 2, 3, 4), "f16")
    made = kernels.im2col((3, 2), stride=(2, 1), padding=(1, 0))
    columns = tilewright.compile(made, strict=True, target="executor")(x)
    result = tilewright.compile(kernels.gemm("nn"), strict=True, target="executor")(columns, w.reshape(18, 4)).reshape(
        2, 3, 4, 4
    )
    conv, symbols = get_igemm_conv2d("nhwc_hwcf", 2, 6, 5, 3, 3, 2, 4, (2, 1), padding=(1, 0))
    same(result, tilewright.compile(conv, symbols, target="executor")(x, w))


# -- transpose --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_transpose_of_a_matrix(dtype):
    rng = np.random.default_rng(3)
    for shape in SIZES:
        x = small_integers(rng, shape, dtype, 100)
        same(run(kernels.transpose(dtype=dtype), (x,), shape[::-1], dtype), x.T.astype(np.int64))


@pytest.mark.parametrize("axes", [(0,), *permutations(range(3)), (3, 1, 0, 2)])
def test_transpose_in_any_order(axes):
    x = small_integers(np.random.default_rng(4), (2, 5, 3, 4)[: len(axes)], "f32", 100)
    expected = np.transpose(x, axes)
    same(run(kernels.transpose(axes), (x,), expected.shape, "f32"), expected)


# -- reductions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("over", ["columns", "rows"])
@pytest.mark.parametrize("combine", ["max", "min", "sum"])
def test_reductions_of_integers(combine, over, dtype):
    rng = np.random.default_rng(5)
    axis = 1 if over == "columns" else 0
    for shape in SIZES:
        # all of one sign first: a padding of 0 would win the maximum
        for x in (small_integers(rng, shape, dtype), small_integers(rng, shape, dtype, 1) - form(dtype).type(2)):
            expected = getattr(x.astype(np.int64), combine)(axis=axis)
            same(run(kernels.reduction(combine, over, dtype), (x,), expected.shape, dtype), expected)


@pytest.mark.parametrize("over", ["columns", "rows"])
def test_products_of_integers(over):
    rng = np.random.default_rng(6)
    for shape in SIZES:
        x = np.where(rng.random(shape) < 0.2, 2, np.where(rng.random(shape) < 0.5, -1, 1))
        expected = x.prod(axis=1 if over == "columns" else 0)
        same(run(kernels.reduction("prod", over, "f32"), (x.astype(np.float32),), expected.shape, "f32"), expected)
        same(run(kernels.reduction("prod", over, "i8", "i32"), (x.astype(np.int8),), expected.shape, "i32"), expected)


def test_a_sum_may_leave_the_range_of_the_data():
    x = np.full((3, 50), 100, np.int8)
    same(run(kernels.reduction("sum", "columns", "i8", "i32"), (x,), (3,), "i32"), np.full(3, 5000))


# -- running sums -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "out"), [("f32", "f32"), ("f16", "f16"), ("bf16", "f32"), ("i8", "i32")])
def test_running_sums(dtype, out):
    rng = np.random.default_rng(7)
    for shape in SIZES:
        x = small_integers(rng, shape, dtype)
        expected = np.array([[int(row[: n + 1].sum()) for n in range(shape[1])] for row in x.astype(np.int64)])
        same(run(kernels.running_sum(dtype, out), (x,), shape, out), expected)
        for tile in (1, 2, 5, 64):
            same(run(kernels.tiled_running_sum(tile, dtype, out), (x,), shape, out), expected)


# -- gather, scatter, histogram -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_gather_and_scatter_rows(dtype):
    rng = np.random.default_rng(8)
    for rows, count, width in [(1, 1, 1), (5, 1, 7), (6, 6, 1), (7, 4, 3), (9, 9, 20)]:
        table = small_integers(rng, (rows, width), dtype, 100)
        index = rng.integers(0, rows, 2 * count).astype(np.int32)
        gathered = run(kernels.gather_rows(dtype), (table, index), (2 * count, width), dtype)
        same(gathered, np.array([table[i] for i in index]).astype(np.int64))
        places = rng.permutation(rows)[:count].astype(np.int32)
        x = small_integers(rng, (count, width), dtype, 100)
        expected = table.astype(np.int64)
        for row, place in zip(x, places, strict=True):
            expected[place] = row.astype(np.int64)
        same(run(kernels.scatter_rows(dtype), (x, places), table.shape, dtype, fresh=table), expected)


def test_rows_for_places_outside_the_table_are_dropped():
    x, places = np.array([[1], [2], [3]], np.float32), np.array([-1, 1, 4], np.int32)
    same(run(kernels.scatter_rows(), (x, places), (4, 1), "f32", fresh=9), np.array([[9], [2], [9], [9]]))


@pytest.mark.parametrize("index", [-1, 2])
def test_gathering_outside_the_table_is_an_error(index):
    executable = tilewright.compile(kernels.gather_rows(), target="executor")
    with pytest.raises(ExecutionError, match="leaves its tensor"):
        executable(np.ones((2, 3), np.float32), np.array([0, index], np.int32))


def test_histogram():
    rng = np.random.default_rng(9)
    for count, bins in [(1, 1), (50, 3), (7, 20), (1000, 11)]:
        x = rng.integers(-2, bins + 2, count).astype(np.int32)
        expected = np.array([int((x == b).sum()) for b in range(bins)])
        same(run(kernels.histogram(), (x,), (bins,), "i32", fresh=0), expected)
        same(run(kernels.histogram(), (x,), (bins,), "i32", fresh=5), expected + 5)


# -- mistakes -----------------------------------------------------------------------------------------------


def test_mistakes_are_named():
    for wrong, words in [
        (lambda: kernels.im2col((1, 1), layout="hwcn"), "layout='hwcn'"),
        (lambda: kernels.transpose((0, 2)), r"axes=\(0, 2\)"),
        (lambda: kernels.transpose(()), r"axes=\(\)"),
        (lambda: kernels.reduction("mean"), "combine='mean'"),
        (lambda: kernels.reduction("max", "tiles"), "over='tiles'"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            wrong()
