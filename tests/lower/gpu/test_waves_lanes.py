"""Lanes of one wave that exchange elements through memory meet in between; without it, the interpreter says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright import compile_text
from tilewright.check.block import check
from tilewright.errors import RaceFault
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.nvidia.backend import BACKEND
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
TURNED = """
block turned(%x: in global f32 (4, 8, 8), %y: out global f32 (4, 8, 8))
  machine hopper
  waves 1
{
  %s = alloc shared f32 (8, 8)
  %r = alloc register f32 (8, 8) by (32,2):(2,1)
  tasks t in 0..4 {
    %from = view %x (i 8, j 8) -> [t, i, j]
    %to = view %y (i 8, j 8) -> [t, i, j]
    copy %from -> %r
    copy %r -> %s
    %across = view %s (i 8, j 8) -> [j, i]
    map %r = %across
    copy %r -> %to
  }
}
"""


def lowered(text: str) -> Any:
    program = bind(parse_block(text), {})
    check(program, HOPPER)
    return lower_waves(program, HOPPER)


def runs(text: str) -> None:
    x = np.arange(256, dtype=np.float32).reshape(4, 8, 8)
    np.testing.assert_array_equal(compile_text(text, "interpreter", workers=1)(x), x.swapaxes(1, 2))


def test_lanes_of_one_wave_meet_between_a_store_and_another_lanes_load() -> None:
    text = str(lowered(TURNED))
    runs(text)
    lines = [line.strip() for line in text.splitlines()]
    assert lines.count("together") == 2  # before the load, and before the next task stores over what was loaded
    for number in range(2):
        places = [i for i, line in enumerate(lines) if line == "together"]
        without = "\n".join(line for i, line in enumerate(lines) if i != places[number])
        with pytest.raises(
            RaceFault, match=r"another lane of the wave .* since the lanes met last: `together` is missing"
        ):
            runs(without)


HANDED = """
block handed(%x: in global f32 (64), %y: out global f32 (64))
  machine hopper
{
  %s = alloc shared f32 (1, 64)
  %once = channel %s stages 1 from bring to take
  role bring waves 1 {
    tasks t in 0..1 {
      %free = acquire %once
      copy %x -> %free
      commit %once
    }
  }
  role take waves 1 {
    tasks t in 0..1 {
      %full = wait %once
      copy %full -> %y
      release %once
    }
  }
}
"""


def test_lanes_meet_before_one_of_them_arrives_for_all() -> None:
    text = str(lowered(HANDED))
    x = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(compile_text(text, "interpreter")(x), x)
    without = text.replace("together\n", "\n", 1)
    with pytest.raises(RaceFault, match="is done by one lane for all, and others have loaded or stored"):
        compile_text(without, "interpreter")(x)


def test_lanes_meet_before_one_of_them_lets_a_phase_pass_that_others_wait_for() -> None:
    """A producer's lanes wait for an empty stage, and one goes on: the others must have seen it, or wait for ever."""
    text = str(lowered(MULTIPLIED))
    lines = [line.strip() for line in text.splitlines()]
    first = next(i for i, line in enumerate(lines) if line.startswith("await %once_empty"))
    assert lines[first + 1 : first + 3] == ["together", next(line for line in lines if line.startswith("expect"))]
    x = np.ones((64, 64), np.float16)
    without = "\n".join(line for i, line in enumerate(lines) if i != first + 1)
    with pytest.raises(RaceFault, match="others may still wait for a phase that it lets pass"):
        compile_text(without, "interpreter")(x)


MULTIPLIED = """
block multiplied(%x: in global f16 (64, 64), %y: out global f32 (64, 64))
  machine hopper
{
  %s = alloc shared f16 (1, 64, 64) swizzle <3,3,3>
  %once = channel %s stages 1 from bring to take
  role bring waves 1 {
    tasks t in 0..1 {
      %free = acquire %once
      copy %x -> %free by tma.load
      commit %once
    }
  }
  role take waves 4 {
    %sum = alloc register f32 (64, 64) as wgmma.m64n64k16.f16.c
    tasks t in 0..1 {
      %full = wait %once
      %turned = view %full (k 64, j 64) -> [j, k]
      fill %sum 0
      mma %sum += %full * %turned using wgmma.m64n64k16.f16
      release %once
      copy %sum -> %y
    }
  }
}
"""


def test_waves_that_multiply_together_begin_at_multiples_of_four() -> None:
    emitted = BACKEND.emitted(lowered(MULTIPLIED), HOPPER)
    assert emitted.threads == 256  # one wave of four brings, the next four multiply
