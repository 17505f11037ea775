"""Rounds of loops that only multiply zeros are left out; what is computed stays the same."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.ir.block import parse_block
from tilewright.targets.registry import machine
from tilewright.transform.skip_zero_iterations import without_empty_rounds

TEXT = """block k(%x: in global f32 (64, 8), %w: in global f32 (3, 8, 8), %y: out global f32 (2, 64, 8))
  waves 4
  machine hopper
{
  tasks p in 0..2 {
    %sums = alloc register f32 (64, 8) as fma.m64n8k4.f32.c
    fill %sums 0
    %rows = alloc shared f32 (64, 8)
    %tile = alloc shared f32 (8, 8)
    for k in 0..2 {
      for e in 0..1 {
        copy %x -> %rows
        %tap = view %w (i 8, j 8) -> [AT ?, i, j]
        copy %tap -> %tile else 0
        barrier
        mma %sums += %rows * %tile using fma.m64n8k4.f32
        barrier
      }
    }
    %out = view %y (i 64, j 8) -> [p, i, j]
    copy %sums -> %out
  }
}
"""


@pytest.mark.parametrize(
    ("at", "rounds"),
    [
        ("2*k + p", "k in 0..(-p)//2 + 2"),
        ("2 - 2*k - p", "k in 0..(-p)//2 + 2"),
        ("2*k - p", "k in -((-p)//2)..2"),
        ("k + p", "k in 0..2"),
        ("k + 0*p", "k in 0..2"),
    ],
)
def test_rounds_outside_a_tensor_were_multiplied(at: str, rounds: str):
    program = parse_block(TEXT.replace("AT", at))
    without_empty_rounds(program)
    loops = [op for op in program.walk() if op.name == "for"]
    assert str(loops[0].attrs["ranges"][0]) == rounds
    assert len(loops) == (2 if rounds == "k in 0..2" else 1)  # a narrowed loop and the one in it are one


def test_a_tile_that_other_operations_use_keeps_all_rounds():
    text = TEXT.replace("AT", "2*k + p").replace("copy %sums -> %out", "copy %rows -> %out")
    program = parse_block(text)
    without_empty_rounds(program)
    assert str(next(op for op in program.walk() if op.name == "for").attrs["ranges"][0]) == "k in 0..2"


@pytest.mark.parametrize("extent", [3, 7])
def test_rows_beside_an_image_are_left_out_exactly(extent: int):
    kernel = kernels.conv_filter_gradient((3, 3), "bf16", padding=1)
    sizes = {"N": 2, "C": 64, "F": 64} | dict.fromkeys("HWPQ", extent)
    made = kernel_for(kernel, sizes, machine=machine("hopper"))
    rng = np.random.default_rng(extent)
    *given, result = made.module.host.args
    x, dy = (rng.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy) for a in given)
    dw = np.full([int(n) for n in result.type.shape], np.nan, np.float32).astype(result.type.dtype.numpy)
    made.bind({"x": x, "dy": dy, "dw": dw})()
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for r, s in np.ndindex(3, 3):
        seen = padded[:, r : r + extent, s : s + extent]
        wanted = np.einsum("npqf,npqc->fc", dy.astype(np.float64), seen).astype(dw.dtype)
        assert np.array_equal(dw[:, r, s].astype(np.float32), wanted.astype(np.float32))
