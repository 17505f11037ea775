"""How fast tile programs are built, verified, printed and read; how long the convolution kernel takes to trace.

python benchmarks/tile_programs.py
"""

from __future__ import annotations

from time import perf_counter

import numpy as np
from rich.console import Console
from rich.table import Table

import tilewright
from tilewright.algebra import symbol
from tilewright.ir import dtypes
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block, MemoryType, Op, Program, TileType, Value, building
from tilewright.ir.tile import TILE, parse_tile
from tilewright.ir.verifier import verify
from tilewright.wave.templates import get_igemm_conv2d

COUNT = 20_000
M, N = symbol("M", 0), symbol("N", 0)


def raw(count: int) -> Block:
    """Operations made directly, as passes do: the types are known."""
    tile = TileType(dtypes.f32, (M, N))
    value = Value(tile)
    block = Block((value,))
    ops = block.ops
    spec = TILE.ops["neg"]
    with building():
        for _ in range(count):
            result = Value(tile)
            ops.append(Op(spec, (value,), {}, (result,)))
            value = result
    return block


def built(count: int) -> Program:
    """Operations made by the builder, which infers and checks types."""
    memory = Value(MemoryType(dtypes.f32, (M, N)), "x")
    builder = Builder(TILE)
    body = Block()
    builder.blocks.append(body)
    value = builder.emit("read", (memory,), {}, (TileType(dtypes.f32, (M, N)),)).result
    with building():
        for _ in range(count // 2):
            value = builder.emit("add", (value, value)).result
            value = builder.emit("neg", (value,)).result
    builder.emit("write", (value, memory))
    return Program(TILE, "chain", (memory,), body)


def best(work: object, repeat: int = 3) -> float:
    """Seconds of the best of several runs."""
    times = []
    for _ in range(repeat):
        start = perf_counter()
        work()  # type: ignore[operator]
        times.append(perf_counter() - start)
    return min(times)


def main() -> None:
    """Prints the tables."""
    console = Console()
    program = built(COUNT)
    text = str(program)
    table = Table("step", "operations a second", title=f"{COUNT:,} tile operations")
    for name, work in (
        ("make nodes", lambda: raw(COUNT)),
        ("build with inference and checks", lambda: built(COUNT)),
        ("verify", lambda: verify(program)),
        ("print", lambda: str(program)),
        ("parse", lambda: parse_tile(text)),
    ):
        table.add_row(name, f"{COUNT / best(work):,.0f}")
    console.print(table)
    conv, symbols = get_igemm_conv2d("nhwc_hwcf", 1, 56, 56, 64, 3, 3, 64, 1, "f16", "f32", padding=1)
    run = tilewright.compile(conv, symbols, target="executor")
    x, w = np.ones((1, 56, 56, 64), np.float16), np.ones((3, 3, 64, 64), np.float16)
    console.print(f"trace and verify the convolution: {1000 * best(conv.trace):.2f} ms (budget 10)")
    console.print(f"execute it, 56x56x64 to 64, 3x3: {best(lambda: run(x, w)):.2f} s (budget 1)")


if __name__ == "__main__":
    main()
