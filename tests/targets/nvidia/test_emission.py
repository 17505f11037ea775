"""What must not go wrong in kernels and does not show on the loop level: lanes that meet before one speaks for all."""

from __future__ import annotations

from tilewright.check.block import check
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.passes.waves.lower import lower_waves
from tilewright.targets.nvidia.backend import BACKEND
from tilewright.targets.registry import machine

HANDED = """
block handed(%x: in global f32 (64), %y: out global f32 (64))
  machine hopper
{
  %s = alloc shared f32 (1, 64)
  %once = channel %s stages 1 from bring to take
  role bring waves 1 {
    %free = acquire %once
    copy %x -> %free
    commit %once
  }
  role take waves 2 {
    %r = alloc register f32 (64) by (64,1):(1,0)
    %full = wait %once
    copy %full -> %r
    tasks t in 0..1 {
      copy %r -> %y
    }
  }
}
"""


def test_lanes_meet_before_a_commit_outside_of_loops() -> None:
    hopper = machine("hopper")
    program = bind(parse_block(HANDED), {})
    check(program, hopper)
    text = BACKEND.emitted(lower_waves(program, hopper), hopper).text
    lines = [line for line in text.splitlines() if "bar.warp.sync(i32 -1)" in line or "mbarrier.arrive" in line]
    assert ["warp.sync" in line for line in lines if not line.startswith("declare")][:2] == [True, False]
