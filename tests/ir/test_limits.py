"""What is too large, too deep or makes no sense in a text is refused by name, at its line, in bounded time."""

from __future__ import annotations

import contextlib
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tilewright
import tilewright.block as tb
from tilewright import algebra, errors, limits
from tilewright.compiler.text import compile_text
from tilewright.ir.binding import parameters
from tilewright.ir.block import parse_block
from tilewright.plan.text import parse_plan

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "block").glob("*.block"))
BLOCK = "block f(%x: in global f32 (4, 8), %y: out global f32 (4, 8))\n{\n"
LOOP = (
    "loop f(%x: in global f32 (16), %y: out global f32 (16))\n{\n  %v = alloc vector f32 (16)\n"
    "  %u = alloc vector f32 (16)\n  %s = alloc vector f32 ()\n"
)


@pytest.fixture(autouse=True)
def in_bounded_time() -> Iterator[None]:
    """Each test ends within 20 s of the processor's time, ten times what one error may take; a hang is a failure."""

    def stop(*_: object) -> None:
        raise AssertionError("it did not end in time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, 20)
    yield
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    signal.signal(signal.SIGVTALRM, before)


def refused(text: str, error: type[Exception], says: str, *arrays: np.ndarray, **options: object) -> str:
    with pytest.raises(error, match=re.escape(says)) as found:
        compile_text(text, "interpreter", **options)(*arrays)
    assert isinstance(found.value, errors.TilewrightError)
    return str(found.value)


def block(body: str, error: type[Exception], says: str, *arrays: np.ndarray) -> str:
    return refused(f"{BLOCK}{body}\n}}\n", error, says, *arrays)


def loop(body: str, error: type[Exception], says: str, *arrays: np.ndarray) -> str:
    return refused(f"{LOOP}{body}\n}}\n", error, says, *arrays)


def test_the_documentation_lists_every_limit() -> None:
    text = (Path(__file__).parents[2] / "docs" / "levels" / "limits.md").read_text()
    for limit in limits.LIMITS:
        assert limit.rule in text


@pytest.mark.parametrize("path", EXAMPLES, ids=[p.stem for p in EXAMPLES])
def test_parameters_of_0_in_the_examples_work_or_give_typed_errors(path: Path) -> None:
    text = path.read_text()
    for s in parameters(parse_block(text)):
        with contextlib.suppress(errors.TilewrightError):
            compile_text(text, "interpreter", params={s.name: 0})


def test_a_division_by_a_parameter_of_0_names_its_line() -> None:
    text = "block f(%y: out global f32 (4))\n  param B = 2\n{\n  tasks m in 0..4//B {\n  }\n  fill %y 0\n}\n"
    assert "line 4" in refused(text, errors.ProgramError, "(4) // 0", params={"B": 0})


@pytest.mark.parametrize("how", ["reduce %e -> %r along 1 with max", "scan %e -> %e along 1 with sum"])
def test_nothing_is_combined_along_an_extent_of_0(how: str) -> None:
    body = f"  %e = alloc shared f32 (4, 0)\n  %r = alloc shared f32 (4)\n  {how}"
    assert "line 5" in block(body, errors.DimensionMismatch, "has the extent 0 there")


def test_waves_of_0_are_refused_in_distributions_roles_and_headers() -> None:
    body = "  %c = alloc register f32 (16, 16) as amx.bf16.c waves (0, 1)"
    block(body, errors.ParseError, "waves are at least 1")
    block("  role a waves 0 {\n  }", errors.ProgramError, "waves 0: at least 1 is needed")
    refused(BLOCK.replace("\n{", "\n  waves 0\n{") + "}", errors.ProgramError, "count 0: at least 1 is needed")


def test_functions_of_expressions_are_called_with_their_arguments() -> None:
    m = algebra.extent("M")
    for text, says in (("ceildiv(M)", "ceildiv takes 2 arguments, not 1"), ("floor(M, 2)", "floor takes 1 argument")):
        with pytest.raises(errors.ParseError, match=re.escape(says)):
            algebra.parse_expr(text, [m])


def test_a_bare_name_in_a_computation_is_no_operand() -> None:
    assert "line 6" in loop("  compute %v = in + %u", errors.ProgramError, "in has no meaning here; operands are")


@pytest.mark.parametrize("swizzle", ["<60,0,60>", "<0,99999999999,0>", "<1,0,-1000000000000>"])
def test_huge_swizzles_are_refused(swizzle: str) -> None:
    block(f"  %s = alloc shared f32 (8) swizzle {swizzle}", errors.ParseError, limits.SWIZZLE.rule)
    with pytest.raises(errors.ParseError):
        algebra.parse_layout(f"S{swizzle} o 0 o 8:1")


def test_huge_layouts_are_refused() -> None:
    for text, rule in (
        ("(" * 100 + "1" + ")" * 100, limits.NESTING),
        (f"({','.join('2' * 300)})", limits.MODES),
        ("9" * 5000, limits.INTEGER),
        (f"(4,8):({10**30},1)", limits.OFFSETS),
    ):
        with pytest.raises(errors.ParseError, match=re.escape(rule.rule)):
            algebra.parse_layout(text)
    nested: object = 1
    for _ in range(5000):
        nested = (nested,)
    with pytest.raises(errors.LayoutError, match=re.escape(limits.NESTING.rule)):
        algebra.Layout(nested)
    block("  %r = alloc register f32 (4) by (4,99999999999):(1,4)", errors.ProgramError, limits.REGISTERS.rule)


def test_huge_allocs_workspaces_workers_and_tasks_are_refused() -> None:
    block(f"  %s = alloc shared f32 ({10**18}, 8)", errors.ParseError, limits.ELEMENTS.rule)
    block(f"  %s = alloc shared f32 ({10**12})", errors.ProgramError, limits.SHARED.rule)
    block("  %s = alloc shared f32 (4):(100000000000)", errors.ProgramError, limits.SHARED.rule)
    x = np.ones((4, 8), np.float32)
    block("  %s = alloc shared f32 (100000000)", errors.LimitExceeded, limits.BUFFER.rule, x)
    block(f"  tasks t in 0..{10**15} {{\n  }}", errors.ExecutionError, f"{10**15} tasks", x)
    block(f"  for t in 0..{10**15} {{\n  }}", errors.ExecutionError, f"{10**15} rounds", x)
    refused(f"{BLOCK}}}\n", errors.ArgumentError, "workers=1000000000", workers=10**9)
    host = "host f(%x: in global f32 (M), %y: out global f32 (M))\n  size M\n{\n"
    double = "block double(%x: in global f32 (N), %y: out global f32 (N))\n  param N = 4\n{\n  map %y = %x + %x\n}\n"
    one = np.ones(4, np.float32)
    refused(
        f"{host}  %w = workspace global f32 (M, {10**9})\n}}\n", errors.ExecutionError, limits.BUFFER.rule, one, one * 1
    )
    for workers in ("0", "1000000000"):
        text = f"{host}  launch double(%x, %y) workers {workers} with N = M\n}}\n{double}"
        refused(text, errors.ExecutionError, f"workers {workers}", one, one.copy())


def test_a_program_that_goes_on_and_on_is_ended() -> None:
    made = compile_text(f"{BLOCK}  for t in 0..900, u in 0..900 {{\n  }}\n  fill %y 0\n}}\n", "interpreter")
    made.device.steps = 1000
    with pytest.raises(errors.ExecutionError, match="1000 operations were done, and the program goes on"):
        made(np.ones((4, 8), np.float32))


def test_500_nested_calls_2000_parentheses_and_2000_loops_are_refused() -> None:
    m = algebra.extent("M")
    for text in ("min(" * 500 + "M" + ")" * 500, "(" * 2000 + "M" + ")" * 2000, "-" * 2000 + "M", "not " * 600 + "M"):
        with pytest.raises(errors.ParseError, match="at most"):
            algebra.parse_expr(text, [m])
    block(f"  map %y = {'exp(' * 500}%x{')' * 500}", errors.ParseError, limits.NESTING.rule)
    block(f"  map %y = {'(' * 2000}%x{')' * 2000}", errors.ParseError, limits.NESTING.rule)
    block(f"  map %y = {'-' * 2000}%x", errors.ParseError, limits.NESTING.rule)
    loops = "".join(f"for i{n} in 0..1 {{\n" for n in range(2000))
    block(f"{loops}{'}' * 2000}", errors.ParseError, limits.NESTING.rule)


def test_sums_of_3000_terms_are_refused_and_of_100_are_not() -> None:
    assert "line 3" in block(f"  map %y = {' + '.join(['%x'] * 3000)}", errors.ProgramError, limits.FORMULA.rule)
    x = np.ones((4, 8), np.float32)
    assert (compile_text(f"{BLOCK}  map %y = {' + '.join(['%x'] * 100)}\n}}\n", "interpreter")(x) == 100).all()
    m = algebra.extent("M")
    with pytest.raises(errors.ParseError, match=re.escape(limits.OPERATORS.rule)):
        algebra.parse_expr(" + ".join(["M"] * 3000), [m])
    assert str(algebra.parse_expr(" + ".join(["M"] * 500), [m])) == "500*M"


def test_a_shuffle_takes_lanes_that_there_are() -> None:
    says = "lane 15 takes lane 16 of 16"
    assert "line 6" in loop("  shuffle %u (l 16) = %v[l + 1]", errors.OutOfBoundsFault, says)


def test_a_reduction_combines_lanes() -> None:
    loop("  reduce %s -> %s with sum", errors.ProgramError, "a vector of lanes to one number")


@pytest.mark.parametrize(
    ("body", "value"), [("fill %t 300", "300"), ("map %t = %t + 300", "300"), ("map %t = i8(300)", "300")]
)
def test_integer_constants_fit_their_type(body: str, value: str) -> None:
    says = f"{value} is no i8, which holds -128 to 127"
    block(f"  %t = alloc shared i8 (4)\n  {body}", errors.ProgramError, says)
    text = LOOP + "  %t = alloc vector i8 (16)\n  fill %t 300\n}\n"
    refused(text, errors.DtypeMismatch, says)


def test_numbers_beside_conditions_take_the_type_of_what_they_are_compared_with() -> None:
    body = "  %b = alloc shared bool (4, 8)\n  map %b = or_(%x < 300.0, %x >= 4000.0)\n  map %y = select(%b, %x, 7.5)"
    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    assert np.array_equal(compile_text(f"{BLOCK}{body}\n}}\n", "interpreter")(x), x)


def test_5000_digits_are_refused_wherever_a_number_stands() -> None:
    digits = "9" * 5000
    for body in (
        f"  fill %y {digits}",
        f"  reduce %x -> %y along {digits} with sum",
        f"  for i in 0..4 step {digits} {{\n  }}",
        f"  map %y = %x + {digits}",
        f"  %s = alloc shared f32 ({digits})",
    ):
        block(body, errors.ParseError, limits.INTEGER.rule)
    with pytest.raises(errors.ArgumentError, match=re.escape(limits.ELEMENTS.rule)):
        parse_plan(f"axis m = (m {digits}): whole")


def test_a_step_is_at_least_1() -> None:
    block("  for i in 0..4 step 0 {\n  }", errors.ParseError, "step 0: a step is at least 1")


def test_a_lookup_needs_its_brackets() -> None:
    text = (
        "tile f(%x: global f32[M], %i: global i32[M], %y: global f32[M])\n  symbols M\n  values it0, dyn0\n{\n"
        "  %0 = read %i : i32[M]\n  %1 = read %x, %0 over=[it0] lookups=[dyn0: 0] at=[dyn0] : f32[M]\n"
        "  write %1, %y\n}\n"
    )
    with pytest.raises(errors.ParseError, match=re.escape("'dyn0: 0' is no lookup")):
        tilewright.compile(text, target="executor")


def test_a_tile_program_without_a_write_is_refused() -> None:
    text = "tile f(%x: global f32[M])\n  symbols M\n{\n  %0 = read %x : f32[M]\n}\n"
    with pytest.raises(errors.NothingWritten, match="the program f never writes"):
        tilewright.compile(text, target="executor")


def test_a_symbol_bound_to_itself_is_refused() -> None:
    text = (
        "tile f(%x: global f32[M], %y: global f32[M])\n  symbols M, N\n{\n  %0 = read %x : f32[M]\n  write %0, %y\n}\n"
    )
    m, n = algebra.symbol("M", 0), algebra.symbol("N", 0)
    for bound in ({m: m + 1}, {m: 2 * n, n: m + 1}, {m: n, n: m}):  # the last was taken, and meant nothing
        with pytest.raises(errors.ArgumentError, match=r"M = .* mentions itself"):
            tilewright.compile(text, bound, target="executor")


def test_a_ring_that_is_filled_2_to_the_80_times_is_counted() -> None:
    """Python's own length of such a loop was an OverflowError."""
    text = "\n".join(
        [
            "block f(%x: in global f32 (4), %y: out global f32 (4))\n{",
            "  %s = alloc shared f32 (2, 4)\n  %ring = channel %s stages 2 from bring to take",
            "  role bring waves 1 {\n    for i in 0..1208925819614629174706176 {",
            "      %room = acquire %ring\n      copy %x -> %room\n      commit %ring\n    }\n  }",
            "  role take waves 1 {\n    for i in 0..1208925819614629174706176 {",
            "      %there = wait %ring\n      copy %there -> %y\n    }\n  }\n}\n",
        ]
    )
    refused(text, errors.ProgramError, "%ring has no release: it is filled 1208925819614629174706176 times")


def test_an_array_without_elements_takes_no_memory_however_long_its_other_side_is() -> None:
    body = "  for m in 0..4 {\n    %row = view %x (j 0) -> [m, j]\n    %to = view %y (j 0) -> [m, j]\n"
    head = f"block f(%x: in global f32 ({1 << 32}, 0), %y: out global f32 ({1 << 32}, 0))\n{{\n"
    run = compile_text(f"{head}{body}    map %to = %row\n  }}\n}}\n", "interpreter")
    assert run(np.zeros((1 << 32, 0), np.float32)).shape == (1 << 32, 0)


def _nested(depth: int) -> object:
    found: object = 2
    for _ in range(depth):
        found = (found,)
    return found


@pytest.mark.parametrize(
    ("call", "limit"),
    [
        (lambda: algebra.Layout(_nested(3000)), limits.NESTING),
        (lambda: algebra.Layout((1,) * 300), limits.MODES),
        (lambda: algebra.Layout(4, 1 << 63), limits.OFFSETS),
        (lambda: algebra.Layout(algebra.as_expr(1 << 63)), limits.OFFSETS),
        (lambda: algebra.Layout((algebra.symbol("M", 1), 8)).bind({"M": 1 << 63}), limits.OFFSETS),
        (lambda: algebra.downcast(algebra.Layout(8), 1 << 61), limits.OFFSETS),
        (lambda: algebra.repeat(1, 10**9), limits.MODES),
        (lambda: algebra.append(4, 1, up_to=10**9), limits.MODES),
        (lambda: algebra.prepend(algebra.Layout(4), algebra.Layout(1), up_to=10**9), limits.MODES),
        (lambda: algebra.Swizzle(3, 3, 3).downcast(1 << 60), limits.SWIZZLE),
    ],
)
def test_operations_of_the_algebra_keep_to_the_limits(call: Callable[[], object], limit: limits.Limit) -> None:
    with pytest.raises(errors.LayoutError, match=re.escape(limit.rule)):
        call()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: algebra.tuple_add(_nested(3000), 1), "tuple_add: a=(((((((((...),),),),),),),),) is not an integer"),
        (lambda: algebra.coalesce(10**5000), "coalesce: layout=an integer of 16610 bits is not a layout"),
        (lambda: algebra.product_each((algebra.Layout(4),)), "product_each: x=(Layout(4, 1),) is not an integer"),
        (lambda: algebra.Swizzle(3, 3, 3).upcast(2.0), "times as large, not 2.0"),
        (lambda: algebra.Layout(4).bind(3), "values=3 is no dictionary of symbols or names"),
    ],
)
def test_what_the_algebra_does_not_take_is_named_however_deep_or_long_it_is(
    call: Callable[[], object], says: str
) -> None:
    with pytest.raises(errors.LayoutError, match=re.escape(says)):
        call()


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": "two"}, {"workers": 1 << 20}, {"seed": "x"}])
def test_workers_and_seeds_of_block_kernels_are_checked(options: dict[str, object]) -> None:
    @tb.kernel()
    def double(x: tb.In("f32", "M"), y: tb.Out("f32", "M"), *, M: tb.Size(1, 65536)):
        y[:] = 2 * x[:]

    (name,) = options
    with pytest.raises(errors.ArgumentError, match=f"{name}={options[name]!r}: an integer"):
        tilewright.compile(double, target="interpreter", **options)
