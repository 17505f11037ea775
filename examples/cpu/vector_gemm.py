"""C = A * B by vectors, f32: each number of A is broadcast and multiplied by two vectors of B.

A task is a panel of columns, packed once into shared memory, so that its rows are neighbours. Blocks of rows run past
it with C in registers; the rows that are left over are a block of their own.
"""

import tilewright.block as tb

VECTORS = {
    "avx512": ("x86.avx512", "avx512.f32", 14, 32),  # machine, atom, rows and columns of C in registers
    "avx2": ("x86.avx2", "avx2.f32", 6, 16),
}


def vector_gemm(vectors: str = "avx512") -> tb.BlockKernel:
    """The kernel for a kind of vectors."""
    machine, atom, rows, columns = VECTORS[vectors]

    @tb.kernel(machine)
    def gemm(a: tb.In("f32", "M", "K"), b: tb.In("f32", "K", "N"), c: tb.Out("f32", "M", "N"), *, M, N, K, DEPTH=4):
        tb.require("K % DEPTH == 0")
        b, c, mma = b.pad(None, columns), c.pad(None, columns), tb.Mma(atom)
        for n in tb.tasks(tb.cdiv(N, columns)):
            panel = tb.shared("f32", (K, columns))
            tb.copy(b.tile((K, columns), (0, n)), panel, otherwise=0)

            def block(start, height):
                acc = mma.c(height, columns)
                tb.clear(acc)
                for k in tb.steps(K // DEPTH):
                    taps = a.view((height, DEPTH), lambda i, d: (start + i, DEPTH * k + d))
                    mma(acc, taps, panel.tile((DEPTH, columns), (k, 0)))
                to = c.view((height, columns), lambda i, j: (start + i, tb.maybe(columns * n + j)))
                tb.copy(acc, to)

            for m in tb.steps(M // rows):
                block(rows * m, rows)
            if M % rows:
                block(M // rows * rows, M % rows)

    return gemm
