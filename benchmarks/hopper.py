"""Block programs on a Hopper GPU beside cuBLAS and cuDNN, through PyTorch: medians of CUDA graphs.

`python benchmarks/hopper.py` prints one line a problem: microseconds of theirs and of ours, the ratio, TF/s. It needs
PyTorch with CUDA and the extra `gpu`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from tilewright import compile_text
from tilewright.cli.cuda_graphs import graph_sampler
from tilewright.runtime.timing import interleaved_medians

EXAMPLES = Path(__file__).parents[1] / "examples" / "block"


def compiled(name: str, params: dict[str, int]) -> tuple[Any, float]:
    """The executable, and how long it took to make."""
    before = time.perf_counter()
    found = compile_text((EXAMPLES / f"{name}.block").read_text(), "gpu", params)
    return found, time.perf_counter() - before


def microseconds(*runs: Callable[[], Any]) -> list[float]:
    """The median time of a call of each, in CUDA graphs whose replays are interleaved."""
    return [1e6 * seconds for seconds in interleaved_medians([graph_sampler(run) for run in runs])]


def report(what: str, flops: float, theirs: float, ours: float, error: float, took: float) -> None:
    """One line."""
    print(
        f"{what:44} theirs {theirs:8.2f} us  ours {ours:8.2f} us  ratio {theirs / ours:5.3f}  "
        f"{flops / ours * 1e-6:6.1f} TF/s  error {error:.1e}  made in {took:.2f} s",
        flush=True,
    )


def difference(got: Any, wanted: Any) -> float:
    """The relative difference, by norms."""
    wanted = wanted.double()
    return float((got.double() - wanted).norm() / wanted.norm())


def gemm(size: int, **params: int) -> None:
    """A product of square matrices."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    d, wanted = (torch.empty(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    name = "gemm_hopper_pingpong" if params.pop("pingpong", 0) else "gemm_hopper"
    run, took = compiled(name, {"M": size, "N": size, "K": size, **params})
    ours = run.bind(a, b, d)
    theirs, mine = microseconds(lambda: torch.mm(a, b.t(), out=wanted), ours)
    report(f"{name} {size} {params}", 2 * size**3, theirs, mine, difference(d, wanted), took)


def conv(n: int, c: int, size: int, f: int, form: str = "", **params: int) -> None:
    """A 3x3 convolution, channels last."""
    x = torch.randn(n, c, size, size, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    w = torch.randn(f, c, 3, 3, device="cuda", dtype=torch.bfloat16).to(memory_format=torch.channels_last)
    y = torch.empty(n, size, size, f, device="cuda", dtype=torch.bfloat16)
    name = f"conv_hopper{form}"
    sizes = {"N": n, "H": size, "W": size} | ({} if form == "_patches" else {"C": c, "F": f})
    run, took = compiled(name, {**sizes, **params})
    ours = run.bind(x.permute(0, 2, 3, 1), w.permute(0, 2, 3, 1), y)
    wanted = torch.nn.functional.conv2d(x, w, padding=1)
    theirs, mine = microseconds(lambda: torch.nn.functional.conv2d(x, w, padding=1), ours)
    error = difference(y, wanted.permute(0, 2, 3, 1))
    report(f"{name} {n}x{c}x{size}x{size}->{f} {params}", 2 * n * size * size * f * c * 9, theirs, mine, error, took)


def attention(heads: int, length: int, deep: int, causal: bool) -> None:
    """Attention of so many heads."""
    q, k, v = (torch.randn(heads, length, deep, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    o = torch.empty_like(q)
    sizes = {"B": heads, "T": length, "U": length, "D": deep, "BK": 128, "CAUSAL": int(causal)}
    sizes |= {"WG": 3 if deep == 64 else 2, "GROUP": 16 if causal else 1}
    run, took = compiled("flash_hopper", sizes)
    ours = run.bind(q, k, v, o)
    shaped = [t.unsqueeze(0) for t in (q, k, v)]

    def library() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(*shaped, is_causal=causal)

    theirs, mine = microseconds(library, ours)
    flops = 4 * heads * length * length * deep / (2 if causal else 1)
    what = f"flash_hopper {heads}x{length}x{deep}{' causal' if causal else ''}"
    report(what, flops, theirs, mine, difference(o, library()[0]), took)


def main() -> None:
    """All lines, or those whose word is given."""
    torch.backends.cudnn.benchmark = True
    wanted = sys.argv[1:] or ["gemm", "conv", "attention"]
    if "gemm" in wanted:
        gemm(2048)
        gemm(4096, BN=256)
        gemm(4096, BM=128, BN=128, STAGES=5, pingpong=1)
        gemm(8192, BN=256)
    if "conv" in wanted:
        conv(32, 128, 28, 128, BM=192, BN=128, WG=3)
        conv(32, 128, 28, 128, BN=128)
        conv(32, 256, 14, 256, BM=192, BN=64, WG=1, STAGES=6)
        conv(32, 256, 14, 256)
        conv(32, 64, 56, 64)
        conv(32, 64, 56, 64, form="_patches")
        conv(32, 512, 7, 512, form="_halo")
    if "attention" in wanted:
        for deep in (128, 64):
            for causal in (False, True):
                attention(64, 4096, deep, causal)


if __name__ == "__main__":
    main()
