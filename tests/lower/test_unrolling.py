"""What lowering unrolls is bounded by the program's text, not by its extents; and what becomes a loop stays exact."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tilewright.compiler.text import compile_text
from tilewright.errors import ProgramError
from tilewright.ir.block import parse_block
from tilewright.ir.core import Program
from tilewright.limits import WRITTEN
from tilewright.lower.cpu.control import MOST
from tilewright.lower.cpu.lower import lower
from tilewright.targets.registry import machine

pytestmark = pytest.mark.filterwarnings("ignore::tilewright.errors.MissingAtomWarning")
AVX512 = machine("x86.avx512f.avx512vnni")


def lowered(text: str) -> Program:
    return lower(parse_block(text), AVX512, AVX512).program


def written(text: str) -> int:
    """The operations of the loop level that a text becomes."""
    return sum(1 for _ in lowered(text).walk())


def exact(text: str, *inputs: np.ndarray, out: np.ndarray) -> np.ndarray:
    """What machine code gives, which must be what the interpreter gives."""
    results = []
    for target in ("cpu", "interpreter"):
        made = compile_text(text, target)
        if target == "interpreter":
            made.steps = 10**7
        found = out.copy()
        made(*inputs, found)
        results.append(found)
    np.testing.assert_array_equal(*results)
    return results[0]


def product(depth: int) -> str:
    arguments = f"%x: in global f32 (5, {depth}), %w: in global f32 ({depth}, 16), %y: out global f32 (5, 16)"
    return f"""block product({arguments})
  machine x86.avx512f.avx512vnni
{{
  tasks t in 0..1 {{
    %sums = alloc register f32 (5, 16) as avx512.f32.c
    fill %sums 0
    mma %sums += %x * %w using avx512.f32
    copy %sums -> %y
  }}
}}
"""


def filling(*loops: str) -> str:
    opening = "".join(f"{loop} {{\n" for loop in loops)
    return f"block f(%y: out global f32 (8))\n{{\n{opening}fill %y 0\n{'}' * len(loops)}\n}}\n"


def reduction(columns: int) -> str:
    return f"""block columns(%x: in global f32 (3, {columns}), %y: out global f32 ({columns}))
{{
  reduce %x -> %y along 0 with sum
}}
"""


@pytest.mark.parametrize("text", [product, reduction], ids=lambda f: f.__name__)
def test_an_operation_of_2_to_the_31_elements_is_no_longer_than_one_of_a_few_thousand(
    text: Callable[[int], str],
) -> None:
    few, many = (written(text(n)) for n in (4096, 1 << 31))
    assert few <= many <= few + 8  # what is left at the end may differ


def wide(columns: int) -> str:
    """A product whose sums are too many for registers: loops of the same meaning."""
    arguments = f"%x: in global f32 (16, 3), %w: in global f32 (3, {columns}), %y: out global f32 (16, {columns})"
    return f"""block wide({arguments})
  machine x86.avx512f.avx512vnni
{{
  tasks t in 0..1 {{
    %sums = alloc register f32 (16, {columns}) as avx512.f32.c
    fill %sums 0
    mma %sums += %x * %w using avx512.f32
    copy %sums -> %y
  }}
}}
"""


def test_sums_that_are_too_many_for_registers_lie_in_memory() -> None:
    assert written(wide(1 << 16)) < 100
    rng = np.random.default_rng(1)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((16, 3), (3, 2064)))
    found = exact(wide(2064), x, w, out=np.zeros((16, 2064), np.float32))
    np.testing.assert_array_equal(found, x @ w)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("depth", [3, 17, 819, 820, 5003])
def test_long_products_are_exact(depth: int) -> None:
    rng = np.random.default_rng(depth)
    x, w = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((5, depth), (depth, 16)))
    np.testing.assert_array_equal(exact(product(depth), x, w, out=np.zeros((5, 16), np.float32)), x @ w)


@pytest.mark.parametrize("columns", [15, 16 * 64, 16 * 64 + 1, 5003])
def test_sums_of_many_columns_are_exact(columns: int) -> None:
    x = np.random.default_rng(columns).integers(-9, 10, (3, columns)).astype(np.float32)
    np.testing.assert_array_equal(exact(reduction(columns), x, out=np.zeros(columns, np.float32)), x.sum(0))


def test_a_loop_of_2_to_the_40_rounds_is_peeled_without_counting_them() -> None:
    assert written(filling("for i in 0..1099511627776 peel [1, 2]")) < 50


@pytest.mark.parametrize(("first", "last"), [(0, 0), (2, 0), (0, 3), (1, 1), (5, 9), (20, 20)])
def test_peeled_rounds_are_done_once_each(first: int, last: int) -> None:
    text = f"""block f(%x: in global f32 (13, 4), %y: inout global f32 (4))
{{
  tasks t in 0..1 {{
    for i in 0..13 peel [{first}, {last}] {{
      %row = view %x (j 4) -> [i, j]
      map %y = %y + %row
    }}
  }}
}}
"""
    x = np.arange(52, dtype=np.float32).reshape(13, 4)
    np.testing.assert_array_equal(exact(text, x, out=np.zeros(4, np.float32)), x.sum(0))


@pytest.mark.parametrize("said", ["[0 - 1, 1]", "[1, 2, 3]", f"[{MOST + 1}, 0]"])
def test_peeling_less_than_nothing_or_too_much_is_refused(said: str) -> None:
    text = filling(f"for i in 0..9 peel {said}")
    with pytest.raises(ProgramError, match=rf"peel .*from 0 to {MOST}"):
        lowered(text)


def test_unrolling_2_to_the_60_rounds_is_refused_before_they_are_listed() -> None:
    text = filling("for i in 0..1073741824, j in 0..1073741824 unroll")
    with pytest.raises(ProgramError, match=f"unroll: {1 << 60} rounds are more than {MOST}"):
        lowered(text)


def test_loops_unrolled_in_one_another_are_refused_at_the_limit() -> None:
    text = filling("for i in 0..4000 unroll", "for j in 0..4000 unroll")
    with pytest.raises(ProgramError, match=re.escape(WRITTEN.rule)):
        lowered(text)


def test_a_large_end_of_a_round_is_not_written_out() -> None:
    text = """block f(%x: in global f32 (4), %y: out global f32 (4, 1000000))
{
  for i in 0..4 overlap defer {
    barrier
  } finally {
    %row = view %y (j 1000000) -> [i, j]
    fill %row 1
  }
}
"""
    assert written(text) < 50


def test_a_small_end_that_looks_at_a_large_tensor_is_deferred() -> None:
    """Views are not written out: what they are of may be as large as it is."""
    text = """block f(%x: in global f32 (4), %y: out global f32 (4, 1000000, 4))
{
  for i in 0..4, j in 0..1000000 overlap defer {
    barrier
  } finally {
    %row = view %y (k 4) -> [i, j, k]
    fill %row 1
  }
}
"""
    assert "begun" in str(lowered(text))


def test_an_unrolled_loop_without_iterations_is_nothing():
    """It raised an IndexError."""
    text = """block nothing(%x: in global f32 (4), %y: out global f32 (4))
{
  copy %x -> %y
  for t in 0..0 unroll {
    copy %y -> %y
  }
}
"""
    x = np.arange(4, dtype=np.float32)
    assert exact(text, x, out=np.zeros(4, np.float32)).tolist() == x.tolist()
