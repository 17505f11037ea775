"""Plans the entries of the corpus for a GPU with the one search, beside the recorded plans of today's planners.

    python benchmarks/shadow.py                     # all entries of hopper
    python benchmarks/shadow.py 40 --seed 3         # a sample
    python benchmarks/shadow.py --kind products     # one list; --differs prints both plans where they differ
    python benchmarks/shadow.py --lower             # binds and lowers the plans that differ from the recorded ones

Prints for every entry whether both plans are the same text; otherwise both predicted times and their ratio. In the end
it counts, list by list. A plan that is the recorded one is lowered already: that entry has hashes of its programs.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from corpus_entries import entries, sample
from corpus_plans import machine_of
from corpus_problems import Problem, problems
from corpus_text import Key, read

from tilewright.compiler import native
from tilewright.errors import TilewrightError
from tilewright.machine import Machine
from tilewright.passes import pipeline
from tilewright.passes.job import Job
from tilewright.plan.model import microseconds
from tilewright.plan.schedule import Schedule
from tilewright.plan.search import Ranking, Rejected, as_plan, search

MACHINE = "hopper/132"
SAME, ALIKE = 1e-3, 0.02
"""Predicted times that differ by no more, relatively, are the same; are about the same."""


FAULTS = (TilewrightError, AssertionError, ArithmeticError, LookupError, AttributeError, TypeError, ValueError)
"""Errors that lowering a plan may raise: refusals, and faults, which are reported too."""
LEFT_OUT = {
    "grid": "workgroups are part of such a program's meaning: its plan is given by its constraints",
}
"""Lists that are not compared, and why."""


class _Planned(Exception):
    """A job is ready to be planned."""


@contextmanager
def _stopped_before_choosing(jobs: list[Job]) -> Iterator[None]:
    """Within it a compile stops where its plan would be chosen; the job is added to `jobs`."""

    def run(job: Job, *_: Any) -> Job:
        jobs.append(job)
        for name, step in pipeline.PASSES:
            if name == "choose":
                raise _Planned
            step(job)
        return job

    before = native.run
    native.run = run
    try:
        yield
    except _Planned:
        pass
    finally:
        native.run = before


def planning_of(kernel: Any, sizes: Any, machine: Machine, **more: Any) -> Job:
    """The job of a kernel when its plan is to be chosen; `more` is what a compile takes besides."""
    jobs: list[Job] = []
    with _stopped_before_choosing(jobs):
        native.kernel_for(kernel, sizes, machine=machine, **more)
    return jobs[-1]


def job_of(problem: Problem, machine: Machine) -> Job:
    """The job of a problem when its plan is to be chosen."""
    return planning_of(problem.make(), problem.sizes, machine, dynamic=problem.dynamic, constant=problem.constant)


def best_plan(ranking: Ranking) -> tuple[Schedule, float] | None:
    """The plan of the first candidate that today's lowering does, and its cycles."""
    for candidate in ranking.candidates:
        plan = as_plan(candidate)
        if not isinstance(plan, Rejected):
            return plan, candidate.cycles
    return None


def why_not_lowered(problem: Problem, machine: Machine, plan: str) -> str:
    """Why a plan of a problem is refused, in one line; empty where its kernels are lowered."""
    try:
        native.kernel_for(
            problem.make(),
            problem.sizes,
            machine=machine,
            plan=plan,
            dynamic=problem.dynamic,
            constant=problem.constant,
        )
    except FAULTS as fault:
        return f"{type(fault).__name__}: {' '.join(str(fault).split())}"[:300]
    return ""


def shadow(
    key: Key, problem: Problem, today: Any, show: bool, lower: bool, machine_name: str = MACHINE
) -> tuple[str, float]:
    """(how both agree, seconds of the search); prints a line, and both plans where they differ and it is asked for."""
    machine = machine_of(machine_name)
    try:
        job = job_of(problem, machine)
    except TilewrightError as fault:
        print(f"{key[0]}: {key[1]}: no job: {type(fault).__name__}")
        return "no job", 0.0
    start = time.perf_counter()
    sizes = {**job.sizes, **job.typical}
    ranking = search(job.program, sizes, machine, job.free, constant=job.constant, opened=job.open_extents)
    took = time.perf_counter() - start
    found = best_plan(ranking)
    name = f"{key[0]}: {key[1]}"
    if found is None:
        why = "; ".join(f"{x.what}: {x.why}" for x in map(as_plan, ranking.candidates[:1]) if isinstance(x, Rejected))
        print(f"{name}: no plan; {why or ranking.rejected}"[:400])
        return "no plan", took
    plan, cycles = found
    ratio = cycles / today.cycles if today.cycles else 0.0
    text = "\n".join(plan.opened({str(d) for d in job.open_extents}).lines())
    same = text == today.plan
    word = "same" if same and abs(ratio - 1) < SAME else "same, other time" if same else _differs(ratio)
    times = f"today {microseconds(today.cycles, machine):.2f} us, search {microseconds(cycles, machine):.2f} us"
    print(f"{name}: {word}: {times}, ratio {ratio:.4f}, {took:.2f} s")
    if show and not same:
        print("   today   " + "\n           ".join(today.plan.splitlines()))
        print("   search  " + "\n           ".join(text.splitlines()))
    if lower and not same:
        word = realised(problem, machine, ranking, today, word)
    return word, took


def realised(problem: Problem, machine: Machine, ranking: Ranking, today: Any, word: str) -> str:
    """How the first candidate that is lowered agrees; prints those that are refused before it."""
    for refused, candidate in enumerate(ranking.candidates):
        plan = as_plan(candidate)
        text = "" if isinstance(plan, Rejected) else "\n".join(plan.lines())
        why = plan.why if isinstance(plan, Rejected) else why_not_lowered(problem, machine, text)
        if not why:
            ratio = candidate.cycles / today.cycles
            same = "the plan of today" if text == today.plan else f"{ratio:.4f} of today's time"
            print(f"   lowered after {refused} refused: {same}")
            return word if not refused else f"then {'same' if text == today.plan else _differs(ratio)}"
        print(f"   refused {candidate.family}: {why}")
    return "all refused"


def _differs(ratio: float) -> str:
    if abs(ratio - 1) < SAME:
        return "other plan, same time"
    return "other plan, about the time" if abs(ratio - 1) < ALIKE else "faster" if ratio < 1 else "slower"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", nargs="?", type=int, help="how many entries; all of them if it is left out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", help="only these lists")
    parser.add_argument("--only", default="", help="only problems whose name has these words")
    parser.add_argument("--differs", action="store_true", help="print both plans where they differ")
    parser.add_argument("--lower", action="store_true", help="bind and lower the plans that are not the recorded ones")
    parser.add_argument("--machine", default=MACHINE, help="a machine of the corpus, such as ampere/108")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    record, every = read(), problems()
    keys = [k for k in entries() if k[2] == args.machine and (not args.kind or k[0] in args.kind) and args.only in k[1]]
    keys = [k for k in keys if k in record and not record[k].error and k[0] not in LEFT_OUT]
    if args.count is not None:
        keys = sorted(sample(keys, args.count, args.seed), key=keys.index)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    seconds = []
    for key in keys:
        word, took = shadow(key, every[key[0], key[1]], record[key], args.differs, args.lower, args.machine)
        counts[key[0]][word] += 1
        seconds.append(took)
    print()
    for kind, words in counts.items():
        print(f"{kind:16} {sum(words.values()):4}  " + ", ".join(f"{w} {n}" for w, n in words.most_common()))
    if seconds:
        ordered = sorted(seconds)
        print(f"search: median {ordered[len(ordered) // 2]:.3f} s, longest {ordered[-1]:.2f} s")


if __name__ == "__main__":
    main()
