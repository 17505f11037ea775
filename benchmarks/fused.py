"""Several products in one kernel, and products in grid programs, beside PyTorch's best calls for the same work.

    python benchmarks/fused.py [--threads N] [--seconds S] [--only NAME] [--types f32,bf16]

Needs the extra `bench`. Both sides are timed in turns, arrays bound before; each figure is the shortest of its calls.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

ROUNDS = 4


@dataclass
class Case:
    """A kernel with its arguments, what PyTorch does for the same, and how many floating-point operations that is."""

    name: str
    kernel: Any
    inputs: list[np.ndarray]
    out: np.ndarray
    peer: Callable[[], Any]
    flops: float


def shortest(call: Callable[[], object], seconds: float) -> float:
    best, end = float("inf"), perf_counter() + seconds
    while perf_counter() < end:
        before = perf_counter()
        call()
        best = min(best, perf_counter() - before)
    return best


def mlp(dtype: str) -> Any:
    """y[M, N] = gelu(x[M, K] . w1[F, K]) . w2[N, F], the hidden layer a tile at a time."""
    import tilewright.lang as tkl
    import tilewright.wave as tkw

    M, N, K, F = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.F
    space, data = tkl.GLOBAL_ADDRESS_SPACE, getattr(tkl, dtype)

    @tkw.wave([tkw.TilingConstraint(F, tkl.sym.BLOCK_F)])
    def mlp(
        x: tkl.Memory[M, K, space, data],
        w1: tkl.Memory[F, K, space, data],
        w2: tkl.Memory[N, F, space, data],
        y: tkl.Memory[M, N, space, data],
    ) -> None:
        @tkw.iterate(F, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc: Any) -> Any:
            hidden = tkw.mma(tkw.read(x), tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0))
            inner = tkw.tanh(0.7978845608028654 * (hidden + 0.044715 * hidden * hidden * hidden))
            return tkw.mma(tkw.cast(0.5 * hidden * (1.0 + inner), data), tkw.read(w2), acc)

        tkw.write(tkw.cast(total, data), y)

    return mlp.bound({tkl.sym.BLOCK_F: 256})


def two_convolutions(dtype: str, size: int) -> Any:
    """y[M, G] = relu(3x3 convolution of x to F channels) . w2[G, F], rows M of one image, padded by one."""
    import tilewright.lang as tkl
    import tilewright.wave as tkw

    H, W, C, M, F, G, K = (getattr(tkl.sym, name) for name in ("H", "W", "C", "M", "F", "G", "K"))
    space, data = tkl.GLOBAL_ADDRESS_SPACE, getattr(tkl, dtype)
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    image = tkw.IndexMapping(
        num_iterators=2,
        inputs={H: i // W + j // C // 3 - 1, W: i % W + j // C % 3 - 1, C: j % C},
        outputs={M: i, K: j},
    )

    @tkw.wave([])
    def two_convolutions(
        x: tkl.Memory[H, W, C, space, data],
        w1: tkl.Memory[F, K, space, data],
        w2: tkl.Memory[G, F, space, data],
        y: tkl.Memory[M, G, space, data],
    ) -> None:
        rows = tkw.read(x, mapping=image, otherwise=0)
        between = tkw.mma(rows, tkw.read(w1), tkl.Register[M, F, tkl.f32](0.0))
        between = tkw.cast(tkw.maximum(between, tkl.Register[M, F, tkl.f32](0.0)), data)
        tkw.write(tkw.cast(tkw.mma(between, tkw.read(w2), tkl.Register[M, G, tkl.f32](0.0)), data), y)

    return two_convolutions.bound({H: size, W: size, C: 64})


def cases(dtype: str) -> Iterator[Case]:
    """The work, for an element type."""
    sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "plan")]
    import torch
    from grid_programs import grid_gemm

    import tilewright

    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    functional = torch.nn.functional

    def data(*shape: int, scale: float = 1.0) -> tuple[np.ndarray, Any]:
        made = (torch.randn(shape) * scale).to(kind)
        return as_numpy(made), made

    for batch in (1, 8):
        (q, tq), (k, tk), (v, tv) = (data(batch, 16, 1024, 64) for _ in range(3))
        yield Case(
            f"attention {batch}x16x1024x64",
            tilewright.kernels.attention(512, dtype),
            [q, k, v],
            np.empty_like(q),
            lambda q=tq, k=tk, v=tv: functional.scaled_dot_product_attention(q, k, v),
            4.0 * batch * 16 * 1024 * 1024 * 64,
        )
    (x, tx), (w1, t1), (w2, t2) = data(1024, 512), data(2048, 512, scale=0.05), data(512, 2048, scale=0.05)
    yield Case(
        "mlp 1024x512-2048-512",
        mlp(dtype),
        [x, w1, w2],
        np.empty_like(x),
        lambda: functional.linear(functional.gelu(functional.linear(tx, t1), approximate="tanh"), t2),
        4.0 * 1024 * 512 * 2048,
    )
    image, tensor = data(56, 56, 64)
    (w1, t1), (w2, t2) = data(64, 576, scale=0.05), data(256, 64, scale=0.1)
    channels = tensor.permute(2, 0, 1)[None].contiguous(memory_format=torch.channels_last)
    three = t1.reshape(64, 3, 3, 64).permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
    one = t2[:, :, None, None].contiguous(memory_format=torch.channels_last)
    yield Case(
        "conv 3x3 64-64, 1x1 -256, 56x56",
        two_convolutions(dtype, 56),
        [image, w1, w2],
        np.empty((56 * 56, 256), image.dtype),
        lambda: functional.conv2d(functional.relu(functional.conv2d(channels, three, padding=1)), one),
        2.0 * 56 * 56 * 64 * (576 + 256),
    )
    (a, ta), (b, tb) = data(1024, 1024), data(1024, 1024)
    yield Case(
        "gemm in a grid 1024x1024x1024",
        grid_gemm(128, dtype),
        [a, b],
        np.empty((1024, 1024), np.float32),
        lambda: functional.linear(ta, tb),
        2.0 * 1024**3,
    )


def as_numpy(tensor: Any) -> np.ndarray:
    """A tensor's memory as numpy sees it."""
    import ml_dtypes
    import torch

    if tensor.dtype is torch.bfloat16:
        return np.array(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
    return np.array(tensor.numpy())


def close(case: Case, dtype: str) -> None:
    """Refuses to time what is wrong."""
    theirs = case.peer().float().numpy()
    if "conv" in case.name:
        theirs = theirs[0].transpose(1, 2, 0)
    theirs = theirs.reshape(case.out.shape).astype(np.float64)
    mine = case.out.astype(np.float64)
    error = np.abs(mine - theirs).max() / np.abs(theirs).max()
    assert error < (1e-5 if dtype == "f32" else 2e-2), (case.name, error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.4, help="for each side of each round")
    parser.add_argument("--only", default="")
    parser.add_argument("--types", default="f32,bf16")
    options = parser.parse_args()
    os.environ["TILEWRIGHT_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import warnings

    import torch

    import tilewright
    from tilewright.errors import FastPathLost
    from tilewright.targets.cpu.host import host_machine

    torch.set_num_threads(options.threads)
    torch.set_grad_enabled(False)
    warnings.simplefilter("error", FastPathLost)
    print(f"{host_machine().name}, {options.threads} threads; microseconds\n")
    print("| work | type | Tilewright | PyTorch | ratio | GF/s |\n|---|---|---|---|---|---|")
    for dtype in options.types.split(","):
        for case in cases(dtype):
            if options.only not in case.name:
                continue
            ours = tilewright.compile(case.kernel).bind(*case.inputs, case.out)
            ours()
            close(case, dtype)
            pairs = [(shortest(ours, options.seconds), shortest(case.peer, options.seconds)) for _ in range(ROUNDS)]
            mine, other = (1e6 * min(times) for times in zip(*pairs, strict=True))
            rate = case.flops / mine / 1e3
            print(f"| {case.name} | {dtype} | {mine:.0f} | {other:.0f} | {other / mine:.2f} | {rate:.0f} |", flush=True)


if __name__ == "__main__":
    main()
