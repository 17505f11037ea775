"""Grid programs that tests of plans share."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.lang.symbols import WORKGROUP_0

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K


def grid_gemm(tile: int, dtype: str = "f32") -> Any:
    """c = a . b transposed, by workgroups that the program itself numbers."""
    space, data = tkl.GLOBAL_ADDRESS_SPACE, getattr(tkl, dtype)
    constraints = [
        tkw.WorkgroupConstraint(M, tile, 0),
        tkw.WorkgroupConstraint(N, tile, 1),
        tkw.TilingConstraint(K, 64),
        tkw.ReorderingConstraint(tkl.sym.WG_0, 0),
    ]

    @tkw.wave(constraints)
    def grid_gemm(
        a: tkl.Memory[M, K, space, data], b: tkl.Memory[N, K, space, data], c: tkl.Memory[M, N, space, tkl.f32]
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(total, c)

    return grid_gemm.bound({tkl.sym.WG_0: WORKGROUP_0})


def grid_pair(tile: int) -> Any:
    """c = a . b transposed, d = a . e transposed: two products of one loop, by workgroups that the program numbers."""
    space = tkl.GLOBAL_ADDRESS_SPACE
    constraints = [
        tkw.WorkgroupConstraint(M, tile, 0),
        tkw.WorkgroupConstraint(N, tile, 1),
        tkw.ReorderingConstraint(tkl.sym.WG_0, 0),
    ]

    @tkw.wave(constraints)
    def grid_pair(
        a: tkl.Memory[M, K, space, tkl.f32],
        b: tkl.Memory[N, K, space, tkl.f32],
        e: tkl.Memory[N, K, space, tkl.f32],
        c: tkl.Memory[M, N, space, tkl.f32],
        d: tkl.Memory[M, N, space, tkl.f32],
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0), tkl.Register[M, N, tkl.f32](0.0)])
        def totals(first: Any, second: Any) -> Any:
            row = tkw.read(a)
            return tkw.mma(row, tkw.read(b), first), tkw.mma(row, tkw.read(e), second)

        tkw.write(totals[0], c)
        tkw.write(totals[1], d)

    return grid_pair.bound({tkl.sym.WG_0: WORKGROUP_0})


def grid_sum(tile: int, step: int) -> Any:
    """y = x + the sum of w over a workgroup's tile of M, in a loop over the tile."""
    space = tkl.GLOBAL_ADDRESS_SPACE
    constraints = [
        tkw.WorkgroupConstraint(M, tile, 0),
        tkw.TilingConstraint(M, step),
        tkw.ReorderingConstraint(tkl.sym.WG_0, 0),
    ]

    @tkw.wave(constraints)
    def grid_sum(
        x: tkl.Memory[M, space, tkl.f32], w: tkl.Memory[M, space, tkl.f32], y: tkl.Memory[M, space, tkl.f32]
    ) -> None:
        @tkw.iterate(M, init_args=[tkl.Register[tkl.f32](0.0)])
        def total(acc: Any) -> Any:
            return tkw.sum(tkw.read(w), acc, dim=M)

        tkw.write(tkw.read(x) + tkw.broadcast(total, [M]), y)

    return grid_sum.bound({tkl.sym.WG_0: WORKGROUP_0})
