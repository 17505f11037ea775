"""What a launch on a GPU costs the host, and how long block text takes to a loaded kernel, with an empty cache.

`python benchmarks/gpu_launch.py` prints the time of a call of a bound kernel, of a call with tensors that were never
seen before, outputs given and outputs made, of a tile kernel's call, the median of text to loaded kernel over the
examples, with its parts, and the medians of tile program to loaded kernel over the problems of gpu.py. It needs PyTorch
with CUDA and the extra `gpu`. The driver's own cache is off.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["TILEWRIGHT_CACHE_DIR"] = "off"
os.environ["CUDA_CACHE_DISABLE"] = "1"

import torch

import tilewright
from tilewright import compile_text, kernels
from tilewright.compiler.native import kernel_for

EXAMPLES = Path(__file__).parents[1] / "examples" / "block"
BOUND_US, FRESH_US, COLD_MS = 4.0, 15.0, 400.0
PLANNED = [("products and convolutions", 500.0, ("gemm", "conv")), ("attention and rows", 600.0, ("attention",))]
"""What is planned, milliseconds at most, and the problems of gpu.py that are."""
COLD: list[tuple[str, dict[str, int]]] = [
    ("gemm_hopper", {"M": 4096, "N": 4096, "K": 4096, "BN": 256}),
    ("gemm_hopper", {"M": 2048, "N": 2048, "K": 2048}),
    ("gemm_hopper_pingpong", {"M": 2048, "N": 2048, "K": 2048, "BN": 256}),
    ("conv_hopper", {"N": 32, "H": 28, "W": 28, "C": 128, "F": 128, "BM": 192, "BN": 128, "WG": 3}),
    ("conv_hopper", {"N": 32, "H": 14, "W": 14, "C": 256, "F": 256, "BM": 192, "BN": 64, "WG": 3}),
    ("conv_hopper_halo", {"N": 32, "C": 512, "F": 512}),
    ("conv_hopper_patches", {"N": 32, "H": 56, "W": 56}),
    ("attention_hopper", {"B": 64, "T": 4096, "U": 4096}),
    ("flash_hopper", {"B": 64, "T": 4096, "U": 4096, "BK": 128}),
    ("flash_hopper", {"B": 64, "T": 4096, "U": 4096, "BK": 128, "CAUSAL": 1, "GROUP": 16}),
]


RUN = 200
"""Calls between two waits for the device: few enough that no queue fills."""


def microseconds(calls: Iterable[Callable[[], Any]], at_once: int = RUN) -> tuple[float, float]:
    """(shortest, median) host time of a call, so many between two waits."""
    found, run = [], []
    for call in calls:
        run.append(call)
        if len(run) == at_once:
            torch.cuda.synchronize()
            before = time.perf_counter()
            for c in run:
                c()
            found.append((time.perf_counter() - before) / len(run) * 1e6)
            run = []
    return min(found), statistics.median(found)


def tensors() -> list[Any]:
    """A, B and the result of a small product."""
    a, b = (torch.randn(128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return [a, b, torch.empty(128, 128, device="cuda", dtype=torch.bfloat16)]


def chained(run: Any) -> tuple[float, float]:
    """(shortest, median) host time of a launch among many that one call of native code makes."""
    every = [run._bind_arrays(run._arguments(tuple(tensors()), None, {})[0], None)[0] for _ in range(RUN)]
    for one, following in pairwise(every):
        one._record.set(next=following._record)
    least, middle = microseconds([every[0]] * 40, 1)
    return least / RUN, middle / RUN


def launches() -> None:
    """Host time of launches of a small product, from block text and from a tile kernel."""
    run = compile_text((EXAMPLES / "gemm_hopper.block").read_text(), "gpu", {"M": 128, "N": 128, "K": 64})
    tile = tilewright.compile(kernels.gemm("nt", "bf16", "bf16"), target="gpu")
    bound = run.bind(*tensors())
    fresh = [tensors() for _ in range(10 * RUN)]
    for every in (run, tile):
        every(*fresh[0]), every(*fresh[0][:2])
    report("a launch by native code, the driver's own part", *chained(run), None)
    report("a call of a bound kernel", *microseconds([bound] * (40 * RUN)), BOUND_US)
    report("a call with fresh tensors", *microseconds([lambda t=t: run(*t) for t in fresh]), FRESH_US)
    report("a call that makes its output", *microseconds([lambda t=t: run(*t[:2]) for t in fresh]), FRESH_US)
    report("a tile kernel with fresh tensors", *microseconds([lambda t=t: tile(*t) for t in fresh]), FRESH_US)
    kept = [run(*fresh[-1][:2]), fresh[-1][2], tile(*fresh[-1][:2])]
    wanted = torch.mm(fresh[-1][0], fresh[-1][1].t())
    exact = all(bool((found == wanted).all()) for found in kept)
    print(f"the last results are {'those' if exact else 'NOT those'} of torch.mm", flush=True)
    report("torch.mm with out=", *microseconds([lambda t=t: torch.mm(t[0], t[1].t(), out=t[2]) for t in fresh]), None)
    report("torch.empty", *microseconds([lambda: torch.empty_like(wanted)] * (10 * RUN)), None)


def report(what: str, least: float, middle: float, most: float | None) -> None:
    """One line; the least of all runs counts: it is host time, which no clock of the GPU changes."""
    judged = "" if most is None else f", at most {most:.0f}: {'ok' if least <= most else 'TOO SLOW'}"
    print(f"{what}: {least:.2f} us at least, {middle:.2f} us median{judged}", flush=True)


def cold() -> None:
    """Text to loaded kernel; LLVM's process is started, and nothing else is known."""
    compile_text((EXAMPLES / "gemm_hopper.block").read_text(), "gpu", {"M": 128, "N": 128, "K": 64})
    totals = []
    for name, params in COLD:
        text = (EXAMPLES / f"{name}.block").read_text()
        before = time.perf_counter()
        made = compile_text(text, "gpu:hopper", params)
        took = (time.perf_counter() - before) * 1e3
        totals.append(took)
        again = type(made._kernel).__new__(type(made._kernel))
        again.program, again.target, again._loaded = made._kernel.program, made._kernel.target, {}
        parts = []
        for part in ("loop", "emitted", "assembly", "on_device"):
            before = time.perf_counter()
            found = getattr(again, part)
            if part == "on_device":
                found(0)
            parts.append(f"{part} {(time.perf_counter() - before) * 1e3:.0f}")
        print(f"{name} {params}: {took:.0f} ms ({', '.join(parts)})", flush=True)
    middle = statistics.median(totals)
    judged = "ok" if middle <= COLD_MS else "TOO SLOW"
    print(
        f"text to loaded kernel: median {middle:.0f} ms, at most {COLD_MS:.0f}: {judged}; longest {max(totals):.0f} ms"
    )


def planned() -> None:
    """Tile program to loaded kernel: traced, planned, lowered, assembled, ready to be launched."""
    import gpu_rowwise as rows

    import gpu

    def seconds(kernel: Any, sizes: dict[str, int], arrays: list[Any]) -> float:
        before = time.perf_counter()
        made = kernel_for(kernel, sizes, target="gpu")
        launch = made.bind(dict(zip([a.name for a in made.module.host.args], arrays, strict=True)))
        took = time.perf_counter() - before
        launch()
        return took

    for name, most, kinds in PLANNED:
        totals = [seconds(w.kernel, w.sizes, w.tensors()[0]) for kind in kinds for w in gpu.WORKS[kind][:13]]
        if name == "attention and rows":
            for kind, (kernel, _) in rows.KERNELS.items():
                for dtype, torch_type in rows.TYPES.items():
                    given = rows.tensors(kind, torch_type, 8192, 8192)[0]
                    totals.append(seconds(kernel(dtype), rows.sizes_of(kind, 8192, 8192), given))
        middle = statistics.median(totals) * 1e3
        judged = "ok" if middle <= most else "TOO SLOW"
        print(f"{name}, tile program to loaded kernel: median of {len(totals)}: {middle:.0f} ms, at most {most:.0f}: "
              f"{judged}; longest {max(totals) * 1e3:.0f} ms", flush=True)  # fmt: skip


if __name__ == "__main__":
    launches()
    cold()
    planned()
