"""Atoms of Intel Xe machines: DPAS by sub-groups of 16 lanes. A word of 32 bits holds neighbours of B along k."""

from __future__ import annotations

from tilewright.algebra import Layout
from tilewright.ir.dtypes import DType, bf16, f16, f32, i8, i32
from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.machine.lanes import lane_load, lane_store


def dpas(dtype: DType, wide: DType) -> MultiplyAtom:
    """Return the DPAS atom with 8 rows and 16 columns. `dtype` is the type of both operands, and `wide` that of the
    accumulators. The depth (k) is 16 for operands of 16 bits and 32 for operands of 8 bits.
    """
    per_lane = 16 // dtype.bits  # neighbours along k that a lane holds of a row of A
    k = 16 * per_lane
    return MultiplyAtom(
        f"dpas.8x16x{k}.{dtype}",
        RegisterOperand(8, k, dtype, Layout((16, (per_lane, 8)), (8 * per_lane, (8, 1)))),
        RegisterOperand(k, 16, dtype, Layout((16, k), (k, 1))),
        RegisterOperand(8, 16, wide, Layout((16, 8), (8, 1))),
        ("xe",),
        cycles=8.0,  # a core does 4096 16-bit operations a cycle, each of its eight engines an eighth
    )


MULTIPLY = {atom.name: atom for atom in (dpas(bf16, f32), dpas(f16, f32), dpas(i8, i32))}

# each lane has its own address; one, two or four words of 32 bits
COPY = {
    atom.name: atom
    for count in (1, 2, 4)
    for space, letters in (("global", "ugm"), ("shared", "slm"))
    for atom in (
        lane_load(f"load.{letters}.d32x{count}", space, 4 * count, 16, ("xe",)),
        lane_store(f"store.{letters}.d32x{count}", space, 4 * count, 16, ("xe",)),
    )
}
