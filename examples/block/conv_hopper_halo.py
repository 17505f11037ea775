"""conv_hopper_halo.block in Python: a direct 3x3 convolution for small images; each warpgroup has one whole image."""

import tilewright.block as tb
from tilewright.block import cdiv

SWIZZLE = (3, 3, 3)


@tb.kernel("hopper")
def conv_hopper_halo(
    x: tb.In("bf16", "N", "H", "W", "C"),
    w: tb.In("bf16", "F", 3, 3, "C"),
    y: tb.Out("bf16", "N", "H", "W", "F"),
    *,
    N=4, H=7, W=7, C=128, F=64, BN=64, XSTAGES=3, WSTAGES=4,
):  # fmt: skip
    tb.require("C % 64 == 0 and F % BN == 0 and BN % 64 == 0 and H*(W + 2) <= 64")
    line = W + 2
    pixels = (H + 2) * line
    rows = 64 + 2 * line + 2  # the last tap reads on past the padded image
    image = cdiv(rows, 8) * 512
    stage_x = tb.shared("bf16", (XSTAGES, 2, rows, 64), strides=(2 * image, image, 64, 1), swizzle=SWIZZLE)
    stage_w = tb.shared("bf16", (WSTAGES, 3, BN, 64), swizzle=SWIZZLE)
    slack = stage_x.view((XSTAGES, 2, rows - pixels, 64), lambda e, g, i, c: (e, g, pixels + i, c))
    tb.fill(slack, 0)
    tb.barrier()
    images = tb.ring(stage_x, producer="producer", consumer="consumer")
    filters = tb.ring(stage_w, producer="producer", consumer="consumer")

    with tb.role("producer", waves=1, registers=40):
        for pair, f in tb.tasks(cdiv(N, 2), F // BN):
            for c in tb.steps(C // 64):
                with images.fill() as sx:
                    for g in tb.steps(2, unroll=True):
                        gx = x.view(
                            (H + 2, line, 64),
                            lambda h, q, k: (tb.maybe(2 * pair + g), tb.maybe(h - 1), tb.maybe(q - 1), 64 * c + k),
                        )
                        to = sx.view((H + 2, line, 64), lambda h, q, k: (g, line * h + q, k))
                        tb.copy(gx, to, otherwise=0, by="tma.load")
                for r in tb.steps(3):
                    with filters.fill() as sw:
                        gw = w.view((3, BN, 64), lambda s, j, k: (BN * f + j, r, s, 64 * c + k))
                        tb.copy(gw, sw, by="tma.load")

    with tb.role("consumer", waves=8, registers=232):
        mma = tb.Mma(f"wgmma.m64n{BN}k16.bf16", waves=(2, 1))
        acc = mma.c(128, BN)
        stage_y = tb.shared("bf16", (1, 2, 64, 64), swizzle=SWIZZLE)
        out = tb.ring(stage_y, producer="consumer", consumer="consumer")
        for pair, f in tb.tasks(cdiv(N, 2), F // BN):
            tb.clear(acc)
            for c in tb.steps(C // 64):
                with images.take() as tx:
                    for r in tb.steps(3):
                        with filters.take() as tw:
                            for s in tb.steps(3, unroll=True):
                                taps = tx.view((128, 64), lambda i, k: (i // 64, i % 64 + line * r + s, k))
                                mma(acc, taps, tw.view((64, BN), lambda k, j: (s, j, k)))
            for j in tb.steps(BN // 64, unroll=True):
                with out.fill() as free:
                    halves = free.view((128, 64), lambda i, c: (i // 64, i % 64, c))
                    halves[...] = acc.view((128, 64), lambda i, c: (i, 64 * j + c)).to("bf16")
                with out.take() as ready:
                    for g in tb.steps(2, unroll=True):
                        done = ready.view((H, line, 64), lambda h, q, c: (g, line * h + q, c))
                        gy = y.view(
                            (H, line, 64),
                            lambda h, q, c: (tb.maybe(2 * pair + g), h, tb.maybe(q), BN * f + 64 * j + c),
                        )
                        tb.copy(done, gy, by="tma.store")
