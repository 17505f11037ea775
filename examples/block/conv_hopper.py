"""conv_hopper.block in Python: a convolution as an implicit matrix product, bf16, NHWC, any filter, stride, padding."""

import tilewright.block as tb
from tilewright.block import cdiv

SWIZZLE = (3, 3, 3)


@tb.kernel("hopper", cluster="CLUSTER")
def conv_hopper(
    x: tb.In("bf16", "N", "H", "W", "C"),
    w: tb.In("bf16", "F", "R", "S", "C"),
    y: tb.Out("bf16", "N", "P", "Q", "F"),
    *,
    N=2, H=14, W=14, C=64, F=64, R=3, S=3, STRIDE=1, PAD=1, BM=128, BN=64, STAGES=4, WG=2, CLUSTER=1,
    P: tb.Let("(H + 2*PAD - R)//STRIDE + 1"),
    Q: tb.Let("(W + 2*PAD - S)//STRIDE + 1"),
):  # fmt: skip
    tb.require("C % 64 == 0 and BN % 64 == 0 and BM % (64*WG) == 0 and BM % (8*CLUSTER) == 0")
    wide_tiles = cdiv(F, BN * CLUSTER) * CLUSTER
    tiles = cdiv(N * P * Q, BM) * wide_tiles
    stage_x = tb.shared("bf16", (STAGES, BM, 64), swizzle=SWIZZLE)
    stage_w = tb.shared("bf16", (STAGES, BN, 64), swizzle=SWIZZLE)
    spare = 72 - 16 * WG  # registers of who brings; those who multiply have the others
    ring = tb.ring(stage_x, stage_w, producer="producer", consumer="consumer")

    def pixel(row, r, s):
        """The input pixel of a tap: image, line and column, each of which may lie outside."""
        line, column = row // Q % P * STRIDE + r - PAD, row % Q * STRIDE + s - PAD
        return tb.maybe(row // (P * Q)), tb.maybe(line), tb.maybe(column)

    with tb.role("producer", waves=1, registers=spare):
        for t in tb.tasks(tiles):
            m = tb.let(t // wide_tiles * BM)
            for r, s, c in tb.steps(R, S, C // 64):
                with ring.fill() as (sx, sw):
                    pixels = x.view((BM, 64), lambda i, k: (*pixel(m + i, r, s), 64 * c + k))
                    tb.copy(pixels, sx, otherwise=0, by="tma.load.im2col", multicast=True)
                    filters = w.view((BN, 64), lambda j, k: (tb.maybe(t % wide_tiles * BN + j), r, s, 64 * c + k))
                    tb.copy(filters, sw, otherwise=0, by="tma.load")

    with tb.role("consumer", waves=4 * WG, registers=min(240, (512 - spare) // WG // 8 * 8)):
        mma = tb.Mma(f"wgmma.m64n{BN}k16.bf16", waves=(WG, 1))
        acc = mma.c(BM, BN)
        stage_y = tb.shared("bf16", (min(2, BN // 64), BM, 64), swizzle=SWIZZLE)
        out = tb.ring(stage_y, producer="consumer", consumer="consumer")
        for t in tb.tasks(tiles):
            m = tb.let(t // wide_tiles * BM)
            tb.clear(acc)
            for r, s, c in tb.steps(R, S, C // 64):
                with ring.take() as (tx, tw):
                    mma(acc, tx, tw.view((64, BN), lambda k, j: (j, k)))
            for j in tb.steps(BN // 64, unroll=True):
                with out.fill() as free:
                    free[...] = acc.view((BM, 64), lambda i, c: (i, 64 * j + c)).to("bf16")
                with out.take() as ready:
                    gy = y.view(
                        (BM, 64),
                        lambda i, c: (
                            tb.maybe((m + i) // (P * Q)),
                            (m + i) // Q % P,
                            (m + i) % Q,
                            tb.maybe(t % wide_tiles * BN + 64 * j + c),
                        ),
                    )
                    tb.copy(ready, gy, by="tma.store")
