"""Test data: exact sums stay exact in any order; the bound of real data holds and is not idle."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problem_strategies import conv_problems, matmul_problems

from tilewright.errors import ProblemError
from tilewright.problems import (
    MatmulProblem,
    conv_dgrad,
    conv_forward,
    conv_wgrad,
    dtype,
    exact_data,
    matmul_reference,
    operand_shapes,
    parse_conv,
    parse_matmul,
    real_bound,
    real_data,
    terms,
)

TYPES = ["f64", "f32", "bf16", "f16", "f8e4m3fn", "f8e5m2", "s8", "u8", "u8:s8"]
REFERENCES = {"forward": conv_forward, "dgrad": conv_dgrad, "wgrad": conv_wgrad}


def reference(problem, direction, a, b):
    if isinstance(problem, MatmulProblem):
        return matmul_reference(problem, a, b)
    return REFERENCES[direction](problem, a, b)


def magnitude(problem, direction, a, b):
    """For every element of the result, what the magnitudes of its products add up to."""
    return reference(problem, direction, *(np.abs(operand.astype(np.float64)) for operand in (a, b)))


def rng(seed=0):
    return np.random.default_rng(seed)


LONG = [
    ("mb2ic300ih6iw5oc3kh3kw2ph1", "forward"),
    ("g2mb1ic400ih5oc6kh3sh2ph1", "forward"),
    ("mb2ic3ih6iw5oc300kh3kw2ph1", "dgrad"),
    ("g2mb1ic6ih9oc400kh3sh2dh1ph2", "dgrad"),
    ("mb3ic2ih40iw30oc3kh3kw2ph1", "wgrad"),
    ("g2mb3ic4iw900oc2kw2", "wgrad"),
    ("40x3000:3000x20", "forward"),
    ("2x1x7x3000:1x3x3000x5", "forward"),
]


def parse(text):
    return parse_matmul(text) if text[0].isdigit() else parse_conv(text)


@pytest.mark.parametrize("kinds", TYPES)
@pytest.mark.parametrize(("text", "direction"), LONG)
def test_no_sum_leaves_the_exact_integers(text, direction, kinds):
    problem = parse(text)
    a, b = exact_data(problem, kinds, rng(), direction=direction)
    assert (a.shape, b.shape) == operand_shapes(problem, direction)
    accumulator = "s32" if dtype(kinds.split(":")[0]).is_integer else "f64" if kinds == "f64" else "f32"
    result = "s32" if accumulator == "s32" else kinds
    limit = min(dtype(accumulator).exact_limit, dtype(result).exact_limit)
    assert magnitude(problem, direction, a, b).max() <= limit
    found = reference(problem, direction, a, b)
    rounded = found.astype(dtype(result).numpy)
    assert (rounded.astype(np.float64) == found).all()
    # Not all zero, and not so sparse that little is tested.
    assert np.count_nonzero(found) > found.size // 10


def test_dense_data_would_not_be_exact():
    problem = parse("40x3000:3000x20")
    a, b = (rng().integers(-4, 4, shape, endpoint=True) for shape in (problem.src, problem.wei))
    assert magnitude(problem, "forward", a, b).max() > 50 * dtype("bf16").exact_limit


@given(conv_problems(), st.sampled_from(TYPES), st.sampled_from(["forward", "dgrad", "wgrad"]))
def test_data_of_any_convolution_are_exact(problem, kinds, direction):
    a, b = exact_data(problem, kinds, rng(), direction=direction)
    result = dtype("s32") if dtype(kinds[:2] if ":" in kinds else kinds).is_integer else dtype(kinds)
    assert magnitude(problem, direction, a, b).max(initial=0) <= min(result.exact_limit, 2**53)


@given(matmul_problems(largest=40), st.sampled_from(TYPES))
def test_data_of_any_matrix_product_are_exact(problem, kinds):
    a, b = exact_data(problem, kinds, rng())
    result = dtype("s32") if dtype(kinds[:2] if ":" in kinds else kinds).is_integer else dtype(kinds)
    assert magnitude(problem, "forward", a, b).max(initial=0) <= result.exact_limit


@pytest.mark.parametrize("kinds", ["f32", "bf16", "f16", "f8e4m3fn"])
def test_any_order_of_adding_gives_the_same_bits(kinds):
    """Also where each partial sum is rounded to the type of the result."""
    problem = parse_matmul("3x500:500x4")
    a, b = exact_data(problem, kinds, rng(1))
    expected = matmul_reference(problem, a, b)
    for order in (np.arange(500), np.arange(500)[::-1], rng(2).permutation(500)):
        total = np.zeros((3, 4), dtype(kinds).numpy)
        for k in order:
            total = (total + np.outer(a[:, k], b[k])).astype(dtype(kinds).numpy)
        assert (total.astype(np.float64) == expected).all()


@pytest.mark.parametrize(
    ("problem", "kinds", "result", "lowest", "highest"),
    [
        ("mb4ic8ih9oc8kh3", "f32", "", (-32, -32), (32, 32)),
        ("mb4ic1ih9oc64kh1", "bf16", "", (-4, -4), (4, 4)),
        ("mb4ic8ih9oc64kh1", "f16", "", (-4, -2), (4, 2)),
        ("mb4ic8ih9oc64kh1", "f8e5m2", "f32", (-4, -2), (4, 2)),
        ("mb4ic8ih9oc8kh3", "s8", "", (-4, -4), (4, 4)),
        ("mb4ic8ih9oc8kh3", "u8:s8", "", (0, -4), (160, 4)),
        ("mb4ic1ih9oc8kh1", "u8:s8", "s8", (0, -4), (8, 4)),
        ("mb4ic1ih9oc8kh1", "u8:s8", "u8", (0, 0), (8, 4)),
        ("40x30:30x40", "f32", "", (-64, -128), (64, 128)),
        ("40x8:8x40", "bf16", "", (-4, -4), (4, 4)),
    ],
)
def test_ranges(problem, kinds, result, lowest, highest):
    operands = exact_data(parse(problem), kinds, rng(), result=result)
    assert tuple(int(operand.min()) for operand in operands) == lowest
    assert tuple(int(operand.max()) for operand in operands) == highest


def test_signed_bytes_have_even_weights():
    problem = parse_conv("mb4ic8ih9oc8kh3")
    assert (exact_data(problem, "s8", rng())[1] % 2 == 0).all()
    assert (exact_data(problem, "s8", rng())[0] % 2 != 0).any()
    assert (exact_data(problem, "u8:s8", rng())[1] % 2 != 0).any()


def test_a_wider_result_allows_more():
    problem = parse_conv("mb1ic512ih7oc4kh3ph1")
    narrow, _ = exact_data(problem, "bf16", rng())
    wide, _ = exact_data(problem, "bf16", rng(), result="f32")
    assert np.count_nonzero(narrow) < narrow.size // 50
    assert np.count_nonzero(wide) > wide.size // 2


def test_a_narrow_accumulator_is_obeyed():
    problem = parse_conv("mb1ic512ih7oc4kh3ph1")
    a, b = exact_data(problem, "f32", rng(), accumulator="f16")
    assert 0 < magnitude(problem, "forward", a, b).max() <= 2**11


def test_sparse_data_still_reach_every_weight():
    problem = parse_conv("mb8ic64ih14oc1kh3ph1")
    x, _ = exact_data(problem, "bf16", rng())
    assert (conv_wgrad(problem, (x != 0).astype(int), np.ones(problem.y_shape, int)) > 0).all()


@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
def test_the_same_seed_gives_the_same_data(direction):
    problem = parse_conv("mb2ic40ih7oc30kh3ph1")
    for make in (exact_data, real_data):
        first, again, other = (make(problem, "bf16", rng(seed), direction=direction) for seed in (5, 5, 6))
        assert all((a == b).all() for a, b in zip(first, again, strict=True))
        assert any((a != b).any() for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("direction", ["forward", "dgrad", "wgrad"])
def test_an_empty_batch_has_data(direction):
    problem = parse_conv("mb0ic400ih7oc300kh3ph1")
    for make in (exact_data, real_data):
        a, b = make(problem, "bf16", rng(), direction=direction)
        assert (a.shape, b.shape) == operand_shapes(problem, direction)
        assert not reference(problem, direction, a, b).any()


def float32_product(a, b):
    """One product after the other, rounded to float32 each time."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total += np.outer(a[:, k].astype(np.float32), b[k].astype(np.float32))
    return total


@pytest.mark.parametrize("kinds", ["f32", "bf16", "f16", "f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("result", ["f32", "bf16", "f16"])
def test_the_bound_of_real_data_holds_and_is_not_idle(kinds, result):
    problem = parse_matmul("20x300:300x17")
    a, b = real_data(problem, kinds, rng(3))
    exact, size = matmul_reference(problem, a, b), magnitude(problem, "forward", a, b)
    bound = real_bound(terms(problem), size, exact, result=result)
    target = dtype(result).numpy
    error = np.abs(float32_product(a, b).astype(target).astype(np.float64) - exact)
    assert (error <= bound).all()
    # One product left out is noticed nearly everywhere, one rounding of the sum to bf16 mostly.
    short = np.abs(float32_product(a[:, 1:], b[1:]).astype(target).astype(np.float64) - exact)
    assert (short > bound).mean() > 0.75
    if result == "f32":
        coarse = np.abs(float32_product(a, b).astype(dtype("bf16").numpy).astype(np.float64) - exact)
        assert (coarse > bound).mean() > 0.5


def test_the_bound_of_convolutions_holds():
    problem = parse_conv("g2mb2ic40ih9iw7oc6kh3kw2sh2ph1")
    for direction in REFERENCES:
        a, b = real_data(problem, "f32", rng(4), direction=direction)
        exact, size = reference(problem, direction, a, b), magnitude(problem, direction, a, b)
        bound = real_bound(terms(problem, direction), size, exact)
        # Rounding the operands to bf16 first is noticed, unless the bound is told.
        rounded = [operand.astype(dtype("bf16").numpy) for operand in (a, b)]
        error = np.abs(reference(problem, direction, *rounded) - exact)
        assert (error > bound).mean() > 0.75
        assert (error <= real_bound(terms(problem, direction), size, exact, inputs="bf16")).all()


def test_the_bound_by_its_formula():
    size, exact = np.array([8.0]), np.array([-2.0])
    e = 2.0**-23
    gamma = 16 * e / (1 - 16 * e)
    assert real_bound(16, size, exact).item() == pytest.approx(gamma * 8, rel=1e-12)
    assert real_bound(16, size, exact, eps=2.0**-13).item() == pytest.approx(8 * 2.0**-9 / (1 - 2.0**-9), rel=1e-12)
    with_result = gamma * 8 + 2.0**-8 * (2 + gamma * 8)
    assert real_bound(16, size, exact, result="bf16").item() == pytest.approx(with_result, rel=1e-12)
    u = 2.0**-8
    with_inputs = gamma * 8 + (2 * u + u * u) * (1 + gamma) * 8
    assert real_bound(16, size, exact, inputs="bf16").item() == pytest.approx(with_inputs, rel=1e-12)
    f64 = real_bound(16, size, exact, accumulator="f64", result="f64").item()
    assert f64 == pytest.approx(2 * 16 * 2.0**-52 * 8, rel=1e-9)
    assert real_bound(16, size, exact, accumulator="s32", result="s32").item() == 0


def test_a_sum_without_a_useful_bound_is_refused():
    with pytest.raises(ProblemError, match=r"a sum of 5000 terms has no useful bound with eps = 0.0001220703125"):
        real_bound(5000, np.ones(1), np.ones(1), eps=2.0**-13)


def test_integer_types_are_filled_in_their_whole_range():
    a, b = real_data(parse_matmul("100x100:100x100"), "u8:s8", rng())
    assert (a.min(), a.max(), b.min(), b.max()) == (0, 255, -128, 127)


@pytest.mark.parametrize(
    ("name", "digits", "limit", "eps"),
    [
        ("f64", 53, 2**53, 2.0**-52),
        ("f32", 24, 2**24, 2.0**-23),
        ("bf16", 8, 256, 2.0**-7),
        ("f16", 11, 2048, 2.0**-10),
        ("f8e4m3fn", 4, 16, 2.0**-3),
        ("f8e5m2", 3, 8, 2.0**-2),
        ("s8", 7, 127, 0),
        ("u8", 8, 255, 0),
        ("i32", 31, 2**31 - 1, 0),
    ],
)
def test_element_types(name, digits, limit, eps):
    kind = dtype(name)
    assert (kind.digits, kind.exact_limit, kind.eps, kind.is_integer) == (digits, limit, eps, eps == 0)
    # That far the integers are values; one step further they are not.
    for value, exact in ((limit, True), (limit + 1, False)):
        assert (int(np.array(value).astype(kind.numpy)) == value) is exact


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda p: exact_data(p, "f33", rng()), "'f33' names no element type; there are f64, "),
        (lambda p: exact_data(p, "f32:s8", rng()), "the operands' types are 'f32:s8'; give one type, or two of a kind"),
        (lambda p: exact_data(p, "s32", rng()), "the operands' types are 's32'; there are f64, f32, "),
        (lambda p: exact_data(p, "f32", rng(), direction="up"), "the direction is 'up'; this problem has forward"),
        (
            lambda p: real_data(parse_matmul("2x3:3x5"), "f32", rng(), direction="dgrad"),
            "the direction is 'dgrad'; this problem has forward",
        ),
    ],
)
def test_what_cannot_be_made_is_refused(call, what):
    with pytest.raises(ProblemError, match=what):
        call(parse_conv("ic3ih5oc3kh3"))
