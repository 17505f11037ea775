"""Machines are found by name, hold consistent rows, and say what they do not have."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from tilewright.errors import TilewrightError
from tilewright.machine import Machine, UnknownName, spaces_of
from tilewright.targets.registry import MACHINES, machine


@pytest.mark.parametrize("name", MACHINES)
def test_rows_are_whole(name):
    row = machine(name)
    assert row.name == name
    assert set(row.spaces) == {"global", "shared", "register"}
    assert row.multiply
    for key, atom in {**row.multiply, **row.copies}.items():
        assert key == atom.name
        assert row.features.issuperset(atom.features)
    for source, target in (("global", "register"), ("shared", "register"), ("register", "global")):
        assert row.copies_between(source, target)
    assert row.limits.registers > 0


def test_names():
    cpus = ("x86.avx2", "x86.avx512f", "x86.avx512", "x86.amx", "aarch64.neon", "portable")
    assert (*cpus, "ampere", "hopper", "cdna3", "xe") == MACHINES


def test_later_levels_hold_earlier_atoms():
    rows = [machine(n) for n in ("x86.avx2", "x86.avx512", "x86.amx")]
    for small, large in pairwise(rows):
        assert small.multiply.items() < large.multiply.items()
        assert small.copies.items() < large.copies.items()
    assert machine("ampere").copies.keys() < machine("hopper").copies.keys()
    assert not [n for n in machine("ampere").copies if n.startswith(("tma", "stmatrix"))]
    assert not [n for n in machine("ampere").multiply if n.startswith("wgmma")]


def test_unknown_names_are_answered_with_near_ones():
    row = machine("hopper")
    with pytest.raises(UnknownName, match=r"no multiplication atom 'wgmma.m64n65k16.f16'; it has .*wgmma.m64n64"):
        row.multiply_atom("wgmma.m64n65k16.f16")
    with pytest.raises(UnknownName, match=r"hopper has no copy atom 'tma.lod'; it has tma.load"):
        row.copy_atom("tma.lod")
    with pytest.raises(TilewrightError, match="Tilewright has no machine 'hoper'; it has hopper"):
        machine("hoper")
    with pytest.raises(LookupError, match=r"x86.avx2, x86.avx512"):
        machine("zzz")
    assert row.multiply_atom("mma.m16n8k16.f16").shape == (16, 8, 16)
    assert row.copy_atom("ldmatrix.x4").source == "shared"


def test_machines_that_contradict_themselves():
    row = machine("x86.amx")
    with pytest.raises(ValueError, match="needs amx"):
        replace(row, features=machine("x86.avx512").features)
    with pytest.raises(ValueError, match="the spaces of a machine are"):
        Machine("toy", 1, 1, {"global": spaces_of(None)["global"]}, {}, {})


def test_what_completes_an_asynchronous_copy():
    row = machine("hopper")
    assert row.copy_atom("tma.load").completes == "mbarrier"
    assert row.copy_atom("tma.load.im2col").completes == "mbarrier"
    assert row.copy_atom("tma.store").completes == "bulk group"
    assert row.multiply_atom("wgmma.m64n64k16.bf16").asynchronous
    assert not row.multiply_atom("mma.m16n8k16.bf16").asynchronous
    assert machine("x86.amx").copy_atom("amx.tileloadt1").hint == "stream"
    assert row.copy_atom("cp.async.16.cg").hint == "bypass"
