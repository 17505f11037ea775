"""Every multiplication atom, and the copies of its factors: exact on the loop level, and assembled."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from assembler import assembled, ptxas
from random_mma import Product

from tilewright.check.block import check
from tilewright.interpret.block.run import interpret
from tilewright.interpret.loop import HANDLERS
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.machine import RegisterOperand
from tilewright.passes.waves.lower import lower_waves
from tilewright.runtime.codegen import HELPER
from tilewright.targets.gpu.emit import Emitter
from tilewright.targets.nvidia import eights, matrices
from tilewright.targets.nvidia.backend import BACKEND, architecture
from tilewright.targets.nvidia.dialect import Ptx
from tilewright.targets.registry import machine

REGISTERS = """
block product(%a: in global {kind} ({m}, {k}), %b: in global {kind} ({n}, {k}), %d: out global {total} ({m}, {n}))
  machine {machine}
  waves 2
{{
  tasks t in 0..1 {{
    %as = alloc shared {kind} ({m}, {k}){how}
    %bs = alloc shared {kind} ({n}, {k}){how}
    %ra = alloc register {kind} ({m}, {k}) as {atom}.a waves (2, 1)
    %rb = alloc register {kind} ({k}, {n}) as {atom}.b waves (2, 1)
    %rc = alloc register {total} ({m}, {n}) as {atom}.c waves (2, 1)
    copy %a -> %as
    copy %b -> %bs
    barrier
    copy %as -> %ra
    %turned = view %bs (k {k}, j {n}) -> [j, k]
    copy %turned -> %rb
    fill %rc 0
    mma %rc += %ra * %rb using {atom}
    copy %rc -> %d
  }}
}}
"""

SHARED = """
block product(%a: in global {kind} ({m}, {k}), %b: in global {kind} ({n}, {k}), %d: out global {total} ({m}, {n}))
  machine hopper
  waves 4
{{
  tasks t in 0..1 {{
    %as = alloc shared {kind} ({m}, {k}) swizzle <3,{base},3>
    %bs = alloc shared {kind} ({n}, {k}) swizzle <3,{base},3>
    %rc = alloc register {total} ({m}, {n}) as {atom}.c
    copy %a -> %as
    copy %b -> %bs
    barrier
    fill %rc 0
    %turned = view %bs (k {k}, j {n}) -> [j, k]
    mma %rc += %as * %turned using {atom}
    copy %rc -> %d
  }}
}}
"""

ATOMS = [
    ("ampere", "fma.m16n32k1.f32"),
    ("ampere", "mma.m16n8k16.f16"),
    ("hopper", "mma.m16n8k16.bf16"),
    ("ampere", "mma.m16n8k8.tf32"),
    ("hopper", "mma.m16n8k32.s8"),
    ("ampere", "mma.m8n8k4.f64"),
    ("hopper", "wgmma.m64n64k16.f16"),
    ("hopper", "wgmma.m64n64k8.tf32"),
    ("hopper", "wgmma.m64n64k32.e4m3"),
    ("hopper", "wgmma.m64n64k32.e5m2"),
    ("hopper", "wgmma.m64n64k32.s8"),
]


def program_of(name: str, atom_name: str) -> Any:
    here = machine(name)
    atom = here.multiply_atom(atom_name)
    kind, total = atom.a.dtype, atom.c.dtype
    m, n, k = atom.shape
    size = kind.numpy.itemsize
    if isinstance(atom.a, RegisterOperand):
        how = " swizzle <3,3,3>" if size == 2 else ""
        deep = 64 if size == 2 else 2 * k
        text = REGISTERS.format(
            kind=kind, total=total, m=2 * 2 * m, n=3 * n, k=deep, machine=name, atom=atom_name, how=how
        )
    else:
        base = (16 // size).bit_length() - 1
        text = SHARED.format(kind=kind, total=total, m=m, n=n, k=128 // size, atom=atom_name, base=base)
    program = bind(parse_block(text), {})
    check(program, here)
    return program


FORMS = [
    ("wgmma.m64n64k16.bf16.ra", 1),
    ("wgmma.m64n64k16.f16.ta", 2),
    ("wgmma.m64n64k16.bf16.ra.tb", 3),
    ("wgmma.m64n64k16.f16.ta.tb", 4),
    ("wgmma.m64n160k16.bf16", 5),
    ("wgmma.m64n8k16.f16", 6),
]
"""Where else the factors of an atom may lie, and other widths, with seeds of which some have roles."""


@pytest.mark.parametrize(("atom", "seed"), FORMS)
def test_factors_that_lie_otherwise_are_exact_and_assembled(atom: str, seed: int) -> None:
    here = machine("hopper")
    text, arrays, expected = Product(seed, "hopper", [here.multiply_atom(atom)]).whole()
    program = bind(parse_block(text), {})
    check(program, here)
    lowered = lower_waves(program, here)
    interpret(lowered, arrays, here, handlers=HANDLERS, seed=seed)
    np.testing.assert_array_equal(arrays["d"], expected["d"])
    assert_assembled(lowered, here, "wgmma.")


def assert_assembled(lowered: Any, here: Any, word: str) -> None:
    text = HELPER.ask(BACKEND.request(here), BACKEND.emitted(lowered, here).text).decode()
    assert word in text
    if ptxas() is None:
        pytest.skip("ptxas is not installed: the extra `ptxas` brings it")
    said = assembled(text, architecture(here)[0])
    assert "0 bytes spill stores" in said
    assert not re.search(r"\(C7\d+\)|warning", said), said


@pytest.mark.parametrize(("name", "atom"), ATOMS)
def test_products_are_exact_and_assembled(name: str, atom: str) -> None:
    here = machine(name)
    program = program_of(name, atom)
    lowered = lower_waves(program, here)
    chance = np.random.default_rng(3)
    arrays = {}
    for arg in program.args:
        shape = tuple(int(e) for e in arg.type.shape)
        arrays[arg.name] = (chance.integers(-3, 4, shape) if arg.name != "d" else np.zeros(shape)).astype(
            arg.type.dtype.numpy
        )
    interpret(lowered, arrays, here, handlers=HANDLERS, seed=1)
    wanted = arrays["a"].astype(np.float64) @ arrays["b"].astype(np.float64).T
    np.testing.assert_array_equal(arrays["d"].astype(np.float64), wanted)
    assert_assembled(lowered, here, atom.split(".")[0] + ".")


def moves(name: str, atom: str) -> Any:
    """(emitter, operation) of every load and store that goes by 8x8 matrices."""
    here = machine(name)
    lowered = lower_waves(program_of(name, atom), here)
    e = Emitter(lowered, here, Ptx())
    for op in lowered.walk():
        if op.name in ("load", "store") and eights.form(e, op) is not None:
            yield e, op


@pytest.mark.parametrize("name", ["ampere", "hopper"])
def test_lanes_give_the_rows_that_the_instruction_reads(name: str) -> None:
    atom = "mma.m16n8k16.f16"
    seen = set()
    for e, op in moves(name, atom):
        turned, _ = eights.form(e, op)
        count = e.values(op.operands[0])
        many = next(n for n in (4, 2, 1) if count % (2 * n) == 0)
        (lane, value), swizzle = op.attrs["over"], op.operands[1].type.swizzle
        others = {s.name: 0 for s in op.attrs["at"][0].symbols - {lane, value}}
        lanes, values = np.indices((32, count))
        names = {**others, lane.name: lanes, value.name: values}
        wanted = np.asarray(swizzle(np.broadcast_to(op.attrs["at"][0](names), lanes.shape)))
        for first in range(0, count, 2 * many):
            rows = eights.row_place(op, turned, first, many)({**others, lane.name: np.arange(8 * many)})
            layout = matrices.TRANSPOSED if turned else matrices.PLAIN
            got = matrices._places(layout, 32, np.asarray(rows))
            np.testing.assert_array_equal(got, wanted[:, first : first + 2 * many])
            seen.add((turned, many))
    assert (False, 4) in seen
