"""Whether the block level is what is compiled: kernels compiled, then compiled again from the block text they print.

    python benchmarks/identical_objects.py N [--seed S]

Random tile programs, convolutions and matrix products, under their default plan; the object code of both ways must be
the same, byte by byte. The exit code is 1 if one differs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import compile, compile_text
from tilewright.cli.workload import Workload
from tilewright.problems import MatmulProblem

HERE = Path(__file__).parent


def random_kernel(number: int, seed: int = 0) -> tuple[str, Callable[[], tuple[bytes, str]]]:
    """(name, what compiles it and gives its object code and block text)."""
    sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "ir"), str(HERE.parent / "tests" / "lower")]
    from random_convolutions import random_workload

    rng = np.random.default_rng((seed, number))
    if number % 3 == 0:
        return _tile_program(number, seed)
    if number % 3 == 1:
        work = random_workload(number, seed)
    else:
        m, k, n = (int(x) for x in rng.integers(1, 100, 3))
        kind = str(rng.choice(["f32", "bf16", "s8"]))
        work = Workload(MatmulProblem((m, k), (k, n)), (kind, kind, "s32" if kind == "s8" else kind))

    def compiled() -> tuple[bytes, str]:
        kernel = work.compiled()
        return kernel.object_code, kernel.text("block")

    return f"{work.problem} {':'.join(work.types)}", compiled


def _tile_program(number: int, seed: int) -> tuple[str, Callable[[], tuple[bytes, str]]]:
    """A random tile program, as the tests run them against the executor."""
    from tile_fuzz import TileFuzz
    from wide_fuzz import WideFuzz

    program = (TileFuzz if number % 2 else WideFuzz)(1000 * seed + number).program()
    sizes = {"M": 5, "N": 7, "K": 4} if number % 4 < 2 else {"M": 6, "N": 40, "K": 9}

    def compiled() -> tuple[bytes, str]:
        run: Any = compile(program, target="cpu")
        text = run.text("block", sizes)
        return run.object_code, text

    return f"tile program {number}", compiled


def differs(number: int, seed: int = 0) -> str | None:
    """What is wrong with a kernel, if anything."""
    name, compiled = random_kernel(number, seed)
    code, text = compiled()
    again = compile_text(text, "cpu")
    if again.text("block") != text:
        return f"number {number} of seed {seed}, {name}: its text is another when it is read"
    return None if again.object_code == code else f"number {number} of seed {seed}, {name}: its object code differs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ["TILEWRIGHT_CACHE_DIR"] = "off"  # the same text must be compiled twice
    from rich.progress import track

    wrong = []
    for number in track(range(options.count), "kernels", disable=not sys.stderr.isatty()):
        found = differs(number, options.seed)
        if found is not None:
            wrong.append(found)
    print(f"{options.count} kernels, {len(wrong)} differ")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
