"""What an Intel Xe machine offers: DPAS by sub-groups of 16 lanes; B comes in pairs along k."""

from __future__ import annotations

from tilewright.algebra import Layout
from tilewright.ir.dtypes import bf16, f32
from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.machine.lanes import lane_load, lane_store

MULTIPLY = {
    atom.name: atom
    for atom in (
        MultiplyAtom(
            "dpas.8x16x16.bf16",
            RegisterOperand(8, 16, bf16, Layout((16, 8), (8, 1))),
            RegisterOperand(16, 16, bf16, Layout((16, (2, 8)), (16, (1, 2)))),
            RegisterOperand(8, 16, f32, Layout((16, 8), (8, 1))),
            ("xe",),
        ),
    )
}

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
