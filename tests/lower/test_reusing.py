"""Tensors of shared memory that take turns at one place."""

from __future__ import annotations

import re

import numpy as np

from tilewright.interpret.block.run import interpret
from tilewright.ir.block import parse_block
from tilewright.targets.registry import machine
from tilewright.transform.reuse_shared import reuse_shared_memory

PROGRAM = """
block turns(%x: in global f32 (7, 5), %y: out global f32 (7, 5))
{
  tasks t in 0..7 {
    %all = alloc shared f32 (5)
    fill %all 0
    for k in 0..2 {
      %a = alloc shared f32 (5)
      %x_view = view %x (i 5) -> [t, i]
      copy %x_view -> %a
      %b = alloc shared f32 (3)
      %part = view %a (i 3) -> [i]
      copy %part -> %b
      %head = view %all (i 3) -> [i]
      map %head = %head + %b
    }
    %c = alloc shared f32 (4)
    %four = view %all (i 4) -> [i]
    copy %four -> %c
    fill %all 3
    %y_head = view %y (i 4) -> [t, i]
    copy %c -> %y_head
    %y_last = view %y (i 1) -> [t, i + 4]
    %one = view %all (i 1) -> [i]
    copy %one -> %y_last
  }
}
"""


def test_only_tensors_that_are_never_needed_at_once_share_a_place():
    """`all` is needed throughout; in a round `a` ends where `b` begins, which reads it."""
    program = parse_block(PROGRAM)
    reuse_shared_memory(program, machine("x86.avx512"))  # no lanes keep them in registers
    text = str(program)
    assert re.findall(r"%(\w+) = alloc shared f32 \((\d)\)", text) == [("a_c_room", "5"), ("all", "5"), ("b", "3")]
    assert re.findall(r"%(\w) = view %a_c_room \(\w+ (\d)\)", text) == [("a", "5"), ("c", "4")]
    x, y = np.arange(35, dtype=np.float32).reshape(7, 5), np.zeros((7, 5), np.float32)
    interpret(program, {"x": x, "y": y})
    assert np.array_equal(y, np.stack([2 * x[:, 0], 2 * x[:, 1], 2 * x[:, 2], 0 * x[:, 3], 0 * x[:, 4] + 3], 1))
