"""Functions of elements with rows that are no power of two: all elements lie side by side, and are read so."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.compiler.text import compile_text

B, M, N = tkl.sym.B, tkl.sym.M, tkl.sym.N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


@tkw.wave()
def twice(
    x: tkl.Memory[B, M, N, GLOBAL, tkl.bf16],
    z: tkl.Memory[B, M, N, GLOBAL, tkl.f32],
    y: tkl.Memory[B, M, N, GLOBAL, tkl.f32],
):
    """y = relu(x) + 2 z, of two types."""
    tkw.write(tkw.relu(tkw.cast(tkw.read(x), tkl.f32)) + 2.0 * tkw.read(z), y)


@tkw.wave()
def biased(
    x: tkl.Memory[M, N, GLOBAL, tkl.f32], b: tkl.Memory[N, GLOBAL, tkl.f32], y: tkl.Memory[M, N, GLOBAL, tkl.f32]
):
    """y = x + b: an element of b belongs to a column."""
    tkw.write(tkw.read(x) + tkw.read(b), y)


def results(kernel, sizes, *inputs):
    """(the block text, what the interpreter gives of both levels, what the executor gives)."""
    made = kernel_for(kernel, sizes, target="gpu:hopper")
    wanted = tilewright.compile(kernel, target="executor")(*inputs)
    found = []
    for level in ("block", "loop"):
        y = np.full(wanted.shape, np.nan, wanted.dtype)
        compile_text(made.text(level), "interpreter")(*inputs, y)
        found.append(y)
    return made, found, wanted


@pytest.mark.parametrize("shape", [(3, 7, 11), (1, 1, 13), (2, 9, 333), (5, 1, 6)])
def test_all_dimensions_are_one(shape):
    rng = np.random.default_rng(sum(shape))
    x = rng.integers(-9, 10, shape).astype(tkl.bf16.numpy)
    z = rng.integers(-9, 10, shape).astype(np.float32)
    made, found, wanted = results(twice, dict(zip("BMN", shape, strict=True)), x, z)
    assert "axis B_M_N = " in made.text("plan")
    assert kernel_for(twice, dict(zip("BMN", shape, strict=True)), target="gpu:hopper", plan=made.text("plan")).text(
        "block"
    ) == made.text("block")
    assert all((y == wanted).all() for y in found)


def test_vectors_are_loaded_whatever_rows_are():
    for kernel, sizes in (
        (kernels.activation("gelu", "bf16"), {"M": 1000, "N": 50257}),
        (kernels.gated_silu("bf16"), {"M": 10000, "N": 333}),
        (kernels.activation("silu", "f32"), {"M": 1001, "N": 333}),
    ):
        text = kernel_for(kernel, sizes, target="gpu:hopper").text("ptx")
        assert re.search(r"ld\.global(\.cs)?\.v4\.b32", text)
        assert "st.global.v4.b32" in text


@pytest.mark.parametrize(("m", "n", "axes"), [(16777, 1000, "M_N"), (5033, 3333, "M_N"), (83886, 256, "M N")])
def test_tasks_are_powers_of_two(m, n, axes):
    plan = kernel_for(kernels.activation("gelu", "bf16"), {"M": m, "N": n}, target="gpu:hopper").text("plan")
    assert re.findall(r"^axis (\S+)", plan, re.M) == axes.split()
    assert np.prod([int(n) for n in re.findall(r": task (\d+)$", plan, re.M)]) == 4096


def test_where_something_belongs_to_a_column_rows_stay():
    shape = (7, 13)
    rng = np.random.default_rng(1)
    x, b = rng.integers(-9, 10, shape).astype(np.float32), rng.integers(-9, 10, 13).astype(np.float32)
    made, found, wanted = results(biased, {"M": 7, "N": 13}, x, b)
    assert "axis M = " in made.text("plan")
    assert all((y == wanted).all() for y in found)


def test_whole_vectors_stay_rows():
    assert "axis M = " in kernel_for(
        kernels.activation("gelu", "bf16"), {"M": 333, "N": 4096}, target="gpu:hopper"
    ).text("plan")
