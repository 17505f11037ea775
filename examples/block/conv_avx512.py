"""conv_avx512.block in Python: a direct convolution, fp32, NHWC, any stride and padding, no copy of the input."""

import tilewright.block as tb


@tb.kernel("x86.avx512")
def conv_avx512(
    x: tb.In("f32", "N", "H", "W", "C"),
    w: tb.In("f32", "F//32", "R", "S", "C", 32),
    y: tb.Out("f32", "N", "P", "Q", "F"),
    *,
    N=1, H=56, W=56, C=64, F=64, R=3, S=3, STRIDE=1, PAD=1,
    PIX=14,  # pixels of a block; it divides Q
    SPLIT=1,  # parts of the filters, each a task
    DEPTH=4,  # channels of one step
    P: tb.Let("(H + 2*PAD - R)//STRIDE + 1"),
    Q: tb.Let("(W + 2*PAD - S)//STRIDE + 1"),
):  # fmt: skip
    tb.require("Q % PIX == 0 and C % DEPTH == 0 and F % (32*SPLIT) == 0")
    mma, filters = tb.Mma("avx512.f32"), F // 32 // SPLIT
    for part, n, p in tb.tasks(SPLIT, N, P, schedule="contiguous"):
        top = STRIDE * p - PAD
        acc = mma.c(PIX, 32)
        for f, block in tb.steps((filters * part, filters * (part + 1)), Q // PIX, peel=(1, 1)):
            tb.clear(acc)
            for r in tb.steps((tb.max(0, -top), tb.min(R, H - top))):
                for s in tb.steps(S, unroll=True):
                    for c in tb.steps(C // DEPTH):
                        taps = x.view(
                            (PIX, DEPTH),
                            lambda i, k: (
                                n, top + r, tb.maybe(STRIDE * (PIX * block + i) + s - PAD), DEPTH * c + k
                            ),
                        )  # fmt: skip
                        weights = w.view((DEPTH, 32), lambda k, j: (f, r, s, DEPTH * c + k, j))
                        mma(acc, taps, weights, skip=True)
            tb.copy(acc, y.view((PIX, 32), lambda i, j: (n, p, PIX * block + i, 32 * f + j)))
