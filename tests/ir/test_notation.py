"""The notation of the block level, piece by piece: formulas, kinds of attributes, types, headers, and its errors."""

from __future__ import annotations

import random

import pytest

from tilewright import errors
from tilewright.algebra.expr import index, symbol
from tilewright.ir import dtypes
from tilewright.ir.binding import bind
from tilewright.ir.block import BLOCK, parse_block
from tilewright.ir.core import Program
from tilewright.ir.formula import BINARY, COMPARISONS, UNARY, Formula
from tilewright.ir.loop import parse_loop
from tilewright.ir.notation import pieces
from tilewright.ir.parser import parse_programs

X, Y = Formula.operand(1), Formula.operand(2)


def number(value: float) -> Formula:
    return Formula.number(value)


def call(name: str, *parts: Formula) -> Formula:
    return Formula(name, parts)


def mapped(formula: str) -> Formula:
    """The formula of a map over %x and %y, as it is read."""
    text = f"""block f(%x: in global f32 (4), %y: in global f32 (4), %z: out global f32 (4)) {{
      map over (i 4) %z = {formula}
    }}"""
    found: Formula = parse_block(text).body.ops[0].attrs["formula"]
    return found


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        (call("add", X, call("mul", Y, number(2))), "%x + %y*2"),
        (call("mul", call("add", X, Y), number(2)), "(%x + %y)*2"),
        (call("sub", X, call("sub", Y, X)), "%x - (%y - %x)"),
        (call("sub", call("sub", X, Y), X), "%x - %y - %x"),
        (call("div", X, call("mul", Y, X)), "%x/(%y*%x)"),
        (call("mul", call("div", X, Y), X), "%x/%y*%x"),
        (call("neg", call("add", X, Y)), "-(%x + %y)"),
        (call("mul", call("neg", X), Y), "-%x*%y"),
        (call("neg", call("mul", X, Y)), "-(%x*%y)"),
        (call("neg", call("neg", X)), "-(-%x)"),
        (call("sub", X, call("neg", Y)), "%x - -%y"),
        (call("sub", X, number(-3)), "%x - (-3)"),
        (call("mul", number(-0.5), X), "(-0.5)*%x"),
        (call("neg", number(3)), "neg(3)"),
        (number(-3), "-3"),
        (call("maximum", X, number(-1)), "maximum(%x, -1)"),
        (call("select", call("lt", X, call("add", Y, number(1))), X, Y), "select(%x < %y + 1, %x, %y)"),
        (
            call("select", call("eq", call("lt", X, Y), call("ge", X, Y)), X, Y),
            "select((%x < %y) == (%x >= %y), %x, %y)",
        ),
        (Formula.cast(dtypes.f32, Formula.cast(dtypes.bf16, X)), "f32(bf16(%x))"),
        (call("exp2", call("sub", call("mul", X, number(0.125)), Y)), "exp2(%x*0.125 - %y)"),
        (call("add", X, number(1e-30)), "%x + 1e-30"),
        (call("add", X, number(1e30)), "%x + 1e+30"),
        (call("maximum", X, number(float("-inf"))), "maximum(%x, -inf)"),
        (call("maximum", X, number(float("nan"))), "maximum(%x, nan)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_formulas_print_with_as_few_brackets_as_are_needed_and_read_back(formula: Formula, text: str) -> None:
    assert formula.text(["%z", "%x", "%y"]) == text
    if text.count("%y") and not text.startswith("%y"):
        assert mapped(text) == formula
    else:
        assert mapped(text).text(["%z", "%x", "%y"]) == text


@pytest.mark.parametrize(
    ("text", "again"),
    [
        ("((%x))", "%x"),
        ("%x+%y *2", "%x + %y*2"),
        ("- 3", "-3"),
        ("%x - -3", "%x - (-3)"),
        ("%x * 0.50", "%x*0.5"),
        ("select([ i>=2 ],%x,0)", "select([i >= 2], %x, 0)"),
        ("f32([i*2+1])", "f32([2*i + 1])"),
    ],
)
def test_formulas_may_be_written_otherwise(text: str, again: str) -> None:
    assert mapped(text).text(["%z", "%x", "%y"]) == again


class FormulaFuzz:
    """Random formulas over two operands, whatever their types."""

    def __init__(self, seed: int):
        self.rng = random.Random(seed)

    def make(self, depth: int) -> Formula:
        rng = self.rng
        if depth == 0 or rng.random() < 0.2:
            i = index("i", 4)
            return rng.choice(
                (
                    X,
                    Y,
                    number(rng.choice((0, 1, -2, 0.5, -0.25, 1e-9, 3e20, float("inf"), float("-inf"), float("nan")))),
                    Formula("index", (), rng.choice((i, i * 2 - 3, i // 2, (i + 1) % 3, i >= 2))),
                )
            )
        kind = rng.random()
        if kind < 0.25:
            return call(rng.choice(UNARY), self.make(depth - 1))
        if kind < 0.35:
            return Formula.cast(rng.choice(list(dtypes.ALL.values())), self.make(depth - 1))
        if kind < 0.45:
            return call("select", *(self.make(depth - 1) for _ in range(3)))
        name = rng.choice((*BINARY, *COMPARISONS, "add", "sub", "mul", "div", "add", "sub", "mul", "div"))
        return call(name, self.make(depth - 1), self.make(depth - 1))


def read_alone(text: str) -> Formula:
    """A formula, read without looking at types."""
    from tilewright.ir.core import Value
    from tilewright.ir.formula import read_formula
    from tilewright.ir.parser import Reader

    reader = Reader(text, {"block": BLOCK})
    values = [Value(None, name) for name in "zxy"]
    reader.values = dict(zip("zxy", values, strict=True))
    reader.symbols = {"i": index("i", 4)}
    found = read_formula(reader, list(values))
    reader.skip()
    assert reader.at == len(text), f"{text} was read up to {reader.at}"
    return found


def test_random_formulas_read_back() -> None:
    for seed in range(800):
        formula = FormulaFuzz(seed).make(5)
        text = formula.text(["%z", "%x", "%y"])
        again = read_alone(text)
        assert again.text(["%z", "%x", "%y"]) == text
        assert _plain(again) == _plain(formula), text


def _plain(f: Formula) -> Formula:
    """Numbers with a sign in front and negated numbers are one thing."""
    parts = tuple(_plain(part) for part in f.parts)
    return Formula(f.name, parts, f.value)


def test_the_pieces_of_a_notation() -> None:
    found = pieces("copy $0 -> $1[ else {otherwise}] {}[ ?skip]")
    assert [p.what for p in found if p.what != "space"] == [
        *("literal", "operand", "literal", "operand", "group", "block", "group")
    ]
    assert [p.what for p in found[7].inner] == ["space", "literal", "space", "attribute"]


# -- whole programs ---------------------------------------------------------------------------------------

EVERYTHING = (
    """block everything(%x: in global bf16 (M, 64):(64, 1), %n: in global i32 (M), %y: inout global f32 (M, N))
  machine hopper
  param M = 8, N, K = 3
  let HALF = M//2
  waves (K + 1)
{
  %s = alloc shared f32 (2, 16):(17, 1) swizzle <1,2,3> bytes (16*M)
  %e = alloc shared i32 ()
  %r = alloc register f32 (16) by (8,2):(2,1)
  %q = alloc register i32 () by (4,1):(0,0)
  %c = alloc register f32 (64, 64) as wgmma.m64n{N}k16.bf16.c waves (1, K)
  %b = bitcast %r i32
  debug_log "a \\"label\\"" %r
  fill %r -1e+30
  fill %q 2
  map over (i 16) %r = select([i >= 3], %r*2, f32([2*i + 1])) stream 1
  reduce %s -> %r along 0 with max accumulate
  scan %s, %s -> %s, %s along 1 with (select(a0 > b0, a0, b0), a1 + b1)
  scan %r -> %r along 0 with sum exclusive
  broadcast %r -> %s along 0
  convert_layout %r -> %r
  gather %r (i 16), %y where d = %n[i%M], e = %n[0] -> [d + e ?, 0] else 0.5
  scatter %r (i 16), %y -> [0, i]
  atomic add %r (i 16), %y where d = %n[0] -> [d, i ?]
  tasks t in 0..HALF, u in 1..N step 2 schedule contiguous overlap none {
    let v = 2*t + u
    for k in v..v + 4 unroll peel [1, 0] overlap defer {
      %w = view %x (i 16) -> [i + k - 1 ?, 2*i]
      copy %w -> %w2 else 0 stream STREAM by tma.load
    } finally {
      barrier
    }
    while %q {
      map %q = %q - 1
    }
    if (v >= 3) {
      barrier
    } else {
      fill %r 0
    }
  }
}
""".replace("-> %w2", "-> %h")
    .replace(" stream STREAM", " stream K")
    .replace("  %e = alloc", "  %h = alloc shared bf16 (16)\n  %e = alloc")
)


def test_a_program_with_every_notation_prints_as_it_was_written() -> None:
    program = parse_block(EVERYTHING)
    assert str(program) == EVERYTHING
    assert parse_block(str(program)) == program


def test_binding_leaves_no_parameter() -> None:
    bound = bind(parse_block(EVERYTHING), {"N": 64})
    text = str(bound)
    assert "param" not in text
    assert "HALF" not in text
    assert "wgmma.m64n64k16.bf16.c waves (1, 3)" in text
    assert "tasks t in 0..4, u in 1..64 step 2" in text
    assert parse_block(text) == bound


@pytest.mark.parametrize(
    "change", ["fill %r -1e+30", "param M = 8", "i >= 3", "2*t + u", "step 2", '"label', "with max"]
)
def test_programs_that_differ_in_one_thing_are_not_equal(change: str) -> None:
    others = {
        "fill %r -1e+30": "fill %r -1e+31",
        "param M = 8": "param M = 9",
        "i >= 3": "i >= 4",
        "2*t + u": "2*t + 2*u",
        "step 2": "step 3",
        '"label': '"other',
        "with max": "with min",
    }
    other = EVERYTHING.replace(change, others[change])
    assert other != EVERYTHING
    assert parse_block(other) != parse_block(EVERYTHING)


def test_comments_and_white_space_do_not_count() -> None:
    plain = "block f(%y: out global f32 (4)) { fill %y 0 }"
    spread = """
# before
block f(   # a name
    %y :out   global f32( 4 ))   # its argument
{  # begin

  fill   %y
      0   # the end }
}
# after
"""
    assert parse_block(plain) == parse_block(spread)


def test_several_programs_stand_in_one_text() -> None:
    text = "block a(%y: out global f32 (4)) { fill %y 0 }\nblock b(%y: out global f32 (4)) { fill %y 1 }"
    assert [p.name for p in parse_programs(text, {"block": BLOCK})] == ["a", "b"]
    with pytest.raises(errors.ParseError, match="expected the end of the program"):
        parse_block(text)


@pytest.mark.parametrize("value", ["0", "-3", "0.5", "1e-05", "inf", "-inf", "nan"])
def test_numbers_print_as_they_are_read(value: str) -> None:
    text = f"block f(%y: out global f32 (4))\n{{\n  fill %y {value}\n}}\n"
    program = parse_block(text)
    assert str(program) == text
    assert parse_block(str(program)) == program


def test_names_of_a_block_are_free_again_after_it() -> None:
    text = """block f(%y: out global f32 (2))
{
  role first waves 1 {
    %v = view %y (i 1) -> [i]
    fill %v 0
  }
  role second waves 1 {
    %v = view %y (i 1) -> [i + 1]
    fill %v 0
  }
}
"""
    program = parse_block(text)
    again = parse_block(str(program))
    assert again == program
    with pytest.raises(errors.ParseError, match="%v is not defined here"):
        parse_block(
            text.replace("  role second waves 1 {\n    %v = view %y (i 1) -> [i + 1]\n", "  role second waves 1 {\n")
        )


def test_axes_that_run_over_nothing() -> None:
    text = """block f(%y: out global f32 (4, N))
  param N = 0
{
  %v = view %y (i 4, j N) -> [i, j]
  fill %v 0
  for k in 0..N, l in 0..k {
    fill %v 1
  }
}
"""
    program = parse_block(text)
    bound = bind(program)
    assert parse_block(str(program)) == program
    assert parse_block(str(bound)) == bound
    assert "(i 4, j 0) -> [i, j]" in str(bound)
    assert "for" not in str(bound)


# -- errors -----------------------------------------------------------------------------------------------

HEAD = "block f(%x: in global f32 (4, 8), %y: out global f32 (4, 8))\n  param N = 3\n{\n"


def report(body: str, head: str = HEAD) -> tuple[type[Exception], str]:
    with pytest.raises(errors.TilewrightError) as found:
        parse_block(head + body + "\n}\n")
    return type(found.value), str(found.value)


@pytest.mark.parametrize(
    ("body", "says", "under"),
    [
        ("  full %y 0", "there is no operation full on the block level", "full"),
        ("  fill %z 0", "%z is not defined here", "%z"),
        ("  fill %y zero", "expected a number", "zero"),
        ("  fill %y", "expected a number", "}"),
        ("  copy %x %y", "expected '->'", "%y"),
        ("  copy %x -> %y els 0", "there is no operation els", "els"),
        ("  %v = fill %y 0", "fill gives 0 results, not 1", "fill"),
        ("  view %y (i 4) -> [i, 0]", "view gives 1 results, not 0", "view"),
        ("  %v = view %y (i 4, i 8) -> [i, i]", "i already has a meaning here", "i 8"),
        ("  %v = view %y (N 4) -> [N, 0]", "N already has a meaning here", "N 4"),
        ("  %v = view %y (i 4) -> [i, k]", "k", "k]"),
        ("  %v = view %y (i 4) -> [i, 0", "no ']' closes this", "i, 0"),
        ("  %v = view %y (i -1) -> [i, 0]", "no integer lies between", "i -1"),
        ("  for i in 0..4 {\n    for i in 0..4 {\n    }\n  }", "i already has a meaning here", "i in 0..4 {\n    }"),
        ("  for i in 0..i {\n  }", "i", "i {"),
        ("  for i 0..4 {\n  }", "expected 'in'", "0..4"),
        ("  for i in 0..4 step k {\n  }", "expected a step", "k"),
        ("  let a = N\n  let a = N", "a already has a meaning here", "a = N\n}"),
        ("  let a = ", "", ""),
        ("  %s = alloc shared f33 (4)", "there is no element type f33", " f33"),
        ("  %s = alloc shred f32 (4)", "expected a space: global, shared, register", "shred"),
        ("  %s = alloc shared f32 (4, 2):(2)", "1 strides for 2 dimensions", " f32 (4, 2):(2)"),
        ("  %s = alloc shared f32 (4) swizzle <3,3>", "expected a swizzle such as <3,3,3>", "<3,3>"),
        ("  %s = alloc register f32 (4) by (4,1:(1,1)", "", ""),
        ("  %y = alloc shared f32 (4)", "%y is defined twice", "%y ="),
        ("  map %y = sinus(%x)", "there is no function sinus", "sinus"),
        ("  map %y = maximum(%x)", "maximum takes 2 arguments, not 1", "maximum"),
        ("  map %y = %x +", "expected a number, a value such as %x or a function", "}"),
        ("  map %y = (%x", "expected ')'", "}"),
        ("  role only waves {\n  }", "expected a number, a name or (", "{\n  }"),
        ("  debug_log label %x", "expected a text in quotes", "label"),
        ("  if N > 2 {\n  }", "expected '('", "N > 2"),
        ("  %a, %b = view %y (i 4) -> [i, 0]", "view gives 1 results, not 2", "view"),
        ("  copy %x -> %y %x, %y", "expected '=' after %x, %y, which begins an operation", "%y\n"),
    ],
)
def test_errors_of_the_notation_point_at_their_place(body: str, says: str, under: str) -> None:
    kind, message = report(body)
    assert kind is errors.ParseError
    assert says in message
    _, line, caret = message.splitlines()[-3:]
    if under:
        whole = HEAD + body + "\n}\n"
        start = whole.index(under, len(HEAD) if under != "}" else whole.rindex("}") - 1)
        wanted = whole[whole.rfind("\n", 0, start) + 1 :].splitlines()[0]
        assert line == "  " + wanted
        assert caret.index("^") == 2 + start - (whole.rfind("\n", 0, start) + 1)


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        ("  fill %x 0", errors.ProgramError, "fill writes to %x, of an argument that is declared `in`"),
        ("  fill %y 0\n  copy %y -> %x", errors.ProgramError, "declared `in`"),
        ("  %v = view %y (i 4) -> [i]", errors.DimensionMismatch, "1 coordinates for 2 dimensions"),
        (
            "  %v = view %x (i 4) -> [i, 0]\n  copy %v -> %y",
            errors.DimensionMismatch,
            "the shapes (4) and (4, 8) differ",
        ),
        ("  map %y = bf16(%x)", errors.DtypeMismatch, "the formula gives bf16"),
        ("  map %y = %x + bf16(%x)", errors.ProgramError, "add of f32 and bf16"),
        ("  map %y = a", errors.ProgramError, "operands are written %a"),
        ("  map over (i 4) %y = %x", errors.DimensionMismatch, "do not run over (4, 8)"),
        ("  map %y = exp(i32(%x))", errors.ProgramError, "exp of i32"),
        ("  map %y = f32(i32(%x)*0.5)", errors.ProgramError, "mul of i32 and 0.5"),
        ("  reduce %x -> %y along 2 with sum", errors.DimensionMismatch, "there are 2 dimensions, from 0"),
        ("  reduce %x -> %y along 0 with sum", errors.DimensionMismatch, "gives (8), not (4, 8)"),
        ("  scan %x -> %y along 0 with mean", errors.ProgramError, "sum, max, min, prod"),
        ("  scan %x -> %y along 0 with (a0 + c0)", errors.ProgramError, "a combining formula is over a0, b0"),
        ("  scan %x -> %y along 0 with (a0 + b0) exclusive", errors.ProgramError, "only with sum"),
        ("  reduce %x, %x -> %y along 0 with sum", errors.ProgramError, "as many targets as sources"),
        ("  broadcast %x -> %y along 0", errors.DimensionMismatch, "does not give (4, 8)"),
        ("  convert_layout %x -> %y", errors.ProgramError, "is between registers"),
        ("  mma %y += %x * %x using avx512.f32", errors.ProgramError, "the sum must be in registers"),
        ("  %b = bitcast %x bf16", errors.DtypeMismatch, "both must have 32 bits"),
        ("  %g = alloc global f32 (4)", errors.ProgramError, "global memory comes as an argument"),
        ("  %r = alloc register f32 (4)", errors.ProgramError, "needs a distribution"),
        (
            "  %s = alloc shared f32 (2, 4)\n  %c = channel %s stages 3 from a to b",
            errors.DimensionMismatch,
            "stages, 3",
        ),
        ("  %c = channel %x stages 4 from a to b", errors.ProgramError, "stages live in shared memory"),
        ("  commit %x", errors.ProgramError, "commit takes a channel"),
        ("  atomic mul %x (i 4, j 8), %y -> [i, j]", errors.ProgramError, "there are add, min, max"),
        ("  gather %y (i 4), %x -> [i, 0]", errors.DimensionMismatch, "do not run over (4, 8)"),
        ("  tasks t in 0..4 schedule random {\n  }", errors.ProgramError, "there are strided, contiguous"),
        ("  for t in 0..4 overlap later {\n  }", errors.ProgramError, "there are none, defer, pingpong"),
        ("  for t in 0..4 overlap defer {\n  }", errors.ProgramError, "needs a `finally` block"),
        ("  for t in 0..4 overlap pingpong {\n  }", errors.ProgramError, "pingpong is for tasks"),
        ("  while %x {\n  }", errors.ProgramError, "a single integer or bool"),
        ("  %s = alloc shared i32 (4)\n  fill %s 0.5", errors.DtypeMismatch, "fill: 0.5 is no i32"),
        ("  %s = alloc shared u8 (4)\n  fill %s -1", errors.DtypeMismatch, "-1 is no u8, which holds 0 to 255"),
        ("  %s = alloc shared i8 (4)\n  copy %s -> %s else 128", errors.DtypeMismatch, "128 is no i8"),
        ("  %s = alloc shared i32 (4)\n  fill %s inf", errors.DtypeMismatch, "inf is no i32"),
    ],
)
def test_errors_of_meaning_show_the_line(body: str, error: type[Exception], says: str) -> None:
    kind, message = report(body)
    assert kind is error
    assert says in message
    lines = message.splitlines()
    assert lines[-3].strip().startswith("line "), message
    assert lines[-1].strip() == "^"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("blok f() {\n}", "there is no level blok; there are block"),
        ("block f(%y: out global f32 (4) {\n}", "no ')' closes this"),
        ("block f(%y: out global f32 (M)) {\n}", "M"),
        (
            "block f(%y: out global f32 (4))\n  parm N = 3\n{\n}",
            "there is no record parm; there are machine, param, let",
        ),
        ("block f(%y: out global f32 (4))\n  param N = 3, N = 4\n{\n}", "N already has a meaning here"),
        ("block f(%y: out global f32 (4), %y: in global f32 (4)) {\n}", "%y is defined twice"),
        ("block f(%y: out global f32 (4)) {\n  fill %y 0\n", "expected an operation"),
        ("block f(%y: out global f32 (4)) {\n  fill %y 0\n}\n}", "expected the end of the program"),
    ],
)
def test_errors_of_the_header(text: str, says: str) -> None:
    with pytest.raises(errors.ParseError) as found:
        parse_block(text)
    assert says in str(found.value)
    assert str(found.value).splitlines()[-1].strip() == "^"


def test_binding_refuses_what_is_no_parameter_or_no_size() -> None:
    program = parse_block(EVERYTHING)
    for values, says in (
        ({}, "needs a value for N"),
        ({"N": 64, "HALF": 2}, "has no parameter HALF"),
        ({"N": -1}, "must be an integer that is not negative"),
        ({"NN": 3}, "did you mean N?"),
    ):
        with pytest.raises(errors.ArgumentError) as found:
            bind(program, values)
        assert says in str(found.value)


def test_a_symbol_may_be_called_like_a_word_of_python() -> None:
    from tilewright.interpret.evaluation import evaluated

    assert evaluated(symbol("lambda") * 2 + symbol("_min"), {"lambda": 4, "_min": 1}) == 9


def test_printing_does_not_depend_on_names_that_collide() -> None:
    program: Program = parse_block(
        """block f(%y: out global f32 (4)) {
  for i in 0..1 {
    %v = view %y (k 4) -> [k]
    fill %v 0
  }
  for i in 0..1 {
    %v = view %y (k 2) -> [k]
    fill %v 0
  }
}"""
    )
    assert "%0 = view %y (k 2)" in str(program)
    assert parse_block(str(program)) == program


def test_a_branch_after_a_load_is_not_taken_for_its_condition() -> None:
    text = """loop f(%x: in global f32 (4), %y: out global f32 (4))
{
  tasks t in 0..4 {
    %v = alloc vector f32 ()
    load %v () = %x[t]
    if (t >= 2) {
      compute %v = %v + 1
    }
    store %v () -> %y[t]
    if (t >= 3) {
      barrier
    }
  }
}
"""
    assert str(parse_loop(text)) == text
