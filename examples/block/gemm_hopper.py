"""gemm_hopper.block in Python: D = A * B^T, bf16; one wave brings tiles, two warpgroups multiply, persistent."""

import tilewright.block as tb
from tilewright.block import cdiv

SWIZZLE = (3, 3, 3)


@tb.kernel("hopper", cluster="CLUSTER")
def gemm_hopper(
    a: tb.In("bf16", "M", "K"),
    b: tb.In("bf16", "N", "K"),
    d: tb.Out("bf16", "M", "N"),
    *,
    M=256, N=256, K=256, BM=128, BN=128, STAGES=4,
    WG=2,  # warpgroups that multiply, each BM/WG rows
    GROUP=8,  # tiles of m that are walked together, for the second-level cache
    CLUSTER=1,  # workgroups with tiles below one another: each brings a part of B for all
):  # fmt: skip
    tb.require("BN % 64 == 0 and BM % (64*WG) == 0 and BN % (8*CLUSTER) == 0")
    tall_tiles, wide_tiles = cdiv(M, BM * CLUSTER), cdiv(N, BN)
    tiles = tall_tiles * wide_tiles * CLUSTER
    stage_a = tb.shared("bf16", (STAGES, BM, 64), swizzle=SWIZZLE)
    stage_b = tb.shared("bf16", (STAGES, BN, 64), swizzle=SWIZZLE)
    spare = 72 - 16 * WG  # registers of who brings; those who multiply have the others
    ring = tb.ring(stage_a, stage_b, producer="producer", consumer="consumer")

    def tile_of(t):
        u = t // CLUSTER
        first = u // (GROUP * wide_tiles) * GROUP
        tall = tb.min(GROUP, tall_tiles - first)
        m, n = first + u % (GROUP * wide_tiles) % tall, u % (GROUP * wide_tiles) // tall
        return m * CLUSTER + t % CLUSTER, n

    with tb.role("producer", waves=1, registers=spare):
        for t in tb.tasks(tiles):
            m, n = tile_of(t)
            for k in tb.steps(cdiv(K, 64)):
                with ring.fill() as (sa, sb):
                    ga = a.view((BM, 64), lambda i, c: (tb.maybe(BM * m + i), tb.maybe(64 * k + c)))
                    tb.copy(ga, sa, otherwise=0, by="tma.load")
                    gb = b.view((BN, 64), lambda j, c: (tb.maybe(BN * n + j), tb.maybe(64 * k + c)))
                    tb.copy(gb, sb, otherwise=0, by="tma.load", multicast=True)

    with tb.role("consumer", waves=4 * WG, registers=min(240, (512 - spare) // WG // 8 * 8)):
        mma = tb.Mma(f"wgmma.m64n{BN}k16.bf16", waves=(WG, 1))
        acc = mma.c(BM, BN)
        stage_d = tb.shared("bf16", (2, BM, 64), swizzle=SWIZZLE)
        out = tb.ring(stage_d, producer="consumer", consumer="consumer")
        for t in tb.tasks(tiles):
            m, n = tile_of(t)
            tb.clear(acc)
            for k in tb.steps(cdiv(K, 64)):
                with ring.take() as (ta, tbt):
                    mma(acc, ta, tbt.view((64, BN), lambda c, j: (j, c)))
            for j in tb.steps(BN // 64, unroll=True):
                with out.fill() as free:
                    free[...] = acc.view((BM, 64), lambda i, c: (i, 64 * j + c)).to("bf16")
                with out.take() as ready:
                    gd = d.view((BM, 64), lambda i, c: (tb.maybe(BM * m + i), tb.maybe(BN * n + 64 * j + c)))
                    tb.copy(ready, gd, by="tma.store")
