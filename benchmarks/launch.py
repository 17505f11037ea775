"""What a launch costs above its kernel, and how long the AMX program takes from text to callable.

    python benchmarks/launch.py            # both
    python benchmarks/launch.py launch
    python benchmarks/launch.py compile 15 # so many samples of each key

A launch is timed on a program that does next to nothing, beside a plain call of its machine code. Compiles are without
a cache, each of another width of the image, after LLVM is loaded and the helper has started; a probe of the machine's
speed before and after each tells the samples apart that others disturbed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

os.environ["TILEWRIGHT_CACHE_DIR"] = "off"

import ctypes

import numpy as np
from rich.console import Console
from rich.table import Table

import tilewright
from tilewright.compiler import device, text
from tilewright.runtime.codegen import HELPER
from tilewright.targets.cpu import native
from tilewright.targets.cpu.pool import pool

CONV = Path(__file__).parent.parent / "examples" / "block" / "conv_amx.block"
KEYS = {
    "a": {"H": 56, "W": 56, "C": 64, "F": 64, "STRIP": 28, "CHUNK": 64},
    "b": {"H": 28, "W": 28, "C": 128, "F": 128, "STRIP": 14, "CHUNK": 128, "STREAM_X": 0, "STREAM_W": 1},
    "c": {"H": 14, "W": 14, "C": 256, "F": 256, "STRIP": 14, "CHUNK": 32, "SPLIT": 2, "STREAM_X": 0, "STREAM_W": 1},
}
LITTLE = """block little(%x: in global f32 (1, 1), %y: out global f32 (1, 1))
{
  tasks m in 0..1 {
    %from = view %x (j 1) -> [m, j]
    %to = view %y (j 1) -> [m, j]
    copy %from -> %to
  }
}
"""
BUDGET_US, BUDGET_MS = 3.0, 120.0


def per_call(run: Callable[[], Any], calls: int = 500, samples: int = 300) -> tuple[float, float]:
    """Seconds of a call: the shortest and the median of samples of many calls."""
    found = []
    for _ in range(samples):
        before = perf_counter()
        for _ in range(calls):
            run()
        found.append((perf_counter() - before) / calls)
    return min(found), median(found)


def launches() -> Table:
    """A row for each way to call a program that does next to nothing."""
    x, y = np.ones((1, 1), np.float32), np.zeros((1, 1), np.float32)
    bound = {workers: tilewright.compile_text(LITTLE, "cpu", workers=workers).bind(x, y) for workers in (1, None)}
    kernel, _, _, block, _ = bound[1]._kept
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(kernel.entry)
    plain = per_call(partial(call, ctypes.c_void_p(block.ctypes.data), ctypes.c_int64(0), ctypes.c_int64(1)))
    table = Table(title=f"a launch, microseconds (at most {BUDGET_US:.0f} above the kernel)")
    for name in ("", "minimum", "median", "above a plain call"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row("the machine code, called by ctypes", f"{plain[0] * 1e6:.2f}", f"{plain[1] * 1e6:.2f}", "")
    for workers, launch in bound.items():
        found = per_call(launch)
        name = "one worker" if workers == 1 else f"{pool().workers} workers"
        above = [f"{(a - b) * 1e6:.2f}" for a, b in zip(found, plain, strict=True)]
        table.add_row(f"bound, {name}", f"{found[0] * 1e6:.2f}", f"{found[1] * 1e6:.2f}", " / ".join(above))
    return table


PARTS = (
    ("parse", text, ("parse_programs",)),
    ("bind", device, ("verify", "bind")),
    ("check", device, ("check",)),
    ("lower", native, ("lower",)),
    ("emit", native, ("emit",)),
    ("generate", HELPER, ("ask",)),
    ("link", native, ("link",)),
)


class Parts:
    """How long each part of a compile takes."""

    def __init__(self) -> None:
        self.took = dict.fromkeys((name for name, _, _ in PARTS), 0.0)
        self.inside = False
        for name, place, functions in PARTS:
            for function in functions:
                setattr(place, function, self.timed(name, getattr(place, function)))

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, its time added up; calls within one that is timed are part of it."""

        def run(*args: Any, **options: Any) -> Any:
            if self.inside:
                return function(*args, **options)
            self.inside, before = True, perf_counter()
            try:
                return function(*args, **options)
            finally:
                self.inside = False
                self.took[name] += perf_counter() - before

        return run

    def compile(self, text: str, params: dict[str, int]) -> dict[str, float]:
        """The milliseconds of each part of one compile, of all, and of the slower of two probes around it."""
        self.took = dict.fromkeys(self.took, 0.0)
        slower = probe()
        before = perf_counter()
        tilewright.compile_text(text, "cpu", params)
        total = perf_counter() - before
        slower = max(slower, probe())
        rest = total - sum(self.took.values())
        return {name: 1e3 * took for name, took in {**self.took, "rest": rest, "all": total, "probe": slower}.items()}


def probe() -> float:
    """Seconds of a fixed piece of work: how fast the machine is just now."""
    before = perf_counter()
    sum(i * i for i in range(20000))
    return perf_counter() - before


def compiles(samples: int) -> Table:
    """A row for each key: the medians of the samples that were taken while the machine was undisturbed."""
    text = CONV.read_text()
    HELPER.start()
    tilewright.compile_text(LITTLE, "cpu")  # loads LLVM, and starts the linker
    parts = Parts()
    table = Table(title=f"from text to callable, milliseconds, medians (at most {BUDGET_MS:.0f})")
    table.add_column("key")
    names = [name for name, _, _ in PARTS] + ["rest", "all"]
    for name in (*names, "undisturbed", "all samples"):
        table.add_column(name, justify="right")
    steps = [step - samples // 2 for step in range(samples)]  # each another width, around that of the key
    found = {
        key: [parts.compile(text, {**params, "W": params["W"] + step}) for step in steps]
        for key, params in KEYS.items()
    }
    best = min(one["probe"] for all_ in found.values() for one in all_)
    for key, all_ in found.items():
        clean = [one for one in all_ if one["probe"] < 1.25 * best]
        row = [f"{median(one[name] for one in clean):.1f}" if clean else "-" for name in names]
        table.add_row(key, *row, f"{len(clean)} of {samples}", f"{median(one['all'] for one in all_):.1f}")
    return table


def main() -> None:
    asked = sys.argv[1:]
    console = Console(width=140)
    if not asked or asked[0] == "launch":
        console.print(launches())
    if not asked or asked[0] == "compile":
        console.print(compiles(int(asked[1]) if len(asked) > 1 else 11))


if __name__ == "__main__":
    main()
