"""The references, against textbook loops and against each other."""

import time

import ml_dtypes
import naive_problems as naive
import numpy as np
import pytest
from hypothesis import given
from problem_strategies import conv_problems, matmul_problems

from tilewright.errors import ProblemError
from tilewright.problems import conv_dgrad, conv_forward, conv_wgrad, matmul_reference, parse_conv, parse_matmul

ODD = [
    "mb2ic3ih5iw7oc4kh3kw2",  # neither image nor filter square
    "mb1ic1ih1iw1oc1kh1kw1",
    "mb1ic3ih1iw9oc2kh1kw3pw1",
    "mb1ic3ih9iw1oc2kh3kw1ph1",
    "mb2ic5ih6oc3kh1",
    "mb1ic3ih11oc4kh7sh2ph3",
    "mb1ic2ih5iw4oc3kh5kw4",  # filter = image
    "mb2ic2ih9oc3kh2sh4",  # stride larger than the filter
    "mb2ic2ih9oc3oh2kh3sh2",  # right padding below 0: inferred left padding below 0 too
    "mb2ic2ih9oc3oh2kh3sh2ph0",  # trailing input unread
    "mb1ic2ih4oc2oh9kh3ph5",  # over-large padding: taps, and whole outputs, outside the image
    "mb1ic2iw1oc2ow12kw3pw10",
    "mb1ic2ih3oc2oh3kh7ph0",  # all padding after the image
    "mb1ic2ih8oc2oh8kh4ph1",  # asymmetric
    "mb1ic2ih9oc2kh3dh2ph2",  # dilation
    "mb1ic2ih9iw10oc2kh2kw3dh3dw0sh3sw2ph2pw0",
    "g2mb2ic4ih5oc6kh3ph1",  # groups
    "g1mb1ic3ih4oc2kh2",
    "g5mb1ic5ih6iw5oc5kh3kw3sh2sw2ph1pw1",  # depthwise
    "g3mb1ic3ih6oc6kh3ph1",  # two outputs for each input
    "g3mb1ic6ih6oc3kh3ph1",
    "mb0ic3ih5oc4kh3ph1",  # empty batch
    "g2mb0ic4ih5oc4kh3",
    "mb2ic3iw9oc2kw4sw2pw1",  # one axis
    "g2mb1ic4iw9oc2kw3dw1",
    "mb1ic2id3ih4iw5oc3kd2kh3kw1pd1ph1sw2",  # three axes
    "g2mb1ic2id5oc2kd3sd2pd1",
]  # fmt: skip


def integers(shape, seed, largest=9):
    return np.random.default_rng(seed).integers(-largest, largest, shape, endpoint=True)


def check_against_loops(problem):
    x, w, y = (integers(shape, n) for n, shape in enumerate((problem.x_shape, problem.w_shape, problem.y_shape)))
    for found, expected in (
        (conv_forward(problem, x, w), naive.forward(problem, x, w)),
        (conv_dgrad(problem, y, w), naive.dgrad(problem, y, w)),
        (conv_wgrad(problem, x, y), naive.wgrad(problem, x, y)),
    ):
        assert found.dtype == np.int64
        assert found.shape == expected.shape
        assert (found == expected).all()


@pytest.mark.parametrize("text", ODD)
def test_convolutions_are_those_of_plain_loops(text):
    check_against_loops(parse_conv(text))


@given(conv_problems(largest=5, max_batch=2))
def test_any_convolution_is_that_of_plain_loops(problem):
    check_against_loops(problem)


@given(matmul_problems())
def test_matrix_products_are_those_of_plain_loops(problem):
    a, b = integers(problem.src, 1), integers(problem.wei, 2)
    found = matmul_reference(problem, a, b)
    assert found.dtype == np.int64
    assert found.shape == problem.dst
    assert (found == naive.matmul(problem, a, b)).all()


@given(conv_problems())
def test_the_gradients_are_adjoint(problem):
    x, w, y = (integers(shape, n) for n, shape in enumerate((problem.x_shape, problem.w_shape, problem.y_shape)))
    product = (conv_forward(problem, x, w) * y).sum()
    assert product == (x * conv_dgrad(problem, y, w)).sum()
    assert product == (w * conv_wgrad(problem, x, y)).sum()


def test_data_decide_the_arithmetic():
    problem = parse_conv("mb1ic2ih4oc2kh3")
    x, w = integers(problem.x_shape, 0), integers(problem.w_shape, 1)
    for kind in (np.int8, np.uint8, np.int64):
        assert conv_forward(problem, x.astype(kind), w).dtype == np.int64
    for kind in (np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        found = conv_forward(problem, x.astype(kind), w)
        assert found.dtype == np.float64
        assert (found == naive.forward(problem, x, w)).all()
    reals = np.random.default_rng(0).standard_normal(problem.x_shape)
    by_hand = (reals[0, :, 1:4, 0:3] * w[1]).sum()
    assert abs(conv_forward(problem, reals, w.astype(float))[0, 1, 1, 0] - by_hand) < 1e-12


@pytest.mark.parametrize("largest", [2**20, 2**26, 2**29])
def test_large_integers_are_exact(largest):
    problem = parse_conv("mb1ic2ih4oc2kh2")
    x, w = integers(problem.x_shape, 0, largest), integers(problem.w_shape, 1, largest)
    assert (conv_forward(problem, x, w) == naive.forward(problem, x, w)).all()


def test_sums_beyond_int64_are_refused():
    problem = parse_matmul("1x3:3x1")
    with pytest.raises(ProblemError, match="sums may reach 55340232221128654848, beyond int64; use smaller values"):
        matmul_reference(problem, np.full((1, 3), 2**32), np.full((3, 1), 2**32))


def test_what_is_never_read_may_be_infinite():
    problem = parse_conv("mb1ic1iw6oc1ow2kw2sw2pw0")
    x = np.array([[[1.0, 2, 3, 4, np.inf, np.nan]]])
    assert conv_forward(problem, x, np.array([[[1.0, 10.0]]])).tolist() == [[[21.0, 43.0]]]


LETTERS = {1: "w", 2: "hw", 3: "dhw"}


@pytest.mark.sampled(15)
@pytest.mark.parametrize(
    "text",
    ["g2mb2ic4iw5oc6kw3", "g2mb2ic4ih5iw6oc6kh3kw2ph1", "g2mb2ic4id4ih5iw6oc6kd2kh3kw1", "mb2ic4ih5iw6oc6kh3kw2"],
)
@pytest.mark.parametrize("order", ["nxc", "cxn", "xcn"])
@pytest.mark.parametrize("weights", ["xgio", "gxoi", "ixgo", "oxi", "xio"])
def test_layouts_only_reorder_axes(text, order, weights):
    problem = parse_conv(text)
    axes = LETTERS[problem.rank]
    x, w, y = (integers(shape, n) for n, shape in enumerate((problem.x_shape, problem.w_shape, problem.y_shape)))
    order, weights = order.replace("x", axes), weights.replace("x", axes)

    def images(array):
        return array.transpose([("nc" + axes).index(letter) for letter in order])

    def filters(array):
        full = array.reshape(naive.grouped_shape(problem))
        if "g" in weights:
            return full.transpose([("goi" + axes).index(letter) for letter in weights])
        return full.reshape(-1, *full.shape[2:]).transpose([("oi" + axes).index(letter) for letter in weights])

    how = {"x_layout": order, "w_layout": weights, "y_layout": order}
    forward = conv_forward(problem, images(x), filters(w), **how)
    assert forward.flags.c_contiguous
    assert (forward == images(naive.forward(problem, x, w))).all()
    assert (conv_dgrad(problem, images(y), filters(w), **how) == images(naive.dgrad(problem, y, w))).all()
    assert (conv_wgrad(problem, images(x), images(y), **how) == filters(naive.wgrad(problem, x, y))).all()


def test_generic_layouts_stand_for_any_rank():
    problem = parse_conv("mb1ic2ih4iw5oc3kh2kw2")
    x, w = integers((1, 4, 5, 2), 0), integers((2, 2, 2, 3), 1)
    generic = conv_forward(problem, x, w, x_layout="nxc", w_layout="xio", y_layout="nxc")
    assert (generic == conv_forward(problem, x, w, x_layout="nhwc", w_layout="hwio", y_layout="nhwc")).all()
    assert generic.shape == (1, 3, 4, 3)


def test_layouts_of_matrix_products():
    problem = parse_matmul("2x3x4:1x4x5")
    a, b = integers(problem.src, 0), integers(problem.wei, 1)
    expected = naive.matmul(problem, a, b)
    how = {"src_layout": "km", "wei_layout": "nk", "dst_layout": "nm"}
    found = matmul_reference(problem, a.swapaxes(1, 2), b.swapaxes(1, 2), **how)
    assert (found == expected.swapaxes(1, 2)).all()


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (
            lambda p, x, w: conv_forward(p, x.swapaxes(1, 2), w),
            r"x, as nchw, has shape \(1, 4, 2, 5\); the problem asks for \(1, 2, 4, 5\)",
        ),
        (
            lambda p, x, w: conv_forward(p, x, w, w_layout="iohw"),
            r"w, as iohw, has shape \(3, 2, 2, 2\); the problem asks for \(2, 3, 2, 2\)",
        ),
        (
            lambda p, x, w: conv_forward(p, x, w, x_layout="ncdhw"),
            "the x layout is 'ncdhw'; it has each of n, c, h, w once",
        ),
        (
            lambda p, x, w: conv_forward(p, x, w, y_layout="nch"),
            "the y layout is 'nch'; it has each of n, c, h, w once",
        ),
        (
            lambda p, x, w: conv_forward(p, x, w, w_layout="oxx"),
            "the w layout is 'oxx'; it has each of o, i, h, w once, and may have g",
        ),
        (
            lambda p, x, w: matmul_reference(parse_matmul("2x3:3x5"), x, w, src_layout="ab"),
            "the src layout is 'ab'; it is 'mk' or 'km'",
        ),
        (
            lambda p, x, w: matmul_reference(parse_matmul("2x3:3x5"), np.ones((2, 3)), np.ones((5, 3))),
            r"wei, as kn, has shape \(5, 3\); the problem asks for \(3, 5\)",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_refused(call, what):
    problem = parse_conv("mb1ic2ih4iw5oc3kh2kw2")
    with pytest.raises(ProblemError, match=what):
        call(problem, integers(problem.x_shape, 0), integers(problem.w_shape, 1))


def test_a_real_layer_takes_no_time():
    problem = parse_conv("mb1ic64ih56oc64oh56kh3ph1")
    x, w = integers(problem.x_shape, 0), integers(problem.w_shape, 1)
    start = time.process_time()
    conv_forward(problem, x, w)
    assert time.process_time() - start < 10  # element by element it would be minutes
