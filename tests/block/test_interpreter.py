"""What the interpreter finds in small programs, and what it must not find."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright import errors
from tilewright.compiler.text import compile_text

X = np.arange(1, 17, dtype=np.int32)


def run(text: str, *arguments: Any, workers: int = 2, seed: int = 0, **params: int) -> Any:
    return compile_text(text, params=params, workers=workers, seed=seed, target="interpreter")(*arguments)


def refused(error: Any, says: str, text: str, *arguments: Any, **params: int) -> None:
    """The program is refused so, however many workers there are and whatever the schedule."""
    for workers, seed in ((1, 0), (2, 1), (4, 2), (3, 7)):
        with pytest.raises(error) as report:
            run(text, *arguments, workers=workers, seed=seed, **params)
        assert says in str(report.value), report.value


def test_a_program_without_tasks_is_done_by_one_worker() -> None:
    text = "block f(%x: in global i32 (16), %y: out global i32 (16)) { map %y = %x + 1 }"
    assert np.array_equal(run(text, X, workers=3), X + 1)


# -- tasks ------------------------------------------------------------------------------------------------


def test_tasks_that_write_one_element_race_however_few_workers_there_are() -> None:
    text = """block f(%x: in global i32 (16), %y: out global i32 (8)) {
      tasks t in 0..4 {
        %from = view %x (i 4) -> [4*t + i]
        %to = view %y (i 4) -> [2*t + i ?]
        copy %from -> %to
      }
    }"""
    refused(errors.RaceFault, "of %y, which another task, or another worker, wrote", text, X)


def test_tasks_that_read_what_another_writes_race() -> None:
    text = """block f(%y: inout global i32 (16)) {
      tasks t in 0..4 {
        %from = view %y (i 4) -> [(4*t + i + 4)%16]
        %to = view %y (i 4) -> [4*t + i]
        copy %from -> %to
      }
    }"""
    refused(errors.RaceFault, "which another task, or another worker,", text, X.copy())
    for workers in (1, 3):
        y = X.copy()
        good = text.replace("(4*t + i + 4)%16", "4*t + i").replace("copy %from -> %to", "map %to = %from*2")
        run(good, y, workers=workers)
        assert np.array_equal(y, 2 * X)


def test_two_task_loops_may_hand_elements_on_within_a_task() -> None:
    text = """block f(%x: in global i32 (16), %y: out global i32 (16), %z: out global i32 (16)) {
      tasks t in 0..4 {
        %a = view %x (i 4) -> [4*t + i]
        %b = view %y (i 4) -> [4*t + i]
        map %b = %a + 1
      }
      tasks u in 0..4 {
        %c = view %y (i 4) -> [4*u + i]
        %d = view %z (i 4) -> [4*u + i]
        map %d = %c*2
      }
    }"""
    for workers in (1, 2, 3, 5):
        y, z = run(text, X, workers=workers)
        assert np.array_equal(y, X + 1)
        assert np.array_equal(z, 2 * X + 2)


def test_atomics_of_different_tasks_do_not_race_but_reading_does() -> None:
    text = """block f(%x: in global i32 (16), %sum: inout global i32 (1), %y: out global i32 (4)) {
      tasks t in 0..4 {
        %from = view %x (i 4) -> [4*t + i]
        atomic add %from (i 4), %sum -> [0]
        %to = view %y (i 1) -> [t]
        READ
      }
    }"""
    for workers in (1, 2, 4):
        total = np.zeros(1, np.int32)
        run(text.replace("READ", "fill %to 1"), X, total, workers=workers)
        assert total[0] == X.sum()
    refused(errors.RaceFault, "of %sum", text.replace("READ", "copy %sum -> %to"), X, np.zeros(1, np.int32))


def test_one_copy_may_not_give_an_element_two_values() -> None:
    text = """block f(%x: in global i32 (16), %y: out global i32 (8)) {
      %to = view %y (i 16) -> [i//2 ?]
      copy %x -> %to
    }"""
    refused(errors.RaceFault, "`copy %x -> %to` (line 3) writes two values to element 0 of %y", text, X)
    same = X // 2 * 0 + 7
    assert np.array_equal(run(text, same), same[:8])


# -- several waves ------------------------------------------------------------------------------------------

WAVES = """block f(%x: in global i32 (16), %y: out global i32 (16))
  waves 4
{
  %s = alloc shared i32 (16)
  tasks t in 0..1 {
    copy %x -> %s
    barrier
    %turned = view %s (i 16) -> [15 - i]
    copy %turned -> %y
  }
}"""


def test_a_barrier_orders_waves() -> None:
    for seed in range(5):
        assert np.array_equal(run(WAVES, X, seed=seed), X[::-1])
    refused((errors.RaceFault, errors.UninitialisedFault), "%s", WAVES.replace("    barrier\n", ""), X)


def test_a_single_element_is_one_waves_to_write() -> None:
    text = """block f(%x: in global i32 (16), %y: out global i32 (), %z: out global i32 ())
  waves 4
{
  %s = alloc shared i32 ()
  %r = alloc register i32 () by (8,1):(0,0)
  fill %s 0
  barrier
  reduce %x -> %s along 0 with sum accumulate
  barrier
  copy %s -> %r
  copy %r -> %y
  map %z = %r + %s
}"""
    for seed in range(6):
        y, z = run(text, X, seed=seed)
        assert (y, z) == (X.sum(), 2 * X.sum())


def test_waves_that_accumulate_into_memory_do_not_race() -> None:
    text = """block f(%x: in global i32 (4, 4), %y: inout global i32 (4))
  waves 2
{
  tasks t in 0..1 {
    reduce %x -> %y along 0 with sum accumulate
  }
}"""
    for seed in range(4):
        y = np.ones(4, np.int32)
        run(text, X.reshape(4, 4), y, seed=seed)
        assert np.array_equal(y, X.reshape(4, 4).sum(0) + 1)


def test_atomics_of_waves_do_not_race_but_unordered_reads_of_them_do() -> None:
    text = """block f(%x: in global i32 (16), %y: out global i32 (4))
  waves 4
{
  %s = alloc shared i32 (4)
  fill %s 0
  barrier
  atomic add %x (i 16), %s -> [i%4]
  barrier
  copy %s -> %y
}"""
    for seed in range(4):
        assert np.array_equal(run(text, X, seed=seed), X.reshape(4, 4).sum(0))
    refused(errors.RaceFault, "of %s", text.replace("  barrier\n  copy", "  copy"), X)


@pytest.mark.parametrize("waves", [1, 2])
def test_memory_of_a_task_is_not_initialised_by_the_task_before(waves: int) -> None:
    text = f"""block f(%x: in global i32 (16), %y: out global i32 (16))
  waves {waves}
{{
  tasks t in 0..4 {{
    %s = alloc shared i32 (4)
    if (t == 0) {{
      fill %s 1
    }}
    barrier
    %from = view %x (i 4) -> [4*t + i]
    %to = view %y (i 4) -> [4*t + i]
    map %to = %from + %s
    barrier
  }}
}}"""
    refused(errors.UninitialisedFault, "of %s, which nothing wrote", text, X)
    good = text.replace("if (t == 0)", "if (t >= 0)")
    for seed in range(4):
        assert np.array_equal(run(good, X, seed=seed), X + 1)


def test_a_short_allocation_that_overlaps_itself_is_found() -> None:
    text = """block f(%x: in global i32 (16), %y: out global i32 (16)) {
      %s = alloc shared i32 (4, 4):(STEP, 1)
      %a = view %x (i 4, j 4) -> [4*i + j]
      %b = view %y (i 4, j 4) -> [4*i + j]
      copy %a -> %s
      copy %s -> %b
    }""".replace("(16)) {", "(16))\n  param STEP = 4\n{", 1)
    assert np.array_equal(run(text, X), X)
    assert np.array_equal(run(text, X, STEP=7), X)
    refused(errors.RaceFault, "writes two values", text, X, STEP=3)


# -- channels ---------------------------------------------------------------------------------------------

PIPE = """block f(%x: in global i32 (T, 8), %y: out global i32 (T, 8))
  param T = 6, STAGES = 2, WIDTH = 8
{
  %s = alloc shared i32 (STAGES, 8)
  %slack = view %s (e STAGES, i 8 - WIDTH) -> [e, WIDTH + i]
  fill %slack 5
  barrier
  %ring = channel %s stages STAGES from producer to consumer
  role producer waves 1 {
    tasks t in 0..T {
      %to = acquire %ring
      %part = view %to (i WIDTH) -> [i]
      %from = view %x (i WIDTH) -> [t, i]
      copy %from -> %part
      commit %ring
    }
  }
  role consumer waves 2 {
    tasks t in 0..T {
      %ready = wait %ring
      %out = view %y (i 8) -> [t, i]
      copy %ready -> %out
      release %ring
    }
  }
}"""


@pytest.mark.parametrize("width", [8, 5, 0])
def test_what_is_written_around_a_channel_stays(width: int) -> None:
    x = np.arange(48, dtype=np.int32).reshape(6, 8)
    wanted = np.where(np.arange(8) < width, x, 5)
    for seed in range(4):
        assert np.array_equal(run(PIPE, x, seed=seed, WIDTH=width), wanted)


def test_what_the_fill_before_wrote_into_a_stage_counts_as_not_written() -> None:
    x = np.arange(48, dtype=np.int32).reshape(6, 8)
    text = PIPE.replace("copy %from -> %part", "if (t < STAGES) {\n        copy %from -> %part\n      }")
    for seed in range(4):
        with pytest.raises(errors.UninitialisedFault, match="of %s, which nothing wrote"):
            run(text, x, workers=1, seed=seed)


def test_a_stage_that_is_read_asynchronously_must_be_released() -> None:
    text = """block f(%x: in global f32 (4, 32), %y: out global f32 (4, 32))
  machine hopper
{
  %s = alloc shared f32 (4, 32)
  %ring = channel %s stages 4 from only to only
  role only waves 1 {
    for t in 0..4 {
      %to = acquire %ring
      %from = view %x (i 32) -> [t, i]
      copy %from -> %to
      commit %ring
      %ready = wait %ring
      %out = view %y (i 32) -> [t, i]
      copy %ready -> %out by tma.store
      release %ring
    }
  }
}"""
    x = np.arange(128, dtype=np.float32).reshape(4, 32)
    assert np.array_equal(run(text, x), x)
    refused(
        errors.ProtocolFault,
        "`copy %ready -> %out by tma.store` (line 14) is under way when the program ends",
        text.replace("      release %ring\n", ""),
        x,
    )


def test_copies_under_way_that_write_one_place_race() -> None:
    text = """block f(%x: in global f32 (32), %y: out global f32 (32))
  machine hopper
{
  %s = alloc shared f32 (2, 32)
  %ring = channel %s stages 2 from producer to consumer
  role producer waves 1 {
    %to = acquire %ring
    copy %x -> %to by tma.load
    copy %x -> %to by tma.load
    commit %ring
  }
  role consumer waves 1 {
    %ready = wait %ring
    copy %ready -> %y
    release %ring
  }
}"""
    x = np.arange(32, dtype=np.float32)
    for seed in range(4):
        with pytest.raises(errors.RaceFault, match=r"copy %x -> %to by tma\.load"):
            run(text, x, seed=seed)
    once = text.replace("    copy %x -> %to by tma.load\n", "", 1)
    assert np.array_equal(run(once, x), x)


def test_a_channel_that_is_never_released_is_refused_where_one_worker_would_wait_for_ever() -> None:
    text = PIPE.replace("      release %ring\n", "")
    x = np.arange(48, dtype=np.int32).reshape(6, 8)
    refused(errors.ProgramError, "%ring has no release: it is filled 6 times", text, x)
    assert np.array_equal(run(text, x, STAGES=6), x)  # one stage for every fill: it stays for good


def test_the_places_of_a_factor_are_checked_beyond_the_first_box() -> None:
    text = """block f(%x: in global bf16 (128, 64), %w: in global bf16 (64, 64), %y: out global f32 (128, 64))
  machine hopper
{
  %a = alloc shared bf16 (1, 128, 64) swizzle <3,3,3>
  %b = alloc shared bf16 (1, 64, 64) swizzle <3,3,3>
  %ring = channel %a, %b stages 1 from producer to consumer
  role producer waves 1 {
    %sa, %sb = acquire %ring
    copy %x -> %sa by tma.load
    copy %w -> %sb by tma.load
    commit %ring
  }
  role consumer waves 8 {
    %acc = alloc register f32 (128, 64) as wgmma.m64n64k16.bf16.c waves (2, 1)
    fill %acc 0
    %ta, %tb = wait %ring
    %rows = view %ta (i 128, k 64) -> [ROWS, k]
    %tbt = view %tb (k 64, j 64) -> [j, k]
    mma %acc += %rows * %tbt using wgmma.m64n64k16.bf16
    release %ring
    copy %acc -> %y
  }
}"""
    random = np.random.default_rng(0)
    x, w = (random.integers(-2, 3, shape).astype(ml_dtypes.bfloat16) for shape in ((128, 64), (64, 64)))
    wanted = x.astype(np.float32) @ w.astype(np.float32).T
    assert np.array_equal(run(text.replace("ROWS", "i"), x, w), wanted)
    assert np.array_equal(run(text.replace("ROWS", "(i + 64)%128"), x, w), np.roll(wanted, -64, axis=0))
    reversed_half = text.replace("ROWS", "min(i, 191 - i)")
    refused(errors.ProgramError, "the places of %rows are others", reversed_half, x, w)


def test_factors_outside_are_left_out_not_multiplied_by_zero() -> None:
    """0 * inf is NaN: with `skip`, a weight that meets only padding may be anything."""
    text = """block taps(%x: in global f32 (3), %w: in global f32 (3, 16), %y: out global f32 (3, 16))
      machine x86.avx512
    {
      %acc = alloc register f32 (3, 16) as avx512.f32.c
      fill %acc 0
      %taps = view %x (i 3, k 3) -> [i + k - 1 ?]
      mma %acc += %taps * %w using avx512.f32 skip
      copy %acc -> %y
    }"""
    w = np.ones((3, 16), np.float32)
    w[0] = np.inf
    y = compile_text(text, target="interpreter")(np.array([1, 2, 3], np.float32), w)
    assert np.array_equal(y[0], np.full(16, 3, np.float32))  # the first tap falls outside
    assert np.all(np.isinf(y[1:]))


def test_a_map_through_what_may_lie_outside_is_refused() -> None:
    text = """block shift(%x: in global f32 (4), %y: out global f32 (4))
    {
      %v = view %x (i 4) -> [i - 1 ?]
      map %y = %v + %v
    }"""
    with pytest.raises(errors.ProgramError, match="%v may lie outside its tensor; copy it first"):
        compile_text(text, target="interpreter")


def test_a_single_number_that_is_never_written_is_named():
    """numpy's own ValueError came out."""
    text = "block idle(%y: out global f32 ())\n{\n  tasks t in 0..1 {\n    barrier\n  }\n}\n"
    with pytest.raises(errors.NotWrittenFault, match=r"1 of 1 elements of %y"):
        compile_text(text, "interpreter")(np.empty((), np.float32))


def test_small_floats_become_scales() -> None:
    """numpy does not convert one to the other, and said so."""
    text = "block f(%x: in global f8e5m2 (3), %y: out global f8e8m0fnu (3)) { map %y = f8e8m0fnu(%x) }"
    y = run(text, np.array([0.5, 2, 16], ml_dtypes.float8_e5m2))
    assert y.astype(np.float32).tolist() == [0.5, 2, 16]


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("t / 2", " / 2 was said to be exact"),
        ("6 // t", "6//t divides by 0, where t = 0"),
    ],
)
def test_a_quotient_that_is_not_exact_was_rounded_down_and_one_by_0_had_no_line(place: str, says: str) -> None:
    text = """block half(%x: in global f32 (7), %y: out global f32 (7))
    {
      tasks t in 0..7 {
        barrier
        %a = view %x (i 1) -> [PLACE]
        %b = view %y (i 1) -> [t]
        copy %a -> %b
      }
    }""".replace("PLACE", place)
    x = np.arange(7, dtype=np.float32)
    refused(errors.InterpreterFault, says, text, x)
    refused(errors.InterpreterFault, "copy %a -> %b` (line 7)", text, x)
    with pytest.raises(errors.InterpreterFault, match=r"was said to be exact|divides by 0"):
        compile_text(compile_text(text, "cpu").text("loop"), "interpreter")(x)
