"""C = A * B^T by tiles in shared memory: the basic GEMM of Composable Kernel's wrapper tutorial.

CK's program has one barrier a step. That is a race: a fast wave overwrites what a slow one still reads.
"""

from references import check_product

import tilewright
import tilewright.block as tb
from tilewright.block import Layout, cdiv

AnySize = tb.Size(1, 65536)  # stays open until the call
ATOM = {"f16": "mfma.32x32x8.f16", "f32": "mfma.32x32x2.f32", "i8": "mfma.32x32x16.i8"}
RESULT = {"f16": "f16", "f32": "f32", "i8": "i32"}


@tb.kernel("cdna3", waves=4)
def basic_gemm(a: tb.In("T", "M", "K"), b: tb.In("T", "N", "K"), c: tb.Out("R", "M", "N"), *,
               M: AnySize, N: AnySize, K: AnySize, T="f16", R="f16", BM=128, BN=128, BK=32, vector=None):  # fmt: skip
    a, b, c = a.pad(BM, BK), b.pad(BN, BK), c.pad(BM, BN)
    mma, threads = tb.Mma(ATOM[T], waves=(2, 2), interleaved=True), Layout((64, 4), (4, 1))
    for m, n in tb.tasks(cdiv(M, BM), cdiv(N, BN)):
        sa, sb, acc = tb.shared(T, (BM, BK)), tb.shared(T, (BN, BK)), mma.c(BM, BN)
        tb.clear(acc)
        for k in tb.steps(cdiv(K, BK)):
            tb.blockwise_copy(a.tile((BM, BK), (m, k)), sa, threads, vector, otherwise=0)
            tb.blockwise_copy(b.tile((BN, BK), (n, k)), sb, threads, vector, otherwise=0)
            tb.barrier()
            mma.gemm(acc, sa, sb)
            tb.barrier()
        c.tile((BM, BN), (m, n))[...] = acc.to(R)


if __name__ == "__main__":
    for kind, result in RESULT.items():
        run = tilewright.compile(basic_gemm, {"T": kind, "R": result}, target="interpreter")
        check_product(run, 129, 131, 67, kind, result)
    print("basic_gemm: exact")
