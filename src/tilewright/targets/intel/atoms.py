"""What an Intel Xe machine offers: DPAS by sub-groups of 16 lanes; words of 32 bits hold neighbours of B along k."""

from __future__ import annotations

from tilewright.algebra import Layout
from tilewright.ir.dtypes import DType, bf16, f16, f32, i8, i32
from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.machine.lanes import lane_load, lane_store


def dpas(dtype: DType, wide: DType) -> MultiplyAtom:
    """Eight rows by sixteen columns; a step of k is as long as sixteen lanes with two bytes of a row of A each."""
    near = 16 // dtype.bits  # neighbours along k that a lane has of a row of A
    k = 16 * near
    return MultiplyAtom(
        f"dpas.8x16x{k}.{dtype}",
        RegisterOperand(8, k, dtype, Layout((16, (near, 8)), (8 * near, (8, 1)))),
        RegisterOperand(k, 16, dtype, Layout((16, k), (k, 1))),
        RegisterOperand(8, 16, wide, Layout((16, 8), (8, 1))),
        ("xe",),
        cycles=8.0,  # an engine does an eighth of 4096 operations of 16 bits a cycle and core
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
