"""What an AMD CDNA machine offers: MFMA by waves of 64 lanes, and copies of up to 16 bytes a lane."""

from __future__ import annotations

from tilewright.algebra import Layout
from tilewright.ir.dtypes import f16, f32
from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.machine.lanes import lane_load, lane_store

MULTIPLY = {
    atom.name: atom
    for atom in (
        MultiplyAtom(
            "mfma.16x16x16.f16",
            RegisterOperand(16, 16, f16, Layout(((16, 4), 4), ((1, 64), 16))),
            RegisterOperand(16, 16, f16, Layout(((16, 4), 4), ((16, 4), 1))),
            RegisterOperand(16, 16, f32, Layout(((16, 4), 4), ((16, 4), 1))),
            ("gfx942",),
        ),
        MultiplyAtom(
            "mfma.32x32x8.f16",
            RegisterOperand(32, 8, f16, Layout(((32, 2), 4), ((1, 128), 32))),
            RegisterOperand(8, 32, f16, Layout(((32, 2), 4), ((8, 4), 1))),
            RegisterOperand(32, 32, f32, Layout(((32, 2), (4, 4)), ((32, 4), (1, 8)))),
            ("gfx942",),
        ),
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
