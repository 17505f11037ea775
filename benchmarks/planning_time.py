"""How long planning and lowering take for each problem of the corpus, cold: a fresh process for each.

    python benchmarks/planning_time.py [--machine hopper/132] [--only REGEX] [--sample N] [--jobs 1]

Planning is everything between the author's program and a bound plan: the canonical form, facts, search, bind. Lowering
is everything from there to the block programs and the host program. Code generation by LLVM and the driver is not
counted. Times are CPU seconds of one process that has imported the compiler and planned nothing else, so that no cache
is warm and other processes count little. The table has a line for each kind of problem, then the longest of all.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import re
import statistics
from collections.abc import Iterator
from time import process_time
from typing import Any, NamedTuple

from corpus_plans import machine_of
from corpus_problems import problems
from rich.console import Console
from rich.table import Table

from tilewright.compiler import native
from tilewright.driver import pipeline
from tilewright.driver.request import Request
from tilewright.errors import TilewrightError

LONGEST = 8
"""Problems to list by name."""


class Taken(NamedTuple):
    """CPU seconds of one problem; `error` is the refusal of a problem that the machine cannot do."""

    kind: str
    name: str
    planning: float = 0.0
    lowering: float = 0.0
    error: str = ""


class _Lowered(Exception):
    """All passes are done."""


def taken(key: tuple[str, str, str]) -> Taken:
    """Plan and lower the problem (kind, name) of `key` for its machine once; return the time of both."""
    kind, name, machine = key
    problem = problems()[kind, name]
    spent: list[Taken] = []

    def run(request: Request, *_: Any) -> Any:
        start = process_time()
        bound = pipeline.choose_plan(pipeline.prepared(request))
        planned = process_time()
        pipeline.realise(request, bound)
        spent.append(Taken(kind, name, planned - start, process_time() - planned))
        raise _Lowered

    pipeline.run = run
    try:
        native.kernel_for(
            problem.make(),
            problem.sizes,
            machine=machine_of(machine),
            dynamic=problem.dynamic,
            constant=problem.constant,
        )
    except _Lowered:
        pass
    except TilewrightError as error:
        return Taken(kind, name, error=str(error).splitlines()[0])
    return spent[-1]


def taken_by_all(keys: list[tuple[str, str, str]], jobs: int) -> Iterator[Taken]:
    """Yield the times of all problems, each of a process of its own."""
    with multiprocessing.get_context("fork").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(taken, keys, chunksize=1)


def _median_and_most(seconds: list[float]) -> tuple[str, str]:
    """Return the median and the longest of times as text, in seconds."""
    return f"{statistics.median(seconds):.3f}", f"{max(seconds):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="hopper/132")
    parser.add_argument("--only", default="", help="a regular expression that a problem's name matches")
    parser.add_argument("--sample", type=int, default=0, help="so many of the problems")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    keys = [(*key, options.machine) for key in problems() if re.search(options.only, key[1])]
    if options.sample:
        keys = random.Random(options.seed).sample(keys, min(options.sample, len(keys)))
    every = [t for t in taken_by_all(keys, options.jobs) if not t.error]
    table = Table("kind", "problems", "planning, median", "longest", "lowering, median", "longest", box=None)
    for kind in [*dict.fromkeys(t.kind for t in every), ""]:
        of_kind = [t for t in every if kind in ("", t.kind)]
        planning, lowering = ([getattr(t, what) for t in of_kind] for what in ("planning", "lowering"))
        table.add_row(kind or "all", str(len(of_kind)), *_median_and_most(planning), *_median_and_most(lowering))
    console = Console(width=120)
    console.print(table)
    for t in sorted(every, key=lambda t: -t.planning)[:LONGEST]:
        console.print(f"{t.planning:.3f} s planning, {t.lowering:.3f} s lowering: {t.kind}: {t.name}")


if __name__ == "__main__":
    main()
