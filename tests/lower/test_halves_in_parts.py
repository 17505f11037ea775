"""Kernels that a program was split into may each be split again: every split has memory of its own."""

import sys
from pathlib import Path

import numpy as np

import tilewright
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from corpus_kernels import bf16, low_rank

PLAN = """
axis K_split = (K_split 4): task 1
axis M = (M 16): task 8
axis L = (L 64): task 64
axis K_part = (K_part 64): loop 64
grid K_split, M, L
mma by wgmma.m64n8k16.bf16, tile 8x64 transposed
producer 4 waves 96 registers, consumer 4 waves 240 registers, stages 2, epilogue stages 1
split kernel after mma
parts K 4
then
axis K_split = (K_split 2): task 1
axis M = (M 16): task 16
axis N = (N 72): task 64
axis K_part = (K_part 128): loop 64
grid K_split, M, N
mma by wgmma.m64n16k16.bf16, tile 16x64 transposed
producer 4 waves 96 registers, consumer 4 waves 240 registers, stages 2, epilogue stages 1
split kernel after mma
parts K 2
"""


def test_both_halves_in_parts_had_one_memory_for_their_sums():
    """The second half's sums, f32[2, 16, 72], were sought in the first's f32[4, 16, 64]: such plans did not compile."""
    sizes = {"M": 16, "N": 72, "K": 256, "L": 64}
    rng = np.random.default_rng(1)
    arrays = [
        (rng.integers(-2, 3, [sizes[d] for d in dims]) * (rng.random([sizes[d] for d in dims]) < 0.2))
        for dims in ("MK", "NK", "LK", "NL")
    ]
    arrays = [a.astype(bf16.numpy) for a in arrays]
    kernel = kernel_for(low_rank("bf16"), sizes, machine=machine("hopper"), plan=PLAN)
    result = np.full((16, 72), np.nan, bf16.numpy)
    kernel.executor.bind([*arrays, result])()
    wanted = tilewright.compile(low_rank("bf16"), target="executor")(*arrays)
    assert (result == wanted).all()
