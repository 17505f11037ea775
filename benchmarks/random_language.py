"""Random programs of the whole tile language, run in every way: each must be exact, whatever does it.

    python benchmarks/random_language.py [COUNT] [--seed S] [--first I] [--only NUMBER] [--rows N] [--machines a,b]
        [--no-native] [--ways w,...] [--minutes M] [--show] [--no-shrink]

Program number I of a seed is the same in every run (language_draft.py, language_rules.py, language_memory.py,
language_loops.py): operations of all kinds, of any arity and element type, over dimensions of ragged, prime and unit
extents that may be missing anywhere, with loops, several products, masks, mappings, scatters and several outputs. It
runs in the ways of language_ways.py: the executor, numpy, this CPU, and the interpreters of N machines that are drawn
for it. Its data are small integers, so that results must be equal; where an operation is not exact, results must lie
within the bound that the language states.

A failing program is shrunk (language_shrink.py) and printed with its seed. At the end: failures by kind, outcomes by
way, and the coverage, with what was never hit: operations, rules of the planner and of the lowering. A program that
takes longer than PATIENCE in one way, or ends its process, is a failure. The exit code is 1 if there is one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections import Counter
from contextlib import suppress
from typing import Any

from language_coverage import Coverage
from language_loops import drawn
from language_ways import FAILURES, ROWS, SLOW, VERDICTS, Case, Outcome, outcome, ways

PATIENCE = 240.0
"""Seconds that a program may take in one way."""
PROFILED = 40
"""Every so manyth program is profiled, for the coverage of rules."""
REPORTED = 60.0


def _work(pipe: Any, options: argparse.Namespace) -> None:
    """Runs the programs whose numbers come through a pipe."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("TILEWRIGHT_CACHE_DIR", "off")
    while (number := pipe.recv()) is not None:
        coverage = Coverage()
        pipe.send("drawing")
        program = drawn(number, options.seed)
        coverage.count(program)
        try:
            case = Case(program, number, options.seed)
        except Exception as fault:  # the evaluator, or the executor in its place
            pipe.send(Outcome(number, options.seed, "meaning", "untyped", f"{type(fault).__name__}: {fault}"[:300]))
            pipe.send(coverage)
            continue
        chosen = (
            options.ways.split(",") if options.ways else ways(number, options.seed, options.rows, not options.no_native)
        )
        chosen += options.machines.split(",") if options.machines else []
        for way in chosen:
            pipe.send(way)
            with coverage.profiled(number % PROFILED == 0):
                said = outcome(case, way)
            coverage.plan(way, said.plan)
            pipe.send(said)
        pipe.send(coverage)


class Worker:
    """A process that runs programs; one that hangs or dies is replaced."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self._start()

    def _start(self) -> None:
        self.pipe, theirs = multiprocessing.get_context("spawn").Pipe()
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=_work, args=(theirs, self.options), daemon=True)
        self.process.start()
        theirs.close()

    def outcomes(self, number: int, coverage: Coverage) -> list[Outcome]:
        """The outcomes of a program."""
        found: list[Outcome] = []
        way, said = "its process", f"no return in {PATIENCE:.0f} s"
        try:
            self.pipe.send(number)
            while self.pipe.poll(PATIENCE):
                each = self.pipe.recv()
                if isinstance(each, Coverage):
                    coverage.add(each)
                    return found
                if isinstance(each, Outcome):
                    found.append(each)
                else:
                    way = each
        except (EOFError, BrokenPipeError, ConnectionResetError):
            said = "the process died"
        self.process.kill()
        self.process.join()
        self._start()
        found.append(Outcome(number, self.options.seed, way, "untyped", said))
        return found

    def end(self) -> None:
        """Lets the process go."""
        with suppress(BrokenPipeError):
            self.pipe.send(None)
        self.process.join(5)
        self.process.kill()


def report(found: list[Outcome], coverage: Coverage, seconds: float) -> None:
    """Prints failures by kind, outcomes by way, and the coverage."""
    alike: dict[str, list[Outcome]] = {}
    for each in found:
        if each.verdict in FAILURES:
            alike.setdefault(each.kind, []).append(each)
    for kind, same in sorted(alike.items(), key=lambda item: -len(item[1])):
        where = ", ".join(f"{way} {n}" for way, n in Counter(x.way for x in same).most_common(8))
        numbers = sorted({x.number for x in same})[:8]
        print(f"\n{len(same)} x {kind}\n  by {where}; programs {numbers}\n  such as {same[0]}")
    counts = Counter((each.way, each.verdict) for each in found)
    print(f"\n{'way':32}" + "".join(f"{verdict:>9}" for verdict in VERDICTS))
    for way in sorted({each.way for each in found}):
        print(f"{way:32}" + "".join(f"{counts[way, verdict]:9}" for verdict in VERDICTS))
    total = Counter(each.verdict for each in found)
    print(f"{'all':32}" + "".join(f"{total[verdict]:9}" for verdict in VERDICTS))
    print(coverage.report())
    rows = sum(each.way.removeprefix(SLOW) in ROWS for each in found)
    native = len({each.number for each in found if each.way == "native"})
    programs = len({each.number for each in found})
    print(f"{programs} programs, {rows} pairs of a program and a machine, {native} natively, {seconds:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one program")
    parser.add_argument("--rows", type=int, default=2, help="for how many machines each program is interpreted")
    parser.add_argument("--machines", default="", help="further machines to interpret every program for")
    parser.add_argument("--ways", default="", help="only these ways")
    parser.add_argument("--no-native", action="store_true")
    parser.add_argument("--no-shrink", action="store_true")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long")
    parser.add_argument("--show", action="store_true", help="print every program")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.count) if options.only is None else [options.only]
    start = last = time.monotonic()
    worker, coverage, found = Worker(options), Coverage(), list[Outcome]()
    seen: Counter[str] = Counter()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # what has come so far is reported
        for done, number in enumerate(numbers):
            if options.show or options.only is not None:
                program = drawn(number, options.seed)
                print(f"{number}: {program.rules}, sizes {program.sizes}\n{program.program}", flush=True)
            for each in worker.outcomes(number, coverage):
                found.append(each)
                if each.verdict in FAILURES:
                    seen[each.kind] += 1
                    if seen[each.kind] <= 3:
                        print(each, flush=True)
                    if seen[each.kind] == 1 and not options.no_shrink:
                        from language_shrink import shrunk_text

                        print(shrunk_text(each), flush=True)
            if time.monotonic() - last > REPORTED:
                last = time.monotonic()
                print(
                    f"{last - start:.0f} s: {done + 1} programs, {sum(seen.values())} failures",
                    file=sys.stderr,
                    flush=True,
                )
            if options.minutes and time.monotonic() - start > 60 * options.minutes:
                break
    worker.end()
    report(found, coverage, time.monotonic() - start)
    return int(bool(seen))


if __name__ == "__main__":
    sys.exit(main())
