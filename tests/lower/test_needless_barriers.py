"""Barriers that the lowering to waves leaves out, and those that it must not."""

from __future__ import annotations

from tilewright import compile_text

REVERSED = """block reversed(%x: in global f32 (64), %y: out global f32 (64))
  waves 2
  machine hopper
{
  tasks t in 0..3 {
    %s = alloc shared f32 (64)
    copy %x -> %s
    for e in 0..2 {
      barrier
    }
    %back = view %s (i0 64) -> [63 - i0]
    copy %back -> %y
    barrier
    barrier
    copy %x -> %s
    barrier
    copy %s -> %y
    barrier
  }
}
"""


def test_a_barrier_that_stands_alone_in_a_loop_between_two_accesses_stays() -> None:
    """It was left out with the barriers of all blocks without accesses: waves read what others had not written yet."""
    written, read = (compile_text(REVERSED, "gpu:hopper").text("loop").index(x) for x in ("-> %s", "= %s"))
    between = compile_text(REVERSED, "gpu:hopper").text("loop")[written:read]
    assert "barrier" in between


def test_the_second_of_two_barriers_goes() -> None:
    loop = compile_text(REVERSED, "gpu:hopper").text("loop")
    assert "barrier (1) of 2\n      barrier" not in loop[: loop.rindex("store")]
