"""How long a convolution takes from Python to what can be called, with an empty cache.

    python benchmarks/cold_compile.py [LIST] [--dt f32,bf16] [--mb 1] [--rounds 3]

Traced, recognised, planned, written, lowered and generated: the main program and the one that packs the weights. The
imports and the start of the helper process that generates code are not counted: a first convolution pays for them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

from tilewright.cli.workload import Workload, read_types
from tilewright.problems import ConvProblem, parse_conv, shape_lists


def compile_time(problem: ConvProblem, dt: str) -> float:
    """Seconds that one compilation takes."""
    work = Workload(problem, read_types(dt))
    before = time.perf_counter()
    work.compiled()
    return time.perf_counter() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", nargs="?", default="resnet_50", choices=list(shape_lists()))
    parser.add_argument("--dt", default="f32,bf16")
    parser.add_argument("--mb", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    os.environ["TILEWRIGHT_CACHE_DIR"] = "off"
    compile_time(parse_conv("mb1ic8ih5oc8kh3"), "f32")
    from dataclasses import replace

    for dt in options.dt.split(","):
        least, every = {}, []
        for p in shape_lists()[options.list]:
            problem = replace(p, mb=options.mb)
            taken = [compile_time(problem, dt) * 1e3 for _ in range(options.rounds)]
            least[str(problem)] = min(taken)
            every += taken
        for name, ms in sorted(least.items(), key=lambda item: -item[1]):
            print(f"{ms:6.0f} ms  {name}")
        print(
            f"{dt}: median of the shortest {statistics.median(least.values()):.0f} ms, longest "
            f"{max(least.values()):.0f};"
            f" of all samples {statistics.median(every):.0f} and {max(every):.0f}"
        )


if __name__ == "__main__":
    main()
