"""C = A * B^T with the next tiles loaded beside the product: the optimised GEMM of CK's wrapper tutorial.

Tiles lie in shared memory as (K0, rows, K1), one more row for each K0, so that lanes meet in different banks.
"""

from basic_gemm import ATOM, AnySize
from references import check_product

import tilewright
import tilewright.block as tb
from tilewright.block import Layout, cdiv


@tb.kernel("cdna3", waves=4)
def optimized_gemm(a: tb.In("T", "M", "K"), b: tb.In("T", "N", "K"), c: tb.Out("R", "M", "N"), *, M: AnySize,
                   N: AnySize, K: AnySize, T="f16", R="f16", BM=128, BN=128, K0=4, K1=8):  # fmt: skip
    BK, threads, mma = K0 * K1, Layout((K0, 256 // K0, 1), (1, K0, 0)), tb.Mma(ATOM[T], (2, 2), interleaved=True)
    a, b, c = a.pad(BM, BK), b.pad(BN, BK), c.pad(BM, BN)
    a_layout, b_layout = (Layout((K0, rows, K1), ((rows + 1) * K1, K1, 1)) for rows in (BM, BN))
    a_owners, b_owners = (tb.partition((K0, rows, K1), threads, vector=2) for rows in (BM, BN))
    for m, n in tb.tasks(cdiv(M, BM), cdiv(N, BN)):
        sa, sb, acc = tb.shared(T, a_layout), tb.shared(T, b_layout), mma.c(BM, BN)
        ra, rb = tb.registers(T, sa.shape, a_owners), tb.registers(T, sb.shape, b_owners)
        tb.copy(a.tile((BM, BK), (m, 0)).unmerge(1, (K0, K1), (1, 0, 2)), ra, otherwise=0)
        tb.copy(b.tile((BN, BK), (n, 0)).unmerge(1, (K0, K1), (1, 0, 2)), rb, otherwise=0)
        tb.copy(ra, sa), tb.copy(rb, sb), tb.clear(acc)
        for k in tb.steps(cdiv(K, BK) - 1):
            tb.copy(a.tile((BM, BK), (m, k + 1)).unmerge(1, (K0, K1), (1, 0, 2)), ra, otherwise=0)
            tb.barrier()
            tb.copy(b.tile((BN, BK), (n, k + 1)).unmerge(1, (K0, K1), (1, 0, 2)), rb, otherwise=0)
            mma.gemm(acc, sa, sb)
            tb.barrier()
            tb.copy(ra, sa), tb.copy(rb, sb)
        tb.barrier()
        mma.gemm(acc, sa, sb)
        c.tile((BM, BN), (m, n))[...] = acc.to(R)


if __name__ == "__main__":
    check_product(tilewright.compile(optimized_gemm, target="interpreter"), 129, 131, 67, "f16", "f16")
