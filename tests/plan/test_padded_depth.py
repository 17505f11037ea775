"""Depths that an atom's neighbours do not divide: factors are copied with zeros after it, where that is worth it."""

from __future__ import annotations

import numpy as np
import pytest
from contraction_checks import Problem

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.cli.workload import read_problem, read_types
from tilewright.compiler.native import kernel_for
from tilewright.plan.contraction import pad_k, size
from tilewright.targets.cpu import host
from tilewright.targets.registry import machine

GROUPS = {a.shape[2] for a in host.host_machine().multiply.values() if str(a.a.dtype) == "i8" and a.shape[0] == 1}
dots = pytest.mark.skipif(not GROUPS, reason="no atom of this CPU adds neighbours of i8")
PROBLEMS = [
    "mb2ic3ih9iw13oc10kh3kw3ph1pw1",
    "mb1ic3ih11iw8oc17kh5kw3sh2sw1ph2pw0",
    "mb1ic5ih6iw7oc9kh1kw1",
    "mb2ic7ih5iw9oc8kh2kw3ph1pw1dh1dw0",
    "mb1ic1ih8iw12oc16kh3kw3ph1pw1",
]

M, N, K, J, GLOBAL = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.J, tkl.GLOBAL_ADDRESS_SPACE


@tkw.wave()
def over_two_dimensions(
    x: tkl.Memory[M, K, J, GLOBAL, tkl.bf16],
    w: tkl.Memory[K, J, N, GLOBAL, tkl.bf16],
    y: tkl.Memory[M, N, GLOBAL, tkl.f32],
) -> None:
    """y = x . w, summed over two dimensions."""
    tkw.write(tkw.mma(tkw.read(x), tkw.read(w), tkl.Register[M, N, tkl.f32](0.0)), y)


def work_of(problem: str) -> Problem:
    return Problem(read_problem(problem), read_types("s8"))


@dots
@pytest.mark.parametrize("problem", PROBLEMS)
def test_few_channels_take_the_atom_that_adds_neighbours(problem: str) -> None:
    work = work_of(problem)
    arrays = work.arrays(np.random.default_rng(3), exact=True)
    *_, out = arrays.values()
    kernel = work.compiled()
    wanted = work.reference(arrays).astype(out.dtype)
    out[...] = 99
    kernel.bind(arrays)()
    assert np.array_equal(out, wanted)
    if "launch pad_x" in kernel.text("host"):
        assert kernel.machine.multiply[kernel.plan.atom].shape[2] in GROUPS
        assert "are copied with zeros after" in kernel.explain()
        again = work.compiled(str(kernel.plan))
        assert str(again.plan) == str(kernel.plan)
        out[...] = 99
        again.bind(arrays)()
        assert np.array_equal(out, wanted)


@dots
def test_the_host_program_of_a_padded_depth_runs_as_text() -> None:
    work = work_of("mb1ic3ih24iw40oc32kh3kw3ph1pw1")
    kernel = work.compiled()
    assert "launch pad_x" in kernel.text("host")
    assert "workspace global i8 (32, 3, 3, 4)" in kernel.text("host")
    arrays = work.arrays(np.random.default_rng(4), exact=True)
    x, w, y = (arrays[name] for name in "xwy")
    for target in ("cpu", "interpreter"):
        y[...] = 99
        tilewright.compile_text(kernel.text("host"), target)(x, w, y)
        assert np.array_equal(y, work.reference(arrays).astype(y.dtype))


def test_only_dimensions_that_are_the_depth_are_padded() -> None:
    c = work_of("g4mb1ic4ih5iw6oc4kh3kw3ph1pw1").contraction
    assert pad_k(c, 4) is c  # taps: x has places there, which go on after the last
    c = work_of("mb1ic3ih5iw6oc4kh3kw3ph1pw1").contraction
    wide = pad_k(c, 4)
    assert size(wide.depth[-1]) == 4
    assert pad_k(wide, 4) is wide
    assert wide.a.shape[-1] == wide.b.shape[-1] == 4


@pytest.mark.parametrize("name", ["aarch64.neon.dotprod", "x86.avx512", "x86.avx2"])
@pytest.mark.parametrize("dt", ["s8", "bf16"])
def test_neighbours_that_lie_apart_stay_within_their_tensor(name: str, dt: str) -> None:
    """One channel: what an atom adds at once are taps in four lines, and rows go past the end of a line."""
    work = Problem(read_problem("mb1ic1ih9iw10oc3oh6ow14kh4kw1ph0pw0"), read_types(dt))
    kernel, sizes = work._make_kernel()
    made = kernel_for(kernel, sizes, machine=machine(name), constant=("w",))
    arrays = work.arrays(np.random.default_rng(5), exact=True)
    *_, out = arrays.values()
    made.bind(arrays)()
    assert np.array_equal(out, work.reference(arrays).astype(out.dtype))


@pytest.mark.parametrize("name", ["x86.avx512", "aarch64.neon.fullfp16.dotprod.bf16.i8mm"])
@pytest.mark.parametrize(("k", "j"), [(5, 7), (1, 3), (3, 1)])
def test_a_depth_of_two_dimensions_was_padded_along_the_last_of_them(name: str, k: int, j: int) -> None:
    """The two are one dimension of the block program: its host program could not be written."""
    sizes = {"M": 9, "N": 2, "K": k, "J": j}
    kernel = kernel_for(over_two_dimensions, sizes, machine=machine(name))
    assert "_padded_ = workspace" in kernel.text("host")
    data = np.random.default_rng(0)
    x, w = (data.integers(-3, 4, shape).astype(tkl.bf16.numpy) for shape in ((9, k, j), (k, j, 2)))
    y = np.full((9, 2), np.nan, np.float32)
    kernel.bind({"x": x, "w": w, "y": y})()
    np.testing.assert_array_equal(y, np.einsum("mkj,kjn->mn", x.astype(np.float32), w.astype(np.float32)))
