"""Atoms of AArch64: vector multiply-adds by lane, dot products, and products of 2 x 2 fragments.

A multiply-add picks its broadcast operand from a register by lane number, so one load brings several such operands.
"""

from __future__ import annotations

from tilewright.algebra import Layout
from tilewright.ir.dtypes import DType, bf16, f16, f32, f64, i8, i32, u8
from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.targets.cpu.vector_atoms import vector_atom
from tilewright.targets.cpu.vectors import vector_copies


def _fragments(name: str, depth: int, a: DType, b: DType, c: DType, feature: str) -> MultiplyAtom:
    """Return the atom `name`, which multiplies A (2 x `depth`) by B (`depth` x 2). `a`, `b` and `c` are the element
    types of A, B and the 2 x 2 accumulator. A and the accumulator fill one register each in row-major order, and B
    fills one register in column-major order. `feature` is the CPU feature that the atom needs.
    """
    return MultiplyAtom(
        name,
        RegisterOperand(2, depth, a, Layout(((depth, 2), 1), ((2, 1), 0))),
        RegisterOperand(depth, 2, b, Layout(((depth, 2), 1), ((1, depth), 0))),
        RegisterOperand(2, 2, c, Layout(((2, 2), 1), ((2, 1), 0))),
        (feature,),
        cycles=1.0,
        load_cycles=0.5,
    )


MULTIPLY = {
    atom.name: atom
    for atom in (
        vector_atom("neon.f32", 4, 1, (f32, f32, f32), ("neon",), picks=4),
        vector_atom("neon.f64", 2, 1, (f64, f64, f64), ("neon",), picks=2),
        vector_atom("neon.i32", 4, 1, (i32, i32, i32), ("neon",), cycles=1.0, picks=4),
        vector_atom("neon.f16", 8, 1, (f16, f16, f16), ("fullfp16",), picks=8, picks_from=16),
        vector_atom("neon.sdot", 4, 4, (i8, i8, i32), ("dotprod",), picks=4),
        vector_atom("neon.udot", 4, 4, (u8, u8, i32), ("dotprod",), picks=4),
        vector_atom("neon.usdot", 4, 4, (u8, i8, i32), ("i8mm",), picks=4),
        vector_atom("neon.bfdot", 4, 2, (bf16, bf16, f32), ("bf16",), picks=4),
        vector_atom("neon.bfmlal", 4, 2, (bf16, bf16, f32), ("bf16",), cycles=1.0, picks=4),
        _fragments("neon.bfmmla", 4, bf16, bf16, f32, "bf16"),
        _fragments("neon.smmla", 8, i8, i8, i32, "i8mm"),
        _fragments("neon.ummla", 8, u8, u8, i32, "i8mm"),
        _fragments("neon.usmmla", 8, u8, i8, i32, "i8mm"),
    )
}

COPY = {atom.name: atom for atom in vector_copies("neon", 16, ("neon",))}
