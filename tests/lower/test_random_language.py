"""Random programs of the whole tile language: a sample of benchmarks/random_language.py, and what it found."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from tile_checks import no_atoms_today, own_cache  # noqa: F401

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]

from language_draft import Drawn  # noqa: E402
from language_loops import RULES, drawn  # noqa: E402
from language_ways import FAILURES, ROWS, Case, outcome, ways  # noqa: E402

import tilewright  # noqa: E402
import tilewright.wave.memory_ops  # noqa: E402
import tilewright.wave.ops  # noqa: E402
from tilewright.algebra.expr import symbol  # noqa: E402
from tilewright.errors import ExecutionError  # noqa: E402
from tilewright.ir.tile import TILE, parse_tile  # noqa: E402
from tilewright.rewrite.split_reduction import split_reduction_programs  # noqa: E402
from tilewright.targets.registry import machine  # noqa: E402

pytestmark = [no_atoms_today, pytest.mark.filterwarnings("ignore::UserWarning")]
FUNCTIONS = {"argmax", "argmin", "apply_expr", "register", "scaled_mma", "scatter_add", "softsign", "tanh_approx",
             "shared_memory_barrier", "workgroup_barrier"}  # fmt: skip
"""Functions of the language that add operations of other names, or mean the same as another one."""


def exact(text: str, sizes: dict[str, int], *where: str, **forms: str) -> None:
    """That a program, by its text, is exact in ways of language_ways.py."""
    case = Case(Drawn.of_text(text, sizes, **forms), 0, 0)
    for way in ("executor", *where):
        said = outcome(case, way)
        assert said.verdict == "exact", said


def test_every_operation_of_the_language_has_a_rule():
    drawn_by = {name for each in RULES.values() for name in each.operations}
    assert set(TILE.ops) == drawn_by
    public = {*tilewright.wave.ops.__all__, *tilewright.wave.memory_ops.__all__} - FUNCTIONS
    assert public <= set(TILE.ops), public - set(TILE.ops)


def test_what_rules_say_they_draw_is_drawn():
    found: set[str] = set()
    for number in range(900):
        found |= {op.name for op in drawn(number).program.walk()}
    assert found >= set(TILE.ops) - {"log10"}, set(TILE.ops) - found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(12))
def test_random_programs_are_exact(number):
    case = Case(drawn(number, 1), number, 1)
    for way in ways(number, 1, 1, native=True):
        said = outcome(case, way)
        assert said.verdict not in FAILURES, said


# -- what it found -----------------------------------------------------------------------------------------------


def test_equal_reads_beside_a_repeat_were_not_joined():
    """`repeat` names one dimension where `broadcast` names several: joining reads raised a TypeError."""
    text = """tile repeated(%x: global f32[A], %w: global f32[A, B], %y: global f32[2*A, B])
  symbols A, B
{
  %0 = read %x : f32[A]
  %1 = repeat %0 dim=(A) to=(2*A) times=2 : f32[2*A]
  %2 = read %w : f32[A, B]
  %3 = repeat %2 dim=(A) to=(2*A) times=2 : f32[2*A, B]
  %4 = read %x : f32[A]
  %5 = max %4 dim=(A) : f32[]
  %6 = add %1, %3 : f32[2*A, B]
  %7 = add %6, %5 : f32[2*A, B]
  write %7, %y
}
"""
    exact(text, {"A": 5, "B": 7}, "native", "hopper", "x86.avx2")


@pytest.mark.parametrize("row", ["hopper", "xe"])
def test_a_product_that_becomes_a_sum_was_used_within_a_conditional(row):
    """Uses of the product in the blocks of other operations kept the value that was gone."""
    text = """tile conditional_product(%x: global f16[B], %w: global f16[B, A], %y: global f32[A])
  symbols A, B
{
  %0 = read %x : f16[B]
  %1 = read %w : f16[B, A]
  %2 = fill value=0 : f32[A]
  %3 = mma %0, %1, %2 : f32[A]
  %4 = scalar value=1 dtype=f32 : f32[]
  %5 = gt %3, %4 : bool[A]
  conditional %5 () {
    write %3, %y
  }
}
"""
    exact(text, {"A": 5, "B": 7}, row, y="begin")


@pytest.mark.parametrize("row", ["hopper", "cdna3"])
def test_a_loop_beside_a_product_that_becomes_a_sum_lost_its_freedom(row):
    """A loop that only accumulates needs no tile size, in a program whose product is rewritten too."""
    text = """tile two(%x: global i8[B], %w: global i8[A, B], %z: global i8[B, A], %y: global i32[A], %y2: global i8[B])
  symbols A, B
{
  %0 = read %x : i8[B]
  %1 = read %w : i8[A, B]
  %2 = fill value=0 : i32[A]
  %3 = mma %0, %1, %2 : i32[A]
  %4 = fill value=0 : i8[B]
  %5 = iterate %4 axis=(A) (%6: i8[B]) {
    %7 = read %z : i8[B, A]
    %8 = max %7, %6 dim=(A) acc=true : i8[B]
    yield %8
  } : i8[B]
  write %3, %y
  write %5, %y2
}
"""
    exact(text, {"A": 13, "B": 5}, row)


@pytest.mark.parametrize("row", ["hopper", "xe"])
def test_bits_of_a_tile_that_nothing_reads(row):
    """The tensor whose bits are taken lay in registers, where it has none; nothing read the bits."""
    text = """tile unread(%x: global f32[A, B], %w: global f32[B], %y: global f32[])
  symbols A, B
{
  %0 = read %x : f32[A, B]
  %1 = bitcast %0 dtype=i32 : i32[A, B]
  %2 = bitcast %1 dtype=f32 : f32[A, B]
  %3 = read %w : f32[B]
  %4 = extract %3 offset=[3] : f32[]
  write %4, %y
}
"""
    exact(text, {"A": 3, "B": 4}, row)


@pytest.mark.parametrize("row", ["x86.avx2", "aarch64.neon"])
def test_a_stated_task_smaller_than_an_accumulator_tile(row):
    """Tiles of five rows were kept in registers, in tasks of which the author says that they have four."""
    text = """tile small_tasks(%x: global f32[D, C, B], %w: global f32[A, C, B], %y: global f32[A, C, D])
  symbols A, B, C, D
  workgroup dim=(A) tile=(4) grid=1
{
  %0 = read %x : f32[D, C, B]
  %1 = read %w : f32[A, C, B]
  %2 = fill value=1 : f32[A, C, D]
  %3 = mma %0, %1, %2 : f32[A, C, D]
  write %3, %y
}
"""
    exact(text, {"A": 5, "B": 1, "C": 1, "D": 7}, row, "native")


def test_kernels_for_sizes_write_at_every_coordinate_of_a_dimension():
    """`kernel_for` took a tile that lacks a dimension of its memory for one that is cut there."""
    text = """tile rows(%x: global f16[A], %y: global f16[A, B])
  symbols A, B
{
  %0 = read %x : f16[A]
  write %0, %y
}
"""
    exact(text, {"A": 5, "B": 7}, *ROWS[:2], "hopper")


def test_a_hint_of_one_coordinate_was_taken_for_a_cut():
    """A tile size of 1 for loops over B, of which there are none, left the write without its dimension B."""
    text = """tile hinted(%x: global f16[A], %y: global f16[A, B])
  symbols A, B
  tiling dim=(B) tile=(1)
{
  %0 = read %x : f16[A]
  write %0, %y
}
"""
    exact(text, {"A": 5, "B": 7}, "native", "x86.avx2")


def test_bits_of_a_number():
    """The executor gave the bits of a tile without dimensions one."""
    text = """tile number(%x: global f32[A], %y: global i32[])
  symbols A
{
  %0 = read %x : f32[A]
  %1 = max %0 dim=(A) : f32[]
  %2 = bitcast %1 dtype=i32 : i32[]
  %3 = scalar value=3 dtype=i32 : i32[]
  %4 = shr %2, %3 : i32[]
  write %4, %y
}
"""
    exact(text, {"A": 5}, "native", "hopper")


def test_an_atomic_beside_a_split_sum_was_left_out():
    """What it gives is not used, and the second of the two kernels dropped it."""
    text = """tile two(%x: global f32[A], %z: global f32[B], %p: global i32[B], %y: global f32[], %w: global f32[C])
  symbols A, B, C, it0
  values dyn0
{
  %0 = read %x : f32[A]
  %1 = sum %0 dim=(A) : f32[]
  write %1, %y
  %2 = read %z : f32[B]
  %3 = read %p : i32[B]
  %4 = atomic_add %2, %w, %3 over=[it0] lookups=[dyn0: [it0]] at=[dyn0] : f32[B]
}
"""
    program = parse_tile(text)
    split = split_reduction_programs(
        program, {symbol("A", 0): 4096, symbol("B", 0): 17, symbol("C", 0): 5}, 4, machine("hopper")
    )
    assert not isinstance(split, str)
    assert not any(op.name == "atomic_add" for op in split.first.walk())
    assert sum(op.name == "atomic_add" for op in split.second.walk()) == 1


def test_a_split_sum_of_what_the_program_wrote_read_it_too_early():
    """Its parts were summed in a first kernel, before the write."""
    text = """tile written(%z: global f32[A], %x: global f32[A], %y: global f32[])
  symbols A
{
  WRITE
  %1 = read %x : f32[A]
  %2 = sum %1 dim=(A) : f32[]
  write %2, %y
  AFTER
}
"""
    write = "%0 = read %z : f32[A]\n  write %0, %x"
    sizes = {symbol("A", 0): 4096}
    before = parse_tile(text.replace("WRITE", write).replace("AFTER", ""))
    assert split_reduction_programs(before, sizes, 4, machine("hopper")) == "x is written before it is read"
    after = parse_tile(text.replace("WRITE", "").replace("AFTER", write))
    assert not isinstance(split_reduction_programs(after, sizes, 4, machine("hopper")), str)


def test_lanes_of_other_waves_read_before_a_transposing_map_stores():
    exact(
        """tile updated(%x1: global f8e5m2[P, Q], %y2: global f8e5m2[B, C, A], %y3: global i32[B, A, C])
  symbols A, B, C, P, Q, it0
{
  %0 = fill value=1 : i32[A, C, B]
  %1 = cummax %0 dim=(A) : i32[A, C, B]
  %2 = read %x1 over=[it0] at=[it0//2, it0%2] : f8e5m2[C]
  %3 = read %y2 : f8e5m2[B, C, A]
  %4 = minimum %3, %2 : f8e5m2[B, C, A]
  write %4, %y2
  write %1, %y3
}
""",
        {"A": 32, "B": 2, "C": 13, "P": 7, "Q": 2},
        "xe",
        x1="small",
        y2="begin",
        y3="out",
    )


def test_a_window_with_more_elements_than_a_fragment_for_each_lane_is_shared():
    exact(
        """tile windows(%x1: global f8e5m2[P], %y4: global f8e5m2[A, B])
  symbols A, B, P, it0, it1
{
  %0 = read %x1 over=[it1, it0] at=[it0 + it1 - 11] otherwise=0 : f8e5m2[A, B]
  write %0, %y4
}
""",
        {"A": 23, "B": 23, "P": 1},
        "ampere",
        "hopper",
        x1="small",
        y4="out",
    )


def test_a_loop_of_a_grid_program_keeps_its_tile_beside_one_whose_tile_is_free():
    """Both had the whole dimension, and the plan was refused by the first of them."""
    exact(
        """tile two_loops(%x: global f32[A], %s: global f32[], %m: global f32[], %y: global f32[A])
  symbols A, BLOCK_A
  bind BLOCK_A = 16
  tiling dim=(A) tile=(BLOCK_A)
{
  %0 = fill value=1 : f32[]
  %1 = iterate %0 axis=(A) (%2: f32[]) {
    %3 = read %x : f32[A]
    %4 = min %3 dim=(A) : f32[]
    %5 = add %2, %4 : f32[]
    yield %5
  } : f32[]
  %6 = fill value=0 : f32[]
  %7 = iterate %6 axis=(A) (%8: f32[]) {
    %9 = read %x : f32[A]
    %10 = max %9, %8 dim=(A) acc=true : f32[]
    yield %10
  } : f32[]
  %11 = read %x : f32[A]
  %12 = allocate tile=[A] : shared f32[A]
  write %11, %12
  barrier
  %13 = read %12 : f32[A]
  write %13, %y
  write %1, %s
  write %7, %m
}
""",
        {"A": 48},
        "native",
        "x86.avx2",
        "xe",
        x="small",
        y="out",
        s="out",
        m="out",
    )


def test_rows_of_a_batch_less_their_largest_had_no_batch_in_memory():
    """An operand that is computed and padded goes through memory, which has no place for the batch."""
    text = """tile rows(%x: global f32[B, M, P], %w: global bf16[B, Q, P], %y: global f32[B, M, Q])
  symbols B, M, P, Q
{
  %0 = read %x : f32[B, M, P]
  %1 = max %0 dim=(P) : f32[B, M]
  %2 = sub %0, %1 : f32[B, M, P]
  %3 = cast %2 dtype=bf16 : bf16[B, M, P]
  %4 = read %w : bf16[B, Q, P]
  %5 = fill value=2 : f32[B, M, Q]
  %6 = mma %3, %4, %5 : f32[B, M, Q]
  write %6, %y
}
"""
    exact(text, {"B": 3, "M": 64, "P": 8, "Q": 1}, "hopper")


def test_a_loop_over_one_element_carries_along_no_dimension():
    """The facts leave that dimension out, and the search looked for its tiles: a KeyError."""
    text = """tile c(%x: global bf16[B,M,K], %w: global bf16[B,K,N], %v: global bf16[B, N, P], %y: global f32[B, M, P])
  symbols B, T, K, M, N, P
  bind T = 1
  tiling dim=(N) tile=(T)
{
  %0 = fill value=-9 : f32[B, M]
  %1 = fill value=0 : f32[B, M, P]
  %2, %3 = iterate %0, %1 axis=(N) (%4: f32[B, M], %5: f32[B, M, P]) {
    %6 = fill value=0 : f32[B, M, N]
    %7 = read %x : bf16[B, M, K]
    %8 = neg %7 : bf16[B, M, K]
    %9 = read %w : bf16[B, K, N]
    %10 = mma %8, %9, %6 : f32[B, M, N]
    %11 = max %10 dim=(N) : f32[B, M]
    %12 = maximum %4, %11 : f32[B, M]
    %14 = sub %10, %11 : f32[B, M, N]
    %15 = minimum %14, %12 : f32[B, M, N]
    %20 = cast %15 dtype=bf16 : bf16[B, M, N]
    %21 = read %v : bf16[B, N, P]
    %22 = mma %20, %21, %5 : f32[B, M, P]
    yield %12, %22
  } : f32[B, M], f32[B, M, P]
  %23 = add %3, %2 : f32[B, M, P]
  write %23, %y
}
"""
    exact(text, {"M": 33, "K": 3, "N": 1, "P": 48, "B": 2}, "hopper")


def test_the_largest_of_rows_of_one_element_does_not_see_what_an_atom_pads():
    """Tasks may split a dimension of one element though the program reduces it; zeros beside it were reduced too."""
    text = """tile rows(%x: global f16[B, M, N], %w: global f16[B, P, N], %y: global f32[B, M, P])
  symbols B, M, N, P
{
  %0 = read %x : f16[B, M, N]
  %1 = read %w : f16[B, P, N]
  %2 = fill value=0 : f32[B, M, P]
  %3 = mma %0, %1, %2 : f32[B, M, P]
  %4 = max %3 dim=(P) : f32[B, M]
  %5 = sub %3, %4 : f32[B, M, P]
  write %5, %y
}
"""
    exact(text, {"B": 3, "M": 3, "N": 64, "P": 1}, "hopper")


def test_a_row_outside_loops_may_have_a_dimension_of_two_that_loops_split():
    """The lowering asked for the part of A*B inside the loops: too many values to unpack."""
    text = """tile rows(%x: global f32[A, B], %v: global f32[A*B], %y: global f32[], %y1: global f32[A*B])
  symbols A, B, BLOCK_A, BLOCK_B
  bind BLOCK_A = 4
  bind BLOCK_B = 7
  tiling dim=(A) tile=(BLOCK_A)
  tiling dim=(B) tile=(BLOCK_B)
{
  %0 = fill value=0 : f32[]
  %1 = iterate %0 axis=(A) (%2: f32[]) {
    %3 = iterate %2 axis=(B) (%4: f32[]) {
      %5 = read %x : f32[A, B]
      %6 = max %5 dim=(A) : f32[B]
      %7 = min %6, %4 dim=(B) acc=true : f32[]
      yield %7
    } : f32[]
    yield %3
  } : f32[]
  write %1, %y
  %8 = read %v : f32[A*B]
  %9 = sum %8 dim=(A*B) : f32[]
  %10 = sub %8, %9 : f32[A*B]
  write %10, %y1
}
"""
    exact(text, {"A": 3, "B": 23}, "hopper")


def test_a_symbol_that_is_set_twice_reads_other_elements_the_second_time():
    """Both reads were one: the result was 0, and an index out of bounds was not reported."""
    text = """tile twice(%x: global f32[W], %i: global i32[M], %j: global i32[M], %y: global f32[M])
  symbols A, M, W, it0
{
  %0 = read %i : i32[M]
  set_symbol %0 symbol=(A)
  %1 = read %x over=[it0] at=[A] : f32[M]
  %2 = read %j : i32[M]
  set_symbol %2 symbol=(A)
  %3 = read %x over=[it0] at=[A] : f32[M]
  %4 = sub %1, %3 : f32[M]
  write %4, %y
}
"""
    x, i, j = np.arange(5, dtype=np.float32) * 10, np.int32([0, 1, 4]), np.int32([2, 2, 3])
    for target in ("executor", "cpu"):
        assert (tilewright.compile(text, target=target)(x, i, j) == x[i] - x[j]).all()
    with pytest.raises(ExecutionError, match="tensor of 5"):
        tilewright.compile(text)(x, i, np.int32([2, 2, 77]))
