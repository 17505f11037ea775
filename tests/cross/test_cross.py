"""The machine code of other CPUs, exactly: atoms, convolutions, tails and conversions, under an emulator.

    make test-cross

runs them; a machine whose emulator is missing is skipped with one line. Arrays lie between pages that do not exist: a
byte that is touched beside one of them ends the program.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from emulated import emulating, why_not
from test_native_kernels import CASES

import tilewright
from tilewright.cli.workload import Workload, read_problem, read_types
from tilewright.machine import OpaqueOperand
from tilewright.targets.registry import machine

pytestmark = [
    pytest.mark.cross,
    pytest.mark.filterwarnings("ignore::tilewright.errors.MissingAtomWarning"),
    pytest.mark.filterwarnings("ignore::tilewright.errors.FastPathLost"),
]

FULL = "aarch64.neon.fullfp16.dotprod.bf16.i8mm"
NAMES = ["aarch64.neon", "aarch64.neon.fullfp16.dotprod", FULL, "x86.avx2", "portable"]
BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(params=NAMES)
def name(request):
    why = why_not(request.param)
    if why is not None:
        pytest.skip(why)
    with emulating():
        yield request.param


# -- atoms ------------------------------------------------------------------------------------------------------------

INSTRUCTIONS = {
    "neon.f32": "fmla",
    "neon.f64": "fmla",
    "neon.f16": "fmla",
    "neon.i32": "mla",
    "neon.sdot": "sdot",
    "neon.udot": "udot",
    "neon.usdot": "dot",  # also as sudot, its operands the other way round
    "neon.bfdot": "bfdot",
    "neon.bfmlal": "bfmlalt",
    "neon.bfmmla": "bfmmla",
    "neon.smmla": "smmla",
    "neon.ummla": "ummla",
    "neon.usmmla": "usmmla",
    "avx2.f32": "vfmadd",
    "avx2.f64": "vfmadd",
    "avx2.i32": "vpmulld",
}
ATOMS = [(row, atom) for row in (FULL, "x86.avx2", "portable") for atom in machine(row).multiply]


def product(row, atom, rows, columns, steps):
    """C = A * B over loops of an atom's products; fragments in registers of their own."""
    m, n, k = (s * c for s, c in zip(atom.shape, (rows, columns, 1), strict=True))
    a, b, c = atom.a.dtype, atom.b.dtype, atom.c.dtype
    head = f"%a: in global {a} ({m}, {steps * k}), %b: in global {b} ({steps * k}, {n}), %y: out global {c} ({m}, {n})"
    views = [
        f"    %sa = view %a (i {m}, j {k}) -> [i, {k}*s + j]",
        f"    %sb = view %b (i {k}, j {n}) -> [{k}*s + i, j]",
    ]
    if atom.shape[0] > 1:
        views += [
            f"    %ra = alloc register {a} ({m}, {k}) as {atom.name}.a",
            f"    %rb = alloc register {b} ({k}, {n}) as {atom.name}.b",
            "    copy %sa -> %ra",
            "    copy %sb -> %rb",
            f"    mma %c += %ra * %rb using {atom.name}",
        ]
    else:
        views.append(f"    mma %c += %sa * %sb using {atom.name}")
    lines = [
        f"block multiply({head})",
        f"  machine {row}",
        "{",
        f"  %c = alloc register {c} ({m}, {n}) as {atom.name}.c",
    ]
    lines += ["  fill %c 0", f"  for s in 0..{steps} {{", *views, "  }", "  copy %c -> %y", "}"]
    return "\n".join(lines), (m, n, steps * k)


@pytest.mark.parametrize(("row", "atom_name"), ATOMS)
def test_products_by_the_instruction_are_exact(row, atom_name):
    why = why_not(row)
    if why is not None:
        pytest.skip(why)
    atom = machine(row).multiply[atom_name]
    assert not isinstance(atom.c, OpaqueOperand)
    text, (m, n, k) = product(row, atom, 3, 2, 5)
    rng = np.random.default_rng(m + n + k)
    a = rng.integers(0 if atom.a.dtype.name == "u8" else -9, 10, (m, k)).astype(atom.a.dtype.numpy)
    b = rng.integers(0 if atom.b.dtype.name == "u8" else -9, 10, (k, n)).astype(atom.b.dtype.numpy)
    with emulating():
        made = tilewright.compile_text(text, f"cpu:{row}")
        assert f"atom {atom_name}" in made.text("loop")
        assert INSTRUCTIONS.get(atom_name, "") in made.text("asm")
        wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(atom.c.dtype.numpy)
        assert np.array_equal(made(a, b), wanted)
    assert np.array_equal(tilewright.compile_text(text, "interpreter")(a, b), wanted)


FRAGMENTS = {"neon.bfmmla": BF16, "neon.smmla": np.int8}


@pytest.mark.parametrize("atom_name", FRAGMENTS)
def test_a_product_of_fragments_with_tasks_and_packed_columns(atom_name):
    """A whole GEMM: 12 x 8 blocks of sums in registers, B packed so that a fragment is one load."""
    why = why_not(FULL)
    if why is not None:
        pytest.skip(why)
    atom = machine(FULL).multiply[atom_name]
    kind, k = FRAGMENTS[atom_name], atom.shape[2]
    ab, sums = atom.a.dtype, atom.c.dtype
    text = f"""block gemm(%a: in global {ab} (M, K), %b: in global {ab} (N, K), %y: out global {sums} (M, N))
  machine {FULL}
  param M = 36, N = 40, K = {5 * k}
{{
  tasks m in 0..M//12, n in 0..N//8 {{
    %c = alloc register {sums} (12, 8) as {atom_name}.c
    fill %c 0
    for s in 0..K//{k} {{
      %ra = alloc register {ab} (12, {k}) as {atom_name}.a
      %rb = alloc register {ab} ({k}, 8) as {atom_name}.b
      %sa = view %a (i 12, j {k}) -> [12*m + i, {k}*s + j]
      %sb = view %b (i {k}, j 8) -> [8*n + j, {k}*s + i]
      copy %sa -> %ra
      copy %sb -> %rb
      mma %c += %ra * %rb using {atom_name}
    }}
    %to = view %y (i 12, j 8) -> [12*m + i, 8*n + j]
    copy %c -> %to
  }}
}}
"""
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-9, 10, shape).astype(kind) for shape in ((36, 5 * k), (40, 5 * k)))
    with emulating():
        made = tilewright.compile_text(text, f"cpu:{FULL}")
        assert INSTRUCTIONS[atom_name] in made.text("asm")
        assert np.array_equal(made(a, b), a.astype(np.float64) @ b.astype(np.float64).T)


# -- convolutions -----------------------------------------------------------------------------------------------------

PROBLEMS = [
    "mb1ic40ih9iw7oc70kh3kw2ph1pw1",
    "mb2ic3ih11iw8oc5kh3kw3sh2sw1",
    "mb1ic5ih1iw13oc7kh1kw3pw1",
    "mb1ic8ih6iw5oc33kh1kw1",
    "mb1ic20ih7iw9oc12kh5kw1ph2dh1",
    "g2mb1ic8ih5iw6oc6kh3kw3ph1pw1",
    "g13mb2ic13ih6iw7oc13kh3kw3ph1pw1",
    "37x19:19x23",
    "1x64:64x7",
]


@pytest.mark.parametrize("dt", ["f32", "f64", "bf16", "f16", "s8"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_convolutions_and_products_are_exact(name, problem, dt):
    work = Workload(read_problem(problem), read_types(dt))
    kernel = work.compiled(None, f"cpu:{name}")
    found = work.check(kernel, np.random.default_rng(1))
    assert found.passed, found.lines()


# -- tails and conversions --------------------------------------------------------------------------------------------

SHIFT = """block shift(%x: in global {kind} (R, N), %y: out global {kind} (R, N))
  param R = 3
  param N in 1..1024
{{
  tasks r in 0..R {{
    for d in 0..R {{
      if (d == r) {{
        %from = view %x (j N) -> [r, j + d - 1 ?]
        %to = view %y (j N) -> [r, j]
        copy %from -> %to else 0
      }}
    }}
  }}
}}
"""


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("kind", ["i8", "bf16", "f16", "f32", "f64", "i32"])
@pytest.mark.parametrize("width", [1, 3, 21, 34])
def test_rows_that_end_anywhere_are_copied_and_nothing_beside_them(name, kind, width, is_open):
    """Where the width is open, only a run knows which lanes are there."""
    made = tilewright.compile_text(SHIFT.format(kind=kind), f"cpu:{name}", {} if is_open else {"N": width})
    x = np.random.default_rng(width).integers(-9, 10, (3, width)).astype(made.main.args[0].type.dtype.numpy)
    wanted = np.zeros_like(x)
    for r in range(3):
        for j in range(width):
            if 0 <= j + r - 1 < width:
                wanted[r, j] = x[r, j + r - 1]
    assert np.array_equal(made(x), wanted)


MAPPED = """block mapped(%x: in global {a} (N), %y: out global {b} (N))
  param N = 8
{{
  map %y = {b}(%x)
}}
"""
CASTS = [
    ("f32", "bf16"),
    ("f32", "f16"),
    ("f64", "bf16"),
    ("f64", "f16"),
    ("f16", "f32"),
    ("bf16", "f32"),
    ("f32", "i8"),
]


@pytest.mark.parametrize(("a", "b"), CASTS)
def test_conversions_round_once(name, a, b):
    made = tilewright.compile_text(MAPPED.format(a=a, b=b), f"cpu:{name}", {"N": 4099})
    source, goal = (arg.type.dtype.numpy for arg in made.main.args)
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(4099) * 10.0 ** rng.integers(-6, 2, 4099)).astype(source)
    with np.errstate(over="ignore"):
        wanted = x.astype(goal) if b != "i8" else np.trunc(np.clip(x, -128, 127)).astype(goal)
    keep = np.ones(x.shape, bool)
    if (a, b) == ("f64", "bf16"):  # numpy's goes through f32, and rounds twice
        keep = x == x.astype(np.float32)
    assert np.array_equal(made(x)[keep], wanted[keep])


# -- tile programs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("made", "args", "rough"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_kernels_are_those_of_the_executor(name, made, args, rough):
    kernel, symbols = made if isinstance(made, tuple) else (made, {})
    results = []
    for target in ("executor", f"cpu:{name}"):
        mine = [a.copy() for a in args]
        found = tilewright.compile(kernel, symbols, target=target)(*mine)
        results.append([*mine, *([] if found is None else [found])])
    for wanted, found in zip(*results, strict=True):
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=rough, atol=rough)
