"""How many mutants of the package's source the tests kill: random one-line changes, before and after tests change.

    python benchmarks/killed_mutants.py draw MUTANTS --count 300 --seed 1
    python benchmarks/killed_mutants.py reach REACH --jobs 16 --suite all --budget 500
    python benchmarks/killed_mutants.py run MUTANTS REACH RESULTS --jobs 16 --budget 500
    python benchmarks/killed_mutants.py run MUTANTS REACH RESULTS --jobs 16 --budget 500 --suite all
    python benchmarks/killed_mutants.py summary MUTANTS RESULTS
    python benchmarks/killed_mutants.py compare MUTANTS RESULTS_BEFORE RESULTS_AFTER

`draw` writes a list of mutants, one a line as `FILE:LINE FUNCTION: OLD -> NEW` (`source_mutants.py` says which changes
there are, and that lines are drawn evenly). The list is kept: `run` finds a line by its function and its text, and
refuses a list with a line that is gone.

`reach` runs the tests once, without mutants, and writes which test executes which functions (`reach_map.py`). Tests
that fail are left out of everything. Each state of the tests needs a record of its own.

`run` applies one mutant at a time, in a copy of the tree for each job. It runs the tests that execute the mutated
function, those with the least time and the fewest other functions first, until one fails. Then it runs the other
tests of the same files, in processes of their own. A failure, a crash and a run past a time limit kill a mutant; a test
that fails is run again without the mutant, and left out if it fails.
`--suite all` adds what `make test-long` adds, for mutants that the suite `default` does not kill. `--hints
RESULTS_BEFORE` tries first the test that killed a mutant before. RESULTS has one line for each mutant and suite:

| outcome   | meaning                                                                                         |
|-----------|-------------------------------------------------------------------------------------------------|
| killed    | this test fails                                                                                 |
| survived  | all these tests pass                                                                            |
| undecided | tests pass that take `--limit` seconds; the others were not run (`--undecided` tries them again)  |
| unreached | no test executes the function                                                                   |

`reach` and `run` stop after `--budget` seconds, and need some more to remove their copies of the tree. The same command
continues; it does nothing twice.

The tests need no pytest-xdist. Python 3.12 or newer records much faster than 3.11. A test that reads the source as text
does not execute it, and is not tried. `compare` fails if fewer mutants are killed after than before.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from threading import Lock

from reach_map import FOLDERS, MARKS, Limits, Pytest, Reach, Recorded, Test, copy_of, digest, record, units
from source_mutants import Mutant, apply, draw, read, read_list, stale

ROOT = Path(__file__).parents[1]
BATCHES = (5.0, 15.0, 30.0)
"""Seconds of tests in the first, second, ... process for a mutant; the last repeats."""
PIECE = 15.0
"""Seconds of tests of one file after which its other tests are a choice of their own."""
OUTCOMES = ("killed", "undecided", "survived", "unreached")
"""The outcomes; that of both suites is the one that comes first here."""
Key = tuple[str, str, int, str, str]


# -- which tests are tried, and in which order --------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """Tests of one file, the seconds that they take, and how early they are tried.

    Names None stand for all tests of the file, also if a mutant gives them other names.
    """

    file: str
    names: tuple[str, ...] | None
    seconds: float
    rank: float


def choices(mutant: Mutant, reach: Reach, suite: str, direct: bool) -> list[Choice]:
    """Return the tests of a suite to try for a mutant, in order.

    `direct` chooses the tests that execute its function, otherwise the other tests of their units.
    """
    base = min((unit.start for unit in reach.units.values()), default=0.0)
    chosen = []
    for unit, bits in reach.reaching(mutant.reached_by):
        start = max(unit.start - base, 0.0) / len({test.file for test in unit.tests})
        every = bits == (1 << len(unit.tests)) - 1 and unit.complete and all(map(reach.can_run, unit.tests))
        by_file = defaultdict(list)
        for number, test in enumerate(unit.tests):
            if reach.can_run(test) and test.long == (suite == "long") and bool(bits >> number & 1) == direct:
                by_file[test.file].append(test)
        for file, tests in by_file.items():
            pieces = _pieces(tests)
            for piece in pieces:
                seconds = start + sum(test.seconds for test in piece)
                names = None if every and len(pieces) == 1 else tuple(test.name for test in piece)
                chosen.append(Choice(file, names, seconds, _rank(mutant, unit, file, seconds, len(reach.names))))
    return sorted(chosen, key=lambda choice: (choice.rank, choice.file))


def _pieces(tests: list[Test]) -> list[list[Test]]:
    """Return the tests of a file in groups that take about `PIECE` seconds at most."""
    pieces: list[list[Test]] = [[]]
    for test in tests:
        if pieces[-1] and sum(t.seconds for t in pieces[-1]) + test.seconds > PIECE:
            pieces.append([])
        pieces[-1].append(test)
    return pieces


def _rank(mutant: Mutant, unit: Recorded, file: str, seconds: float, functions: int) -> float:
    """Return a number that is small for short tests of few functions, and for tests near the mutant's file."""
    changed, tested = Path(mutant.file), Path(file)
    if changed == tested or changed.stem in (tested.stem.removeprefix("test_"), *tested.parts):
        far = 0.2
    else:
        far = 0.5 if {*changed.parts[2:-1]} & {*tested.parts[:-1]} else 1.0
    return far * (seconds + 0.5) * (0.05 + len(unit.functions) / functions)


def batches(ordered: list[Choice]) -> Iterator[list[Choice]]:
    """Yield the choices in groups; a process runs one group."""
    sizes, batch = iter(BATCHES), list[Choice]()
    size = next(sizes)
    for choice in ordered:
        if batch and sum(c.seconds for c in batch) + choice.seconds > size:
            yield batch
            batch, size = [], next(sizes, BATCHES[-1])
        batch.append(choice)
    if batch:
        yield batch


# -- running ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """What became of a mutant in a suite; `by` is the test that killed it, or how far the tests went."""

    outcome: str
    seconds: float
    suite: str
    by: str
    mutant: Mutant

    def __str__(self) -> str:
        by = " ".join(self.by.split())
        return f"{self.outcome}\t{self.seconds:.1f}\t{self.suite}\t{by}\t{self.mutant}"

    @classmethod
    def read(cls, line: str) -> Result:
        """Read the line of a result."""
        outcome, seconds, suite, by, mutant = line.rstrip("\n").split("\t", 4)
        return cls(outcome, float(seconds), suite, by, read(mutant))


class OutOfTime(Exception):
    """The budget is spent."""


class Worker:
    """Tries mutants in a copy of the tree: tests of `limit` seconds for each mutant and suite, until `deadline`."""

    def __init__(self, root: Path, scratch: Path, limit: float = 120.0, deadline: float = float("inf")):
        scratch.mkdir()
        self.tree = copy_of(root, scratch / "tree")
        self.pytest = Pytest(self.tree, scratch)
        self.limit, self.deadline = limit, deadline
        self.changes = 0

    def tried(self, mutant: Mutant, reach: Reach, suite: str, hint: str = "") -> Result:
        """Return what becomes of a mutant; `hint` is the test to try first, or empty."""
        start = time.monotonic()
        while True:
            with self._changed(mutant):
                outcome, by, batch = self._outcome(mutant, reach, suite, hint)
            if outcome != "killed" or by in reach.independent or not (earlier := _up_to(by, batch)):
                return Result(outcome, time.monotonic() - start, suite, by, mutant)
            if self.killed(earlier, MARKS[suite], 600.0) is None:
                reach.independent.add(by)
            else:
                reach.dependent.add(by)
                print(f"left out, since it fails without a mutant if not all tests before it run: {by}", flush=True)

    @contextmanager
    def _changed(self, mutant: Mutant) -> Iterator[None]:
        """Apply a mutant to the tree for a time."""
        path = self.tree / mutant.file
        right, times = path.read_text(), path.stat()
        self.changes += 1
        path.write_text(apply(mutant, right))
        os.utime(path, (times.st_atime, times.st_mtime + self.changes))  # bytecode is kept by the second of a change
        try:
            yield
        finally:
            path.write_text(right)
            os.utime(path, (times.st_atime, times.st_mtime))

    def _outcome(self, mutant: Mutant, reach: Reach, suite: str, hint: str) -> tuple[str, str, list[Choice]]:
        """Return what becomes of a mutant that is applied: the outcome, by what, and the tests that ran last."""
        direct, others = (choices(mutant, reach, suite, direct) for direct in (True, False))
        if not direct:
            return "unreached", "", []
        base = min(unit.start for unit in reach.units.values())
        first = _choice_of(hint, reach)
        planned = [*([[first]] if first else []), *batches(direct), *batches(others)]
        every, passed = sum(c.seconds for batch in planned for c in batch), 0.0
        for batch in planned:
            seconds = sum(choice.seconds for choice in batch)
            if passed + seconds > self.limit and passed:
                return "undecided", f"tests of {passed:.0f} of {every:.0f} s pass", batch
            killer = self.killed(batch, MARKS[suite], 30 + 6 * (base + seconds))
            if killer is not None:
                return "killed", killer, batch
            passed += seconds
        return "survived", f"tests of {every:.0f} s pass", []

    def killed(self, batch: list[Choice], marks: str, seconds: float) -> str | None:
        """Return the test of a batch that fails, or what else happens to the process; None if all tests pass."""
        remaining = self.deadline - time.monotonic()
        if remaining <= 1:
            raise OutOfTime
        chosen: dict[str, list[str] | None] = {}
        for choice in batch:
            chosen[choice.file] = None if choice.names is None else [*(chosen.get(choice.file) or ()), *choice.names]
        names = self.pytest.scratch / "chosen"
        names.write_text(json.dumps(chosen))
        ran = self.pytest.run(list(chosen), marks, min(seconds, remaining), "-x", MUTANT_TESTS=str(names))
        if ran.status is None and remaining < seconds:
            raise OutOfTime
        if ran.status in (0, 5):
            return None
        return ran.failed or (f"(more than {seconds:.0f} s)" if ran.status is None else f"({ran.last_line})")


def _up_to(name: str, batch: list[Choice]) -> list[Choice]:
    """Return the tests of a batch up to the test `name` of its file; nothing if the whole file was run."""
    names = [test for choice in batch if choice.file == name.partition("::")[0] for test in choice.names or ()]
    if name not in names:
        return []
    return [Choice(name.partition("::")[0], tuple(names[: names.index(name) + 1]), 0.0, 0.0)]


def _choice_of(name: str, reach: Reach) -> Choice | None:
    """Return the choice of one test, if it is there and passes without a mutant."""
    for unit in reach.units.values():
        for test in unit.tests:
            if test.name == name and reach.can_run(test):
                return Choice(test.file, (name,), test.seconds, 0.0)
    return None


def run(options: argparse.Namespace) -> None:
    """Try the mutants of a list that have no result yet; append their results."""
    deadline = time.monotonic() + options.budget
    mutants = read_list(options.mutants)
    reasons = stale(mutants, ROOT)
    if reasons:
        raise SystemExit("\n".join(["the source no longer has these lines; draw another list:", *reasons]))
    reach = Reach.read(options.reach, digest(ROOT))
    if options.suite == "all" and reach.suite == "default":
        raise SystemExit(f"{options.reach} is a record of the suite default: record the suite all")
    killers = _killers(options.hints) if options.hints else {}
    by_suite = {suite: _latest(options.results, suite) for suite in ("default", "long")}
    again = {"undecided"} if options.undecided else set()
    lock = Lock()
    print(f"{len(reach.units)} of {len(units(ROOT))} units of tests are recorded", flush=True)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name, ThreadPoolExecutor(options.jobs) as pool:
        workers: SimpleQueue[Worker] = SimpleQueue()
        numbers = range(options.jobs)
        for worker in pool.map(lambda n: Worker(ROOT, Path(name) / str(n), options.limit, deadline), numbers):
            workers.put(worker)
        _require_passing(reach, worker)

        def one(mutant: Mutant) -> None:
            for suite in ("default", "long")[: 1 + (options.suite == "all")]:
                known = by_suite[suite].get(mutant.key)
                if known is None or known.outcome in again:
                    if time.monotonic() > deadline - 2:
                        return
                    worker = workers.get()
                    try:
                        known = worker.tried(mutant, reach, suite, killers.get((mutant.key, suite), ""))
                    except OutOfTime:
                        return
                    finally:
                        workers.put(worker)
                    with lock, options.results.open("a") as file:
                        by_suite[suite][mutant.key] = known
                        print(known, file=file)
                        print(known, flush=True)
                if known.outcome == "killed":
                    return

        list(pool.map(one, sorted(mutants, key=lambda m: (m.key, "default") not in killers)))
    summary(options)


def _require_passing(reach: Reach, worker: Worker) -> None:
    """Raise SystemExit if a short unit fails without a mutant: then any failure would count as a kill."""
    useful = [unit for unit in reach.units.values() if any(t.passes and not t.long for t in unit.tests)]
    if not useful:
        raise SystemExit("no test is recorded")
    unit = min(useful, key=lambda u: sum(test.seconds for test in u.tests))
    names = tuple(test.name for test in unit.tests if test.passes and not test.long)
    killer = worker.killed([Choice(unit.tests[0].file, names, 1.0, 0.0)], MARKS["default"], 120.0)
    if killer is not None:
        raise SystemExit(f"{unit.name} fails without a mutant: {killer}")


# -- results ------------------------------------------------------------------------------------------------------


def _latest(path: Path, suite: str) -> dict[Key, Result]:
    """Return the last result of each mutant in a suite."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = [Result.read(line) for line in lines]
    return {result.mutant.key: result for result in results if result.suite == suite}


def _killers(path: Path) -> dict[tuple[Key, str], str]:
    """Return the test that killed each mutant in a suite."""
    suites = {suite: _latest(path, suite) for suite in ("default", "long")}
    return {(key, s): r.by for s, rs in suites.items() for key, r in rs.items() if r.outcome == "killed"}


def outcomes(mutants: list[Mutant], path: Path, suite: str) -> dict[Key, tuple[str, str]]:
    """Return (outcome, by) of each mutant of a list that has a result; the suite `all` is both suites."""
    default, long = _latest(path, "default"), _latest(path, "long")
    pairs = {}
    for key in [m.key for m in mutants]:
        if key not in default:
            continue
        first = default[key]
        if suite == "default" or first.outcome == "killed":
            pairs[key] = first.outcome, first.by
        elif key in long:
            best = min(first, long[key], key=lambda result: OUTCOMES.index(result.outcome))
            pairs[key] = best.outcome, best.by
    return pairs


def summary(options: argparse.Namespace) -> None:
    """Print the number of mutants with each outcome, and those that no test kills."""
    mutants = read_list(options.mutants)
    suites = ("default", "all") if _latest(options.results, "long") else ("default",)
    for suite in suites:
        of_mutants = outcomes(mutants, options.results, suite)
        counts = Counter(outcome for outcome, _ in of_mutants.values())
        parts = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES)
        print(f"suite {suite}: {parts}, {len(mutants) - len(of_mutants)} not run, of {len(mutants)}")
    for mutant in mutants:
        outcome, by = of_mutants.get(mutant.key, ("killed", ""))
        if outcome != "killed":
            print(f"  {outcome}{by and f' ({by})'}: {mutant}")


def compare(options: argparse.Namespace) -> None:
    """Print which mutants only one of two runs kills; raise SystemExit if the second kills fewer."""
    mutants = read_list(options.mutants)
    before, after = (outcomes(mutants, path, options.suite) for path in (options.results, options.after))
    both = [m for m in mutants if m.key in before and m.key in after]
    killed = [{m.key for m in both if of[m.key][0] == "killed"} for of in (before, after)]
    for title, keys in (("before", killed[0] - killed[1]), ("after", killed[1] - killed[0])):
        for mutant in both:
            if mutant.key in keys:
                killer = (before if title == "before" else after)[mutant.key][1]
                print(f"killed only {title}, by {killer}: {mutant}")
    print(f"killed before: {len(killed[0])}, after: {len(killed[1])}, of {len(both)} mutants that both runs tried")
    if len(killed[1]) < len(killed[0]):
        raise SystemExit(1)


# -- commands -----------------------------------------------------------------------------------------------------


def _draw(options: argparse.Namespace) -> None:
    mutants = draw(ROOT, options.count, options.seed, options.only)
    lines = [f"# {len(mutants)} mutants, seed {options.seed}", *map(str, mutants)]
    options.mutants.write_text("\n".join(lines) + "\n")
    print(*lines, sep="\n")


NEEDED = ("pytest", "hypothesis", "mpmath", "numpy", "ml_dtypes", "llvmlite", "rich", "typer")
"""Packages without which tests fail."""


def _reach(options: argparse.Namespace) -> None:
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise SystemExit(f"{sys.executable} has no {', '.join(missing)}: PYTHONPATH may name a folder that has them")
    limits = Limits(options.jobs, time.monotonic() + options.budget, options.unit_seconds)
    record(ROOT, options.reach, options.tests, options.suite, limits)
    reach = Reach.read(options.reach, digest(ROOT))
    wanted = [unit.name for unit in units(ROOT, options.tests)]
    print(f"{sum(name in reach.units for name in wanted)} of {len(wanted)} units are recorded")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    parsers = {}
    for name, do, files in (
        ("draw", _draw, ["mutants"]),
        ("reach", _reach, ["reach"]),
        ("run", run, ["mutants", "reach", "results"]),
        ("summary", summary, ["mutants", "results"]),
        ("compare", compare, ["mutants", "results", "after"]),
    ):
        parsers[name] = commands.add_parser(name)
        parsers[name].set_defaults(do=do)
        for file in files:
            parsers[name].add_argument(file, type=Path, metavar=file.upper())
    parsers["draw"].add_argument("--count", type=int, default=300)
    parsers["draw"].add_argument("--seed", type=int, default=1)
    parsers["draw"].add_argument("--only", default="", metavar="REGEX", help="draw from files whose path matches")
    for name in ("reach", "run"):
        parsers[name].add_argument("--jobs", type=int, default=1, help="processes that run tests at the same time")
        parsers[name].add_argument("--budget", type=float, default=1e9, help="stop after so many seconds")
        parsers[name].add_argument("--suite", choices=("default", "all"), default="default")
    parsers["reach"].add_argument("--tests", nargs="+", default=FOLDERS, metavar="PATH", help="record these tests only")
    parsers["reach"].add_argument("--unit-seconds", type=float, default=240.0, help="record a file for so long at most")
    parsers["run"].add_argument("--limit", type=float, default=120.0, help="seconds of tests for a mutant and suite")
    parsers["run"].add_argument("--hints", type=Path, help="results before the tests changed")
    parsers["run"].add_argument("--undecided", action="store_true", help="try undecided mutants again")
    parsers["compare"].add_argument("--suite", choices=("default", "all"), default="default")
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
