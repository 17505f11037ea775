"""C = A * B by AMX's tiles, bf16: 2 x 2 tiles of C, whose stores are put off into the next block's products.

A task is a panel of 32 columns of B, packed once into shared memory with two neighbours along k together, as the
instruction wants them. A is read where it lies.
"""

import tilewright.block as tb


@tb.kernel("x86.amx")
def amx_gemm(a: tb.In("bf16", "M", "K"), b: tb.In("bf16", "K", "N"), c: tb.Out("bf16", "M", "N"), *, M, N, K):
    tb.require("M % 32 == 0 and N % 32 == 0 and K % 32 == 0")
    mma = tb.Mma("amx.bf16")
    for n in tb.tasks(N // 32):
        panel = tb.shared("bf16", (K // 32, 2, 16, 16, 2))  # (k block, half, pair of k, column, which of the pair)
        packed = b.view((K // 32, 2, 16, 16, 2), lambda e, h, p, j, w: (32 * e + 2 * p + w, 32 * n + 16 * h + j))
        tb.copy(packed, panel)
        scratch, acc, xt, wt = tb.shared("f32", (32, 32)), mma.c(32, 32), mma.a(32, 32), mma.b(32, 32)
        for m in tb.steps(M // 32, overlap="defer"):
            tb.clear(acc)
            for k in tb.steps(K // 32):
                tb.copy(a.tile((32, 32), (m, k)), xt)
                tb.copy(panel.view((32, 32), lambda d, j: (k, j // 16, d // 2, j % 16, d % 2)), wt)
                mma(acc, xt, wt)
            with tb.finally_():
                tb.copy(acc, scratch)
                c.tile((32, 32), (m, n))[...] = scratch.to("bf16")
