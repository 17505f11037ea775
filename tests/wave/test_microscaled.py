"""Microscaled products: MXFP4 and MXFP8, whose neighbours along the summed dimension share a scale of eight bits."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import DimensionMismatch
from tilewright.ir.tile import parse_tile

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K


def product(kind: Any, block: int) -> Any:
    """A Wave kernel: bytes are read and taken for small floats, one scale for 32 of them."""
    share = 8 // kind.bits

    @tkw.wave([tkw.WorkgroupConstraint(M, 32, 0), tkw.WorkgroupConstraint(N, 32, 1), tkw.TilingConstraint(K, block)])
    def gemm(
        a: tkl.Memory[M, K / share, GLOBAL, tkl.i8],
        a_scale: tkl.Memory[M, K / 32, GLOBAL, tkl.i8],
        b: tkl.Memory[N, K / share, GLOBAL, tkl.i8],
        b_scale: tkl.Memory[N, K / 32, GLOBAL, tkl.i8],
        c: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc: Any) -> Any:
            left, right = (tkw.bitcast(tkw.read(x), kind) for x in (a, b))
            scales = [tkw.bitcast(tkw.read(x), tkl.f8e8m0fnu) for x in (a_scale, b_scale)]
            return tkw.scaled_mma(left, scales[0], right, scales[1], acc)

        tkw.write(total, c)

    return gemm


def numbers(codes: Any, kind: Any, scales: Any) -> Any:
    """What codes and scales stand for, in f64."""
    if kind is tkl.f4e2m1fn:
        table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        halves = np.stack([codes & 15, codes >> 4], -1).reshape(len(codes), -1)
        values = table[halves & 7] * np.where(halves & 8, -1, 1)
    else:
        values = codes.view(kind.numpy).astype(np.float64)
    return values * np.repeat(2.0 ** (scales.astype(np.float64) - 127), 32, axis=1)


@pytest.mark.filterwarnings("ignore::tilewright.errors.FastPathLost")  # products of scaled numbers are plain loops
@pytest.mark.parametrize("target", ["executor", "cpu"])
@pytest.mark.parametrize(("kind", "block"), [(tkl.f4e2m1fn, 64), (tkl.f8e5m2, 32), (tkl.f8e4m3fn, 96)])
def test_microscaled_products(target: str, kind: Any, block: int) -> None:
    rng = np.random.default_rng(0)
    (m, n, k), share = (37, 21, 192), 8 // kind.bits
    if kind is tkl.f4e2m1fn:
        a, b = (rng.integers(0, 256, (rows, k // share), np.uint8) for rows in (m, n))
    else:
        a, b = (rng.integers(-8, 9, (rows, k)).astype(kind.numpy).view(np.uint8) for rows in (m, n))
    a_scale, b_scale = (rng.integers(125, 129, (rows, k // 32), np.uint8) for rows in (m, n))
    c = np.full((m, n), np.nan, np.float32)
    tilewright.compile(product(kind, block), target=target, lenient=True)(a, a_scale, b, b_scale, c)
    assert str(parse_tile(str(product(kind, block).trace()))) == str(product(kind, block).trace())
    wanted = numbers(a, kind, a_scale) @ numbers(b, kind, b_scale).T
    assert np.array_equal(c, wanted)  # sums of few small numbers are exact


def test_a_scale_without_a_group_of_the_summed_dimension() -> None:
    @tkw.wave()
    def gemm(
        a: tkl.Memory[M, K, GLOBAL, tkl.f8e5m2],
        s: tkl.Memory[M, K / 16, GLOBAL, tkl.f8e8m0fnu],
        c: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ) -> None:
        tile, scale = tkw.read(a), tkw.read(s)
        tkw.write(tkw.scaled_mma(tile, scale, tile, scale, tkl.Register[M, N, tkl.f32](0.0)), c)

    with pytest.raises(DimensionMismatch, match=r"scaled_mma: lhs has .*M, K.* the scale must have K/32"):
        tilewright.compile(gemm, target="executor")


@pytest.mark.parametrize("kind", [tkl.f4e2m1fn, tkl.i4])
def test_halves_of_bytes_and_back(kind: Any) -> None:
    @tkw.wave()
    def halves(x: tkl.Memory[M, K / 2, GLOBAL, tkl.i8], y: tkl.Memory[M, K, GLOBAL, tkl.f32]) -> None:
        tile = tkw.bitcast(tkw.read(x), kind)
        tkw.write(tkw.cast(tile, tkl.f32) if kind.is_float else tkw.cast(tkw.cast(tile, tkl.i32), tkl.f32), y)

    x = np.arange(-128, 128, dtype=np.int8).reshape(4, 64)
    codes = np.stack([x.view(np.uint8) & 15, x.view(np.uint8) >> 4], -1).reshape(4, 128)
    form = ml_dtypes.float4_e2m1fn if kind.is_float else ml_dtypes.int4
    assert np.array_equal(tilewright.compile(halves, target="executor")(x), codes.view(form).astype(np.float32))
