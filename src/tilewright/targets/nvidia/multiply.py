"""Products of NVIDIA machines: mma.sync by a warp, wgmma by four.

Lanes come as (t, g): t = lane % 4 walks columns in pairs, g = lane // 4 walks rows.
"""

from __future__ import annotations

from tilewright.algebra import ComposedLayout, Layout, Swizzle
from tilewright.ir.dtypes import DType, bf16, f16, f32
from tilewright.machine import MemoryOperand, MultiplyAtom, RegisterOperand

SLAB = 64  # elements of 16 bits in a row of 128 bytes


def _mma_sync(dtype: DType) -> MultiplyAtom:
    """m16n8k16: A in eight values a lane, B in four, C in four."""
    return MultiplyAtom(
        f"mma.m16n8k16.{dtype}",
        RegisterOperand(16, 16, dtype, Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))),
        RegisterOperand(16, 8, dtype, Layout(((4, 8), (2, 2)), ((2, 16), (1, 8)))),
        RegisterOperand(16, 8, f32, Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))),
        ("sm_80",),
    )


def _shared(rows: int, columns: int, dtype: DType, layout: Layout) -> MemoryOperand:
    """Shared memory in rows of 128 bytes, swizzled in chunks of 16 bytes by the row; `layout` is before the swizzle."""
    return MemoryOperand(rows, columns, dtype, ComposedLayout(Swizzle(3, 3, 3), 0, layout), 1024, "descriptor")


def _a_operand(dtype: DType, form: str) -> MemoryOperand | RegisterOperand:
    """A, 64 x 16: with k fastest, with m fastest (ta), or in registers (ra).

    In registers it is what mma.sync has, the four warps one below the other: 16 rows each.
    """
    if form == "ra":
        return RegisterOperand(64, 16, dtype, Layout(((4, 8, 4), (2, 2, 2)), ((128, 1, 16), (64, 8, 512))))
    return _shared(64, 16, dtype, Layout((64, 16), (1, SLAB) if form == "ta" else (SLAB, 1)))


def _b_operand(columns: int, dtype: DType, form: str) -> MemoryOperand:
    """B, 16 x n: with k fastest, or with n fastest (tb).

    With n fastest, 64 of n are a row of a slab; a slab has 64 rows, along k, and further slabs follow along n.
    """
    if form == "tb":
        layout = Layout((16, (SLAB, columns // SLAB)), (SLAB, (1, SLAB * SLAB)))
        return _shared(16, columns, dtype, layout)
    return _shared(16, columns, dtype, Layout((16, columns), (1, SLAB)))


def _wgmma(columns: int, dtype: DType, *forms: str) -> MultiplyAtom:
    """m64nNk16 by 128 threads: four warps of 16 rows each; `forms` say how A and B differ from shared, k fastest."""
    a = next((form for form in forms if form in ("ra", "ta")), "")
    return MultiplyAtom(
        ".".join((f"wgmma.m64n{columns}k16.{dtype}", *forms)),
        _a_operand(dtype, a),
        _b_operand(columns, dtype, "tb" if "tb" in forms else ""),
        RegisterOperand(64, columns, f32, Layout(((4, 8, 4), (2, 2, columns // 8)), ((128, 1, 16), (64, 8, 512)))),
        ("sm_90a",),
        completes="wgmma.wait_group",
    )


MMA_SYNC = [_mma_sync(dtype) for dtype in (f16, bf16)]

WGMMA = [
    _wgmma(columns, dtype, *forms)
    for columns in (8, 64, 128, 160, 192, 256)
    for dtype in (f16, bf16)
    for forms in ((), ("ra",), ("ta",), ("tb",), ("ra", "tb"), ("ta", "tb"))
    # with n fastest, rows of 128 bytes hold 64 of n
    if "tb" not in forms or columns % SLAB == 0
]
