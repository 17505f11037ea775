"""Row operations beside PyTorch's, interleaved: `python benchmarks/rowwise.py [--threads N] [--seconds S]`.

Needs the extra `bench`. Each row is the shortest of many calls on both sides, arrays bound before.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from time import perf_counter

import numpy as np

SHAPES = [(4096, 1024), (1000, 777), (64, 65536), (8192, 256)]
ROUNDS = 4


def shortest(call: Callable[[], object], seconds: float) -> float:
    best, end = float("inf"), perf_counter() + seconds
    while perf_counter() < end:
        before = perf_counter()
        call()
        best = min(best, perf_counter() - before)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each side of each round")
    options = parser.parse_args()
    os.environ["TILEWRIGHT_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(options.threads)
    import torch

    import tilewright
    from tilewright.targets.cpu.host import host_machine

    torch.set_num_threads(options.threads)
    print(f"{host_machine().name}, {options.threads} threads; microseconds\n")
    print("| operation | shape | Tilewright | PyTorch | ratio |\n|---|---|---|---|---|")
    for shape in SHAPES:
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        image, gain = torch.from_numpy(x), np.ones(shape[1], np.float32)
        weight, kernels = torch.from_numpy(gain), tilewright.kernels
        y = np.empty_like(x)
        cases = {
            "softmax": (kernels.softmax("f32"), [x], lambda i=image: torch.softmax(i, -1)),
            "layer norm": (
                kernels.layer_norm("f32"),
                [x, gain, np.zeros_like(gain)],
                lambda i=image, w=weight: torch.nn.functional.layer_norm(i, w.shape, w, torch.zeros_like(w)),
            ),
        }
        for name, (kernel, inputs, theirs) in cases.items():
            ours = tilewright.compile(kernel).bind(*inputs, y)
            ours()
            assert np.allclose(y, theirs().numpy(), rtol=1e-4, atol=1e-6)
            pairs = [(shortest(ours, options.seconds), shortest(theirs, options.seconds)) for _ in range(ROUNDS)]
            mine, other = (1e6 * min(times) for times in zip(*pairs, strict=True))
            print(f"| {name} | {shape[0]}x{shape[1]} | {mine:.0f} | {other:.0f} | {other / mine:.2f} |", flush=True)


if __name__ == "__main__":
    main()
