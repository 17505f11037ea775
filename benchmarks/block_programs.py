"""The programs of examples/ck at the sizes that take too long for the tests; each is compared with numpy, exactly.

`python benchmarks/block_programs.py` runs products at two sizes, in three element types, under five schedules, and
images to columns with and without padding, with strides, and at the shape of CK's example.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from time import perf_counter

sys.path[:0] = [str(Path(__file__).parents[1] / "examples" / "ck")]

import img2col  # noqa: E402
import tensor_transform  # noqa: E402
import tiled_copy  # noqa: E402
from basic_gemm import RESULT, basic_gemm  # noqa: E402
from optimized_gemm import optimized_gemm  # noqa: E402
from references import check_product  # noqa: E402

import tilewright  # noqa: E402
from tilewright.errors import MissingAtomWarning  # noqa: E402

SIZES = ((129, 131, 67), (512, 256, 128))
SCHEDULES = ((1, 0), (2, 1), (3, 2), (4, 3), (8, 4))
CK_IMAGES = (32, 9, 9, 7, 4, 64)
"""N, D, H, W, G, C of CK's example; the filter is 3x3x3."""


def products() -> None:
    for kernel in (basic_gemm, optimized_gemm):
        for kind, result in RESULT.items():
            for size in SIZES:
                start = perf_counter()
                for workers, seed in SCHEDULES:
                    params = {"T": kind, "R": result}
                    run = tilewright.compile(kernel, params, target="interpreter", workers=workers, seed=seed)
                    check_product(run, *size, kind, result)
                check_product(tilewright.compile(kernel, params), *size, kind, result)  # machine code, on this CPU
                shown = "x".join(map(str, size))
                print(f"{kernel.__name__} {kind} {shown}: exact, {len(SCHEDULES)} schedules and machine code, "
                      f"{perf_counter() - start:.1f} s")  # fmt: skip


def images() -> None:
    for pad in (0, 1):
        for stride in (1, 2):
            for workers, seed in SCHEDULES:
                options = {"target": "interpreter", "workers": workers, "seed": seed}
                img2col.check((2, 1, 11, 8, 1, 5), STRIDE=stride, PAD=pad, **options)
            print(f"img2col 11x8 padding {pad} stride {stride}: exact")
    img2col.check((1, *CK_IMAGES[1:]), U=3, target="interpreter")
    img2col.check(CK_IMAGES, U=3)
    print("img2col at CK's shape: exact, one image interpreted, all 32 as machine code")


def main() -> None:
    warnings.simplefilter("ignore", MissingAtomWarning)
    for workers, seed in SCHEDULES:
        tiled_copy.check(1000, target="interpreter", workers=workers, seed=seed)
        tensor_transform.check(target="interpreter", workers=workers, seed=seed)
    print("tiled_copy, tensor_transform: exact")
    images()
    products()


if __name__ == "__main__":
    main()
