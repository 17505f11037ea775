"""Batch files: comments, joined lines, options that stay, and the lists of real layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problem_strategies import conv_problems, matmul_problems

from tilewright.errors import ParseError, ProblemError
from tilewright.problems import Settings, parse_conv, parse_matmul, read_batch, shape_list, shape_lists

LAYER = "ic3ih8oc8kh3"


def problems(text):
    return [problem for _, problem in read_batch(text)]


@given(st.lists(conv_problems() | matmul_problems()))
def test_printed_problems_are_read_back(written):
    assert problems("\n".join(map(str, written))) == written
    assert problems("".join(f"\t{problem}  # {problem}\n" for problem in written)) == written


def test_comments_and_joined_lines():
    text = (
        "# all of this # is a comment \\\n"
        'mb1ic3ih8oc8kh3n"a#1" # more\n'
        "\n"
        "mb2ic3\\\n"
        "   ih8oc8\\\n"
        "kh3\n"
        "--mb=7 \\\n"
        "  --dir=BWD_W \\\n"
        f"  {LAYER}   {LAYER}\\"
    )
    first, second, third, fourth = read_batch(text)
    assert first == (Settings(), parse_conv('mb1ic3ih8oc8kh3n"a#1"'))
    assert second == (Settings(), parse_conv(LAYER))
    assert third == fourth == (Settings(mb=7, direction="BWD_W"), parse_conv("mb7" + LAYER))


def test_options_apply_to_what_follows():
    text = (
        f"{LAYER}\n--dt=u8:s8:s32 --attr-post-ops=sum:0.5+relu\n{LAYER}\n--dt=bf16\n--mb=3\n{LAYER}\n--mb=0\n{LAYER}\n"
    )
    text += f"--reset\n{LAYER}"
    settings = [found for found, _ in read_batch(text)]
    relu = (("attr-post-ops", "sum:0.5+relu"),)
    assert settings == [
        Settings(),
        Settings(dt=("u8", "s8", "s32"), options=relu),
        Settings(mb=3, dt=("bf16",) * 3, options=relu),
        Settings(dt=("bf16",) * 3, options=relu),
        Settings(),
    ]
    assert [problem.mb for problem in problems(text)] == [2, 2, 3, 2, 2]
    assert settings[1].option("attr-post-ops") == "sum:0.5+relu"
    assert settings[0].option("stag", "any") == "any"


def test_several_values_give_every_combination():
    found = list(read_batch(f"--mb=1,4 --dt=f32,i8:i8:i32 --dir=FWD_D,bwd_d {LAYER}"))
    assert len(found) == 8
    assert {(s.mb, p.mb) for s, p in found} == {(1, 1), (4, 4)}
    assert {s.dt for s, _ in found} == {("f32",) * 3, ("s8", "s8", "s32")}
    assert {s.direction for s, _ in found} == {"FWD_D", "BWD_D"}


def test_matrix_products_begin_with_a_digit():
    assert problems(f"2x3:3x5_n8 {LAYER}") == [parse_matmul("2x3:3x5_n8"), parse_conv(LAYER)]


@pytest.mark.parametrize(
    ("text", "line", "caret", "what"),
    [
        ("\n  ic1oc1ih5kh3sh0 # x", "  ic1oc1ih5kh3sh0", "              ^", "line 2: sh is 0; it is at least 1"),
        (
            "#\nic1\\\n  oc1ih5kq3",
            "ic1oc1ih5kq3",
            "         ^",
            "line 2: 'k' begins no key; the keys are g, mb, ic, oc, one of i o k s p d with one of d h w,"
            " and n before a name",
        ),
        (
            "--mb=1,x",
            "--mb=1,x",
            "       ^",
            "line 1: --mb needs a number (0: as each problem has it), not 'x'",
        ),
        (
            " --dt=f32,f32:f32",
            " --dt=f32,f32:f32",
            "          ^",
            "line 1: --dt needs one type, or three as in u8:s8:s32, not 'f32:f32'",
        ),
        (
            "--dt=f31",
            "--dt=f31",
            "     ^",
            "line 1: --dt: 'f31' names no element type; there are f64, f32, bf16, f16, f8e4m3fn, f8e5m2, s8, u8,"
            " s32, s64",
        ),
        (
            "--dir=UP",
            "--dir=UP",
            "      ^",
            "line 1: --dir needs one of FWD_B, FWD_D, FWD_I, BWD_D, BWD_W, BWD_WB, not 'UP'",
        ),
        (
            "--mb=3 2x3:3x5",
            "--mb=3 2x3:3x5",
            "       ^",
            "line 1: --mb has no meaning for a matrix product; write --mb=0 before it",
        ),
    ],
)
def test_faults_are_shown_where_they_are(text, line, caret, what):
    with pytest.raises(ParseError) as caught:
        list(read_batch(text))
    assert str(caught.value) == f"{what}\n  {line}\n  {caret}"


def test_an_unknown_option_names_the_known_ones():
    with pytest.raises(ParseError, match=r"line 1: --dtt is no option that is known here; .*--dt, .*--mb, .*--wtag"):
        list(read_batch("--dtt=f32"))


def test_all_shape_lists_are_read():
    lists = shape_lists()
    counts = {name: len(found) for name, found in lists.items()}
    assert counts == {
        "conv_3d": 6,
        "depthwise": 7,
        "grouped_dilated": 10,
        "hopper_8": 8,
        "mixed": 47,
        "resnet_50": 20,
    }
    assert {problem.rank for problem in lists["conv_3d"]} == {3}
    assert all(problem.ic_per_group == problem.oc_per_group == 1 for problem in lists["depthwise"])
    assert all(problem.groups > 1 or max(problem.d) > 0 for problem in lists["grouped_dilated"])
    assert {problem.rank for problem in lists["mixed"]} == {1, 2}


def test_some_layers_by_their_numbers():
    first = shape_list("resnet_50")[0]
    assert (first.name, first.mb, first.i, first.o, first.k, first.s) == (
        "resnet_50:conv1", 50, (224, 224), (112, 112), (7, 7), (2, 2)
    )  # fmt: skip
    assert (first.p, first.p_right, first.has_groups) == ((3, 3), (2, 2), True)
    by_name = {problem.name: problem for problem in shape_list("depthwise")}
    assert by_name["efficientdet:conv16"].p_right == (2, 2)
    assert by_name["deeplab:dw_r2"].dilation == (2, 2)
    last = shape_list("mixed")[-1]
    assert (last.i, last.o, last.k, last.p, last.p_right) == ((3, 3), (3, 3), (7, 7), (0, 0), (6, 6))


def test_a_list_with_another_batch():
    assert {problem.mb for problem in shape_list("mixed", mb=16)} == {16}
    assert shape_list("hopper_8")[0].mb == 32


def test_an_unknown_list_names_the_known_ones():
    with pytest.raises(ProblemError, match="'resnet' names no list of shapes; there are conv_3d, depthwise, "):
        shape_list("resnet")
