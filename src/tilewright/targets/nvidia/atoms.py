"""What an NVIDIA machine offers: mma.sync and wgmma, ldmatrix and stmatrix.

Lanes come as (t, g): t = lane % 4 walks columns in pairs, g = lane // 4 walks rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.algebra import ComposedLayout, Layout, Swizzle
from tilewright.ir.dtypes import DType, bf16, f16, f32
from tilewright.machine import CopyAtom, MemoryOperand, MultiplyAtom, RegisterOperand

Array = np.ndarray[Any, np.dtype[Any]]


def _mma_sync(dtype: DType) -> MultiplyAtom:
    """m16n8k16: A in eight values a lane, B in four, C in four."""
    return MultiplyAtom(
        f"mma.m16n8k16.{dtype}",
        RegisterOperand(16, 16, dtype, Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))),
        RegisterOperand(16, 8, dtype, Layout(((4, 8), (2, 2)), ((2, 16), (1, 8)))),
        RegisterOperand(16, 8, f32, Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))),
        ("sm_80",),
    )


def _shared_operand(rows: int, columns: int, dtype: DType, along_rows: int) -> MemoryOperand:
    """Shared memory in rows of 128 bytes, 64 elements along k, swizzled in chunks of 16 bytes by the row."""
    other = 64
    stride = (other, 1) if along_rows else (1, other)
    layout = ComposedLayout(Swizzle(3, 3, 3), 0, Layout((rows, columns), stride))
    return MemoryOperand(rows, columns, dtype, layout, 1024, "descriptor")


def _wgmma(columns: int, dtype: DType) -> MultiplyAtom:
    """m64nNk16 by 128 threads: four warps of 16 rows each; A and B in shared memory, k fastest."""
    return MultiplyAtom(
        f"wgmma.m64n{columns}k16.{dtype}",
        _shared_operand(64, 16, dtype, along_rows=1),
        _shared_operand(16, columns, dtype, along_rows=0),
        RegisterOperand(64, columns, f32, Layout(((4, 8, 4), (2, 2, columns // 8)), ((128, 1, 16), (64, 8, 512)))),
        ("sm_90a",),
        completes="wgmma.wait_group",
    )


MULTIPLY = {
    atom.name: atom
    for atom in (
        *(_mma_sync(dtype) for dtype in (f16, bf16)),
        *(_wgmma(columns, dtype) for columns in (8, 64, 128, 160, 192, 256) for dtype in (f16, bf16)),
    )
}


def _ldmatrix(memory: Array, row_starts: Array) -> Array:
    """Lane i gives where row i % 8 of matrix i // 8 starts; it receives elements 2t, 2t+1 of row g of each matrix."""
    matrices = row_starts.size // 8
    lane = np.arange(32)
    values = [
        memory[row_starts[8 * matrix + lane // 4] + 2 * (lane % 4) + half]
        for matrix in range(matrices)
        for half in range(2)
    ]
    return np.stack(values, axis=1)


def _stmatrix(registers: Array, memory: Array, row_starts: Array) -> Array:
    """The inverse of ldmatrix: what the memory holds afterwards."""
    changed = memory.copy()
    lane = np.arange(32)
    for matrix in range(row_starts.size // 8):
        for half in range(2):
            place = row_starts[8 * matrix + lane // 4] + 2 * (lane % 4) + half
            changed[place] = registers[:, 2 * matrix + half]
    return changed


COPY = {
    atom.name: atom
    for atom in (
        CopyAtom("ldmatrix.x4", "shared", "register", _ldmatrix, 512, ("sm_75",)),
        CopyAtom("stmatrix.x4", "register", "shared", _stmatrix, 512, ("sm_90",)),
    )
}
