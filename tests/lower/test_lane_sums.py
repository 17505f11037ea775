"""Sums of rows that a loop carries, kept lane by lane until the loop is over."""

import numpy as np
import pytest

from tilewright import compile_text
from tilewright.ir.block import parse_block
from tilewright.targets.registry import machine
from tilewright.transform.delay_row_reduction import sums_by_lanes

TEXT = """
block scaled(%x: in global f32 (T, 16, 8), %f: in global f32 (T, 16), %y: out global f32 (16), %z: out global f32 (16))
  machine hopper
  param T = 3
  waves 1
{
  tasks t in 0..1 {
    %rows = alloc register f32 (16, 8) by ((4,8),(2,2)):((32,1),(16,8))
    %factor = alloc register f32 (16) by ((4,8),(2)):((0,1),(8))
    %before = alloc register f32 (16) by ((4,8),(2)):((0,1),(8))
    %total = alloc register f32 (16) by ((4,8),(2)):((0,1),(8))
    %after = alloc register f32 (16) by ((4,8),(2)):((0,1),(8))
    %sum = alloc register f32 (16) by ((4,8),(2)):((0,1),(8))
    map %sum = f32(0.0)
    for k in 0..T {
      %from = view %x (i 16, j 8) -> [k, i, j]
      %by = view %f (i 16) -> [k, i]
      copy %from -> %rows
      copy %by -> %factor
      map %before = %sum*%factor
      reduce %rows -> %total along 1 with sum
      map %after = %total + %before
      copy %after -> %sum
    }
    copy %sum -> %y
    map %factor = %sum*2
    copy %factor -> %z
  }
}"""


def arguments():
    rng = np.random.default_rng(4)
    return rng.integers(-9, 10, (3, 16, 8)).astype(np.float32), rng.integers(-3, 4, (3, 16)).astype(np.float32)


def test_lanes_add_up_what_they_hold_and_meet_after_the_loop():
    hopper = machine("hopper")
    changed = str(sums_by_lanes(parse_block(TEXT), hopper))
    assert "view %rows (i0 16, i1 4, i2 2) -> [i0, 2*i1 + i2]" in changed
    assert "along 2 with sum" in changed
    inside, after = changed.split("copy %after_2 -> %sums")
    assert "along 1 with sum" not in inside
    assert "reduce %sums -> %sum along 1 with sum" in after
    x, f = arguments()
    wanted = np.zeros(16, np.float32)
    for each, factor in zip(x, f, strict=True):
        wanted = wanted * factor + each.sum(axis=1)
    for text in (TEXT, changed, compile_text(changed, "gpu:hopper").text("loop")):
        for got, times in zip(compile_text(text, "interpreter", seed=2)(x, f), (1, 2), strict=True):
            np.testing.assert_array_equal(got, times * wanted)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("map %sum = f32(0.0)", "map %sum = f32(1.0)"),  # it would begin with four of it
        ("map %before = %sum*%factor", "map %before = %sum + %factor"),
        ("map %after = %total + %before", "map %after = %total*%before"),
        ("along 1 with sum\n      map", "along 1 with max\n      map"),
        ("copy %after -> %sum\n", "copy %after -> %sum\n      copy %sum -> %y\n"),  # a round looks at it
        ("map %sum = f32(0.0)", "map %sum = f32(0.0)\n    copy %sum -> %y"),
    ],
)
def test_what_is_not_only_scaled_and_added_to_stays(old, new):
    text = TEXT.replace(old, new)
    assert text != TEXT
    assert str(sums_by_lanes(parse_block(text), machine("hopper"))) == str(parse_block(text))
