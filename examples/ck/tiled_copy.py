"""A copy by tiles: global memory to shared memory, from there to registers by a partition, and back to global memory.

What each thread owns is `tb.partition`, CK's make_local_partition: here four rows of one column, read 16 bytes at once.
"""

import numpy as np

import tilewright
import tilewright.block as tb
from tilewright.block import Layout, cdiv

AnySize = tb.Size(1, 65536)


@tb.kernel("cdna3", waves=4)
def tiled_copy(x: tb.In("i32", 4, "N"), y: tb.Out("i32", 4, "N"), *, N: AnySize, BN=256):
    x, y = x.pad(4, BN), y.pad(4, BN)
    owners = tb.partition((4, BN), Layout((1, 256), (256, 1)), "block", vector=0)
    for t in tb.tasks(cdiv(N, BN)):
        tile = tb.shared("i32", Layout((4, BN), (1, 4)))
        mine = tb.registers("i32", (4, BN), owners)
        tb.copy(x.tile((4, BN), (0, t)), tile, otherwise=0)
        tb.barrier()
        tb.copy(tile, mine, by="ds_read.b128")
        tb.copy(mine, y.tile((4, BN), (0, t)))


def check(n: int, **options) -> None:
    """Copies a matrix of n columns."""
    x = np.random.default_rng(n).integers(-99, 99, (4, n)).astype(np.int32)
    np.testing.assert_array_equal(tilewright.compile(tiled_copy, **options)(x), x)


if __name__ == "__main__":
    for n in (1, 256, 900):
        check(n, target="interpreter")
    print("tiled_copy: exact")
