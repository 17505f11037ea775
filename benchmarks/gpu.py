"""Tile kernels on a Hopper GPU, planned by Tilewright, beside cuBLAS and cuDNN through PyTorch.

`python benchmarks/gpu.py [gemm] [conv] [--plans N]` prints one line a problem: microseconds of theirs and ours in CUDA
graphs, the shortest of some repeats taken in turn, the ratio, TF/s, what the plan predicted and its tile. With --plans,
the best of the N candidates that should be fastest is measured as well.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
from hopper import difference, microseconds

from tilewright import compile_text, kernels
from tilewright.compiler.native import kernel_for
from tilewright.problems import parse_conv
from tilewright.targets.registry import machine

GEMMS = [
    (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
    (8192, 8192, 1024), (1024, 1024, 8192), (512, 512, 512), (4096, 11008, 4096), (256, 4096, 4096), (64, 8192, 8192),
    (16384, 256, 1024), (1000, 1000, 1000), (333, 4096, 776), (3000, 5000, 2000), (128, 128, 65536),
]  # fmt: skip
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


def report(what: str, made: Any, flops: float, theirs: float, ours: float, error: float) -> float:
    """One line; gives the ratio."""
    tile = made.plan.products[0]
    print(
        f"{what:34} theirs {theirs:8.2f}  ours {ours:8.2f} us  ratio {theirs / ours:5.3f}  {flops / ours * 1e-6:6.1f} "
        f"TF/s  error {error:.0e}  by {tile}, {made.plan.roles and made.plan.roles.stages} stages",
        flush=True,
    )
    return theirs / ours


def launched(made: Any, *tensors: Any) -> Any:
    """The kernel's block program, bound to tensors on the GPU."""
    return compile_text(made.text("block"), "gpu").bind(*tensors)


def gemm(m: int, n: int, k: int) -> float:
    """A product of matrices, both with k fastest."""
    a, b = (torch.randn(rows, k, device="cuda", dtype=torch.bfloat16) for rows in (m, n))
    c, wanted = (torch.full((m, n), math.nan, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    made = kernel_for(kernels.gemm("nt", "bf16", "bf16"), {"M": m, "N": n, "K": k}, machine=machine("hopper"))
    theirs, ours = microseconds(lambda: torch.mm(a, b.t(), out=wanted), launched(made, a, b, c))
    return report(f"gemm {m}x{n}x{k}", made, 2 * m * n * k, theirs, ours, difference(c, wanted))


def conv(line: str) -> float:
    """A convolution, channels last."""
    p = parse_conv(line)
    (h, w), (r, s) = p.i, p.k
    x = torch.randn(p.mb, p.ic, h, w, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    f = torch.randn(p.oc, p.ic, r, s, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)

    def library() -> Any:
        return torch.nn.functional.conv2d(x, f, stride=p.s, padding=p.p)

    wanted = library().permute(0, 2, 3, 1)
    y = torch.full(wanted.shape, math.nan, device="cuda", dtype=torch.bfloat16)
    kernel = kernels.conv(p.k, "bf16", stride=p.s, padding=p.p)
    sizes = {"N": p.mb, "H": h, "W": w, "C": p.ic, "F": p.oc}
    made = kernel_for(kernel, sizes, machine=machine("hopper"))
    theirs, ours = microseconds(library, launched(made, x.permute(0, 2, 3, 1), f.permute(0, 2, 3, 1), y))
    return report(line, made, 2 * y.numel() * r * s * p.ic, theirs, ours, difference(y, wanted))


def main() -> None:
    """All lines, and the geometric mean of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["gemm", "conv"])
    kinds = parser.parse_args().kinds
    torch.backends.cudnn.benchmark = True
    for kind, works in (("gemm", [(gemm, s) for s in GEMMS]), ("conv", [(conv, (line,)) for line in CONVS])):
        if kind in kinds:
            found = [run(*shape) for run, shape in works]
            mean = math.exp(sum(map(math.log, found)) / len(found))
            print(f"{kind}: geometric mean {mean:.3f}, worst {min(found):.3f}")


if __name__ == "__main__":
    main()
