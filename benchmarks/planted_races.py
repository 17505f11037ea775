"""Does the interpreter find every planted race, and report nothing on the programs without it?

    python benchmarks/planted_races.py [--most 300] [--workers 1,2,3,4,5,6,7,8] [--plants NAME,...] [--seeds 1]
    python benchmarks/planted_races.py --rotate --twins 15       # in an eighth of the time

Every plant of tests/block/race_programs.py, at every distance from 1 to `most` copies and with each number of workers
(or, with `--rotate`, with one of them in turn). The twin without the race is run once, at every `twins`-th distance.
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
    options.add_argument("--rotate", action="store_true", help="each distance with one of the numbers of workers")
    options.add_argument("--twins", type=int, default=1, help="run the twins of every so-manieth distance")
    given = options.parse_args()
    counts = [int(n) for n in given.workers.split(",")]
    mistakes = 0
    for name in given.plants.split(","):
        start, runs, twins, missed, false = perf_counter(), 0, 0, [], []
        for distance in range(1, given.most + 1):
            planted, twin = (PLANTS[name](distance, there) for there in (True, False))
            turn_of = counts[distance % len(counts)]
            for workers in [turn_of] if given.rotate else counts:
                for turn in range(given.seeds):
                    runs += 1
                    if not reported(planted, workers, 1000 * turn + distance):
                        missed.append((distance, workers, turn))
            if distance % given.twins == 0:
                twins += 1
                if reported(twin, turn_of, distance):
                    false.append(distance)
        mistakes += len(missed) + len(false)
        took = perf_counter() - start
        print(f"{name:16} {runs:6} planted, {len(missed)} missed {missed[:5]}; {twins} twins, {len(false)} "
              f"reported {false[:5]}; {took:.0f} s", flush=True)  # fmt: skip
    return min(mistakes, 255)


if __name__ == "__main__":
    sys.exit(main())
