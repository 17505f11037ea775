"""How long block programs take to read, bind, check and interpret.

python benchmarks/levels.py
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

from tilewright.analysis.distribution import _placement
from tilewright.check.block import check
from tilewright.compiler.device import machine_of
from tilewright.compiler.text import compile_text
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block

FOLDER = Path(__file__).parents[1] / "examples" / "block"
BF16 = np.dtype(ml_dtypes.bfloat16)


def best(work: Callable[[], Any], repeat: int = 5) -> float:
    """Milliseconds of the best of several runs."""
    times = []
    for _ in range(repeat):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return 1000 * min(times)


def first_check(program: Any) -> None:
    """A check that knows no distribution yet, as in a new process."""
    _placement.cache_clear()
    check(program, machine_of(program))


def levels() -> Table:
    """Every example program: text to program, parameters to numbers, and the checks."""
    table = Table("program", "lines", "read ms", "print ms", "bind ms", "first check ms", "check ms")
    for path in sorted(FOLDER.glob("*.block")):
        text = path.read_text()
        program = parse_block(text)
        bound = bind(program)
        machine = machine_of(bound)
        table.add_row(
            path.stem,
            str(text.count("\n")),
            f"{best(lambda text=text: parse_block(text)):.2f}",
            f"{best(lambda program=program: str(program)):.2f}",
            f"{best(lambda program=program: bind(program)):.2f}",
            f"{best(lambda bound=bound: first_check(bound)):.2f}",
            f"{best(lambda bound=bound, machine=machine: check(bound, machine)):.2f}",
        )
    return table


def interpreted() -> Table:
    """What interpreting takes: the convolution on AMX, 64 to 64 channels at 14 x 14, and products on Hopper."""
    random = np.random.default_rng(0)

    def data(*shape: int) -> Any:
        return random.integers(-1, 2, shape).astype(BF16)

    table = Table("program", "parameters", "seconds")
    for name, params, arguments in (
        ("conv_amx", {"H": 14, "W": 14, "STRIP": 14}, (data(1, 14, 14, 64), data(2, 1, 3, 3, 2, 2, 16, 16, 2))),
        (
            "conv_amx",
            {"H": 14, "W": 14, "STRIP": 7, "CHUNK": 32, "SPLIT": 2},
            (data(1, 14, 14, 64), data(2, 2, 3, 3, 1, 2, 16, 16, 2)),
        ),
        ("gemm_hopper", {}, (data(256, 256), data(256, 256))),
        ("gemm_hopper_pingpong", {}, (data(256, 256), data(256, 256))),
        ("conv_hopper", {}, (data(2, 14, 14, 64), data(64, 3, 3, 64))),
        ("conv_hopper_halo", {}, (data(4, 7, 7, 128), data(64, 3, 3, 128))),
        ("attention_hopper", {}, (data(2, 128, 64), data(2, 192, 64), data(2, 192, 64))),
    ):
        program = compile_text((FOLDER / f"{name}.block").read_text(), params=params, target="interpreter")
        took = best(lambda program=program, arguments=arguments: program(*arguments), 3) / 1000
        table.add_row(name, " ".join(f"{k}={v}" for k, v in params.items()), f"{took:.3f}")
    return table


if __name__ == "__main__":
    console = Console()
    console.print(levels())
    console.print(interpreted())
