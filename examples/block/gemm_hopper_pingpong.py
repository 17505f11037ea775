"""gemm_hopper_pingpong.block in Python: each of two warpgroups owns whole tiles and takes every second one."""

import tilewright.block as tb
from tilewright.block import cdiv

SWIZZLE = (3, 3, 3)


@tb.kernel("hopper")
def gemm_hopper_pingpong(
    a: tb.In("bf16", "M", "K"),
    b: tb.In("bf16", "N", "K"),
    d: tb.Out("bf16", "M", "N"),
    *,
    M=256, N=256, K=256, BM=64, BN=128, STAGES=4,
    GROUP=8,  # tiles of m that are walked together, for the second-level cache
):  # fmt: skip
    tb.require("BN % 64 == 0 and BM % 64 == 0")
    tall_tiles, wide_tiles = cdiv(M, BM), cdiv(N, BN)
    stage_a = tb.shared("bf16", (STAGES, BM, 64), swizzle=SWIZZLE)
    stage_b = tb.shared("bf16", (STAGES, BN, 64), swizzle=SWIZZLE)
    ring = tb.ring(stage_a, stage_b, producer="producer", consumer="consumer")

    def corner(t):
        """Where a task's tile begins."""
        first = t // (GROUP * wide_tiles) * GROUP
        tall = tb.min(GROUP, tall_tiles - first)
        return BM * (first + t % (GROUP * wide_tiles) % tall), BN * (t % (GROUP * wide_tiles) // tall)

    with tb.role("producer", waves=1, registers=40):
        for t in tb.tasks(tall_tiles * wide_tiles):
            m, n = corner(t)
            for k in tb.steps(cdiv(K, 64)):
                with ring.fill() as (sa, sb):
                    ga = a.view((BM, 64), lambda i, c: (tb.maybe(m + i), tb.maybe(64 * k + c)))
                    tb.copy(ga, sa, otherwise=0, by="tma.load")
                    gb = b.view((BN, 64), lambda j, c: (tb.maybe(n + j), tb.maybe(64 * k + c)))
                    tb.copy(gb, sb, otherwise=0, by="tma.load")

    with tb.role("consumer", waves=8, registers=232):
        mma = tb.Mma(f"wgmma.m64n{BN}k16.bf16")
        for t in tb.tasks(tall_tiles * wide_tiles, overlap="pingpong"):
            m, n = corner(t)
            acc = mma.c(BM, BN)
            tb.clear(acc)
            for k in tb.steps(cdiv(K, 64)):
                with ring.take() as (ta, tbt):
                    mma(acc, ta, tbt.view((64, BN), lambda c, j: (j, c)))
            with tb.finally_():
                stage_d = tb.shared("bf16", (2, BM, 64), swizzle=SWIZZLE)
                out = tb.ring(stage_d, producer="consumer", consumer="consumer")
                for j in tb.steps(BN // 64, unroll=True):
                    with out.fill() as free:
                        free[...] = acc.view((BM, 64), lambda i, c: (i, 64 * j + c)).to("bf16")
                    with out.take() as ready:
                        gd = d.view((BM, 64), lambda i, c: (tb.maybe(m + i), tb.maybe(n + 64 * j + c)))
                        tb.copy(ready, gd, by="tma.store")
