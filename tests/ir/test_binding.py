"""Parameters bound: what follows from them is a number wherever a number is asked for."""

from __future__ import annotations

import numpy as np

from tilewright import compile_text
from tilewright.ir.binding import inlined
from tilewright.ir.block import parse_block


def test_a_let_that_depends_on_no_parameter_was_no_number_where_one_is_needed() -> None:
    text = """block turned(%x: in global f32 (N, 4), %y: out global f32 (N, 4))
      param N = 3
      let WIDE = ceildiv(10, 3)
    {
      tasks n in 0..N {
        %line = alloc shared f32 (WIDE):(2)
        %from = view %x (i WIDE) -> [n, i]
        copy %from -> %line
        barrier
        %back = view %line (i WIDE) -> [3 - i]
        %to = view %y (i WIDE) -> [n, i]
        copy %back -> %to
      }
    }"""
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(compile_text(text, "interpreter")(x), x[:, ::-1])


def test_inlining_dropped_parameters_that_were_not_bound() -> None:
    text = """block rows(%x: inout global f32 (M, N, K))
      param M, N = 8, K in 1..65
      let TWICE = 2*N
    {
      fill %x 0
      tasks n in 0..TWICE {
      }
    }"""
    printed = str(inlined(parse_block(text)))
    assert "param M, N = 8, K in 1..65\n{\n  fill %x 0\n  tasks n in 0..2*N {" in printed
    assert str(parse_block(printed)) == printed
