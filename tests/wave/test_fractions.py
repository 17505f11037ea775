"""Quotients of sizes: fractions beside float tiles, promises beside integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError, ExecutionError, ProgramError

GLOBAL, M, N = tkl.GLOBAL_ADDRESS_SPACE, tkl.sym.M, tkl.sym.N


@tkw.wave()
def fractions(x: tkl.Memory[M, N, GLOBAL, tkl.f32], y: tkl.Memory[M, N, GLOBAL, tkl.f32]) -> None:
    tkw.write(tkw.read(x) * (M / N) + (2 * M / N + 1) + tkl.Register[M, N, tkl.f32](N / M), y)


@tkw.wave()
def half_floats(x: tkl.Memory[M, N, GLOBAL, tkl.f16], y: tkl.Memory[M, N, GLOBAL, tkl.f16]) -> None:
    tkw.write(tkw.read(x) * (1024 * M / (1024 * N)), y)


@tkw.wave()
def promised(x: tkl.Memory[M, N, GLOBAL, tkl.i32], y: tkl.Memory[M, GLOBAL, tkl.i32]) -> None:
    tkw.write(tkw.sum(tkw.read(x), dim=N) + M / N, y)


@pytest.mark.parametrize("options", [{"target": "executor"}, {}, {"dynamic": ["M", "N"]}], ids=str)
def test_a_quotient_beside_floats_is_a_fraction(options: dict[str, Any]):
    """With dynamic sizes it was rounded down, without a word; otherwise planning never ended."""
    m, n = 6, 4
    x = np.arange(m * n, dtype=np.float32).reshape(m, n)
    wanted = x * np.float32(m / n) + np.float32(2 * m / n + 1) + np.float32(n / m)
    assert np.allclose(tilewright.compile(fractions, **options)(x), wanted, rtol=3e-7, atol=0)
    tiles = x.astype(np.float16)
    assert (tilewright.compile(half_floats, **options)(tiles) == tiles * np.float16(1.5)).all()


def test_a_quotient_beside_integers_is_a_promise():
    x, bad = np.ones((8, 4), np.int32), np.ones((3, 4), np.int32)
    for options in ({"target": "executor"}, {}, {"dynamic": ["M", "N"]}):
        assert (tilewright.compile(promised, **options)(x) == 6).all()
    with pytest.raises(ExecutionError, match="does not divide 3"):
        tilewright.compile(promised, target="executor")(bad)
    with pytest.raises(ProgramError, match=r"M / N: 3 / 4 is not an integer[\s\S]*tkw.sum"):
        tilewright.compile(promised)(bad)
    with pytest.raises(ArgumentError, match=r"requires M%N == 0; here M = 3, N = 4"):
        tilewright.compile(promised, dynamic=["M", "N"])(bad)


def test_a_quotient_that_no_size_makes_whole_is_refused():
    """The condition was dropped, and the quotient rounded down."""

    @tkw.wave()
    def half(x: tkl.Memory[M, N, GLOBAL, tkl.i32], y: tkl.Memory[M, GLOBAL, tkl.i32]) -> None:
        tkw.write(tkw.sum(tkw.read(x), dim=N) + (2 * M + 1) / 2, y)

    with pytest.raises(ProgramError, match=r"is no integer for any size; write // to round down"):
        tilewright.compile(half, dynamic=["M", "N"])(np.ones((8, 4), np.int32))
