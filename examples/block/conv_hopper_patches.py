"""conv_hopper_patches.block in Python: a direct 3x3 convolution, 64 channels and filters, by patches of 8x8 pixels."""

import tilewright.block as tb
from tilewright.block import cdiv

SWIZZLE = (3, 3, 3)


@tb.kernel("hopper")
def conv_hopper_patches(
    x: tb.In("bf16", "N", "H", "W", 64),
    w: tb.In("bf16", 64, 3, 3, 64),
    y: tb.Out("bf16", "N", "H", "W", 64),
    *,
    N=2, H=10, W=13, PATCHES=4, STAGES=2,
):  # fmt: skip
    wide = 8 * PATCHES
    line = wide + 2  # pixels of an input line
    room = cdiv(10 * line, 8) * 512  # a swizzled tile begins at a multiple of 1024 bytes
    stage_w = tb.shared("bf16", (1, 3, 3, 64, 64), swizzle=SWIZZLE)
    stage_x = tb.shared("bf16", (STAGES, 10, line, 64), strides=(room, line * 64, 64, 1), swizzle=SWIZZLE)
    weights = tb.ring(stage_w, producer="producer", consumer="consumer")
    strips = tb.ring(stage_x, producer="producer", consumer="consumer")

    with tb.role("producer", waves=1, registers=40):
        with weights.fill() as sw:
            for r in tb.steps(3, unroll=True):
                gw = w.view((3, 64, 64), lambda s, j, k: (j, r, s, k))
                tb.copy(gw, sw.view((3, 64, 64), lambda s, j, k: (r, s, j, k)), by="tma.load")
        for n, p, q in tb.tasks(N, cdiv(H, 8), cdiv(W, wide)):
            with strips.fill() as sx:
                gx = x.view(
                    (10, line, 64),
                    lambda h, i, k: (n, tb.maybe(8 * p + h - 1), tb.maybe(wide * q + i - 1), k),
                )
                tb.copy(gx, sx, otherwise=0, by="tma.load")

    with tb.role("consumer", waves=8, registers=232):
        mma = tb.Mma("wgmma.m64n64k16.bf16")
        mw = weights.wait()
        for n, p, q in tb.tasks(N, cdiv(H, 8), cdiv(W, wide), overlap="pingpong"):
            acc = mma.c(64 * PATCHES, 64)
            tb.clear(acc)
            with strips.take() as mx:
                for r, s in tb.steps(3, 3, unroll=True):
                    pixels = mx.view((64 * PATCHES, 64), lambda i, k: (i % 64 // 8 + r, i // 64 * 8 + i % 8 + s, k))
                    mma(acc, pixels, mw.view((64, 64), lambda k, j: (r, s, j, k)))
            with tb.finally_():
                stage_y = tb.shared("bf16", (2, 64, 64), swizzle=SWIZZLE)
                out = tb.ring(stage_y, producer="consumer", consumer="consumer")
                for m in tb.steps(PATCHES, unroll=True):
                    with out.fill() as free:
                        free[...] = acc.view((64, 64), lambda i, c: (64 * m + i, c)).to("bf16")
                    with out.take() as ready:
                        image = ready.view((8, 8, 64), lambda h, i, c: (8 * h + i, c))
                        gy = y.view(
                            (8, 8, 64),
                            lambda h, i, c: (n, tb.maybe(8 * p + h), tb.maybe(wide * q + 8 * m + i), c),
                        )
                        tb.copy(image, gy, by="tma.store")
