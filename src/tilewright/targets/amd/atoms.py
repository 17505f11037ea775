"""Atoms of AMD CDNA machines: MFMA by waves of 64 lanes, and copies of up to 16 bytes a lane."""

from __future__ import annotations

from tilewright.algebra import Layout
from tilewright.ir.dtypes import DType, bf16, f16, f32, i8, i32
from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.machine.lanes import lane_load, lane_store

WAVE = 64
RATES = {f32: 32, f16: 256, bf16: 256, i8: 512}
"""Multiply-adds a cycle of one of a core's four matrix units, by the operands' type."""
LOADED = 32
"""Bytes a cycle that one of these units reads from shared memory: a quarter of the core's rate."""


def mfma(side: int, depth: int, dtype: DType, sums: DType) -> MultiplyAtom:
    """Return the MFMA atom that multiplies A (side x depth) by B (depth x side). `dtype` is the type of A and B: f32,
    f16, bf16 or i8. `sums` is the type of the accumulators C. `side` is 16 or 32.

    Let group = lane // side and count = depth * side / 64. Each lane holds `count` elements of A and `count` of B.
    Element e of A is at row lane % side and k = group * count + e. Element e of B is at column lane % side and the same
    k. Each lane holds side * side / 64 elements of C, all in column lane % side. Element r of C is in row 4 * group + r
    if `side` is 16, and in row 8 * (r // 4) + 4 * group + r % 4 if `side` is 32.
    """
    groups = WAVE // side
    each = depth // groups
    rows = Layout(((side, groups), (4, side * side // WAVE // 4)), ((side, 4), (1, 4 * groups)))
    return MultiplyAtom(
        f"mfma.{side}x{side}x{depth}.{dtype}",
        RegisterOperand(side, depth, dtype, Layout(((side, groups), each), ((1, each * side), side))),
        RegisterOperand(depth, side, dtype, Layout(((side, groups), each), ((depth, each), 1))),
        RegisterOperand(side, side, sums, rows if side == 32 else Layout(((16, 4), 4), ((16, 4), 1))),
        ("gfx942",),
        cycles=side * side * depth / RATES[dtype],
        load_cycles=side * depth * dtype.bits // 8 / LOADED,
    )


MULTIPLY = {
    atom.name: atom
    for atom in (
        mfma(16, 16, f16, f32),
        mfma(32, 8, f16, f32),
        mfma(16, 16, bf16, f32),
        mfma(32, 8, bf16, f32),
        mfma(16, 4, f32, f32),
        mfma(32, 2, f32, f32),
        mfma(16, 32, i8, i32),
        mfma(32, 16, i8, i32),
    )
}

# each lane has its own address; ds instructions reach shared memory
COPY = {
    atom.name: atom
    for width, dwords, bits in ((4, "dword", "b32"), (8, "dwordx2", "b64"), (16, "dwordx4", "b128"))
    for atom in (
        lane_load(f"global_load.{dwords}", "global", width, 64, ("gfx942",)),
        lane_store(f"global_store.{dwords}", "global", width, 64, ("gfx942",)),
        lane_load(f"ds_read.{bits}", "shared", width, 64, ("gfx942",)),
        lane_store(f"ds_write.{bits}", "shared", width, 64, ("gfx942",)),
    )
}
