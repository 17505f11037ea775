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
    N=2, H=10, W=13, PATCHES=2, STAGES=3,
):  # fmt: skip
    tall, wide = cdiv(H, 8), cdiv(W, 8)  # patches of an image, below one another and side by side
    room = cdiv(10 * 10, 8) * 512  # a swizzled tile begins at a multiple of 1024 bytes
    tasks = cdiv(N * tall * wide, PATCHES)
    stage_w = tb.shared("bf16", (1, 3, 3, 64, 64), swizzle=SWIZZLE)
    strides = (PATCHES * room, room, 640, 64, 1)
    stage_x = tb.shared("bf16", (STAGES, PATCHES, 10, 10, 64), strides=strides, swizzle=SWIZZLE)
    weights = tb.ring(stage_w, producer="producer", consumer="consumer")
    inputs = tb.ring(stage_x, producer="producer", consumer="consumer")

    def corner(t, m):
        """The image, line and column where a patch of a task begins."""
        g = PATCHES * t + m
        return g // (tall * wide), 8 * (g // wide % tall), 8 * (g % wide)

    with tb.role("producer", waves=1, registers=40):
        with weights.fill() as sw:
            for r in tb.steps(3, unroll=True):
                gw = w.view((3, 64, 64), lambda s, j, k: (j, r, s, k))
                tb.copy(gw, sw.view((3, 64, 64), lambda s, j, k: (r, s, j, k)), by="tma.load")
        for t in tb.tasks(tasks):
            with inputs.fill() as sx:
                for m in tb.steps(PATCHES, unroll=True):
                    n, p, q = corner(t, m)
                    gx = x.view(
                        (10, 10, 64),
                        lambda h, i, k: (tb.maybe(n), tb.maybe(p + h - 1), tb.maybe(q + i - 1), k),
                    )
                    tx = sx.view((10, 10, 64), lambda h, i, k: (m, h, i, k))
                    tb.copy(gx, tx, otherwise=0, by="tma.load")

    with tb.role("consumer", waves=8, registers=232):
        mma = tb.Mma("wgmma.m64n64k16.bf16")
        mw = weights.wait()
        for t in tb.tasks(tasks, overlap="pingpong"):
            acc = mma.c(64 * PATCHES, 64)
            tb.clear(acc)
            with inputs.take() as mx:
                for r, s in tb.steps(3, 3, unroll=True):
                    pixels = mx.view((64 * PATCHES, 64), lambda i, k: (i // 64, i % 64 // 8 + r, i % 8 + s, k))
                    mma(acc, pixels, mw.view((64, 64), lambda k, j: (r, s, j, k)))
            with tb.finally_():
                stage_y = tb.shared("bf16", (2, 64, 64), swizzle=SWIZZLE)
                out = tb.ring(stage_y, producer="consumer", consumer="consumer")
                for m in tb.steps(PATCHES, unroll=True):
                    n, p, q = corner(t, m)
                    with out.fill() as free:
                        free[...] = acc.view((64, 64), lambda i, c: (64 * m + i, c)).to("bf16")
                    with out.take() as ready:
                        image = ready.view((8, 8, 64), lambda h, i, c: (8 * h + i, c))
                        gy = y.view((8, 8, 64), lambda h, i, c: (tb.maybe(n), tb.maybe(p + h), tb.maybe(q + i), c))
                        tb.copy(image, gy, by="tma.store")
