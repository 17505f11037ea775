"""Every multiplication atom that this CPU has, against the instruction itself: what the row says is what comes out."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import tilewright
from tilewright.errors import MissingAtomWarning
from tilewright.machine import OpaqueOperand
from tilewright.targets.cpu.host import host_machine

HERE = host_machine()


def program(atom, rows, columns, depth):
    """C = start + A * B over a few atoms each way; operands in registers where the atom wants tiles."""
    m, n, k = (s * c for s, c in zip(atom.shape, (rows, columns, depth), strict=True))
    a, b, c = atom.a.dtype, atom.b.dtype, atom.c.dtype
    lines = [
        f"block multiply(%a: in global {a} ({m}, {k}), %b: in global {b} ({k}, {n}), %y: out global {c} ({m}, {n}))",
        f"  machine {HERE.name}",
        "{",
        f"  %c = alloc register {c} ({m}, {n}) as {atom.name}.c",
        "  fill %c 0",
    ]
    if atom.shape[0] > 1:  # matrices in registers
        lines += [
            f"  %ta = alloc register {a} ({m}, {k}) as {atom.name}.a",
            f"  %tb = alloc register {b} ({k}, {n}) as {atom.name}.b",
            "  copy %a -> %ta",
            "  copy %b -> %tb",
            f"  mma %c += %ta * %tb using {atom.name}",
        ]
    else:
        lines.append(f"  mma %c += %a * %b using {atom.name}")
    return "\n".join([*lines, "  copy %c -> %y", "}"]), (m, n, k)


@pytest.mark.parametrize(("rows", "columns", "depth"), [(1, 1, 1), (2, 2, 1), (3, 1, 2)])
@pytest.mark.parametrize("name", HERE.multiply)
def test_products_by_the_instruction_are_exact(name, rows, columns, depth):
    atom = HERE.multiply[name]
    if isinstance(atom.c, OpaqueOperand) and rows * columns + (rows + columns) * depth > 8:
        rows, columns, depth = 2, 1, 2
    text, (m, n, k) = program(atom, rows, columns, depth)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MissingAtomWarning)  # the instruction, not loops in its place
        made = tilewright.compile_text(text, "cpu")
    assert f"atom {name}" in made.text("loop")
    rng = np.random.default_rng(m + n + k)
    low = 0 if atom.a.dtype.name == "u8" else -9
    a = rng.integers(low, 10, (m, k)).astype(atom.a.dtype.numpy)
    b = rng.integers(-9, 10, (k, n)).astype(atom.b.dtype.numpy)
    wanted = (a.astype(np.float64) @ b.astype(np.float64)).astype(atom.c.dtype.numpy)
    assert np.array_equal(made(a, b), wanted)
    assert np.array_equal(
        tilewright.compile_text(text, target="interpreter")(a, b), wanted
    )  # and the interpreter says the same
