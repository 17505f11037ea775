"""Whether a change made anything slower: two commits, one machine, what differs timed old against new.

    python benchmarks/old_new.py BASE [NEW] [--gpu] [--list NAME]... [--limit N] [--threads N] [--seconds S] [--jobs N]
    python benchmarks/old_new.py BASE [NEW] --machine hopper --machine x86.amx      # or --all-machines

BASE and NEW are commits, or folders with a `src` in them, such as a checkout without its history; without NEW it is the
working tree as it is now. Each side is a process that imports its own `src`. First both plan every problem: where the
host program and all block programs are the same text, the ratio is 1.00 and nothing is timed. The others are compiled
and timed in turn, old, new, new, old, ...; a ratio is old / new by the medians: below 1, the new one is slower. An
entry below 0.95, or above 1 / 0.95, is timed three more times, and the median of its ratios counts. --seconds is how
long all timing may take; what it leaves out is listed, and does not count. The exit code is 1 if the geometric mean is
below 0.99.

A change below the block level (of loops or machine code) leaves the text as it is: with --everything, the same text is
timed too.

With --gpu, the problems of gpu.py, gpu_rowwise.py and gpu_chained.py, and 60 layers and products drawn at random, are
timed on the GPU at hand, in CUDA graphs; it needs PyTorch. With --machine, only texts are compared, for machines that
need not be at hand, and what differs is listed beside the time that each side predicts by its own model; the exit code
is 0.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SLOW, REPEATS, LEAST_MEAN = 0.95, 3, 0.99
ROUNDS, SAMPLE, PAUSE = 7, 0.04, 0.004
"""Samples of each side of a timing, seconds of a sample, and before it, so that the other side's threads are asleep."""
PATIENCE = 60
"""Seconds after which a request counts as refused, and its worker is started anew."""
Request = dict[str, Any]


# -- the two sides --------------------------------------------------------------------------------------------


@contextmanager
def source(name: str | None, folder: Path) -> Iterator[Path]:
    """The `src` of a side: of a folder, of a commit (a worktree in `folder`), or of the working tree, copied there."""
    if name is None:
        yield Path(shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__")))
    elif (Path(name) / "src").is_dir():
        yield (Path(name) / "src").resolve()
    else:
        git = ["git", "-C", str(ROOT)]
        made = subprocess.run(
            [*git, "worktree", "add", "--detach", "--quiet", str(folder), name], capture_output=True, text=True
        )
        if made.returncode:
            sys.exit(f"{name} is neither a folder with a src in it nor a commit: {made.stderr.strip()}")
        try:
            yield folder / "src"
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(folder)], check=True)


class Side:
    """A worker process that imports the tilewright of one `src`; one that ends or does not answer is started anew."""

    def __init__(self, src: Path, environment: dict[str, str]):
        self.src = src
        path = os.pathsep.join([str(src), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.environment = {**os.environ, **environment, "PYTHONPATH": path}
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        command, pipe = [sys.executable, str(HERE / "old_new_worker.py")], subprocess.PIPE
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=self.environment)

    def send(self, do: str, **request: Any) -> None:
        """Sends a request; `receive` waits for its answer."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # `receive` tells

    def receive(self) -> Request:
        """The answer to the request sent last."""
        assert self.process.stdout is not None
        if not select.select([self.process.stdout], [], [], PATIENCE)[0]:
            why = f"no answer within {PATIENCE} s"
        elif line := self.process.stdout.readline():
            answer: Request = json.loads(line)
            return answer
        else:
            why = "the process ended unasked"
        self.restart()
        return {"refused": why}

    def ask(self, do: str, **request: Any) -> Request:
        """The answer to a request."""
        self.send(do, **request)
        return self.receive()

    def restart(self) -> None:
        """Ends the process, whatever it does, and starts another."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def check(self) -> None:
        """Ends the program where the worker cannot import tilewright, or imports another one than it should."""
        answer = self.ask("imported")
        if "refused" in answer or not Path(answer["file"]).is_relative_to(self.src):
            sys.exit(f"{self.src}: {answer.get('refused') or 'the worker imports ' + answer['file']}")

    def close(self) -> None:
        """Ends the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@dataclass
class Pair:
    """Both sides."""

    old: Side
    new: Side

    def ask(self, do: str, **request: Any) -> tuple[Request, Request]:
        """Both answers; both sides work at the same time."""
        self.old.send(do, **request)
        self.new.send(do, **request)
        return self.old.receive(), self.new.receive()

    def close(self) -> None:
        """Ends both."""
        self.old.close()
        self.new.close()


# -- what is found --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A problem on a machine, and what came of it; times are microseconds."""

    problem: Request
    machine: str
    outcome: str
    """same, differs, timed, refused (by one side) or neither (has a program)."""
    why: str = ""
    old: float | None = None
    new: float | None = None
    """Of outcome `differs`, what either side predicts."""
    ratios: tuple[float, ...] = ()

    @property
    def ratio(self) -> float:
        """old / new: below 1, the new one is slower."""
        return median(self.ratios) if self.ratios else 1.0

    @property
    def counts(self) -> bool:
        """Whether it counts in the mean."""
        return self.outcome in ("same", "timed")

    def __str__(self) -> str:
        name = f"{self.problem['list']:16} {self.problem['name']:52} {self.machine:13}"
        if self.outcome == "timed":
            again = f"  median of {', '.join(f'{r:.3f}' for r in self.ratios)}" if len(self.ratios) > 1 else ""
            return f"{name} {_us(self.old)} {_us(self.new)} {self.ratio:7.3f}{again}"
        if self.outcome == "differs":
            ratio = f"{self.old / self.new:7.3f}" if self.old and self.new else f"{'-':>7}"
            return f"{name} {_us(self.old)} {_us(self.new)} {ratio}  predicted"
        return f"{name} {'same text' if self.outcome == 'same' else self.why}"


def _us(time_of: float | None) -> str:
    return f"{'-':>10}" if time_of is None else f"{time_of:10.1f}"


HEADING = f"{'list':16} {'problem':52} {'machine':13} {'old us':>10} {'new us':>10} {'old/new':>7}"


def compared(problem: Request, machine: str, old: Request, new: Request) -> Entry:
    """The verdict on the answers of both sides to `plan`.

    >>> compared({}, "hopper", {"digest": "a", "predicted": 2.0}, {"digest": "a", "predicted": 2.0}).outcome
    'same'
    >>> compared({}, "hopper", {"refused": "too large"}, {"digest": "a"}).why
    'refused by old: too large'
    """
    said = [f"{side}: {x['refused']}" for side, x in (("old", old), ("new", new)) if "refused" in x]
    if len(said) == 2:
        return Entry(problem, machine, "neither", f"refused by both, {said[1]}")
    if said:
        return Entry(problem, machine, "refused", f"refused by {said[0]}")
    if old["digest"] == new["digest"]:
        return Entry(problem, machine, "same")
    return Entry(problem, machine, "differs", old=old["predicted"], new=new["predicted"])


def mean(entries: list[Entry]) -> float:
    """The geometric mean of the ratios; that of the same text is 1.

    >>> mean([Entry({}, "cpu", "same"), Entry({}, "cpu", "timed", ratios=(0.25,))])
    0.5
    """
    return math.exp(sum(math.log(e.ratio) for e in entries) / len(entries)) if entries else 1.0


# -- comparing and timing -------------------------------------------------------------------------------------


def compare(pairs: list[Pair], wanted: list[tuple[Request, str]]) -> list[Entry]:
    """All entries by their texts, each printed; pairs share the work."""
    free, done = list(pairs), 0

    def one(problem: Request, machine: str) -> Entry:
        nonlocal done
        pair = free.pop()
        entry = compared(problem, machine, *pair.ask("plan", problem=problem, machine=machine))
        free.append(pair)
        done += 1
        print(f"{done:4} of {len(wanted)} {entry}", flush=True)
        return entry

    with ThreadPoolExecutor(len(pairs)) as pool:
        return list(pool.map(one, *zip(*wanted, strict=True)))


def timed(pair: Pair, entry: Entry, target: str) -> Entry:
    """An entry that differs, timed; where one side seems to be faster, three more times."""
    for side, worker in (("old", pair.old), ("new", pair.new)):
        answer = worker.ask("prepare", problem=entry.problem, target=target)
        if "refused" in answer:
            worker.restart()  # a launch that failed on a GPU leaves nothing of use behind
            return replace(entry, outcome="refused", why=f"refused by {side}: {answer['refused']}", old=None, new=None)
    times = [in_turn(pair)]
    if not SLOW <= times[0][0] / times[0][1] <= 1 / SLOW:  # both ways: else noise would only ever lift the mean
        times += [in_turn(pair) for _ in range(REPEATS)]
    old, new = (median(each) for each in zip(*times, strict=True))
    return replace(entry, outcome="timed", old=old, new=new, ratios=tuple(old / new for old, new in times))


def in_turn(pair: Pair) -> tuple[float, float]:
    """The medians of the samples of what is prepared: old, new, new, old, ..., so that none is always the first."""
    samples: dict[str, list[float]] = {"old": [], "new": []}
    sides = [("old", pair.old), ("new", pair.new)]
    for _ in range(ROUNDS):
        for name, side in sides:
            time.sleep(PAUSE)
            samples[name].append(side.ask("sample", seconds=SAMPLE)["us"])
        sides.reverse()
    return median(samples["old"]), median(samples["new"])


def time_all(pair: Pair, entries: list[Entry], target: str, seconds: float) -> list[Entry]:
    """Entries that differ, timed, each printed; in any order, so that what the time leaves out is of all lists."""
    begin, found = time.perf_counter(), []
    if entries and (load := os.getloadavg()[0]) > (cores := os.cpu_count() or 1):
        print(f"others use this machine (a load of {load:.0f} on {cores} cores): trust no single ratio", flush=True)
    random.Random(0).shuffle(entries := list(entries))
    for number, entry in enumerate(entries, 1):
        if time.perf_counter() - begin > seconds:
            print(f"{seconds:.0f} s are over: {len(entries) - number + 1} that differ are not timed", flush=True)
            return found + entries[number - 1 :]
        found.append(timed(pair, entry, target))
        print(f"{number:4} of {len(entries)} {found[-1]}", flush=True)
    return found


def report(entries: list[Entry], only_texts: bool) -> int:
    """Prints what is not the same, worst first, and the mean; gives the exit code."""
    print(f"\n{HEADING}")
    key = (lambda e: (e.old or 1) / (e.new or 1)) if only_texts else (lambda e: e.ratio)
    for outcome in ("timed", "differs", "refused"):
        for entry in sorted((e for e in entries if e.outcome == outcome), key=key):
            print(entry)
    count = {outcome: sum(e.outcome == outcome for e in entries) for outcome in OUTCOMES}
    print("; ".join(f"{count[outcome]} {said}" for outcome, said in OUTCOMES.items() if count[outcome]))
    if only_texts:
        told = [replace(e, ratios=(e.old / e.new,)) for e in entries if e.old and e.new]
        if told:
            print(f"geometric mean of what is predicted, of those that differ: {mean(told):.3f}")
        return 0
    counted = [e for e in entries if e.counts]
    print(f"geometric mean of old / new over {len(counted)} entries: {mean(counted):.3f}")
    return int(mean(counted) < LEAST_MEAN)


OUTCOMES = {
    "same": "have the same text",
    "timed": "were timed",
    "differs": "differ, not timed",
    "refused": "are refused by one side",
    "neither": "are refused by both",
}


# -- the command ----------------------------------------------------------------------------------------------


def chosen(problems: list[Request], lists: list[str], limit: int | None) -> list[Request]:
    """The problems of these lists, of all without one; at most `limit` of each list.

    >>> said = [{"list": "rows", "name": "a"}, {"list": "rows", "name": "b"}, {"list": "tiles", "name": "c"}]
    >>> [p["name"] for p in chosen(said, [], 1)], [p["name"] for p in chosen(said, ["rows"], None)]
    (['a', 'c'], ['a', 'b'])
    """
    kept: list[Request] = []
    for name in dict.fromkeys(p["list"] for p in problems):
        if not lists or name in lists:
            kept += [p for p in problems if p["list"] == name][:limit]
    return kept


def wanted_entries(side: Side, options: argparse.Namespace) -> list[tuple[Request, str]]:
    """(problem, machine) of all that is compared."""
    gpus = dict(side.ask("machines")["machines"])
    machines: list[str] = list(gpus) if options.all_machines else options.machine
    machines = machines or ["gpu" if options.gpu else "cpu"]
    found: list[tuple[Request, str]] = []
    known: set[str] = set()
    for name in machines:
        problems = side.ask("problems", gpu=gpus.get(name, name == "gpu"))["problems"]
        known |= {p["list"] for p in problems}
        found += [(p, name) for p in chosen(problems, options.list, options.limit)]
    if unknown := set(options.list) - known:
        sys.exit(f"--list {', '.join(sorted(unknown))}: there is {', '.join(sorted(known))}")
    return found


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="a commit, or a folder with a src in it")
    parser.add_argument("new", nargs="?", help="likewise; the working tree as it is without it")
    parser.add_argument("--gpu", action="store_true", help="the problems for GPUs, on the GPU at hand")
    parser.add_argument(
        "--machine", action="append", default=[], help="compare texts for this machine, and time nothing"
    )
    parser.add_argument("--all-machines", action="store_true", help="all that are described")
    parser.add_argument("--list", action="append", default=[], help="only the problems of this list")
    parser.add_argument("--limit", type=int, help="at most so many problems of each list")
    parser.add_argument("--threads", type=int, help="of a kernel on the CPU")
    parser.add_argument("--seconds", type=float, default=600.0, help="for all timing")
    parser.add_argument(
        "--jobs", type=int, default=min(8, max(1, (os.cpu_count() or 2) // 2)), help="processes a side that plan"
    )
    parser.add_argument("--seed", type=int, default=31, help="of the problems that are drawn at random")
    parser.add_argument("--everything", action="store_true", help="time the same text too")
    return parser.parse_args()


def main() -> int:
    """Prints the tables; gives the exit code."""
    options = arguments()
    only_texts = bool(options.machine or options.all_machines)
    begin = time.perf_counter()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="old_new_")))
        sources = [
            stack.enter_context(source(name, folder / side))
            for side, name in (("old", options.base), ("new", options.new))
        ]
        environment = {"TILEWRIGHT_CACHE_DIR": str(folder / "cache"), "DRAWN_SEED": str(options.seed)}
        if options.threads:
            environment["TILEWRIGHT_THREADS"] = str(options.threads)
        pairs = []
        for _ in range(options.jobs):
            pairs.append(Pair(*(Side(src, environment) for src in sources)))
            stack.callback(pairs[-1].close)
        for side in (pairs[0].old, pairs[0].new):
            side.check()
        entries = compare(pairs, wanted_entries(pairs[0].new, options))
        planned = time.perf_counter() - begin
        if not only_texts:
            kinds = ("same", "differs") if options.everything else ("differs",)
            differ = [e for e in entries if e.outcome in kinds]
            rest = [e for e in entries if e.outcome not in kinds]
            entries = rest + time_all(pairs[0], differ, "gpu" if options.gpu else "cpu", options.seconds)
        took = time.perf_counter() - begin - planned
    code = report(entries, only_texts)
    print(f"{planned:.0f} s of planning, {took:.0f} s of timing")
    return code


if __name__ == "__main__":
    sys.exit(main())
