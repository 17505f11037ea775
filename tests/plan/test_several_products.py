"""Kernels with several products: what one product gets, each of several gets too if the facts allow it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

M, N, K, L = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.L
SIZES = {"M": 140, "N": 72, "K": 104, "L": 40}
PINGPONG = """axis M = (M 140): task 64
axis N = (N 72): task 64
axis L = (L 40): loop 64
axis K = (K 104): loop 64
grid M, N
mma by wgmma.m64n64k16.bf16, tile 64x64
mma2 by wgmma.m64n64k16.bf16, tile 64x64
producer 1 wave 40 registers, consumer 8 waves 232 registers, stages 4, epilogue stages 2, pingpong
launch early"""

MASKED = """axis M = (M 140): task 64
axis N = (N 72): task 8
axis K = (K 104): loop 64
grid M, N
mma by wgmma.m64n8k16.bf16.ra, tile 64x8
producer 1 wave 56 registers, consumer 4 waves 240 registers, stages 3, epilogue stages 2
launch early"""
MASKED_TWICE = """axis M = (M 140): task 64
axis N = (N 72): task 8
axis K = (K 104): whole
grid M, N
mma by wgmma.m64n8k16.bf16.ra, tile 64x8
mma2 by wgmma.m64n8k16.bf16.ra, tile 64x8
producer 1 wave 56 registers, consumer 4 waves 240 registers, stages 3, epilogue stages 2
launch early"""


def memory(*dims: Any, dtype: Any) -> Any:
    """The type of an argument of these dimensions."""
    return tkl.Memory[(*dims, tkl.GLOBAL_ADDRESS_SPACE, dtype)]


def two_accumulators(dtype: Any) -> Any:
    """y = x a + 2 (x b): the epilogue reads two accumulators."""

    @tkw.wave()
    def gated(
        x: memory(M, K, dtype=dtype),
        a: memory(N, K, dtype=dtype),
        b: memory(N, K, dtype=dtype),
        y: memory(M, N, dtype=tkl.f32),
    ) -> None:
        read = tkw.read(x)
        first = tkw.mma(read, tkw.read(a), tkl.Register[M, N, tkl.f32](0))
        second = tkw.mma(read, tkw.read(b), tkl.Register[M, N, tkl.f32](0))
        tkw.write(first + second * tkw.scalar(2, tkl.f32), y)

    return gated


def one_accumulator(dtype: Any) -> Any:
    """y = x a + z b, the second sum begun with the first: one accumulator."""

    @tkw.wave()
    def sums(
        x: memory(M, K, dtype=dtype),
        a: memory(N, K, dtype=dtype),
        z: memory(M, L, dtype=dtype),
        b: memory(N, L, dtype=dtype),
        y: memory(M, N, dtype=tkl.f32),
    ) -> None:
        first = tkw.mma(tkw.read(x), tkw.read(a), tkl.Register[M, N, tkl.f32](0))
        tkw.write(tkw.mma(tkw.read(z), tkw.read(b), first), y)

    return sums


def masked(dtype: Any) -> Any:
    """y = tril(x) a."""

    @tkw.wave()
    def triangle(x: memory(M, K, dtype=dtype), a: memory(N, K, dtype=dtype), y: memory(M, N, dtype=tkl.f32)) -> None:
        lower = tkw.select(tkw.self_index(K) <= tkw.self_index(M), tkw.read(x), tkw.scalar(0, dtype))
        tkw.write(tkw.mma(lower, tkw.read(a), tkl.Register[M, N, tkl.f32](0)), y)

    return triangle


def masked_twice(dtype: Any) -> Any:
    """y = tril(x) a + 2 (tril(x) b): two products of one masked operand."""

    @tkw.wave()
    def triangles(
        x: memory(M, K, dtype=dtype),
        a: memory(N, K, dtype=dtype),
        b: memory(N, K, dtype=dtype),
        y: memory(M, N, dtype=tkl.f32),
    ) -> None:
        lower = tkw.select(tkw.self_index(K) <= tkw.self_index(M), tkw.read(x), tkw.scalar(0, dtype))
        first = tkw.mma(lower, tkw.read(a), tkl.Register[M, N, tkl.f32](0))
        second = tkw.mma(lower, tkw.read(b), tkl.Register[M, N, tkl.f32](0))
        tkw.write(first + second * tkw.scalar(2, tkl.f32), y)

    return triangles


@pytest.mark.parametrize(
    ("make", "dtype", "plan", "word"),
    [
        (masked, tkl.bf16, MASKED, "loop 64"),
        (masked_twice, tkl.bf16, MASKED_TWICE, "K 104): whole"),
        (two_accumulators, tkl.f32, None, "producer 1 wave"),
        (one_accumulator, tkl.f32, None, "producer 1 wave"),
        (one_accumulator, tkl.bf16, PINGPONG, "pingpong"),
    ],
)
def test_products_share_a_pipeline(make: Any, dtype: Any, plan: str | None, word: str) -> None:
    kernel = make(dtype)
    rng, arrays = np.random.default_rng(0), dict[str, Any]()
    for arg in kernel.trace().args:
        shape = [SIZES[str(d)] for d in arg.type.dims]
        arrays[arg.name] = rng.integers(-2, 3, shape).astype(arg.type.dtype.numpy)
    wanted = tilewright.compile(kernel, target="executor")(*[x for name, x in arrays.items() if name != "y"])
    arrays["y"][...] = np.nan
    sizes = {name: n for name, n in SIZES.items() if name != "L" or make is one_accumulator}
    bound = kernel_for(kernel, sizes, machine=machine("hopper"), plan=plan)
    bound.bind(arrays)()
    assert word in bound.text("plan")
    assert np.array_equal(arrays["y"], wanted)


def test_a_core_reads_what_it_wrote_from_its_own_cache() -> None:
    """Values between two kernels counted as far memory, and one core had to gain 15 %: a gated layer was one kernel."""

    @tkw.wave()
    def gated_down(
        x: memory(M, K, dtype=tkl.bf16),
        w: memory(L, K, dtype=tkl.bf16),
        u: memory(L, K, dtype=tkl.bf16),
        v: memory(N, L, dtype=tkl.bf16),
        y: memory(M, N, dtype=tkl.f32),
    ) -> None:
        gate, up = (tkw.mma(tkw.read(x), tkw.read(b), tkl.Register[M, L, tkl.f32](0)) for b in (w, u))
        hidden = tkw.cast(tkw.maximum(gate, 0.0) * up, tkl.bf16)
        tkw.write(tkw.mma(hidden, tkw.read(v), tkl.Register[M, N, tkl.f32](0)), y)

    row = machine("x86.amx")
    one = replace(row, limits=replace(row.limits, cores=1))
    sizes = {"M": 100, "N": 260, "K": 100, "L": 500}
    run = kernel_for(gated_down, sizes, machine=one)
    plan = run.text("plan")
    assert "split kernel after mma2" in plan
    assert plan.count("overlap delayed store") == 2
    rng = np.random.default_rng(7)
    shapes = {"x": (100, 100), "w": (500, 100), "u": (500, 100), "v": (260, 500)}
    data = {name: rng.integers(-1, 2, shape).astype(np.float32) for name, shape in shapes.items()}
    hidden = np.maximum(data["x"] @ data["w"].T, 0) * (data["x"] @ data["u"].T)
    y = np.full((100, 260), np.nan, np.float32)
    run.bind({**{name: a.astype(tkl.bf16.numpy) for name, a in data.items()}, "y": y})()
    np.testing.assert_array_equal(y, hidden.astype(tkl.bf16.numpy).astype(np.float32) @ data["v"].T)
