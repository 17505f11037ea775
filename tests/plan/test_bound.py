"""A schedule that is bound to its program: what the lowering reads of each dimension and operation."""

import sys
from pathlib import Path

from tilewright.ir.tile import parse_tile
from tilewright.plan.bound import BoundKernel
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.text import parse_plan
from tilewright.plan.tile_register_tasks import LineLayout, ReductionLoop
from tilewright.targets.registry import machine

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
from structure_counts import largest_circle, lowering_parameters, product_lowerings  # noqa: E402

PROGRAM = parse_tile("""tile product(%x: global bf16[M, K], %w: global bf16[N, K], %y: global f32[M, N])
  symbols M, N, K
{
  %0 = fill value=0 : f32[M, N]
  %1 = read %x : bf16[M, K]
  %2 = read %w : bf16[N, K]
  %3 = mma %1, %2, %0 : f32[M, N]
  write %3, %y
}""")
M, N, K = (next(d for a in PROGRAM.args for d in a.type.dims if str(d) == name) for name in "MNK")
AMX = machine("x86.amx")
ATOM = next(name for name in AMX.multiply if name.startswith("amx.") and "bf16" in name)


def bound(plan: str) -> BoundKernel:
    """The product of 100 x 70 x 512 elements with a plan."""
    return BoundKernel(KernelProgram(PROGRAM, {M: 100, N: 70, K: 512}, AMX), parse_plan(plan))


def test_blocks_of_tile_registers_are_read_from_axes_loops_and_operands() -> None:
    kernel = bound(f"""
        axis M = (M 100): task 48, loop 16; axis N = (N 70): loop 32; axis K = (K 512): loop 256, unit 32
        grid M; loops N, M, K, K.2; x strip at task, stream; w packed at bind
        mma by {ATOM}, tile 16x32; overlap delayed store""")
    (op,) = kernel.kernel.products.values()
    assert kernel.widths == {M: 48}
    assert list(kernel.blocks.items()) == [(N, 32), (M, 16)]
    assert kernel.depth == (ReductionLoop(K, 256, False), ReductionLoop(K, 32, True))
    assert kernel.padded == {N: 32}
    assert kernel.packed
    assert (kernel.products[op].rows, kernel.products[op].columns) == (16, 32)
    assert kernel.tiled[op].walk == LineLayout(1, 3, 48, 48)
    assert kernel.tiled[op].streams == (True, False)
    assert kernel.halo_taps is kernel.walk is kernel.unrolled_terms is None


def test_without_packed_operands_the_lowering_chooses() -> None:
    axes = "axis M = (M 100): task 300; axis N = (N 70): whole; axis K = (K 512): whole"
    kernel = bound(f"{axes}; grid M; mma by {ATOM}, tile 16x16")
    assert kernel.widths == {M: 100}, "a task is no longer than its dimension"
    assert (kernel.blocks, kernel.depth, kernel.padded, kernel.tiled, kernel.packed) == ({}, (), {}, {}, False)


def test_the_lowering_takes_nothing_beside_the_schedule() -> None:
    assert lowering_parameters() == []
    assert len(largest_circle()) <= 6
    assert len(product_lowerings()) == 1
