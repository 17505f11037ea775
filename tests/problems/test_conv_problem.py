"""Convolution problems: what is left out is inferred, what is printed is read back, a fault is shown where it is."""

import contextlib
from dataclasses import replace

import naive_problems as naive
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problem_strategies import conv_problems

from tilewright.errors import ParseError, ProblemError, TilewrightError
from tilewright.problems import ConvProblem, parse_conv, shape_lists

REAL = [problem for problems in shape_lists().values() for problem in problems]


@given(conv_problems(largest=300))
def test_a_printed_problem_is_read_back(problem):
    assert parse_conv(str(problem)) == problem
    assert parse_conv(problem.canonical()) == problem
    assert str(parse_conv(problem.canonical())) == str(problem)


@pytest.mark.parametrize("problem", REAL, ids=str)
def test_real_layers_are_read_back(problem):
    assert parse_conv(str(problem)) == problem == parse_conv(problem.canonical())


@given(conv_problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_keys_and_underscores_have_no_meaning(problem, random):
    fields = replace(problem, name=None).canonical().split("_")
    random.shuffle(fields)
    assert parse_conv("__".join(["", *fields, ""])) == replace(problem, name=None)


@given(conv_problems(max_rank=2, max_batch=2))
def test_multiply_adds_are_those_of_the_plain_loops(problem):
    assert problem.macs == sum(1 for _ in naive.triples(problem))
    assert problem.ops == 2 * problem.macs


def test_multiply_adds_of_a_large_problem_without_padding():
    problem = parse_conv("mb256ic512ih2050oc512kh3")
    assert problem.macs == 256 * 512 * 512 * 9 * 2048**2


def test_multiply_adds_where_the_filter_is_longer_than_the_output():
    problem = parse_conv("mb1ic1iw5ow3kw90pw40oc1")
    assert problem.macs == sum(1 for _ in naive.triples(problem))


def test_multiply_adds_of_an_enormous_filter_are_counted_at_once():
    assert parse_conv("mb1ic1oc1iw10ow3kw1000000000pw0").macs == 10 + 9 + 8
    assert parse_conv("mb1ic1oc1iw1000000000ow1000000000kw3pw1").macs == 3 * 10**9 - 2


def fields(text):
    """i, o, k, s, p, d of the only, or of equal, axes."""
    problem = parse_conv(text)
    rows = list(zip(problem.i, problem.o, problem.k, problem.s, problem.p, problem.d, strict=True))
    assert len(set(rows)) == 1
    return rows[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # neither o nor p: no padding
        ("ic1oc1ih10kh3", (10, 8, 3, 1, 0, 0)),
        ("ic1oc1ih10kh3sh2", (10, 4, 3, 2, 0, 0)),
        ("ic1oc1ih10kh3dh1", (10, 6, 3, 1, 0, 1)),
        # p, no o: the formula, rounded towards zero
        ("ic1oc1ih10kh3ph1", (10, 10, 3, 1, 1, 0)),
        ("ic1oc1ih11kh4sh3ph2dh1", (11, 3, 4, 3, 2, 1)),
        ("ic1oc1ih2kh3sh2", (2, 1, 3, 2, 0, 0)),
        # o, no p: half of what is missing, rounded towards zero
        ("ic1oc1ih10oh10kh3", (10, 10, 3, 1, 1, 0)),
        ("ic1oc1ih10oh10kh4", (10, 10, 4, 1, 1, 0)),
        ("ic1oc1ih224oh112kh7sh2", (224, 112, 7, 2, 2, 0)),
        ("ic1oc1ih10oh9kh1", (10, 9, 1, 1, 0, 0)),
        ("ic1oc1ih10oh2kh1", (10, 2, 1, 1, -4, 0)),
        ("ic1oc1ih10oh3kh1", (10, 3, 1, 1, -3, 0)),
        # both: as they are
        ("ic1oc1ih3oh3kh7ph0", (3, 3, 7, 1, 0, 0)),
        ("ic1oc1iw1kw3ow100pw100", (1, 100, 3, 1, 100, 0)),
        # an extent of 0 is one left out
        ("ic1oc1ih10oh0kh3", (10, 8, 3, 1, 0, 0)),
    ],
)
def test_output_and_padding_are_inferred(text, expected):
    assert fields(text) == expected


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("ic1oc1ih10oh10kh3", 1),
        ("ic1oc1ih10oh10kh4", 2),
        ("ic1oc1ih10oh9kh1", -1),
        ("ic1oc1ih10oh3kh1", -4),
        ("ic1oc1ih224oh112kh7sh2ph3", 2),
        ("ic1oc1ih3oh3kh7ph0", 6),
        ("ic1oc1iw1kw3ow100pw100", 1),
        ("ic1oc1ih10kh1sh4", -1),
    ],
)
def test_the_padding_after_the_image_is_derived(text, right):
    assert set(parse_conv(text).p_right) == {right}


def test_defaults():
    problem = parse_conv("ic6oc4ih5kh2")
    assert (problem.mb, problem.g, problem.groups, problem.has_groups, problem.name) == (2, None, 1, False, None)
    assert (problem.s, problem.d, problem.dilation) == ((1, 1), (0, 0), (1, 1))
    assert (problem.x_shape, problem.w_shape, problem.y_shape) == ((2, 6, 5, 5), (4, 6, 2, 2), (2, 4, 4, 4))


def test_one_group_is_not_no_group():
    one, none = parse_conv("g1ic6oc4ih5kh2"), parse_conv("ic6oc4ih5kh2")
    assert one != none
    assert one.has_groups
    assert (one.w_shape, none.w_shape) == ((1, 4, 6, 2, 2), (4, 6, 2, 2))
    assert str(one).startswith("g1ic6")
    assert one.canonical().startswith("g1mb2_ic6")


def test_channels_count_all_groups():
    problem = parse_conv("g2mb0ic6oc4ih5kh2")
    assert (problem.ic_per_group, problem.oc_per_group, problem.w_shape, problem.mb) == (3, 2, (2, 2, 3, 2, 2), 0)


@pytest.mark.parametrize(
    ("text", "axes", "extents"),
    [
        ("ic1oc1iw5kw2", "w", (5,)),
        ("ic1oc1ih5kh2", "hw", (5, 5)),
        ("ic1oc1id5kd2", "dhw", (5, 5, 5)),
        ("ic1oc1ih5kh2iw6kw2", "hw", (5, 6)),
        ("ic1oc1id4kd2ih5kh2iw6kw2", "dhw", (4, 5, 6)),
        # what an absent axis has by default may be written
        ("ic1oc1iw5kw2sh1dh0ph0sd1", "w", (5,)),
        ("ic1oc1ih5kh2sw1pw0dw0iw0", "hw", (5, 5)),
    ],
)
def test_the_rank_follows_from_the_axes_given(text, axes, extents):
    problem = parse_conv(text)
    assert (problem.axes, problem.rank, problem.i) == (axes, len(axes), extents)


def test_a_single_axis_gives_all_its_numbers_to_the_others():
    problem = parse_conv("ic1oc1id9od3kd3sd2pd1dd1")
    assert [problem.i, problem.o, problem.k, problem.s, problem.p, problem.d] == [(n,) * 3 for n in (9, 3, 3, 2, 1, 1)]


def test_axes_are_inferred_one_by_one():
    problem = parse_conv("ic1oc1ih10oh10kh3iw12kw3pw2")
    assert (problem.o, problem.p) == ((10, 14), (1, 2))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('ic1oc1ih5kh2n"net:conv*3"', "net:conv*3"),
        ("ic1oc1ih5kh2nnet:conv_1", "net:conv_1"),
        ('ic1oc1ih5kh2_n"a"b"', 'a"b'),
        ('ic1oc1ih5kh2n""a""', '"a"'),
        ('ic1oc1ih5kh2n""', None),
        ("ic1oc1ih5kh2n", None),
        ('  ic1oc1ih5kh2n"x" ', "x"),
    ],
)
def test_names(text, name):
    assert parse_conv(text).name == name


@pytest.mark.parametrize(
    ("problem", "short", "canonical"),
    [
        (
            ConvProblem(ic=3, oc=8, i=(9,), k=(3,)),
            "ic3iw9oc8ow7kw3pw0",
            "mb2_ic3iw9_oc8ow7_kw3_sw1_pw0_dw0",
        ),
        (
            ConvProblem(mb=1, g=2, ic=4, oc=8, i=(9, 9), k=(3, 3), s=(2, 2), d=(1, 1), name="a"),
            'g2mb1ic4ih9oc8oh3kh3sh2ph0dh1n"a"',
            'g2mb1_ic4ih9iw9_oc8oh3ow3_kh3kw3_sh2sw2_ph0pw0_dh1dw1_n"a"',
        ),
        (
            ConvProblem(ic=4, oc=8, i=(9, 9), k=(3, 3), s=(2, 1)),
            "ic4ih9iw9oc8oh4ow7kh3kw3sh2sw1ph0pw0",
            "mb2_ic4ih9iw9_oc8oh4ow7_kh3kw3_sh2sw1_ph0pw0_dh0dw0",
        ),
        (
            ConvProblem(ic=4, oc=8, i=(9, 9, 9), k=(3, 3, 3)),
            "ic4id9oc8od7kd3pd0",
            "mb2_ic4id9ih9iw9_oc8od7oh7ow7_kd3kh3kw3_sd1sh1sw1_pd0ph0pw0_dd0dh0dw0",
        ),
        (
            # h and w alike, d not: all three are written
            ConvProblem(ic=4, oc=8, i=(8, 9, 9), k=(3, 3, 3)),
            "ic4id8ih9iw9oc8od6oh7ow7kd3kh3kw3pd0ph0pw0",
            "mb2_ic4id8ih9iw9_oc8od6oh7ow7_kd3kh3kw3_sd1sh1sw1_pd0ph0pw0_dd0dh0dw0",
        ),
        (
            # inferred padding below 0 is not written
            ConvProblem(ic=4, oc=8, i=(10, 5), k=(1, 3), o=(2, 5)),
            "ic4ih10iw5oc8oh2ow5kh1kw3pw1",
            "mb2_ic4ih10iw5_oc8oh2ow5_kh1kw3_sh1sw1_pw1_dh0dw0",
        ),
    ],
)
def test_printed_forms(problem, short, canonical):
    assert str(problem) == short
    assert problem.canonical() == canonical


KEYS = "the keys are g, mb, ic, oc, one of i o k s p d with one of d h w, and n before a name"
AXES = "give d alone (for three equal axes), h alone (for two), w alone (one), h and w, or all three"


@pytest.mark.parametrize(
    ("text", "caret", "what"),
    [
        ("ic1oc1ih5kh3?", "            ^", f"'?' begins no key; {KEYS}"),
        ("ic1oc1ih5kx3", "         ^", f"'k' begins no key; {KEYS}"),
        ("ic1oc1ih5_6kh3", "          ^", f"'6' begins no key; {KEYS}"),
        ("ic1oc1ih5 kh3", "         ^", f"' ' begins no key; {KEYS}"),
        ("icoc1ih5kh3", "  ^", "expected a number after ic"),
        ("ic_1oc1ih5kh3", "  ^", "expected a number after ic"),
        ("ic1oc1ih5kh", "           ^", "expected a number after kh"),
        ("ic1oc1ih5kh3ph-1", "              ^", "expected a number after ph; no number of the notation has a sign"),
        ("ic9223372036854775808oc1", "  ^", "expected a number after ic below 2**63"),
        ("ic1oc1ih5kh3ih6", "            ^", "ih is given twice, as 5 and as 6"),
        ("oc1ih5kh3", "         ^", "ic is missing or below 1: give the input channels of all groups together"),
        ("ic1oc0ih5kh3", "   ^", "oc is missing or below 1: give the output channels of all groups together"),
        ('ic1ih5kh3n"x"', "         ^", "oc is missing or below 1: give the output channels of all groups together"),
        ("ic4g0oc1ih5kh3", "   ^", "g is 0; it is at least 1 (left out, the weights have no group axis)"),
        ("g3ic4oc6ih5kh3", "  ^", "ic is 4, which 3 groups do not divide"),
        ("g3ic6oc4ih5kh3", "     ^", "oc is 4, which 3 groups do not divide"),
        ("ic1oc1ih5kh3sh0", "            ^", "sh is 0; it is at least 1"),
        ("ic1oc1iw5kw3sh0", "            ^", "sh is 0; it is at least 1"),
        ("ic1oc1ih5ph1", "      ^", "kh is missing or 0: an axis needs both ih and kh"),
        ("ic1oc1ih5kh0", "         ^", "kh is missing or 0: an axis needs both ih and kh"),
        ("ic1oc1iw5kw3dh1", "            ^", "ih is missing or 0: an axis needs both ih and kh"),
        ("ic1oc1iw5kw3sh2", "            ^", "ih is missing or 0: an axis needs both ih and kh"),
        ("ic1oc1", "      ^", "no axis is given: write at least iw and kw, or ih and kh, or id and kd"),
        ("", "^", "ic is missing or below 1: give the input channels of all groups together"),
        ("ic1oc1id5kd2ih5kh2", "                  ^", f"axes d and h are given without w; {AXES}"),
        ("ic1oc1id5kd2iw5kw2", "                  ^", f"axes d and w are given without h; {AXES}"),
        (
            "ic1oc1ih4kh3dh2ph1",
            "         ^",
            "oh would be 0 = (ih4 - 7 + 2*ph1)/sh1 + 1, the filter spans 7: it is at least 1",
        ),
        ('ic1oc1ih5kh3n"x', "               ^", "the name's closing quote is missing"),
        ('ic1oc1ih5kh3n"x y"', "               ^", "a name holds no blanks or control characters, not ' '"),
    ],
)
def test_faults_are_shown_where_they_are(text, caret, what):
    with pytest.raises(ParseError) as caught:
        parse_conv(text)
    assert str(caught.value) == f"{what}\n  {text}\n  {caret}"
    assert isinstance(caught.value, TilewrightError | ValueError)


@given(st.text("gmbicodhwkspn_0123456789-\"' x", max_size=30))
def test_any_text_is_a_problem_or_a_parse_error(text):
    with contextlib.suppress(ParseError):
        problem = parse_conv(text)
        assert parse_conv(str(problem)) == problem


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"i": (1,) * 4}, "a convolution has 1 to 3 axes; i = (1, 1, 1, 1) has 4"),
        ({"i": ()}, "a convolution has 1 to 3 axes; i = () has 0"),
        ({"k": (3,)}, "k = (3,) does not have one number for each of the axes hw"),
        ({"o": (3, 3, 3)}, "o = (3, 3, 3) does not have one number for each of the axes hw"),
        ({"i": (5, 0)}, "iw is 0; it is at least 1"),
        ({"o": (0, 1)}, "oh is 0; it is at least 1"),
        ({"s": (1, -1)}, "sw is -1; it is at least 1"),
        ({"d": (-1, 0)}, "dh is -1; it is at least 0"),
        ({"mb": -1}, "mb is -1; it is at least 0"),
        ({"ic": 0}, "ic is missing or below 1: give the input channels of all groups together"),
        (
            {"o": (1, 1), "p": (0, -1), "k": (1, 1)},
            "pw is -1; padding below 0 cannot be written, only inferred from the output extent (here -2)",
        ),
        ({"name": "a b"}, "the name 'a b' holds a blank or a control character; write _ instead"),
    ],
)
def test_problems_that_cannot_be(fields, what):
    with pytest.raises(ProblemError) as caught:
        ConvProblem(**{"ic": 4, "oc": 4, "i": (5, 5), "k": (3, 3)} | fields)
    assert str(caught.value) == what


def test_problems_may_be_changed():
    problem = parse_conv("ic4ih10oc8oh2kh1")
    assert problem.p == (-4, -4)
    assert replace(problem, mb=7) == parse_conv("mb7ic4ih10oc8oh2kh1")
