"""Results that leave through shared memory in pieces of several widths: exact on the block level and the loop level."""

from __future__ import annotations

import numpy as np
import pytest
from loop_level import on_the_loop_level

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
PLAN = """\
axis M = (M {M}): task {rows}
axis N = (N {N}): task {columns}
axis K = (K {K}): loop 64
grid M, N
mma by wgmma.m64n{columns}k16.bf16, tile {rows}x{columns}
producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 3, epilogue stages {stored}{words}
launch early
"""


@pytest.mark.parametrize("run_on", ["block", "loop"])
@pytest.mark.parametrize(
    ("rows", "columns", "stored", "words", "tiles"),
    [
        (128, 200, 2, "", ["(2, 128, 64)", "(2, 128, 8)"]),
        (64, 200, 1, ", pingpong", ["(1, 64, 64)", "(1, 64, 8)"]),
        (128, 56, 2, "", ["(2, 128, 32)", "(2, 128, 16)", "(2, 128, 8)"]),
    ],
)
def test_rows_that_no_width_divides_were_stored_by_lanes(
    rows: int, columns: int, stored: int, words: str, tiles: list[str], run_on: str
) -> None:
    """No row of shared memory divides 400 bytes, or 112: lanes stored them one by one, or the tile was not proposed."""
    sizes = {"M": 136, "N": 2 * columns + 24, "K": 72}
    plan = PLAN.format(**sizes, rows=rows, columns=columns, stored=stored, words=words)
    found = kernel_for(kernels.gemm("nt", "bf16", "bf16"), sizes, machine=HOPPER, plan=plan)
    text = found.text("block")
    assert [tile for tile in tiles if f"alloc shared bf16 {tile}" in text] == tiles
    assert text.count("by tma.store") == len(tiles)
    rng = np.random.default_rng(4)
    a, b, c = (
        rng.integers(-2, 3, [int(n) for n in x.type.shape]).astype(x.type.dtype.numpy) for x in found.module.host.args
    )
    c[...] = np.nan
    run = found.executor if run_on == "block" else on_the_loop_level(found)
    run.bind([a, b, c])()
    wanted = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_array_equal(c.astype(np.float64), wanted)
