"""Reductions to few results on CPUs: each core reduces a part, then one combines the parts. One core did all of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tile_checks import own_cache  # noqa: F401

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.targets.registry import machine

M, N, ONE = tkl.sym.M, tkl.sym.N, tkl.sym.ONE
GLOBAL, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.f32


def row_of(cores: int) -> Any:
    x86 = machine("x86.avx512")
    return replace(x86, limits=replace(x86.limits, cores=cores))


def columns(combine: str) -> tkw.Kernel:
    @tkw.wave()
    def columns(x: tkl.Memory[M, N, GLOBAL, f32], y: tkl.Memory[N, GLOBAL, f32]) -> None:
        tkw.write(getattr(tkw, combine)(tkw.read(x) * 2.0, dim=M), y)

    return columns


def mean_of_squares() -> tkw.Kernel:
    @tkw.wave()
    def squares(a: tkl.Memory[M, GLOBAL, f32], b: tkl.Memory[M, GLOBAL, f32], y: tkl.Memory[ONE, GLOBAL, f32]) -> None:
        apart = tkw.read(a) - tkw.read(b)
        tkw.write(tkw.broadcast(tkw.sum(apart * apart, dim=M), [ONE]), y)

    return squares.bound({ONE: 1})


@pytest.mark.parametrize("combine", ["sum", "max", "min"])
@pytest.mark.parametrize(("rows", "width"), [(1 << 20, 1), (300_007, 3), (65_537, 17)])
def test_parts_of_columns_are_exact_natively(combine: str, rows: int, width: int) -> None:
    sizes = {"M": rows, "N": width}
    plan = kernel_for(columns(combine), sizes, target="interpreter", machine=row_of(16)).text("plan")
    x = np.random.default_rng(0).integers(-4, 5, (rows, width)).astype(np.float32)
    y = np.full(width, np.nan, np.float32)
    kernel_for(columns(combine), sizes, target="cpu", plan=plan).bind({"x": x, "y": y})()
    assert np.array_equal(y, getattr(x * 2, combine)(0))


@pytest.mark.parametrize("count", [1 << 22, 4_000_037])
def test_a_loss_is_split_over_cores(count: int) -> None:
    kernel = kernel_for(mean_of_squares(), {"M": count}, target="interpreter", machine=row_of(16))
    assert kernel.plan.parts is not None
    assert kernel.plan.parts[1] == 16
    assert kernel.choice.cycles < 2 * kernel.choice.bound
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-1, 2, count).astype(np.float32) for _ in range(2))
    y = np.full(1, np.nan, np.float32)
    kernel_for(mean_of_squares(), {"M": count}, target="cpu", plan=kernel.text("plan")).bind({"a": a, "b": b, "y": y})()
    assert y[0] == ((a - b) ** 2).sum(dtype=np.float64)


def test_what_a_core_does_quickly_stays_whole() -> None:
    kernel = kernel_for(mean_of_squares(), {"M": 1000}, target="interpreter", machine=row_of(16))
    assert kernel.plan.parts is None
