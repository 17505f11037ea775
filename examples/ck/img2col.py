"""Image to columns: row (n, z, p, q, g) of the result holds, for each tap, the channels of group g that a filter reads.

CK's program does this without padding, for 3-D images; here rows and columns may be padded, any stride is taken, and a
2-D image is one of depth 1. The depth is not padded.
"""

import numpy as np
from references import integers

import tilewright
import tilewright.block as tb
from tilewright.block import Layout, cdiv


@tb.kernel("cdna3", waves=2)
def img2col(x: tb.In("f32", "N", "D", "H", "W", "G", "C"), y: tb.Out("f32", "N*Z*P*Q*G", "U*R*S*C"), *, N, D=1, H, W,
            G=1, C, U=1, R=3, S=3, STRIDE=1, PAD=0, Z: tb.Let("(D - U)//STRIDE + 1"), BM=32, BK=64,
            P: tb.Let("(H + 2*PAD - R)//STRIDE + 1"), Q: tb.Let("(W + 2*PAD - S)//STRIDE + 1")):  # fmt: skip
    taps = x.view((N, Z, P, Q, G, U, R, S, C), lambda n, z, p, q, g, u, r, s, c: (
        n, STRIDE * z + u, tb.maybe(STRIDE * p + r - PAD), tb.maybe(STRIDE * q + s - PAD), g, c))  # fmt: skip
    columns, y = taps.merge((0, 1, 2, 3, 4), (5, 6, 7, 8)).pad(BM, BK), y.pad(BM, BK)
    owners = tb.partition((BM, BK), Layout((8, 16), (16, 1)), "block", vector=1)
    for m, k in tb.tasks(cdiv(N * Z * P * Q * G, BM), cdiv(U * R * S * C, BK)):
        mine = tb.registers("f32", (BM, BK), owners)
        tb.copy(columns.tile((BM, BK), (m, k)), mine, otherwise=0)
        tb.copy(mine, y.tile((BM, BK), (m, k)))


def check(shape, *, U=1, R=3, S=3, STRIDE=1, PAD=0, **options):
    """One batch of images (n, d, h, w, g, c) against numpy's windows of the padded ones."""
    padded = np.pad(x := integers("f32", *shape), ((0, 0), (0, 0), (PAD, PAD), (PAD, PAD), (0, 0), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (U, R, S), (1, 2, 3))[:, ::STRIDE, ::STRIDE, ::STRIDE]
    wanted = np.moveaxis(windows, 5, -1).reshape(-1, U * R * S * shape[-1])
    params = dict(zip("NDHWGC", shape, strict=True)) | {"U": U, "R": R, "S": S, "STRIDE": STRIDE, "PAD": PAD}
    np.testing.assert_array_equal(tilewright.compile(img2col, params, **options)(x), wanted)


if __name__ == "__main__":
    check((2, 1, 9, 7, 1, 4), STRIDE=2, PAD=1, target="interpreter")
    check((1, 9, 9, 7, 4, 8), U=3, target="interpreter")
