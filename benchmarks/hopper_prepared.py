"""Kernels made here and run elsewhere: on a machine with a GPU, PyTorch and cuda-bindings.

`python benchmarks/hopper_prepared.py make FOLDER` writes PTX, what a launch needs, arguments and exact results;
`python benchmarks/hopper_prepared.py run FOLDER` runs each kernel in a process of its own, so that one that hangs or
faults does not lose the rest, fifty times over, compares exactly, and times those that a library has too.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
EXACT: list[tuple[str, dict[str, int]]] = [
    ("gemm_hopper", {"M": 256, "N": 256, "K": 256}),
    ("gemm_hopper", {"M": 200, "N": 136, "K": 200}),
    ("gemm_hopper", {"M": 136, "N": 264, "K": 72, "BM": 256, "BN": 64, "STAGES": 2}),
    ("gemm_hopper", {"M": 200, "N": 136, "K": 136, "BM": 192, "WG": 3, "BN": 64}),
    ("gemm_hopper_pingpong", {"M": 200, "N": 136, "K": 136}),
    ("conv_hopper", {"N": 2, "H": 9, "W": 7, "STRIDE": 2}),
    ("conv_hopper", {"N": 3, "H": 7, "W": 5, "R": 3, "S": 2, "F": 72, "C": 128}),
    ("conv_hopper_halo", {"N": 3, "H": 5, "W": 4, "C": 128, "F": 128}),
    ("conv_hopper_patches", {"N": 3, "H": 21, "W": 40, "STAGES": 1}),
    ("attention_hopper", {"B": 3, "T": 192, "U": 64}),
    ("flash_hopper", {"CAUSAL": 1, "BK": 128}),
    ("flash_hopper", {"D": 64, "WG": 3, "T": 200, "BK": 128}),
    ("flash_hopper", {"T": 192, "U": 192, "CAUSAL": 1, "GROUP": 2}),
]
SQUARE = {n: {"M": n, "N": n, "K": n} for n in (2048, 4096, 8192)}
ATTENTION = {"B": 64, "T": 4096, "U": 4096, "BK": 128}
TIMED: list[tuple[str, dict[str, int]]] = [
    ("gemm_hopper", SQUARE[2048]),
    ("gemm_hopper", {**SQUARE[4096], "BN": 256}),
    ("gemm_hopper_pingpong", {**SQUARE[4096], "BM": 128, "BN": 128, "STAGES": 5}),
    ("gemm_hopper", {**SQUARE[8192], "BN": 256}),
    ("conv_hopper", {"N": 32, "H": 28, "W": 28, "C": 128, "F": 128, "BM": 192, "BN": 128, "WG": 3}),
    ("conv_hopper", {"N": 32, "H": 14, "W": 14, "C": 256, "F": 256, "BM": 192, "BN": 64, "WG": 1, "STAGES": 6}),
    ("conv_hopper_patches", {"N": 32, "H": 56, "W": 56}),
    ("conv_hopper_halo", {"N": 32, "C": 512, "F": 512}),
    ("flash_hopper", ATTENTION),
    ("flash_hopper", {**ATTENTION, "CAUSAL": 1, "GROUP": 16}),
    ("flash_hopper", {**ATTENTION, "D": 64, "WG": 3}),
]


# -- here ------------------------------------------------------------------------------------------------------


def make(folder: Path) -> None:
    """Writes one file a kernel."""
    from tilewright import compile_text

    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, params) in enumerate([*EXACT, *TIMED]):
        text = (ROOT / "examples" / "block" / f"{name}.block").read_text()
        made = compile_text(text, "gpu:hopper", params)
        kernel = made._kernel
        arguments = [
            (a.name, tuple(int(e) for e in a.type.shape), a.type.dtype.name, a.type.role) for a in made.main.args
        ]
        entry: dict[str, Any] = {
            "name": name,
            "params": params,
            "ptx": kernel.assembly,
            "emitted": replace(kernel.emitted, text=""),
            "arguments": arguments,
        }
        if number < len(EXACT):
            chance = np.random.default_rng(5)
            arrays = [
                (chance.integers(-3, 4, shape) if role == "in" else np.zeros(shape)).astype(a.type.dtype.numpy)
                for (_, shape, _, role), a in zip(arguments, made.main.args, strict=True)
            ]
            compile_text(text, "interpreter", params)(*arrays)
            entry["arrays"] = [a.astype(np.float32) for a in arrays]
        (folder / f"{number:02}.pickle").write_bytes(pickle.dumps(entry))
        print(f"{number:02} {name} {params}", flush=True)


# -- where the GPU is ------------------------------------------------------------------------------------------


def run(folder: Path) -> None:
    """Runs every kernel, each in its own process."""
    for path in sorted(folder.glob("*.pickle")):
        command = [sys.executable, __file__, "one", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            lines = (done.stdout + done.stderr).strip().splitlines()
            print(path.stem, lines[-1] if lines else f"exit code {done.returncode}", flush=True)
        except subprocess.TimeoutExpired:
            print(path.stem, "HANGS", flush=True)


def one(path: Path) -> None:
    """One kernel: compared where results are known, timed otherwise."""
    import torch

    from tilewright.runtime.device_arrays import array_of
    from tilewright.targets.nvidia import driver
    from tilewright.targets.nvidia.launch import Launch

    entry = pickle.loads(path.read_bytes())
    what = f"{entry['name']} {entry['params']}"
    kinds = {"bf16": torch.bfloat16, "f32": torch.float32}
    tensors = []
    for place, (_, shape, kind, role) in enumerate(entry["arguments"]):
        if "arrays" in entry and role == "in":
            tensors.append(torch.from_numpy(entry["arrays"][place]).to("cuda", kinds[kind]))
        elif role == "in":
            tensors.append(torch.randn(shape, device="cuda", dtype=kinds[kind]))
        else:
            tensors.append(torch.full(shape, float("nan"), device="cuda", dtype=kinds[kind]))
    before = time.perf_counter()
    loaded = driver.Loaded(entry["ptx"], entry["emitted"])
    took = time.perf_counter() - before
    launch = Launch(loaded, entry["emitted"], [array_of(t, "argument") for t in tensors], None)
    if "arrays" in entry:
        print(f"{what}: {_compared(torch, entry, tensors, launch)}; loaded in {took:.2f} s")
        return
    theirs, ours, error = _timed(torch, entry, tensors, launch)
    print(f"{what}: theirs {theirs:.2f} us, ours {ours:.2f} us, ratio {theirs / ours:.3f}, error {error:.1e}")


def _compared(torch: Any, entry: dict[str, Any], tensors: list[Any], launch: Callable[[], None]) -> str:
    worst, first = 0.0, None
    for _ in range(50):
        for tensor, (_, _, _, role) in zip(tensors, entry["arguments"], strict=True):
            if role == "out":
                tensor.fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        found = [t.float().cpu().numpy() for t in tensors]
        worst = max(worst, *(float(np.abs(a - b).max()) for a, b in zip(found, entry["arrays"], strict=True)))
        first = found if first is None else first
        if worst != worst or any(not np.array_equal(a, b) for a, b in zip(found, first, strict=True)):
            return f"DIFFERS between runs, or holds NaN: {worst}"
    return "exact, 50 times" if worst == 0 else f"differs by {worst:.2e}, the same 50 times"


def _timed(torch: Any, entry: dict[str, Any], tensors: list[Any], launch: Callable[[], None]) -> tuple[float, ...]:
    sys.path.insert(0, str(Path(__file__).parent))
    from hopper import difference, microseconds
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.backends.cudnn.benchmark = True
    functional = torch.nn.functional

    def library() -> Any:
        if entry["name"].startswith("gemm"):
            return torch.mm(tensors[0], tensors[1].t())
        if entry["name"].startswith("conv"):
            x, w = (t.permute(0, 3, 1, 2) for t in tensors[:2])
            return functional.conv2d(x, w, padding=1).permute(0, 2, 3, 1)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            shaped = [t.unsqueeze(0) for t in tensors[:3]]
            causal = bool(entry["params"].get("CAUSAL"))
            return functional.scaled_dot_product_attention(*shaped, is_causal=causal)[0]

    theirs, ours = microseconds(library, launch)
    return theirs, ours, difference(tensors[-1], library())


if __name__ == "__main__":
    {"make": make, "run": run, "one": one}[sys.argv[1]](Path(sys.argv[2]))
