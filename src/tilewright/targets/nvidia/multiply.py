"""Multiplication atoms of NVIDIA machines: fma by lanes, mma.sync by a warp, wgmma by four warps.

In layouts a lane is (t, g): t = lane % 4 walks columns in pairs, g = lane // 4 walks rows.
"""

from __future__ import annotations

from tilewright.algebra import ComposedLayout, Layout, Swizzle
from tilewright.ir.dtypes import DType, bf16, f8e4m3fn, f8e5m2, f16, f32, f64, i8, i32
from tilewright.machine import MemoryOperand, MultiplyAtom, RegisterOperand

SLAB = 64  # elements of 16 bits in a row of 128 bytes
NAMES = {"f32": "tf32", "i8": "s8", "f8e4m3fn": "e4m3", "f8e5m2": "e5m2"}
"""PTX' names of element types, if they differ; the instruction truncates f32 to tf32."""


def _name(dtype: DType) -> str:
    """Return PTX's name of the element type `dtype`: "s8" for i8, "tf32" for f32, "bf16" for bf16."""
    return NAMES.get(dtype.name, dtype.name)


SYNC = 6.0
"""Cycles of mma.sync by one wave, which has a quarter of the tensor cores."""


def _mma_sync(dtype: DType) -> MultiplyAtom:
    """Return the atom mma.sync.m16n8k16 with operands of the 16-bit type `dtype` and f32 accumulators. A lane holds
    eight elements of A, four of B and four of C.
    """
    return MultiplyAtom(
        f"mma.m16n8k16.{dtype}",
        RegisterOperand(16, 16, dtype, Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))),
        RegisterOperand(16, 8, dtype, Layout(((4, 8), (2, 2)), ((2, 16), (1, 8)))),
        RegisterOperand(16, 8, f32, Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))),
        ("sm_80",),
        cycles=SYNC,
    )


def _mma_words() -> list[MultiplyAtom]:
    """Return the mma.sync atoms m16n8k8 for tf32, m16n8k32 for s8 and m8n8k4 for f64."""
    return [
        MultiplyAtom(
            "mma.m16n8k8.tf32",
            RegisterOperand(16, 8, f32, Layout(((4, 8), (2, 2)), ((16, 1), (8, 64)))),
            RegisterOperand(8, 8, f32, Layout(((4, 8), 2), ((1, 8), 4))),
            RegisterOperand(16, 8, f32, Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))),
            ("sm_80",),
            cycles=SYNC,
            rounds_to="tf32",
        ),
        MultiplyAtom(
            "mma.m16n8k32.s8",
            RegisterOperand(16, 32, i8, Layout(((4, 8), (4, 2, 2)), ((64, 1), (16, 8, 256)))),
            RegisterOperand(32, 8, i8, Layout(((4, 8), (4, 2)), ((4, 32), (1, 16)))),
            RegisterOperand(16, 8, i32, Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))),
            ("sm_80",),
            cycles=SYNC,
        ),
        MultiplyAtom(
            "mma.m8n8k4.f64",
            RegisterOperand(8, 4, f64, Layout(((4, 8), 1), ((8, 1), 0))),
            RegisterOperand(4, 8, f64, Layout(((4, 8), 1), ((1, 4), 0))),
            RegisterOperand(8, 8, f64, Layout(((4, 8), 2), ((16, 1), 8))),
            ("sm_80",),
            cycles=16.0,
        ),
    ]


def _shared(rows: int, columns: int, dtype: DType, layout: Layout) -> MemoryOperand:
    """Return an operand of `rows` x `columns` elements of the type `dtype` in shared memory, in memory rows of 128
    bytes with the 128-byte swizzle. `layout` maps (row, column) to the offset before the swizzle, in elements.
    """
    swizzle = Swizzle(3, (16 // dtype.numpy.itemsize).bit_length() - 1, 3)
    return MemoryOperand(rows, columns, dtype, ComposedLayout(swizzle, 0, layout), 1024, "descriptor")


def _a_operand(dtype: DType, form: str) -> MemoryOperand | RegisterOperand:
    """Return operand A of a wgmma atom, 64 x 16 elements of the 16-bit type `dtype`. `form` is "" (shared memory, k
    fastest), "ta" (shared memory, m fastest) or "ra" (registers).

    In registers, each of the four warps has 16 rows of A in the layout of mma.sync.
    """
    if form == "ra":
        return RegisterOperand(64, 16, dtype, Layout(((4, 8, 4), (2, 2, 2)), ((128, 1, 16), (64, 8, 512))))
    return _shared(64, 16, dtype, Layout((64, 16), (1, SLAB) if form == "ta" else (SLAB, 1)))


def _b_operand(columns: int, dtype: DType, form: str) -> MemoryOperand:
    """Return operand B of a wgmma atom, 16 x `columns` elements of the 16-bit type `dtype` in shared memory. `form` is
    "" (k fastest) or "tb" (n fastest).

    With n fastest, memory consists of slabs of 64 columns, one after another along n. Each row of a slab is one k.
    """
    if form == "tb":
        layout = Layout((16, (SLAB, columns // SLAB)), (SLAB, (1, SLAB * SLAB)))
        return _shared(16, columns, dtype, layout)
    return _shared(16, columns, dtype, Layout((16, columns), (1, SLAB)))


def _wgmma(columns: int, dtype: DType, *forms: str) -> MultiplyAtom:
    """Return the atom wgmma.m64nNk16 for N = `columns` and the 16-bit type `dtype`. It is executed by 128 threads: four
    warps with 16 rows each. `forms` may have "ra" (A in registers), "ta" (A has m fastest) and "tb" (B has n fastest).
    Without them, A and B are in shared memory with k fastest.
    """
    a = next((form for form in forms if form in ("ra", "ta")), "")
    return MultiplyAtom(
        ".".join((f"wgmma.m64n{columns}k16.{dtype}", *forms)),
        _a_operand(dtype, a),
        _b_operand(columns, dtype, "tb" if "tb" in forms else ""),
        RegisterOperand(64, columns, f32, Layout(((4, 8, 4), (2, 2, columns // 8)), ((128, 1, 16), (64, 8, 512)))),
        ("sm_90a",),
        completes="wgmma.wait_group",
        cycles=columns / 2 if columns % SLAB == 0 else 0.54 * columns,  # measured, for n of 160
    )


def _wgmma_bytes(columns: int, dtype: DType, *forms: str) -> MultiplyAtom:
    """Return the wgmma atom with N = `columns` for `dtype`, a type of 8 or 32 bits. Both operands have k fastest, and
    the depth is 32 bytes of k. A is in registers if `forms` has "ra", else in shared memory.
    """
    size = dtype.numpy.itemsize
    k, slab = 32 // size, 128 // size
    sums = i32 if dtype is i8 else f32
    # a 32-bit register holds one element, or four along k, as in mma.sync
    register_layout = Layout(((4, 8, 4), (2, 2)), ((64, 1, 16), (8, 256)))
    if size == 1:
        register_layout = Layout(((4, 8, 4), (4, 2, 2)), ((256, 1, 16), (64, 8, 1024)))
    a = _shared(64, k, dtype, Layout((64, k), (slab, 1)))
    return MultiplyAtom(
        ".".join((f"wgmma.m64n{columns}k{k}.{_name(dtype)}", *forms)),
        RegisterOperand(64, k, dtype, register_layout) if "ra" in forms else a,
        _shared(k, columns, dtype, Layout((k, columns), (1, slab))),
        RegisterOperand(64, columns, sums, Layout(((4, 8, 4), (2, 2, columns // 8)), ((128, 1, 16), (64, 8, 512)))),
        ("sm_90a",),
        completes="wgmma.wait_group",
        cycles=columns / 2,
        rounds_to="tf32" if dtype is f32 else None,
    )


FMA = [
    MultiplyAtom(
        "fma.m16n32k1.f32",
        RegisterOperand(16, 1, f32, Layout(((8, 4), 4), ((0, 4), 1))),
        RegisterOperand(1, 32, f32, Layout(((8, 4), 4), ((4, 0), 1))),
        RegisterOperand(16, 32, f32, Layout(((8, 4), (4, 4)), ((64, 4), (16, 1)))),
        ("sm_75",),
        cycles=4,
    )
]
"""f32 in full precision: a lane has four rows and four columns, and adds their outer product to its 16 accumulators; a
multiprocessor does 128 multiply-adds a cycle."""


_COLUMN: dict[tuple[str, ...], float] = {(): 2.33, ("ta",): 2.27, ("tb",): 2.7, ("ta", "tb"): 2.15}
"""Cycles for one column of an fma atom in shared memory, measured; the peak rate of the lanes is 2."""


def _fma_shared(columns: int, *forms: str) -> MultiplyAtom:
    """Return the atom m64nNk4 of f32 fma instructions for N = `columns`, with A and B in shared memory. 128 lanes
    execute it. If `forms` has "ta", A has m fastest; if it has "tb", B has n fastest. Otherwise k is fastest.

    A wave is a grid of 4 x 8 lanes (rows x columns of C). If k is fastest, a lane loads four k of one row of A (or
    column of B), and neighbouring lanes have neighbouring rows (or columns). Otherwise, a lane loads four neighbouring
    rows (or columns) of one k. With "tb", the four waves have different rows; otherwise they form a grid of 2 x 2.
    """
    slab, turned_a, turned_b = 128 // 4, "ta" in forms, "tb" in forms
    a = Layout(((slab, 2), 4), ((1, slab * slab), slab)) if turned_a else Layout((64, 4), (slab, 1))
    b = Layout((4, columns), (1, slab))
    if turned_b:
        b = Layout((4, (slab, columns // slab)), (slab, (1, slab * slab)))
    tall = 4 if turned_b else 8  # a lane's rows
    rows = [(4, 1), (tall // 4, 16)] if turned_a else [(tall, 4)]
    across = [(4, 64), (columns // slab, slab * 64)] if turned_b else [(columns // 16, 16 * 64)]
    waves = [(4, 16)] if turned_b else [(2, 32), (2, 8 * 64)]
    lanes = [(8, 4 * 64 if turned_b else 64), (4, 4 if turned_a else 1), *waves]
    (sizes, steps), (counts, strides) = zip(*lanes, strict=True), zip(*rows, *across, strict=True)
    return MultiplyAtom(
        ".".join((f"fma.m64n{columns}k4.f32", *forms)),
        _shared(64, 4, f32, a),
        _shared(4, columns, f32, b),
        RegisterOperand(64, columns, f32, Layout((sizes, counts), (steps, strides))),
        ("sm_90",),
        cycles=_COLUMN[forms] * columns + 20,
    )


FMA += [_fma_shared(columns, *forms) for columns in (32, 64, 128, 256) for forms in _COLUMN]

MMA_SYNC = [*(_mma_sync(dtype) for dtype in (f16, bf16)), *_mma_words()]

COLUMNS = (*range(8, 65, 8), 96, 112, 128, 144, 160, 168, 192, 200, 224, 240, 256)
"""The N of wgmma atoms for 16-bit types: multiples of 8; above 64 a selection that divides evenly into stored boxes."""

WGMMA = [
    _wgmma(columns, dtype, *forms)
    for columns in COLUMNS
    for dtype in (f16, bf16)
    for forms in ((), ("ra",), ("ta",), ("tb",), ("ra", "tb"), ("ta", "tb"))
    # with n fastest, rows of 128 bytes hold 64 columns
    if "tb" not in forms or columns % SLAB == 0
]
WGMMA += [
    _wgmma_bytes(columns, dtype, *forms)
    for columns in (64, 128, 256)
    for dtype in (f32, f8e4m3fn, f8e5m2, i8)
    for forms in ((), ("ra",))
]
