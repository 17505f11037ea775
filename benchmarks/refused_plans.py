"""What the planner refused, pinned: each plan fails validation for its reason, or is slower than the chosen one.

    python benchmarks/refused_plans.py [LIST] [--dt f32,bf16] [--mb 1] [--samples 50]

The chosen and the refused plan run in turn; a sample is the shorter of two calls. A refused plan is slower where most
of its samples are. The exit code is 1 if one is not.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.cli.workload import Workload, read_types
from tilewright.errors import ArgumentError
from tilewright.problems import shape_lists


def sample(run: Callable[[], Any]) -> float:
    """Seconds of the shorter of two calls."""
    times = []
    for _ in range(2):
        before = time.perf_counter()
        run()
        times.append(time.perf_counter() - before)
    return min(times)


def outcomes(work: Workload, samples: int) -> list[tuple[str, str]]:
    """(what became of it, the refusal) for every refused plan of a problem."""
    arrays = work.arrays(np.random.default_rng(0), exact=False)
    kernel = work.compiled()
    best = kernel.bind(arrays)
    found = []
    for refusal in kernel.choice.refused:
        if refusal.plan is None:
            continue
        try:
            other = work.compiled(str(refusal.plan)).bind(arrays)
        except ArgumentError as fault:
            found.append(("impossible" if refusal.why in str(fault) else f"WRONG REASON {fault}", str(refusal)))
            continue
        best()
        other()
        pairs = [(sample(best), sample(other)) for _ in range(samples)]
        slower = sum(theirs > ours for ours, theirs in pairs)
        ratio = float(np.median([theirs / ours for ours, theirs in pairs]))
        said = f"slower in {slower} of {samples}, median {ratio:.2f}"
        found.append((said if 2 * slower > samples else f"FASTER: {said}", str(refusal)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", nargs="?", default="resnet_50", choices=list(shape_lists()))
    parser.add_argument("--dt", default="f32,bf16")
    parser.add_argument("--mb", type=int, default=1)
    parser.add_argument("--samples", type=int, default=50)
    options = parser.parse_args()
    bad = count = 0
    for dt in options.dt.split(","):
        for p in shape_lists()[options.list]:
            work = Workload(replace(p, mb=options.mb), read_types(dt))
            for said, refusal in outcomes(work, options.samples):
                count += 1
                wrong = said.startswith(("FASTER", "WRONG"))
                bad += wrong
                print(f"{'!' if wrong else ' '} {dt} {work.problem}: {said}\n    {refusal}", flush=True)
    print(f"{count} refused plans, {bad} that should not have been")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
