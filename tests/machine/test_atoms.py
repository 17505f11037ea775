"""Atoms mean what the machines' manuals say: lane maps written out, products exact, one wrong entry is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from copy_checks import Exchanged

from tilewright.algebra import ComposedLayout, Layout, Swizzle, make_layout
from tilewright.errors import LayoutError
from tilewright.machine import CopyRequest, Place
from tilewright.machine.copy import table
from tilewright.targets.aarch64 import atoms as aarch64
from tilewright.targets.amd import atoms as amd
from tilewright.targets.intel import atoms as intel
from tilewright.targets.nvidia import atoms as nvidia
from tilewright.targets.x86 import atoms as x86

ATOMS = {**x86.MULTIPLY, **aarch64.MULTIPLY, **nvidia.MULTIPLY, **amd.MULTIPLY, **intel.MULTIPLY}

# (row, column) of A, (k, column) of B, (row, column) of C that lane l holds as its value v, as the manuals say
LANE_MAPS = {
    "avx512.bf16": (lambda lane, v: (0, v), lambda lane, v: (v, lane), lambda lane, v: (0, lane)),
    "avx512.vnni": (lambda lane, v: (0, v), lambda lane, v: (v, lane), lambda lane, v: (0, lane)),
    "amx.bf16": (lambda r, e: (r, e), lambda r, e: (2 * r + e % 2, e // 2), lambda r, e: (r, e)),
    "amx.s8": (lambda r, e: (r, e), lambda r, e: (4 * r + e % 4, e // 4), lambda r, e: (r, e)),
    "neon.sdot": (lambda lane, v: (0, v), lambda lane, v: (v, lane), lambda lane, v: (0, lane)),
    "neon.bfdot": (lambda lane, v: (0, v), lambda lane, v: (v, lane), lambda lane, v: (0, lane)),
    "neon.bfmmla": (
        lambda lane, v: (lane // 4, lane % 4),
        lambda lane, v: (lane % 4, lane // 4),
        lambda lane, v: (lane // 2, lane % 2),
    ),
    "neon.usmmla": (
        lambda lane, v: (lane // 8, lane % 8),
        lambda lane, v: (lane % 8, lane // 8),
        lambda lane, v: (lane // 2, lane % 2),
    ),
    "fma.m16n32k1.f32": (
        lambda lane, v: (4 * (lane // 8) + v, 0),
        lambda lane, v: (0, 4 * (lane % 8) + v),
        lambda lane, v: (4 * (lane // 8) + v // 4, 4 * (lane % 8) + v % 4),
    ),
    "mma.m16n8k16.f16": (
        lambda lane, v: (lane // 4 + 8 * (v // 2 % 2), 2 * (lane % 4) + v % 2 + 8 * (v // 4)),
        lambda lane, v: (2 * (lane % 4) + v % 2 + 8 * (v // 2), lane // 4),
        lambda lane, v: (lane // 4 + 8 * (v // 2), 2 * (lane % 4) + v % 2),
    ),
    "mma.m16n8k8.tf32": (
        lambda lane, v: (lane // 4 + 8 * (v % 2), lane % 4 + 4 * (v // 2)),
        lambda lane, v: (lane % 4 + 4 * v, lane // 4),
        lambda lane, v: (lane // 4 + 8 * (v // 2), 2 * (lane % 4) + v % 2),
    ),
    "mma.m16n8k32.s8": (
        lambda lane, v: (lane // 4 + 8 * (v // 4 % 2), 4 * (lane % 4) + v % 4 + 16 * (v // 8)),
        lambda lane, v: (4 * (lane % 4) + v % 4 + 16 * (v // 4), lane // 4),
        lambda lane, v: (lane // 4 + 8 * (v // 2), 2 * (lane % 4) + v % 2),
    ),
    "mma.m8n8k4.f64": (
        lambda lane, v: (lane // 4, lane % 4),
        lambda lane, v: (lane % 4, lane // 4),
        lambda lane, v: (lane // 4, 2 * (lane % 4) + v),
    ),
    "wgmma.m64n64k16.bf16": (
        None,
        None,
        lambda lane, v: (16 * (lane // 32) + lane % 32 // 4 + 8 * (v // 2 % 2), 2 * (lane % 4) + v % 2 + 8 * (v // 4)),
    ),
    "wgmma.m64n64k8.tf32.ra": (
        lambda lane, v: (16 * (lane // 32) + lane % 32 // 4 + 8 * (v % 2), lane % 4 + 4 * (v // 2)),
        None,
        lambda lane, v: (16 * (lane // 32) + lane % 32 // 4 + 8 * (v // 2 % 2), 2 * (lane % 4) + v % 2 + 8 * (v // 4)),
    ),
    "wgmma.m64n64k32.e4m3.ra": (
        lambda lane, v: (
            16 * (lane // 32) + lane % 32 // 4 + 8 * (v // 4 % 2),
            4 * (lane % 4) + v % 4 + 16 * (v // 8),
        ),
        None,
        lambda lane, v: (16 * (lane // 32) + lane % 32 // 4 + 8 * (v // 2 % 2), 2 * (lane % 4) + v % 2 + 8 * (v // 4)),
    ),
    "wgmma.m64n64k16.f16.ra": (
        lambda lane, v: (16 * (lane // 32) + lane % 32 // 4 + 8 * (v // 2 % 2), 2 * (lane % 4) + v % 2 + 8 * (v // 4)),
        None,
        None,
    ),
    "mfma.16x16x16.f16": (
        lambda lane, e: (lane % 16, 4 * (lane // 16) + e),
        lambda lane, e: (4 * (lane // 16) + e, lane % 16),
        lambda lane, r: (4 * (lane // 16) + r, lane % 16),
    ),
    "mfma.32x32x8.f16": (
        lambda lane, e: (lane % 32, 4 * (lane // 32) + e),
        lambda lane, e: (4 * (lane // 32) + e, lane % 32),
        lambda lane, r: (8 * (r // 4) + 4 * (lane // 32) + r % 4, lane % 32),
    ),
    "mfma.16x16x16.bf16": (
        lambda lane, e: (lane % 16, 4 * (lane // 16) + e),
        lambda lane, e: (4 * (lane // 16) + e, lane % 16),
        lambda lane, r: (4 * (lane // 16) + r, lane % 16),
    ),
    "mfma.32x32x8.bf16": (
        lambda lane, e: (lane % 32, 4 * (lane // 32) + e),
        lambda lane, e: (4 * (lane // 32) + e, lane % 32),
        lambda lane, r: (8 * (r // 4) + 4 * (lane // 32) + r % 4, lane % 32),
    ),
    "mfma.16x16x4.f32": (
        lambda lane, e: (lane % 16, lane // 16),
        lambda lane, e: (lane // 16, lane % 16),
        lambda lane, r: (4 * (lane // 16) + r, lane % 16),
    ),
    "mfma.32x32x2.f32": (
        lambda lane, e: (lane % 32, lane // 32),
        lambda lane, e: (lane // 32, lane % 32),
        lambda lane, r: (8 * (r // 4) + 4 * (lane // 32) + r % 4, lane % 32),
    ),
    "mfma.16x16x32.i8": (
        lambda lane, e: (lane % 16, 8 * (lane // 16) + e),
        lambda lane, e: (8 * (lane // 16) + e, lane % 16),
        lambda lane, r: (4 * (lane // 16) + r, lane % 16),
    ),
    "mfma.32x32x16.i8": (
        lambda lane, e: (lane % 32, 8 * (lane // 32) + e),
        lambda lane, e: (8 * (lane // 32) + e, lane % 32),
        lambda lane, r: (8 * (r // 4) + 4 * (lane // 32) + r % 4, lane % 32),
    ),
    **{
        f"dpas.8x16x16.{dtype}": (
            lambda lane, m: (m, lane),
            lambda lane, e: (2 * (e // 2) + e % 2, lane),
            lambda lane, m: (m, lane),
        )
        for dtype in ("bf16", "f16")
    },
    "dpas.8x16x32.i8": (
        lambda lane, e: (e // 2, 2 * lane + e % 2),
        lambda lane, e: (4 * (e // 4) + e % 4, lane),
        lambda lane, m: (m, lane),
    ),
}


@pytest.mark.parametrize("name", LANE_MAPS)
def test_lane_maps_are_those_of_the_manuals(name):
    atom = ATOMS[name]
    for operand, wanted in zip((atom.a, atom.b, atom.c), LANE_MAPS[name], strict=True):
        if wanted is None:
            continue
        for lane in range(operand.lanes):
            for value in range(operand.values):
                element = operand.layout(lane, value)
                assert (element % operand.rows, element // operand.rows) == wanted(lane, value), (name, lane, value)


# where in shared memory element (row, column) of A and (k, column) of B lie: rows of 128 bytes, eight chunks of 16
# bytes in each, the chunk's number xor-ed with the row's
def k_fastest(chunk):
    """With k fastest, so many elements to a chunk."""
    return (
        lambda m, k: 8 * chunk * m + chunk * (k // chunk ^ m % 8) + k % chunk,
        lambda k, n: 8 * chunk * n + chunk * (k // chunk ^ n % 8) + k % chunk,
    )


MN_FASTEST = (
    lambda m, k: 64 * k + 8 * (m // 8 ^ k % 8) + m % 8,
    lambda k, n: 4096 * (n // 64) + 64 * k + 8 * (n % 64 // 8 ^ k % 8) + n % 8,
)


@pytest.mark.parametrize("name", [name for name in ATOMS if name.startswith("wgmma")])
def test_shared_operands_are_those_of_the_manual(name):
    atom = ATOMS[name]
    plain = k_fastest(16 // atom.b.dtype.numpy.itemsize)
    wanted_a = None if ".ra" in name else (MN_FASTEST if ".ta" in name else plain)[0]
    wanted_b = (MN_FASTEST if ".tb" in name else plain)[1]
    for operand, wanted in ((atom.a, wanted_a), (atom.b, wanted_b)):
        if wanted is not None:
            row, column = np.indices((operand.rows, operand.columns))
            assert (operand.layout(row, column) == wanted(row, column)).all()


def test_wgmma_has_its_variants():
    assert {name.removeprefix("wgmma.m64n128k16.bf16") for name in ATOMS if "n128k16.bf16" in name} == {
        *("", ".ra", ".ta", ".tb", ".ra.tb", ".ta.tb")
    }
    assert "wgmma.m64n160k16.f16.tb" not in ATOMS  # rows of 128 bytes hold 64 of n


def drawn(atom, seed=0):
    rng = np.random.default_rng(seed)
    m, n, k = atom.shape
    low = 0 if "u8" in (atom.a.dtype.name,) else -4
    a = rng.integers(low, 5, (m, k)).astype(atom.a.dtype.numpy)
    b = rng.integers(-4, 5, (k, n)).astype(atom.b.dtype.numpy)
    c = rng.integers(-9, 10, (m, n)).astype(atom.c.dtype.numpy)
    return a, b, c


def product(atom, a, b, c):
    return atom.c.load(atom.run(atom.a.store(a), atom.b.store(b), atom.c.store(c)))


@pytest.mark.parametrize("name", ATOMS)
def test_atoms_multiply_exactly(name):
    atom = ATOMS[name]
    a, b, c = drawn(atom)
    wanted = c.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)
    found = product(atom, a, b, c)
    assert found.dtype == atom.c.dtype.numpy
    assert (found == wanted).all()


@pytest.mark.sampled(329)  # of each atom one operand or two
@pytest.mark.parametrize("which", "abc")
@pytest.mark.parametrize("name", ATOMS)
def test_an_exchanged_entry_is_seen(name, which):
    """Operands laid out by the true map, read by one with two places exchanged: another product, or an error."""
    atom = ATOMS[name]
    operand = getattr(atom, which)
    first = (0, 0)
    values = table(operand.layout)
    others = np.argwhere(values != values[first])
    for second in {tuple(others[at]) for at in (0, len(others) // 2, -1)} if others.size else {first}:
        wrong = replace(atom, **{which: replace(operand, layout=Exchanged(operand.layout, first, second))})
        for seed in range(8):  # the two elements may happen to be equal
            a, b, c = drawn(atom, seed)
            stored = atom.a.store(a), atom.b.store(b), atom.c.store(c)
            try:
                found = atom.c.load(wrong.run(*stored))
            except LayoutError:
                break
            if not np.array_equal(found, atom.c.load(atom.run(*stored))):
                break
        else:
            raise AssertionError(f"{name}: places {first} and {second} of {which} can be exchanged unseen")


def test_a_wrong_description_is_refused_or_gives_wrong_products():
    atom = ATOMS["mfma.16x16x16.f16"]
    a, b, c = drawn(atom)
    turned = replace(atom, a=replace(atom.a, layout=Layout(((16, 4), 4), ((16, 4), 1))))
    stored = atom.a.store(a), atom.b.store(b), atom.c.store(c)
    assert not np.array_equal(turned.c.load(turned.run(*stored)), product(atom, a, b, c))
    holes = replace(atom.a, layout=Layout(((16, 4), 4), ((1, 64), 0)))
    with pytest.raises(LayoutError, match="does not hold every element"):
        holes.load(np.zeros((64, 4)))
    with pytest.raises(LayoutError, match="they do not fit"):
        replace(atom, b=ATOMS["mfma.32x32x8.f16"].b)


def test_repeated_elements_must_agree():
    operand = ATOMS["avx512.f32"].a
    registers = operand.store(np.array([[3.0]], np.float32))
    assert (registers == 3).all()
    registers[5] = 4
    with pytest.raises(LayoutError, match="differ"):
        operand.load(registers)


# -- copies ------------------------------------------------------------------------------------------------------


def loaded(atom, memory, shape, **arguments):
    registers = np.full(shape, 99).astype(memory.dtype)
    atom.run(memory, registers, **arguments)
    return registers


def test_amx_tiles_come_and_go_in_rows():
    memory = np.arange(16 * 40, dtype=np.int16)
    whole = {"start": 3, "stride": 40, "rows": 16, "columns": 32, "value": 0}
    tile = loaded(x86.COPY["amx.tileload"], memory, (16, 32), **whole)
    assert (tile == memory[3 + 40 * np.arange(16)[:, None] + np.arange(32)]).all()
    short = loaded(x86.COPY["amx.tileloadt1"], memory, (16, 32), **(whole | {"rows": 5}))
    assert (short[:5] == tile[:5]).all()
    assert (short[5:] == 0).all()
    back = np.zeros_like(memory)
    x86.COPY["amx.tilestore"].run(tile, back, **whole)
    assert (back[3 + 40 * np.arange(16)[:, None] + np.arange(32)] == tile).all()
    assert np.count_nonzero(back) == np.count_nonzero(tile)


def test_a_whole_amx_product_from_memory():
    """C += A * B with B packed in memory as the tile wants it: [k/2][n][2]."""
    rng = np.random.default_rng(0)
    atom = ATOMS["amx.bf16"]
    bf16 = atom.a.dtype.numpy
    a, b = rng.integers(-4, 5, (16, 32)).astype(bf16), rng.integers(-4, 5, (32, 16)).astype(bf16)
    packed = b.reshape(16, 2, 16).transpose(0, 2, 1).reshape(-1)
    load, whole = x86.COPY["amx.tileload"], {"start": 0, "stride": 32, "rows": 16, "columns": 32, "value": 0}
    tiles = [loaded(load, memory, (16, 32), **whole) for memory in (a.reshape(-1), packed)]
    c = atom.run(*tiles, np.zeros((16, 16), np.float32))
    assert (c == a.astype(np.float32) @ b.astype(np.float32)).all()


def test_masked_loads_do_not_touch_what_is_masked():
    memory = np.arange(10, dtype=np.float32)
    mask = tuple(lane < 4 for lane in range(16))
    found = loaded(x86.COPY["avx512.load.masked"], memory, (16, 1), start=6, value=0, mask=mask)  # 10 does not exist
    assert found[:, 0].tolist() == [6, 7, 8, 9] + [0] * 12


@pytest.mark.parametrize("matrices", [1, 2, 4])
def test_ldmatrix_as_the_manual_says_it(matrices):
    """Lane l holds elements (l / 4, 2 * (l % 4) + e) of each matrix; transposed, (2 * (l % 4) + e, l / 4)."""
    memory = np.arange(64 * matrices, dtype=np.int16)
    rows = tuple(range(0, 64 * matrices, 8))
    plain = loaded(nvidia.COPY[f"ldmatrix.x{matrices}"], memory, (32, 2 * matrices), rows=rows)
    turned = loaded(nvidia.COPY[f"ldmatrix.x{matrices}.trans"], memory, (32, 2 * matrices), rows=rows)
    for lane in range(32):
        for value in range(2 * matrices):
            matrix, e = divmod(value, 2)
            assert plain[lane, value] == 64 * matrix + 8 * (lane // 4) + 2 * (lane % 4) + e
            assert turned[lane, value] == 64 * matrix + 8 * (2 * (lane % 4) + e) + lane // 4


def test_ldmatrix_brings_the_fragments_of_mma():
    """Four 8x8 matrices of a 16x16 tile, rows first, are A's eight values a lane."""
    atom = ATOMS["mma.m16n8k16.f16"]
    tile = np.arange(256, dtype=np.float16).reshape(16, 16)
    lane = np.arange(32)
    matrix, row = lane // 8, lane % 8
    starts = tuple((row + 8 * (matrix % 2)) * 16 + 8 * (matrix // 2))
    registers = loaded(nvidia.COPY["ldmatrix.x4"], tile.reshape(-1), (32, 8), rows=starts)
    assert (atom.a.load(registers) == tile).all()
    back = np.zeros(256, np.float16)
    nvidia.COPY["stmatrix.x4"].run(registers, back, rows=starts)
    assert (back == tile.reshape(-1)).all()


@pytest.mark.parametrize("forms", ["", ".ra", ".ta", ".tb", ".ra.tb", ".ta.tb"])
def test_a_wgmma_product_from_what_tma_and_ldmatrix_bring(forms):
    """Global matrices, k fastest or not, through TMA with the swizzle of 128 bytes into what wgmma reads."""
    atom = ATOMS[f"wgmma.m64n128k16.bf16{forms}"]
    rng = np.random.default_rng(1)
    bf16 = atom.a.dtype
    m, n, k = 64, 128, 64  # TMA brings rows of 128 bytes: four steps of k
    a, b = rng.integers(-4, 5, (m, k)).astype(bf16.numpy), rng.integers(-4, 5, (k, n)).astype(bf16.numpy)
    swizzle = Swizzle(3, 3, 3)

    def staged(matrix, fast_rows):
        rows, columns = matrix.shape
        memory = (matrix.T if fast_rows else matrix).reshape(-1)
        fast = rows if fast_rows else columns
        slabs = ((64, fast // 64), (1, 64 * (columns if fast_rows else rows)))
        inner = Layout(slabs[0], slabs[1])
        outer = Layout(columns if fast_rows else rows, 64)
        tile = make_layout(inner, outer) if fast_rows else make_layout(outer, inner)
        source = Layout((rows, columns), (1, rows) if fast_rows else (columns, 1))
        request = CopyRequest(
            (rows, columns), bf16, Place("global", source), Place("shared", ComposedLayout(swizzle, 0, tile), 1024)
        )
        shared = np.zeros(matrix.size, bf16.numpy)
        for instruction in nvidia.COPY["tma.load"].answer(request):
            instruction.run(memory, shared)
        return shared, ComposedLayout(swizzle, 0, tile)

    staged_a, layout_a = staged(a, ".ta" in forms)
    staged_b, _ = staged(b, ".tb" not in forms)
    c = np.zeros((m, n), np.float32)
    registers = atom.c.store(c)
    for step in range(0, k, 16):
        if ".ra" in forms:
            held = np.zeros((128, 8), bf16.numpy)
            request = CopyRequest(
                (64, 16),
                bf16,
                Place("shared", layout_a, 1024, (0, step)),
                Place("register", atom.a.layout),
            )
            for instruction in nvidia.COPY["ldmatrix.x4"].answer(request):
                instruction.run(staged_a, held)
        else:
            held = started(staged_a, step * (64 if ".ta" in forms else 1), atom.a)
        registers = atom.run(held, started(staged_b, step * (64 if ".tb" in forms else 1), atom.b), registers)
    assert (atom.c.load(registers) == a.astype(np.float32) @ b.astype(np.float32)).all()


def started(memory, offset, operand):
    """Memory as an operand sees it whose descriptor starts at an offset: the swizzle follows absolute addresses."""
    row, column = np.indices((operand.rows, operand.columns))
    inner = operand.layout
    found = memory[inner.outer(offset + inner.layout(row, column))]
    return operand.store(found)
