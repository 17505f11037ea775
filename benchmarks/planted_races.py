"""Does the interpreter find every planted race, and report nothing on the programs without it?

    python benchmarks/planted_races.py [--most 300] [--workers 1,2,3,4,5,6,7,8] [--plants NAME,...] [--seeds 1]

Every plant of tests/block/race_programs.py, at every distance from 1 to `most` copies and with each number of workers;
of each, the twin without the race is run once, under one more schedule.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from time import perf_counter

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "block"))

from race_programs import PLANTS, reported


def main() -> int:
    """Prints a line for each plant; the number of mistakes is the exit status."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--most", type=int, default=300, help="the largest distance, in copies")
    options.add_argument("--workers", default="1,2,3,4,5,6,7,8")
    options.add_argument("--plants", default=",".join(PLANTS))
    options.add_argument("--seeds", type=int, default=1, help="schedules of each planted race")
    given = options.parse_args()
    counts = [int(n) for n in given.workers.split(",")]
    mistakes = 0
    for name in given.plants.split(","):
        start, runs, missed, false = perf_counter(), 0, [], []
        for distance in range(1, given.most + 1):
            planted, twin = (PLANTS[name](distance, there) for there in (True, False))
            for workers in counts:
                for turn in range(given.seeds):
                    runs += 1
                    if not reported(planted, workers, 1000 * turn + distance):
                        missed.append((distance, workers, turn))
            if reported(twin, counts[distance % len(counts)], distance):
                false.append(distance)
        mistakes += len(missed) + len(false)
        took = perf_counter() - start
        print(f"{name:16} {runs:6} planted, {len(missed)} missed {missed[:5]}; {given.most} twins, {len(false)} "
              f"reported {false[:5]}; {took:.0f} s", flush=True)  # fmt: skip
    return min(mistakes, 255)


if __name__ == "__main__":
    sys.exit(main())
