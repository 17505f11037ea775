"""How far the vector mathematics is from the exact values: all f32 numbers, samples of f64, special values.

    python benchmarks/mathematics.py                            # all 2^32 f32 values a function, 10^6 of f64: hours
    python benchmarks/mathematics.py --step 101                 # every 101st f32 value: minutes
    python benchmarks/mathematics.py --function exp --lanes 16  # one function
    python benchmarks/mathematics.py --plain                    # as on a CPU without fused multiply-add

Errors are in units in the last place, against f64 for f32 and, for f64, long double where that is wider, else mpmath.
`powf` and `div` take random pairs. A function fails above two units.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf, nan
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tilewright.ir.formula import BINARY
from tilewright.problems.mathematics import FUNCTIONS, CompiledFunction, by_elements, error, reference

BOUND = 2.0
CHUNK = 1 << 20
Array = Any
WHERE = {
    "exp": (-746, 710), "exp2": (-1076, 1025), "log": (0, 4), "log2": (0, 4), "log10": (0, 4), "sin": (-99, 99),
    "cos": (-99, 99), "tanh": (-20, 20), "erf": (-6, 6), "rsqrt": (0, 99), "sqrt": (0, 99), "sigmoid": (-745, 40),
    "sinh": (-711, 711), "cosh": (-711, 711), "cbrt": (-99, 99), "expm1": (-40, 710), "log1p": (-1, 4),
}  # fmt: skip
"""Where a function changes: a third of the f64 samples is from there."""
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 3.0, -3.0, inf, -inf, nan, 1e-45, -1e-45, 3e38, -3e38, 1e300, 5e-324)


def every(step: int, start: int) -> tuple[Array, ...]:
    """Every `step`th f32 value, from that one on."""
    return (np.arange(start, min(start + step * CHUNK, 1 << 32), step, dtype=np.uint32).view(np.float32),)


def sample(name: str, kind: Any, count: int, start: int) -> tuple[Array, ...]:
    """Random arguments: of all magnitudes, of where the function changes, near 1, near multiples of pi/2."""
    rng, n = np.random.default_rng([11, start]), min(CHUNK, count - start)
    word = {np.float32: np.uint32, np.float64: np.uint64}[kind]
    codes = [rng.integers(0, 1 << 8 * kind().itemsize, n, dtype=word).view(kind) for _ in range(1 + (name in BINARY))]
    near_one = 1 + rng.uniform(-1, 1, n) * 2.0 ** rng.integers(-40, 0, n)
    kinds = rng.integers(0, 4, n)
    if name in BINARY:
        values = [
            rng.choice([-1, 1], n) * np.exp(rng.uniform(-80, 80, n)),
            np.exp(rng.uniform(-80, 80, n)),
            near_one,
        ]
        others = [np.round(rng.uniform(-9, 9, n)), rng.uniform(-9, 9, n), 2.0 ** rng.uniform(-10, 45, n)]
        return tuple(np.choose(kinds, [c, *more]).astype(kind) for c, more in zip(codes, (values, others), strict=True))
    inside = rng.uniform(*WHERE[name], n)
    turns = rng.integers(1, 1 << 24, n) * (np.pi / 2)
    return (np.choose(kinds, [codes[0], inside, near_one, turns]).astype(kind),)


def special(compiled: CompiledFunction, name: str) -> str:
    """Whether zeros, infinities and what is no number come out as they should, signs of zeros too."""
    with np.errstate(all="ignore"):
        x = np.array(SPECIAL).astype(compiled.type)
    arrays = [a.ravel() for a in np.meshgrid(x, x)] if name in BINARY else [x]
    found, exact = compiled(*arrays), np.asarray(reference(name, *arrays))
    exact = exact[0] if exact.ndim > 1 else exact
    with np.errstate(all="ignore"):
        plain = exact.astype(compiled.type)
    certain = ~np.isfinite(plain) | (plain == 0) | (plain == exact) & (np.abs(plain) == 1)
    right = (found == plain) & (np.signbit(found) == np.signbit(plain)) | np.isnan(found) & np.isnan(plain)
    wrong = np.flatnonzero(certain & ~right)
    return "right" if not wrong.size else f"wrong at {[float(a[wrong[0]]) for a in arrays]}"


def largest(
    compiled: CompiledFunction, name: str, make: Callable[[int], tuple[Array, ...]], start: int
) -> tuple[int, float, str]:
    """How many arguments there are in a chunk, the largest error, and where it is."""
    with np.errstate(all="ignore"):
        arrays = make(start)
    away = error(compiled(*arrays), reference(name, *arrays))
    k = int(away.argmax())
    return away.size, float(away[k]), ", ".join(f"{float(a[k])!r}" for a in arrays)


def main(
    function: Annotated[list[str] | None, typer.Option(help="these functions only")] = None,
    step: Annotated[int, typer.Option(help="take every STEPth f32 value")] = 1,
    f64: Annotated[int, typer.Option(help="how many f64 samples; 0: none")] = 1_000_000,
    lanes: Annotated[int, typer.Option(help="lanes of a vector")] = 8,
    plain: Annotated[bool, typer.Option(help="without fused multiply-add")] = False,
) -> None:
    names = function or list(FUNCTIONS)
    table = Table("function", "type", "values", "largest error", "at", "special values")
    failed = False
    with ThreadPoolExecutor(os.cpu_count()) as threads, Progress(console=Console(stderr=True)) as progress:
        for name in names:
            for dtype in ("f32", *(("f64",) if f64 else ())):
                compiled = CompiledFunction(name, dtype, lanes, not plain)
                if dtype == "f64" or name in BINARY:
                    total = f64 if dtype == "f64" else (1 << 32) // step // 16
                    total = min(total, 100_000) if by_elements(name, dtype) else total
                    starts = range(0, total, CHUNK)
                    make = partial(sample, name, {"f32": np.float32, "f64": np.float64}[dtype], total)
                else:
                    total, starts, make = -(-(1 << 32) // step), range(0, 1 << 32, step * CHUNK), partial(every, step)
                bar = progress.add_task(f"{name} {dtype}", total=total)
                worst, at, done = -1.0, "", 0
                for size, away, where in threads.map(partial(largest, compiled, name, make), starts):
                    worst, at = max((worst, at), (away, where))
                    done += size
                    progress.update(bar, completed=done)
                values = special(compiled, name)
                failed |= worst > BOUND or values != "right"
                table.add_row(name, dtype, f"{done:,}", f"{worst:.3f}", at, values)
    Console(width=120).print(table)
    raise typer.Exit(int(failed))


if __name__ == "__main__":
    typer.run(main)
