"""Faults that mutated texts and wrong calls found: an error of Python's own, or a message without the value."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import algebra
from tilewright.algebra import E, Layout, evaluate, extent, parse_expr, parse_layout, substitute
from tilewright.compat.wave import WaveCompileOptions, ceildiv, wave_compile
from tilewright.compiler.text import compile_text
from tilewright.errors import (
    ArgumentError,
    DimensionMismatch,
    DtypeMismatch,
    ExpressionError,
    LayoutError,
    NotExact,
    ParseError,
    ProgramError,
)
from tilewright.ir.block import parse_block
from tilewright.ir.loop import parse_loop
from tilewright.ir.tile import parse_tile

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
DOUBLE = "block double(%x: in global f32 (N), %y: out global f32 (N))\n  param N = 4\n{\n  map %y = %x + %x\n}\n"


@pytest.mark.parametrize("coordinate", [(None, "x"), ("x", 1), ("x",), (0.5,), (None, 1.5), (np.zeros(2),)])
def test_a_layout_called_with_what_is_no_coordinate(coordinate: Any) -> None:
    with pytest.raises(LayoutError, match=r"of \(4,8\):\(1,4\): integers are coordinates"):
        Layout((4, 8))(*coordinate)


def test_a_layout_larger_than_offsets_was_accepted() -> None:
    with pytest.raises(LayoutError, match=r"shape \(4611686018427387904,4611686018427387904\): .* below 2\*\*63"):
        Layout((1 << 62, 1 << 62))


def test_strides_of_two_kinds_name_their_layout() -> None:
    with pytest.raises(LayoutError, match=r"\(4,4\):\(1@0,11\): a coordinate and the offset 33"):
        Layout((4, 4), (E(0), 11))(3, 3)


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: algebra.size((None, 4)), "None, 4"),
        (lambda: algebra.size(algebra.Swizzle(1, 0, 2)), r"Swizzle\(1, 0, 2\)"),
        (lambda: algebra.idx2crd(Layout(4), 4), "Layout"),
        (lambda: algebra.compatible(Layout(4), algebra.Swizzle(1, 0, 2)), "Swizzle"),
        (lambda: algebra.make_layout("M + 1"), r"M \+ 1"),
        (lambda: parse_expr("M + 1", {extent("M"): None}), "<M>"),
        (lambda: algebra.tuple_max(()), r"tuple_max of \(\)"),
        (lambda: algebra.crd2idx(10**18, 10**18, (2, 3)), r"stride \(2, 3\)"),  # took all memory
        (lambda: algebra.idx2crd(5, (2, 3), (1, 2, 6)), r"stride \(1, 2, 6\) does not fit shape \(2, 3\)"),
    ],
)
def test_wrong_arguments_of_the_algebra_are_named(call: Any, value: str) -> None:
    with pytest.raises((LayoutError, ArgumentError, ExpressionError), match=value):
        call()


def test_numpys_integers_overflowed_where_pythons_grow() -> None:
    assert algebra.suffix_product(np.int64(4), start=1 << 70) == 1 << 70
    assert algebra.signum(np.int64(-4)) == -1


def test_lists_are_no_shapes_and_an_empty_layout_divides() -> None:
    with pytest.raises(LayoutError, match=r"shape_div: a=\[4, 2\] is not an integer or nested tuples"):
        algebra.shape_div([4, 2], 2)
    with pytest.raises(LayoutError, match=r"idx2crd: idx=\[1, 2\] is not"):
        algebra.idx2crd([1, 2], 4)
    assert algebra.size(algebra.logical_divide((), 1)) == 1


def test_wrong_options_of_wave_compile_are_named() -> None:
    options = WaveCompileOptions(subs={})
    with pytest.raises(ArgumentError, match="options=True are no WaveCompileOptions"):
        wave_compile(True, None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="kernel=None is no kernel"):
        wave_compile(options, None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"subs='M \+ 1' is no dictionary"):
        WaveCompileOptions("M + 1")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="ceildiv: b='x' is not an integer"):
        ceildiv(3, "x")  # type: ignore[arg-type]


def test_operations_on_layouts_take_their_argument_by_name() -> None:
    assert algebra.flatten(x=((2, 3), 4)) == (2, 3, 4)


def test_a_division_that_is_not_exact_names_its_expression() -> None:
    M = extent("M")
    with pytest.raises(NotExact, match=r"M / 8: 3 / 8 was said to be exact"):
        evaluate(M / 8, {M: 3})
    with pytest.raises(ExpressionError, match=r"M / 8: 5 / 8 is not an integer"):
        substitute(M / 8, {M: 5})


def test_a_text_that_ends_too_early_says_so() -> None:
    with pytest.raises(ParseError, match=r"line 4: expected an operation; the text ends here\n .* map %y = %x \+ %x"):
        parse_block(DOUBLE.rsplit("}", 1)[0])
    with pytest.raises(ParseError, match="the text ends here"):
        parse_layout("(4,")


def test_a_bracket_that_swallows_the_program_is_named() -> None:
    with pytest.raises(ParseError, match=r"no '\)' closes this; '\{' in line 2 is not closed either"):
        parse_block("block f(%x: in global f32 (4),\n  for i in 0..4 {\n  %y: out global f32 (4))\n{\n")


def test_an_empty_range_in_a_fetch_points_at_its_line() -> None:
    text = (
        "loop table(%x: in global i32 (9), %y: out global i32 (9))\n{\n  %s = alloc vector i32 ()\n"
        "  fetch k in 0..-2 = %x[0]\n  load %s () = %x[k]\n  store %s () -> %y[0]\n}\n"
    )
    with pytest.raises(ParseError, match=r"line 4: symbol k: no integer lies between 0 and -3\n .*fetch k in 0\.\.-2"):
        parse_loop(text)


def test_a_requirement_that_never_holds_said_nothing() -> None:
    with pytest.raises(ArgumentError, match=r"requires 0, which never holds\n .*line 3:\n .*require \(3 == 4\)"):
        compile_text(DOUBLE.replace("{", "  require (3 == 4)\n{"), "interpreter")
    with pytest.raises(ArgumentError, match=r"requires P%3 == 0; here N = 4, P = 5"):
        compile_text(DOUBLE.replace("{", "  let P = N + 1\n  require (P % 3 == 0)\n{"), "interpreter")


def test_mistakes_in_the_text_of_a_tile_program_point_at_their_line() -> None:
    head = "tile f(%x: global f32[M, N], %y: global f32[M]) symbols M, N {\n"
    text = f"{head}  %0 = read %x : f32[M, N]\n  write %0, %y\n}}\n"
    with pytest.raises(DimensionMismatch, match=r"line 3:\n    write %0, %y"):
        tilewright.compile(parse_tile(text), target="executor")


def test_a_read_whose_tile_nobody_names_was_a_value_error() -> None:
    head = "tile f(%x: global f32[M], %y: global f32[M]) symbols M {\n"
    text = f"{head}  %0 = read %x : f32[M]\n  read %x\n  write %0, %y\n}}\n"
    with pytest.raises(ProgramError, match=r"read of %x gives one register tile; it has 0 results\n .*line 3:"):
        tilewright.compile(parse_tile(text), target="executor")


HOST = "host twice(%x: in global f32 (M), %y: out global f32 (M))\n  size M\n{\n  BODY\n}\n" + DOUBLE


def test_host_programs_that_ended_in_a_key_error() -> None:
    with pytest.raises(ProgramError, match=r"launch: the text holds no program twice\n .*line 4"):
        compile_text(HOST.replace("BODY", "launch twice(%x, %y) workers 1"), "interpreter")
    table = "%t = workspace global i32 (M)\n  bind {\n    table %t (i M) = (i)\n  }\n"
    text = HOST.replace("BODY", f"{table}  launch double(%x, %y) workers 1 with N = M")
    x, y = np.ones(3, np.float32), np.zeros(3, np.float32)
    compile_text(text, "interpreter")(x, y)
    assert y.tolist() == [2, 2, 2]


M = tkl.sym.M


def test_none_for_a_number_was_an_attribute_error() -> None:
    @tkw.wave()
    def scaled(x: tkl.Memory[M, GLOBAL, tkl.f32], by: tkl.i32, y: tkl.Memory[M, GLOBAL, tkl.f32]) -> None:
        tkw.write(tkw.read(x) * tkw.cast(by, tkl.f32), y)

    run = tilewright.compile(scaled, target="executor")
    with pytest.raises(ArgumentError, match="argument by is None"):
        run(np.ones(3, np.float32), None)
    with pytest.raises(ArgumentError, match="debug_logs=3 is no dictionary"):
        run(np.ones(3, np.float32), 2, debug_logs=3)
    assert run(np.ones(3, np.float32), 2, debug_logs={"before": None}).tolist() == [2, 2, 2]


@pytest.mark.parametrize(("value", "kind"), [(300, tkl.i8), (-1, tkl.u8), (0.5, tkl.i32), (2**31, tkl.i32)])
def test_a_number_that_is_none_of_its_element_type_wrapped(value: Any, kind: Any) -> None:
    @tkw.wave()
    def filled(y: tkl.Memory[M, GLOBAL, kind]) -> None:
        tkw.write(tkl.Register[M, kind](value), y)

    with pytest.raises(DtypeMismatch, match=f"{value} is no {kind}, which holds"):
        tilewright.compile(filled, target="executor")


def test_options_and_arrays_that_do_not_fit_are_shown() -> None:
    with pytest.raises(ArgumentError, match=r"workers=3, seed=None: these are for block kernels"):
        tilewright.compile("", workers=3)
    with pytest.raises(ArgumentError, match=r"a=\('a', 'b'\) is no array of numbers"):
        tilewright.matmul(("a", "b"), np.ones((2, 2), np.float32))
    with pytest.raises(ArgumentError, match=r"axes='': give each of 0, 1"):
        tilewright.kernels.transpose(axes="")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("atomic", "role", "says"),
    [
        ("%v (l 16) -> %x[l]", "inout", r"atomic: \(16\) does not run over the register's \(8\)"),
        ("%v -> %x[0]", "inout", r"atomic: \(\) does not run over the register's \(8\)"),
        ("%s (l 8) -> %x[l]", "inout", r"atomic: \(8\) does not run over the register's \(\)"),
        ("%v (l 8) -> %x[l]", "in", "atomic writes to %x, of an argument that is declared `in`"),
        ("%v (l 8) -> %x[l, 0]", "inout", "memory is flat here"),
    ],
)
def test_an_atomic_of_the_loop_level_ran_past_its_register_and_wrote_what_is_read_only(
    atomic: str, role: str, says: str
) -> None:
    text = """loop add(%x: ROLE global i32 (8)) {
      %v = alloc vector i32 (8)
      %s = alloc vector i32 ()
      fill %v 1
      fill %s 1
      atomic add ATOMIC
    }"""
    with pytest.raises(ProgramError, match=says):
        parse_loop(text.replace("ROLE", role).replace("ATOMIC", atomic))


def test_an_integer_of_numpy_passed_the_limit_of_layouts() -> None:
    for too_large in (2**63, np.uint64(2**63)):
        with pytest.raises(LayoutError, match=r"stride holds 9223372036854775808: .* are below 2"):
            Layout(1, too_large)
    assert Layout(1, np.uint64(2**63 - 1)) == Layout(1, 2**63 - 1)


@pytest.mark.parametrize(
    ("kernel", "arguments", "options", "says"),
    [
        ("im2col", [(3, 3)], {"stride": (0, 1)}, "im2col: stride=(0, 1) is not a pair of integers of at least 1"),
        ("im2col", [(1, 0)], {}, "im2col: filter_size=(1, 0) is not a pair of integers of at least 1"),
        ("im2col", [(3, 3)], {"dilation": (1, -1)}, "im2col: dilation=(1, -1) is not a pair of integers of at least 1"),
        ("top_k_gating", [0], {}, "top_k_gating: count=0 is not an integer of at least 1"),
        ("attention", [0], {}, "attention: tile=0 is not an integer of at least 1"),
        ("linear_attention", [-1], {}, "linear_attention: chunk=-1 is not an integer of at least 1"),
        ("grouped_attention", [4], {"causal": True, "window": -1}, "window=-1 is not an integer of at least 0"),
        ("gemm", [], {"activation": "tan"}, "activation='tan': there are relu, gelu, gelu_tanh, silu, and None"),
        ("gemm", [], {"precision": "tf16"}, "precision='tf16': 'tf32', which rounds factors of f32, or None"),
        ("conv", [(3, 3)], {"activation": "tan"}, "activation='tan': there are relu"),
        ("conv", [(3, 3)], {"precision": "tf16"}, "precision='tf16': 'tf32'"),
    ],
)
def test_an_option_of_a_kernel_was_refused_late_or_not_at_all(
    kernel: str, arguments: list[Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ArgumentError, match=re.escape(says)):
        getattr(tilewright.kernels, kernel)(*arguments, **options)
