"""Sizes of the problems that are measured on a GPU: `gpu.py`, `gpu_rowwise.py`, `gpu_chained.py`, `old_new.py`."""

from __future__ import annotations

GEMMS = [
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (8192, 8192, 1024), (1024, 1024, 8192),
    (512, 512, 512), (4096, 11008, 4096), (16384, 256, 1024), (16384, 4096, 64), (8192, 1024, 128),
    (1, 4096, 4096), (4, 8192, 8192), (8, 11008, 4096), (16, 4096, 14336), (32, 8192, 1024),
    (64, 8192, 8192), (128, 4096, 4096), (256, 4096, 4096), (4096, 64, 4096), (4096, 4096, 256),
    (1000, 1000, 1000), (333, 4096, 776), (333, 4096, 777), (333, 4097, 777), (3000, 5000, 2000), (1111, 2222, 3336),
    (128, 128, 65536), (512, 512, 16384), (64, 64, 32768), (2048, 1536, 320), (5120, 5120, 640),
]  # fmt: skip
"""Thirty-one shapes: square, skinny, ragged; M of 1 to 16384, K of 64 to 65536."""
CONVS = [
    "mb32ic64ih56oc64kh3ph1",
    "mb32ic128ih28oc128kh3ph1",
    "mb32ic256ih14oc256kh3ph1",
    "mb32ic512ih7oc512kh3ph1",
    "mb256ic256ih14oc256kh3ph1",
    "mb8ic640ih32oc640kh3ph1",
    "mb1ic256ih512oc256kh3ph1",
    "mb32ic256ih56oc128kh1sh2ph0",
    "mb32ic64ih56oc256kh1ph0",
    "mb32ic1024ih14oc256kh1ph0",
    "mb32ic256ih28oc256kh3sh2ph1",
    "mb8ic320ih64oc320kh3ph1",
    "mb2ic128ih256oc128kh3ph1",
]
OTHERS = [
    "mb32ic3ih224oc64kh7sh2ph3",
    "mb256ic3ih224oc64kh7sh2ph3",
    "mb32ic3ih224oc64kh3ph1",
    "mb32ic1ih28oc32kh5ph2",
    "mb32ic3ih299oc32kh3sh2ph0",
    "mb32ic3ih224oc768kh16sh16ph0",
    "mb1ic16ih1080iw1920oc16kh3kw3ph1pw1",
    "mb1ic32ih1080iw1920oc32kh3kw3ph1pw1",
    "mb1ic3ih1080iw1920oc32kh3kw3sh2sw2ph1pw1",
    "mb256ic64ih56oc64kh3ph1",
    "mb256ic128ih28oc128kh3ph1",
    "mb256ic512ih7oc512kh3ph1",
    "mb256ic256ih14oc1024kh1ph0",
    "mb256ic2048ih7oc512kh1ph0",
    "mb4ic4ih64oc320kh3ph1",
    "mb4ic960ih64oc320kh3ph1",
    "mb4ic1280ih16oc1280kh3ph1",
    "mb4ic1280ih8oc1280kh3ph1",
    "mb4ic320ih64oc4kh3ph1",
    "mb1ic64ih568oc64kh3ph1",
    "mb1ic1024ih28oc512kh3ph1",
]
"""First layers, images of 1080 lines with few channels, batches of 256, networks of the shape of a U."""
F32_GEMMS = [
    ("nt", 2048, 2048, 2048), ("nt", 4096, 4096, 4096), ("nt", 8192, 8192, 8192), ("nn", 4096, 4096, 4096),
    ("tn", 4096, 4096, 4096), ("tt", 4096, 4096, 4096), ("nn", 1024, 1024, 1024), ("nt", 512, 512, 512),
    ("nn", 1000, 1000, 1000), ("nt", 16, 4096, 4096), ("nn", 128, 4096, 4096), ("nn", 8192, 1024, 4096),
    ("nn", 65536, 64, 256), ("nt", 333, 777, 555), ("nn", 3000, 5000, 2000), ("nt", 512, 512, 16384),
]  # fmt: skip
F32_CONVS = [*CONVS[:4], *CONVS[7:11], *OTHERS[:1]]
"""Products and convolutions of f32, which nothing may round to tf32."""
TYPES = {"e4m3": ("f8e4m3fn", "bf16"), "s8": ("i8", "i32"), "tf32": ("f32", "f32")}
ATTENTIONS = [
    *((16, 16, 512, 128), (8, 16, 1024, 128), (4, 16, 2048, 128), (2, 16, 4096, 128), (1, 16, 16384, 128)),
    *((16, 32, 512, 64), (8, 32, 1024, 64), (4, 32, 2048, 64), (2, 32, 4096, 64), (1, 32, 16384, 64)),
]
"""(batch, heads, queries and keys, size of a head)."""
ROWS = [(8192, 8192), (65536, 256)]
"""(M, N) of kernels that memory bounds."""
MLP, PRODUCT_SOFTMAX = {"M": 8192, "N": 1024, "K": 1024, "F": 4096}, {"M": 4096, "N": 4096, "K": 1024}
"""Two layers, and a product with a softmax of its rows, each done as two programs."""
REDUCED_PRODUCTS = [*((8200, n, 1024) for n in (64, 128, 256, 512)), (32800, 256, 512)]
"""(M, N, K) of products whose rows are reduced in the same program."""
CHAINS = [
    *((8200, 512, 64, 64), (8200, 1024, 128, 128), (8200, 1024, 256, 128), (8200, 512, 512, 256)),
    (32800, 256, 256, 256),
]
"""(M, K, F, N) of two products, one after the other."""
QUANTISED = [(m, 4096, 4096, 128) for m in (16, 256, 4096)]
"""(M, N, K, group) of products of bytes with scales, and of weights that are widened, a scale for each group of K."""
TWO_CONVOLUTIONS = [(32, 56, 56, 64, 64, 256), (32, 55, 57, 32, 64, 128), (32, 27, 29, 128, 128, 512)]
"""(batch, height, width, channels, filters of 3x3, filters of 1x1)."""
