"""Matrix products: what is printed is read back, batches are repeated, a fault is shown where it is."""

import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problem_strategies import matmul_problems

from tilewright.errors import ParseError, ProblemError
from tilewright.problems import MatmulProblem, parse_matmul


@given(matmul_problems(largest=5000))
def test_a_printed_problem_is_read_back(problem):
    assert parse_matmul(str(problem)) == problem
    assert parse_matmul(problem.canonical()) == problem


def test_the_parts_of_a_problem():
    problem = parse_matmul('8x1x30x64:8x12x64x5_n"llama_3_8b:mm3*32"')
    assert (problem.m, problem.n, problem.k, problem.batch) == (30, 5, 64, (8, 12))
    assert (problem.src, problem.wei, problem.dst) == ((8, 1, 30, 64), (8, 12, 64, 5), (8, 12, 30, 5))
    assert problem.name == "llama_3_8b:mm3*32"
    assert problem.macs == 8 * 12 * 30 * 5 * 64
    assert problem.ops == 2 * problem.macs


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("1x2x3:4x3x5", (4,)),
        ("4x2x3:1x3x5", (4,)),
        ("1x2x3:0x3x5", (0,)),
        ("1x2x3:1x3x5", (1,)),
        ("1x2x3:1x3x5:7x2x5", (7,)),
        ("2x3:3x5", ()),
    ],
)
def test_a_batch_of_one_is_repeated(text, batch):
    assert parse_matmul(text).batch == batch


def test_printed_forms():
    usual, wide = MatmulProblem((2, 3), (3, 5), name="a"), parse_matmul("1x2x3:1x3x5:7x2x5")
    assert (str(usual), usual.canonical()) == ('2x3:3x5_n"a"', '2x3:3x5:2x5_n"a"')
    assert str(wide) == wide.canonical() == "1x2x3:1x3x5:7x2x5"
    assert str(parse_matmul("2x3:3x5:2x5")) == "2x3:3x5"
    assert parse_matmul("2x3:3x5na") == parse_matmul(" 2x3:3x5__na ") == usual


@pytest.mark.parametrize(
    ("text", "caret", "what"),
    [
        ("", "^", "expected a shape, as in 30x64,"),
        ("x3:3x5", "^", "expected a shape, as in 30x64,"),
        ("2x:3x5", "  ^", "expected an extent"),
        ("2x-3:3x5", "  ^", "expected an extent; no number of the notation has a sign"),
        ("2x99999999999999999999:3x5", "  ^", "expected an extent below 2**63"),
        ("2x3", "   ^", "the right factor is missing; write left:right"),
        ("2x3_na", "      ^", "the right factor is missing; write left:right"),
        ("2x3:", "    ^", "expected a shape, as in 30x64,"),
        ("2x3:3x5:2x5:1", "           ^", "expected the end, or _n and a name: there are at most three shapes"),
        ("2x3:3x5q", "       ^", "'q' has no meaning here; expected x, :, or _n and a name"),
        ("2x3:3x5 6", "       ^", "' ' has no meaning here; expected x, :, or _n and a name"),
        ('2x3:3x5_n"a', "           ^", "the name's closing quote is missing"),
        ("3:3x5", "^", "src is 3; a matrix has at least two extents"),
        ("2x3:3", "    ^", "wei is 3; a matrix has at least two extents"),
        ("2x3:1x3x5", "    ^", "2x3 has 2 extents and 1x3x5 has 3; fill up with batch extents of 1"),
        ("2x3:4x5", "    ^", "the left factor has 3 columns and the right factor 4 rows; they are equal"),
        ("2x3:3x5:2x6", "        ^", "the result is 2x5, not 2x6"),
        ("2x3:3x5:1x2x5", "        ^", "the result is 2x5, not 1x2x5"),
        (
            "4x2x3:3x3x5",
            "      ^",
            "batch extent 0 is 4 on the left, 3 on the right and 4 in the result; only 1 is repeated",
        ),
        (
            "4x2x3:1x3x5:5x2x5",
            "            ^",
            "batch extent 0 is 4 on the left, 1 on the right and 5 in the result; only 1 is repeated",
        ),
    ],
)
def test_faults_are_shown_where_they_are(text, caret, what):
    with pytest.raises(ParseError) as caught:
        parse_matmul(text)
    assert str(caught.value) == f"{what}\n  {text}\n  {caret}"


@given(st.text('0123x:_n"', max_size=20))
def test_any_text_is_a_problem_or_a_parse_error(text):
    with contextlib.suppress(ParseError):
        problem = parse_matmul(text)
        assert parse_matmul(str(problem)) == problem


def test_no_extent_is_below_zero():
    with pytest.raises(ProblemError, match="src is -1x3; no extent is below 0"):
        MatmulProblem((-1, 3), (3, 5))


def test_an_array_of_rows_is_no_shape():
    with pytest.raises(ProblemError, match=r"src = array\(\[\].* is no row of integers"):
        MatmulProblem(np.ones((0, 4)), (4, 5))
