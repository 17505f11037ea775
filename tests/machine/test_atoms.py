"""Atoms mean what the machines' manuals say: lane maps written out, products exact, one wrong entry is seen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilewright.algebra import Layout
from tilewright.errors import LayoutError
from tilewright.machine import MemoryOperand
from tilewright.targets.amd import atoms as amd
from tilewright.targets.intel import atoms as intel
from tilewright.targets.nvidia import atoms as nvidia
from tilewright.targets.x86 import atoms as x86

ATOMS = {**x86.MULTIPLY, **nvidia.MULTIPLY, **amd.MULTIPLY, **intel.MULTIPLY}

# (row, column) of A, (k, column) of B, (row, column) of C that lane l holds as its value v, as the manuals say
LANE_MAPS = {
    "avx512.bf16": (lambda lane, v: (0, v), lambda lane, v: (v, lane), lambda lane, v: (0, lane)),
    "avx512.vnni": (lambda lane, v: (0, v), lambda lane, v: (v, lane), lambda lane, v: (0, lane)),
    "amx.bf16": (lambda r, e: (r, e), lambda r, e: (2 * r + e % 2, e // 2), lambda r, e: (r, e)),
    "amx.s8": (lambda r, e: (r, e), lambda r, e: (4 * r + e % 4, e // 4), lambda r, e: (r, e)),
    "mma.m16n8k16.f16": (
        lambda lane, v: (lane // 4 + 8 * (v // 2 % 2), 2 * (lane % 4) + v % 2 + 8 * (v // 4)),
        lambda lane, v: (2 * (lane % 4) + v % 2 + 8 * (v // 2), lane // 4),
        lambda lane, v: (lane // 4 + 8 * (v // 2), 2 * (lane % 4) + v % 2),
    ),
    "wgmma.m64n64k16.bf16": (
        None,
        None,
        lambda lane, v: (16 * (lane // 32) + lane % 32 // 4 + 8 * (v // 2 % 2), 2 * (lane % 4) + v % 2 + 8 * (v // 4)),
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
    "dpas.8x16x16.bf16": (
        lambda lane, m: (m, lane),
        lambda lane, e: (2 * (e // 2) + e % 2, lane),
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


IN_REGISTERS = [
    (name, which)
    for name, atom in ATOMS.items()
    for which in "abc"
    if not isinstance(operand := getattr(atom, which), MemoryOperand) and operand.rows * operand.columns > 1
]


@pytest.mark.parametrize(("name", "which"), IN_REGISTERS)
def test_a_swapped_lane_is_seen(name, which):
    """Data that the true lane map laid out, read by a map with two places exchanged, gives another product."""
    atom = ATOMS[name]
    operand = getattr(atom, which)
    places = operand._places()
    first = (0, 0)
    second = next(p for p in np.ndindex(places.shape) if places[p] != places[first])
    a, b, c = drawn(atom, seed=3)
    registers = {"a": atom.a.store(a), "b": atom.b.store(b), "c": atom.c.store(c)}
    swapped = registers[which].copy()
    matrix = np.arange(operand.rows * operand.columns).reshape(operand.columns, operand.rows).T
    labels = operand.store(matrix)
    held = registers[which]
    x, y = held[labels == labels[first]][0], held[labels == labels[second]][0]
    if x == y:
        swapped[labels == labels[first]] = x + np.asarray(1, x.dtype)
    else:
        swapped[labels == labels[first]], swapped[labels == labels[second]] = y, x
    registers[which] = swapped
    wrong = atom.c.load(atom.run(registers["a"], registers["b"], registers["c"]))
    right = product(atom, a, b, c)
    assert not np.array_equal(wrong, right)


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


def test_amx_tiles_come_and_go_in_rows():
    memory = np.arange(16 * 40, dtype=np.int16)
    tile = x86.COPY["amx.tileload"].run(memory, 3, 40)
    assert (tile == memory[3 + 40 * np.arange(16)[:, None] + np.arange(32)][:16]).all()
    short = x86.COPY["amx.tileloadt1"].run(memory, 3, 40, 5)
    assert (short[:5] == tile[:5]).all()
    assert (short[5:] == 0).all()
    back = x86.COPY["amx.tilestore"].run(tile, np.zeros_like(memory), 3, 40)
    assert (back[3 + 40 * np.arange(16)[:, None] + np.arange(32)] == tile).all()
    assert np.count_nonzero(back) == np.count_nonzero(tile)


def test_a_whole_amx_product_from_memory():
    """C += A * B with B packed in memory as the tile wants it: [k/2][n][2]."""
    rng = np.random.default_rng(0)
    atom = ATOMS["amx.bf16"]
    bf16 = atom.a.dtype.numpy
    a, b = rng.integers(-4, 5, (16, 32)).astype(bf16), rng.integers(-4, 5, (32, 16)).astype(bf16)
    packed = b.reshape(16, 2, 16).transpose(0, 2, 1).reshape(-1)
    load = x86.COPY["amx.tileload"].run
    c = atom.run(load(a.reshape(-1), 0, 32), load(packed, 0, 32), np.zeros((16, 16), np.float32))
    assert (c == a.astype(np.float32) @ b.astype(np.float32)).all()


def test_masked_loads_do_not_touch_what_is_masked():
    memory = np.arange(10, dtype=np.float32)
    mask = np.arange(16) < 4
    found = x86.COPY["avx512.load.masked"].run(memory, 6, mask)  # elements 10 and on do not exist
    assert found.tolist() == [6, 7, 8, 9] + [0] * 12


def test_ldmatrix_brings_the_fragments_of_mma():
    """Four 8x8 matrices of a 16x16 tile, rows first, are A's eight values a lane."""
    atom = ATOMS["mma.m16n8k16.f16"]
    tile = np.arange(256, dtype=np.float16).reshape(16, 16)
    lane = np.arange(32)
    matrix, row = lane // 8, lane % 8
    starts = (row + 8 * (matrix % 2)) * 16 + 8 * (matrix // 2)
    registers = nvidia.COPY["ldmatrix.x4"].run(tile.reshape(-1), starts)
    assert (atom.a.load(registers) == tile).all()
    back = nvidia.COPY["stmatrix.x4"].run(registers, np.zeros(256, np.float16), starts)
    assert (back == tile.reshape(-1)).all()
