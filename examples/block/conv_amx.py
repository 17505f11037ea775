"""conv_amx.block in Python: bf16, NHWC, stride 1; input lines in planes of 32 channels, tile stores put off."""

import tilewright.block as tb
from tilewright.block import cdiv


@tb.kernel("x86.amx")
def conv_amx(
    x: tb.In("bf16", "N", "H", "W", "C"),
    w: tb.In("bf16", "F//32", "C//CHUNK", "R", "S", "CHUNK//32", 2, 16, 16, 2),
    y: tb.Out("bf16", "N", "P", "Q", "F"),
    *,
    N=1, H=56, W=56, C=64, F=64, R=3, S=3, PAD=1,
    STRIP=28,  # output lines of a task
    SPLIT=1,  # parts of the filters, each a task
    CHUNK=64,  # channels in the innermost part of k
    STREAM_X=1,  # 1: planes are streamed, weights stay in the first cache
    STREAM_W=0,  # 1: the other way round
    P: tb.Let("H + 2*PAD - R + 1"),
    Q: tb.Let("W + 2*PAD - S + 1"),
):  # fmt: skip
    tb.require("C % CHUNK == 0 and CHUNK % 32 == 0 and F % (32*SPLIT) == 0 and P % STRIP == 0")
    line = W + PAD  # pixels of a line, its shared pad column included
    rows = STRIP * line - PAD  # rows of m that are stored, surplus ones between them
    lines = STRIP + R - 1  # input lines of a strip
    pixels = lines * line + PAD + 32  # the last block of rows reads on past the last line
    filters, mma = F // 32 // SPLIT, tb.Mma("amx.bf16")
    for n, strip, part in tb.tasks(N, P // STRIP, SPLIT):
        planes = tb.shared("bf16", (C // 32, pixels, 32))
        tail = planes.view((C // 32, pixels - lines * line, 32), lambda b, i, c: (b, lines * line + i, c))
        tb.fill(tail, 0)
        image = x.view(
            (lines, line, C // 32, 32),
            lambda l, q, b, c: (n, tb.maybe(STRIP * strip + l - PAD), tb.maybe(q - PAD), 32 * b + c),
        )
        padded = planes.view((lines, line, C // 32, 32), lambda l, q, b, c: (b, line * l + q, c))
        tb.copy(image, padded, otherwise=0)

        out = y.view((STRIP, Q, F), lambda l, q, j: (n, STRIP * strip + l, q, j))
        scratch = tb.shared("f32", (32, 32))
        acc, xt, wt = mma.c(32, 32), mma.a(32, 32), mma.b(32, 32)
        for f, m in tb.steps((filters * part, filters * (part + 1)), cdiv(rows, 32), overlap="defer"):
            tb.clear(acc)
            for k, r, s, b in tb.steps(C // CHUNK, R, S, CHUNK // 32, unroll=True):
                taps = planes.view((32, 32), lambda i, c: (CHUNK // 32 * k + b, 32 * m + i + line * r + s, c))
                tb.copy(taps, xt, stream=STREAM_X)
                weights = w.view((32, 32), lambda c, j: (f, k, r, s, b, j // 16, c // 2, j % 16, c % 2))
                tb.copy(weights, wt, stream=STREAM_W)
                mma(acc, xt, wt)
            with tb.finally_():
                tb.copy(acc, scratch)
                to = out.view(
                    (32, 32),
                    lambda i, j: (tb.maybe((32 * m + i) // line), tb.maybe((32 * m + i) % line), 32 * f + j),
                )
                to[...] = scratch.to("bf16")
