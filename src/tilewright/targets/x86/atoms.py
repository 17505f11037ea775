"""Atoms of x86: vector multiply-adds, dot products of pairs and quadruples, AMX tile products, and copies.

Each element of a vector register is one lane.
"""

from __future__ import annotations

from tilewright.algebra import Layout
from tilewright.ir.dtypes import DType, bf16, f32, f64, i8, i32, u8
from tilewright.machine import MultiplyAtom, OpaqueOperand
from tilewright.targets.cpu.vector_atoms import vector_atom
from tilewright.targets.cpu.vectors import vector_copies
from tilewright.targets.x86.tiles import TILE_COPIES


def _amx(name: str, depth: int, a: DType, b: DType, c: DType, feature: str) -> MultiplyAtom:
    """Return the AMX atom `name`, which multiplies A (16 x `depth`) by B (`depth` x 16). `a`, `b` and `c` are the
    element types of A, B and the 16 x 16 accumulator. A row of the tile register of B holds, for each of the 16 columns
    of B, the depth / 16 neighbours along k. The atom needs the CPU features "amx-tile" and `feature`.
    """
    pack = depth // 16
    return MultiplyAtom(
        name,
        OpaqueOperand(16, depth, a, Layout((16, depth), (1, 16))),
        OpaqueOperand(depth, 16, b, Layout((16, (pack, 16)), (pack, (1, depth)))),
        OpaqueOperand(16, 16, c, Layout((16, 16), (1, 16))),
        ("amx-tile", feature),
        cycles=16,
        load_cycles=8,
    )


MULTIPLY = {
    atom.name: atom
    for atom in (
        vector_atom(
            "avx2.f32",
            8,
            1,
            (f32, f32, f32),
            ("avx2", "fma"),
        ),
        vector_atom(
            "avx2.f64",
            4,
            1,
            (f64, f64, f64),
            ("avx2", "fma"),
        ),
        vector_atom("avx2.i32", 8, 1, (i32, i32, i32), ("avx2",), cycles=1.0),  # a multiplication and an addition
        vector_atom("avx512.i32", 16, 1, (i32, i32, i32), ("avx512f",), cycles=1.5),
        vector_atom("avx512.f32", 16, 1, (f32, f32, f32), ("avx512f",)),
        vector_atom("avx512.f64", 8, 1, (f64, f64, f64), ("avx512f",)),
        vector_atom("avx512.bf16", 16, 2, (bf16, bf16, f32), ("avx512bf16",), cycles=1.0),
        vector_atom("avx512.vnni", 16, 4, (u8, i8, i32), ("avx512vnni",)),
        _amx("amx.bf16", 32, bf16, bf16, f32, "amx-bf16"),
        _amx("amx.s8", 64, i8, i8, i32, "amx-int8"),
        _amx("amx.u8s8", 64, u8, i8, i32, "amx-int8"),
    )
}


COPY = {
    atom.name: atom
    for atom in (
        # AVX2 masks elements of 4 and 8 bytes only (maskload, maskstore)
        *vector_copies("avx2", 32, ("avx2",), ("avx2",), (4, 8)),
        *vector_copies("avx512", 64, ("avx512f",), ("avx512bw",), (1, 2, 4, 8)),
        *TILE_COPIES,
    )
}
