"""Sizes that stay open until a call: notation, what is refused, what the arrays tell, and what comes out."""

from __future__ import annotations

import numpy as np
import open_programs
import pytest
from open_programs import AFFINE, CONV, POINTWISE, PRODUCT

from tilewright.compiler.text import compile_text
from tilewright.errors import ArgumentError, OutOfBoundsFault, ParseError, ProgramError
from tilewright.ir.binding import bind, open_parameters
from tilewright.ir.block import parse_block
from tilewright.ir.verifier import verify

TARGETS = ["interpreter", "cpu"]


def rows(body: str, header: str = "param M in 1..100, N in 1..100", shape: str = "M, N") -> str:
    return f"""block rows(%x: in global f32 ({shape}), %y: out global f32 ({shape}))
  machine x86.avx512
  {header}
{{
  tasks m in 0..M {{
    {body}
  }}
}}
"""


# -- notation -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [AFFINE, PRODUCT, CONV, POINTWISE])
def test_a_program_with_open_parameters_reads_back_what_it_prints(text: str) -> None:
    program = parse_block(text)
    verify(program)
    assert parse_block(str(program)) == program
    open_one = bind(program)
    assert parse_block(str(open_one)) == open_one
    assert open_parameters(open_one) == open_parameters(program)


def test_a_range_is_printed_as_it_is_written() -> None:
    line = "  param M in 1..65536, C in 32..4096 step 32, K = 3\n"
    text = f"block f(%x: in global f32 (M, C, K))\n{line}{{\n}}\n"
    assert str(parse_block(text)) == text
    assert compile_text(text, target="interpreter").parameters() == {
        "M": range(1, 65536),
        "C": range(32, 4096, 32),
        "K": 3,
    }
    assert compile_text(text, params={"M": 4}, target="interpreter").parameters()["M"] == 4


def test_binding_one_parameter_leaves_the_others_open() -> None:
    program = bind(parse_block(AFFINE), {"M": 3})
    assert "(3, N)" in str(program)
    assert "param N in 0..65536\n" in str(program)
    assert "param" not in str(bind(program, {"N": 5}))


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("param M in 5..5, N in 1..2", "M in 5..5: a parameter's range holds numbers from 0 on, and at least one"),
        ("param M in -1..5, N in 1..2", "from 0 on"),
        ("param M in 2..9 step 4, N in 1..2", "must start at a multiple of the step"),
        ("param M in 1..K, N in 1..2", "expected an integer"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(header: str, why: str) -> None:
    with pytest.raises(ParseError, match=why):
        parse_block(rows("", header))


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("%line = alloc shared f32 (4, 2*m + 2)", r"%line: its shape .* depends on m; memory has one size for all"),
        ("%v = alloc register f32 (N, 16) as avx512.f32.c", r"%v: its shape \(N, 16\) depends on the open parameter N"),
        (
            "%c = alloc register f32 (4, 16) as avx512.f32.c\n%a = view %x (i 4, k N) -> [m, k]\n"
            "%b = view %x (k N, j 16) -> [m, k]\nmma %c += %a * %b using avx512.f32",
            r"mma: the shape \(4, N\) of %a depends on the open parameter N",
        ),
        (
            "%s = alloc shared f32 ()\n%a = view %x (j N - 1) -> [m, j]\nreduce %a -> %s along 0 with sum",
            r"the extent N - 1 cannot be shown to be at least 1 for all values of N",
        ),
        ("copy %x -> %y stream N", "stream must be a number; it depends on the open parameter N"),
        ("for i in 0..N peel [M] { barrier }", "peel must be a number; it depends on the open parameter M"),
        ("%a = view %x (j 4) -> [m, j]", r"coordinate 1, j, cannot be shown to be below N for all values of N"),
        ("%a = view %x (j N) -> [m + 1, j]", r"coordinate 0, m \+ 1, cannot be shown to be below M.*mark it with \?"),
        ("%a = view %x (j N) -> [m, j - 1]", r"coordinate 1, j - 1, cannot be shown to be at least 0 for all"),
        ("%a = view %x (j 1) -> [m, j + m//(N - 1)]", r"the divisor N - 1 may be zero or less"),
    ],
)
def test_what_may_not_depend_on_an_open_parameter_is_named(body: str, why: str) -> None:
    with pytest.raises(ProgramError, match=why):
        compile_text(rows(body), target="interpreter")


def test_shared_memory_of_an_open_size_is_refused_where_there_is_little() -> None:
    text = rows("%line = alloc shared f32 (N)").replace("x86.avx512", "hopper")
    with pytest.raises(ProgramError, match=r"%line: its shape \(N\) depends on the open parameter N; .* shared memory"):
        compile_text(text, target="interpreter")


HELD = """
block held(%x: in global f32 (M, N), %y: out global f32 (M, N), %sums: out global f32 (M), %most: out global f32 (N))
  param M in 1..1000, N in 1..1000
{
  tasks t in 0..ceildiv(M, 8) {
    %from = view %x (i min(8, M - 8*t), j N) -> [8*t + i, j]
    %to = view %y (i min(8, M - 8*t), j N) -> [8*t + i, j]
    %rows = alloc shared f32 (8, N)
    %twice = view %rows (i min(8, M - 8*t), j N) -> [i, j]
    map %twice = %from + %from
    %each = view %sums (i min(8, M - 8*t)) -> [8*t + i]
    reduce %twice -> %each along 1 with sum
    scan %twice -> %to along 1 with sum
    if (t <= 0) {
      %line = alloc shared f32 (N)
      reduce %x -> %line along 0 with max
      copy %line -> %most
    }
  }
}
"""


@pytest.mark.parametrize("target", TARGETS)
def test_memory_of_open_sizes_is_reduced_and_scanned(target: str) -> None:
    run = compile_text(HELD, target=target)
    for m, n in ((1, 1), (7, 33), (20, 100), (8, 16), (9, 47)):
        x = open_programs.small(m, n)
        y, sums, most = run(x)
        assert np.array_equal(y, 2 * np.cumsum(x, 1))
        assert np.array_equal(sums, 2 * x.sum(1))
        assert np.array_equal(most, x.max(0))


def test_tasks_are_counted_before_the_first_is_done() -> None:
    text = rows("%to = view %y (j 1) -> [m, n]\nfill %to 0").replace("m in 0..M", "m in 0..M, n in 0..m + 1")
    with pytest.raises(ProgramError, match=r"the limit m \+ 1 of n depends on another task variable"):
        compile_text(text, target="interpreter")


def test_an_atom_may_not_be_named_by_an_open_parameter() -> None:
    with pytest.raises(ProgramError, match="N"):
        compile_text(
            rows("%a = view %x (i 1, k 1) -> [m, k]\nmma %c += %a * %a using avx{N}.f32").replace("%c", "%a"),
            target="interpreter",
        )


def test_what_a_program_requires_is_known() -> None:
    body = "%a = view %x (j 8) -> [m, j]"
    with pytest.raises(ProgramError, match="below N"):
        compile_text(rows(body), target="interpreter")
    compile_text(rows(body, "param M in 1..100, N in 1..100\n  require (N >= 8)"), target="interpreter")
    compile_text(rows(body, "param M in 1..100, N in 8..100"), target="interpreter")
    body = "for b in 0..ceildiv(N, 8) { %a = view %x (j 8) -> [m, 8*b + j] }"
    compile_text(rows(body, "param M in 1..100, N in 8..100 step 8"), target="interpreter")


def test_a_divisor_that_may_be_zero_is_refused_on_the_loop_level_too() -> None:
    text = """loop f(%y: out global f32 (M))
  param M in 1..9, K in 0..9
{
  tasks t in 0..M {
    %v = alloc vector f32 ()
    fill %v 0
    store %v () -> %y[t%K]
  }
}
"""
    with pytest.raises(ProgramError, match=r"the divisor K may be zero or less; its parameters \(K\) need ranges"):
        compile_text(text, target="interpreter")


def test_a_bound_parameter_is_a_number_everywhere() -> None:
    body = "%line = alloc shared f32 (N)\n%a = view %x (j N) -> [m, j]\ncopy %a -> %line\n"
    text = rows(body + "%to = view %y (j N) -> [m, j]\ncopy %line -> %to")
    x = open_programs.small(5, 7)
    assert np.array_equal(compile_text(text, params={"N": 7}, target="interpreter")(x), x)
    little = text.replace("x86.avx512", "cdna3")
    assert np.array_equal(compile_text(little, params={"N": 7}, target="interpreter")(x), x)
    with pytest.raises(ProgramError, match="%line"):
        compile_text(little, target="interpreter")


@pytest.mark.parametrize(
    "body",
    [
        "for b in 0..N//8 { %a = view %x (j 8) -> [m, 8*b + j] }",
        "for b in 0..N step 4 { %a = view %x (j 1) -> [m, b + j] }",
        "for b in 0..ceildiv(N, 8) { if (b < N//8) { %a = view %x (j 8) -> [m, 8*b + j] } }",
        "for b in 0..ceildiv(N, 8) { if (b >= N//8) { barrier } else { %a = view %x (j 8) -> [m, 8*b + j] } }",
        "for b in 0..ceildiv(N, 8) { %a = view %x (j 8) -> [m, 8*b + j ?] }",
        "for g in 0..ceildiv(N, 32), b in 4*g..min(N//8, 4*g + 4) { %a = view %x (j 8) -> [m, 8*b + j] }",
        "for u in 0..M*N { %a = view %x (j 1) -> [u//N, u%N] }",
        "for r in max(1 - m, 0)..min(M + 1 - m, 3) { %a = view %x (j N) -> [m + r - 1, j] }",
        "let last = N - 1\n%a = view %x (j 1) -> [M - 1 - m, last - j]",
        "%a = view %x (j 1) -> [m, N//2 + j]",
        "for b in 1..(N - 1)//7 { %a = view %x (i 7, s 3) -> [m, 7*b + i + s - 1] }",
    ],
)
def test_coordinates_that_ranges_show_to_lie_inside_need_no_mark(body: str) -> None:
    compile_text(rows(body), target="interpreter")


# -- what arrays tell -----------------------------------------------------------------------------------------

SIZES = """block sizes(%x: in global f32 (M, 2*K), %z: in global f32 (M + 1), %y: out global f32 (M, 2*K))
  param M in 1..20, K in 2..10 step 2
  require (M != K)
{
  tasks m in 0..M {
    %from = view %x (j 2*K) -> [m, j]
    %to = view %y (j 2*K) -> [m, j]
    copy %from -> %to
  }
}
"""


def test_a_value_that_no_shape_tells_is_given() -> None:
    x, z = open_programs.small(3, 8), np.zeros(4, np.float32)
    program = compile_text(SIZES, target="interpreter")
    assert np.array_equal(program(x, z, params={"K": 4}), x)
    y = np.full((3, 8), np.nan, np.float32)
    program.bind(x, z, y, params={"K": 4})()
    assert np.array_equal(y, x)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("x", "z", "params", "why"),
    [
        (
            (3, 8),
            4,
            {},
            r"sizes needs a value for K, which no shape tells: give params=\{'K': ...\}, K in 2..10 step 2",
        ),
        ((3, 8), 4, {"K": 3}, r"params: K = 3; sizes takes K in 2..10 step 2"),
        ((3, 8), 4, {"K": 10}, r"params: K = 10; sizes takes K in 2..10"),
        ((3, 8), 4, {"K": 6}, r"x: dimension 1 is 8; 2\*K is 12 here"),
        ((3, 8), 5, {"K": 4}, r"z: dimension 0 is 5; M \+ 1 is 4 here"),
        ((3, 8), 4, {"K": 4, "M": 4}, r"x: dimension 0 is 3, but params says that M is 4"),
        ((3, 8), 4, {"K": 4, "Z": 4}, r"sizes has no open parameter Z; it has M, K"),
        ((20, 8), 21, {"K": 4}, r"x: dimension 0 is 20; sizes takes M in 1..20"),
        ((0, 8), 1, {"K": 4}, r"x: dimension 0 is 0; sizes takes M in 1..20"),
        ((4, 8), 5, {"K": 4}, r"sizes requires .*; here M = 4, K = 4"),
        ((3, 8, 1), 4, {"K": 4}, r"x has the shape \(3, 8, 1\); sizes takes 2 dimensions, \(M, 2\*K\)"),
    ],
)
def test_arrays_that_contradict_are_named(
    target: str, x: tuple[int, ...], z: int, params: dict[str, int], why: str
) -> None:
    program = compile_text(SIZES, target)
    with pytest.raises(ArgumentError, match=why):
        program(np.zeros(x, np.float32), np.zeros(z, np.float32), params=params)


def test_two_arguments_that_differ_are_both_named() -> None:
    with pytest.raises(ArgumentError, match="y: dimension 1 is 6, but dimension 1 of x says that N is 5"):
        compile_text(AFFINE, target="interpreter").bind(np.zeros((3, 5), np.float32), np.zeros((3, 6), np.float32))


def test_params_of_a_call_are_for_open_parameters() -> None:
    with pytest.raises(ArgumentError, match="affine has no open parameters"):
        compile_text(AFFINE, params={"M": 1, "N": 1}, target="interpreter")(
            np.zeros((1, 1), np.float32), params={"M": 1}
        )


# -- what comes out -------------------------------------------------------------------------------------------


def test_the_interpreter_runs_every_size() -> None:
    program = compile_text(AFFINE, target="interpreter")
    for m, n in ((1, 1), (3, 17), (0, 4), (4, 0)):
        case = open_programs.affine(m, n)
        assert np.array_equal(program(*case.arguments), case.wanted)
    for text, make, sizes in (
        (PRODUCT, open_programs.product, ((1,), (9,), (20,))),
        (CONV, open_programs.conv, ((1, 1, 1), (1, 2, 8), (2, 3, 15))),
        (POINTWISE, open_programs.pointwise, ((1,), (32,), (70,))),
    ):
        program = compile_text(text, target="interpreter")
        for size in sizes:
            case = make(*size)
            assert np.array_equal(program(*case.arguments), case.wanted), size


def test_the_interpreter_still_finds_what_leaves_its_tensor() -> None:
    text = """block f(%i: in global i32 (M), %x: in global f32 (M), %y: out global f32 (M))
  param M in 1..100
{
  tasks m in 0..M {
    %to = view %y (j 1) -> [m + j]
    gather %to (j 1), %x where v = %i[m] -> [v]
  }
}
"""
    with pytest.raises(OutOfBoundsFault, match=r"coordinate 0, v, leaves 0\.\.3"):
        compile_text(text, target="interpreter")(np.array([0, 9, 1], np.int32), np.zeros(3, np.float32))
