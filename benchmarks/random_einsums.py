"""Random einsums, pairs of products and reductions: exact on the interpreters of described machines, and natively.

    python benchmarks/random_einsums.py [COUNT] [--seed S] [--first I] [--only NUMBER] [--jobs N]
        [--kind einsum|two|reduction|mixed|all] [--machines a,b | --all-machines] [--native] [--gpu]

The programs are those of einsum_programs.py: operands may have no free dimension, extents may be 1, dimensions stand in
any order, loops go over some of what is summed. Every program runs on the executor, and its block programs and the loop
programs that they become run on the interpreter for two machines that are drawn for it; every tenth runs for all. With
`--native` it is also called on this CPU, as it is planned and without a pipeline, and with `--gpu` on the GPU at hand.
Before a run every result and the guards around all arrays hold NaN (a marker, for integers). Results must be equal to
those of numpy in int64.

A program that is refused is a failure too, unless `DOCUMENTED` says that the language refuses it. Each failure is one
line with what reproduces it. At the end there are the distinct failures, by error and place, and a table: what came of
the programs, by kind and machine. Program number I of a seed and a kind is the same in every run. Processes share the
work; one that takes longer than PATIENCE at one place, or dies, is replaced, and that is a failure. The exit code is 1
if there is a failure.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from einsum_programs import KINDS, Einsum, made
from gpu_random import Case, OnHost, Run, differs, poison_workspaces, ran

import tilewright
from tilewright.compiler.native import kernel_for
from tilewright.errors import InterpreterFault, TargetError, TilewrightError
from tilewright.targets.nvidia import driver
from tilewright.targets.registry import MACHINES, machine

ALL = (*MACHINES, "aarch64.neon.fullfp16.dotprod", "aarch64.neon.bf16.i8mm")
"""The machines whose programs are interpreted."""
DRAWN, EVERY = 2, 10
"""How many machines a program is interpreted for; every so manyth, for all."""
PATIENCE = 120.0
"""Seconds that a program may take at one place."""
REPORTED = 15.0
"""Seconds between two lines that say how far a run is."""
DOCUMENTED: tuple[tuple[type[TilewrightError], str], ...] = ()
"""Refusals that the language documents: the error, and what its message matches."""
VERDICTS = ("exact", "documented", "refused", "wrong", "untyped")
FAILURES = VERDICTS[2:]
"""Refused by a typed error; other numbers, or a fault of the interpreter or the driver; anything else: another
exception, a hang, a dead process."""


@dataclass(frozen=True)
class Ways:
    """The places where programs run: the machines asked for, drawn ones where that is None, and natively."""

    machines: tuple[str, ...] | None = None
    native: bool = False
    gpu: bool = False

    def of(self, kind: str, number: int, seed: int) -> Iterator[tuple[str, str]]:
        """(how, where) for a program: the executor first."""
        yield "executor", ""
        rows = self.machines
        if rows is None:
            rng = random.Random(f"machines {kind} {seed} {number}")
            rows = ALL if number % EVERY == 0 else tuple(rng.sample(ALL, DRAWN))
        for row in rows:
            yield "interpret", row
            yield "loops", row
        if self.native:
            yield "native", "best"
            yield "native", "general"
        if self.gpu:
            yield "run", "gpu"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a program at one place."""

    kind: str
    number: int
    seed: int
    where: str
    verdict: str
    words: str = ""
    """The program in words."""
    error: str = ""
    """The error, in one line."""
    place: str = ""
    """The innermost line of the package that raised it."""

    def __str__(self) -> str:
        again = f"--kind {self.kind} --only {self.number} --seed {self.seed}"
        return f"{self.verdict} on {self.where}: [{again}] {self.words}: {self.error}{self._at}"

    @property
    def _at(self) -> str:
        return f" ({self.place})" if self.place else ""

    @property
    def fault(self) -> str:
        """The same for failures that are alike: without numbers and names."""
        plain = re.sub(r"-?\d+(\.\d+)?", "N", re.sub(r"%\w+", "%x", self.error))
        if self.verdict == "wrong" and not self.place:
            plain = "results differ"
        return f"{self.verdict}: {plain[:160]}{self._at}"


# -- one program -----------------------------------------------------------------------------------------------


def outcomes(kind: str, number: int, seed: int, ways: Ways) -> Iterator[str | Outcome]:
    """The outcomes of a program: the name of each place, and then the outcome there."""
    case, exact = made(kind, number, seed), True
    for how, where in ways.of(kind, number, seed):
        if how == "loops" and not exact:  # its block program failed already
            continue
        told = {"interpret": where, "loops": f"{where}, loops", "native": f"natively, {where}", "run": "gpu"}
        name = told.get(how, how)
        yield name
        said = _tried(case, how, where)
        exact = said[0] == "exact"
        yield Outcome(kind, number, seed, name, said[0], case.words, *said[1:])


def _tried(case: Einsum, how: str, where: str) -> tuple[str, ...]:
    """(verdict, error, place) of a program that runs in one way."""
    try:
        said = wrong(case, how, where)
    except TilewrightError as fault:
        said = f"{type(fault).__name__}: {str(fault).partition(chr(10))[0]}"
        if any(isinstance(fault, of) and re.search(text, str(fault)) for of, text in DOCUMENTED):
            return "documented", said
        return "wrong" if isinstance(fault, InterpreterFault | TargetError) else "refused", said, _place(fault)
    except Exception as fault:
        return "untyped", f"{type(fault).__name__}: {str(fault).partition(chr(10))[0][:200]}", _place(fault)
    return ("wrong", said) if said else ("exact",)


def _place(fault: BaseException) -> str:
    """The innermost line of the package in a traceback."""
    frames = [f for f in traceback.extract_tb(fault.__traceback__) if "/tilewright/" in f.filename]
    if not frames:
        return ""
    return f"{frames[-1].filename.rpartition('/tilewright/')[2]}:{frames[-1].lineno} {frames[-1].name}"


def wrong(case: Einsum, how: str, where: str) -> str:
    """The fault of a program's results at one place, in words; empty: they are exact.

    `how` is "executor"; "interpret" or "loops" on a machine; "native" by the path "best" or "general"; "run" on a GPU.
    """
    run = Run(case.arrays, case.wanted)
    if how in ("executor", "native"):  # by the public call
        arrays = {n: OnHost(array, n in case.wanted) for n, array in case.arrays.items()}
        call = tilewright.compile(case.kernel, target="cpu" if how == "native" else how)
        if how == "native":
            call.path = where  # type: ignore[attr-defined]
        call(*(array.array for array in arrays.values()))
        return differs(run, arrays)
    planned: dict[str, Any] = {"target": "gpu:hopper"} if how == "run" else {"machine": machine(where)}
    kernel = kernel_for(case.kernel, case.sizes, **planned)
    return ran(kernel, Case(case.words, case.kernel, case.sizes, [run]), run, how)


# -- processes -------------------------------------------------------------------------------------------------


def _work(pipe: Any, seed: int, ways: Ways) -> None:
    """Runs the programs that come through a pipe."""
    warnings.simplefilter("ignore")
    os.environ.setdefault("TILEWRIGHT_CACHE_DIR", "off")
    if ways.gpu:
        poison_workspaces()
    while (order := pipe.recv()) is not None:
        for each in outcomes(*order, seed, ways):
            pipe.send(each)
            if isinstance(each, Outcome) and each.where == "gpu" and each.verdict == "wrong":
                return  # what the driver reports once it reports from then on
        pipe.send(None)


class Worker:
    """A process that runs programs; one that hangs or dies is replaced."""

    def __init__(self, seed: int, ways: Ways):
        self.seed, self.ways = seed, ways
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_work, args=(theirs, self.seed, self.ways), daemon=True)
        self.process.start()
        theirs.close()

    def outcomes(self, kind: str, number: int) -> list[Outcome]:
        """The outcomes of a program."""
        found: list[Outcome] = []
        where, said = "its process", f"no return in {PATIENCE:.0f} s"
        try:
            self.pipe.send((kind, number))
            while self.pipe.poll(PATIENCE):
                each = self.pipe.recv()
                if each is None:
                    return found
                if isinstance(each, Outcome):
                    found.append(each)
                else:
                    where = each
        except (EOFError, BrokenPipeError, ConnectionResetError):
            said = "the process died"
        self._again()
        if not (found and found[-1].where == where):  # it began there, and nothing came of it
            words = made(kind, number, self.seed).words
            found.append(Outcome(kind, number, self.seed, where, "untyped", words, said))
        return found

    def _again(self) -> None:
        self.process.kill()
        self.process.join()
        self._start()

    def end(self) -> None:
        """Lets the process go."""
        with suppress(BrokenPipeError):
            self.pipe.send(None)
        self.process.join(5)
        self.process.kill()


def run_all(orders: list[tuple[str, int]], seed: int, ways: Ways, jobs: int) -> list[Outcome]:
    """The outcomes of programs, shared by processes; failures are printed as they come."""
    waiting: SimpleQueue[tuple[str, int]] = SimpleQueue()
    for order in orders:
        waiting.put(order)
    found: list[Outcome] = []
    lock, start, done = threading.Lock(), time.monotonic(), Counter[str]()

    def gather() -> None:
        worker = Worker(seed, ways)
        with suppress(Empty):
            while True:
                said = worker.outcomes(*waiting.get_nowait())
                with lock:
                    found.extend(said)
                    done["programs"] += 1
                    for each in said:
                        if each.verdict in FAILURES:
                            print(each, flush=True)
        worker.end()

    threads = [threading.Thread(target=gather, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    last = start
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.1)
        if time.monotonic() - last > REPORTED:
            last = time.monotonic()
            failed = sum(each.verdict in FAILURES for each in found)
            told = f"{last - start:.0f} s: {done['programs']} of {len(orders)} programs, {failed} failures"
            print(told, file=sys.stderr, flush=True)
    return found


# -- what came of it -------------------------------------------------------------------------------------------


def faults(found: Iterable[Outcome]) -> list[list[Outcome]]:
    """Failures that are alike, the most frequent first."""
    alike: dict[str, list[Outcome]] = {}
    for each in found:
        if each.verdict in FAILURES:
            alike.setdefault(each.fault, []).append(each)
    return sorted(alike.values(), key=len, reverse=True)


def report(found: list[Outcome], seconds: float) -> None:
    """Prints the distinct failures, and a table by kind and place."""
    for same in faults(found):
        places = ", ".join(f"{where} {count}" for where, count in Counter(x.where for x in same).most_common())
        print(f"\n{len(same)} x {same[0].fault}\n  on {places}\n  such as {min(same, key=lambda x: len(x.words))}")
    counts = Counter((each.kind, each.where, each.verdict) for each in found)
    rows = dict.fromkeys((each.kind, each.where) for each in sorted(found, key=lambda x: (x.kind, x.where)))
    print(f"\n{'kind':10} {'where':40}" + "".join(f"{verdict:>11}" for verdict in VERDICTS))
    for kind, where in rows:
        print(f"{kind:10} {where:40}" + "".join(f"{counts[kind, where, verdict]:11}" for verdict in VERDICTS))
    total = Counter(each.verdict for each in found)
    print(f"{'all':10} {'':40}" + "".join(f"{total[verdict]:11}" for verdict in VERDICTS))
    programs = {(each.kind, each.number) for each in found}
    failed = {(each.kind, each.number) for each in found if each.verdict in FAILURES}
    print(f"{len(programs)} programs, {len(failed)} with failures, {seconds:.0f} s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="all")
    parser.add_argument("--only", type=int, help="the number of one program of the kind")
    parser.add_argument("--machines", default="", help="those to interpret for; none: only the executor, and natively")
    parser.add_argument("--all-machines", action="store_true")
    parser.add_argument("--native", action="store_true")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    os.environ |= {"OPENBLAS_NUM_THREADS": "1", "CUDA_CACHE_DISABLE": "1"}  # processes shall not wait for one another
    if options.gpu and isinstance(there := driver.device(), str):
        parser.error(f"--gpu: {there}")
    machines = tuple(options.machines.split(",")) if options.machines else None
    machines = ALL if options.all_machines else () if machines == ("none",) else machines
    ways = Ways(machines, options.native, options.gpu)
    kinds = tuple(KINDS) if options.kind == "all" else (options.kind,)
    numbers = range(options.first, options.first + options.count)
    orders = [(kinds[n % len(kinds)], n // len(kinds)) for n in numbers]
    if options.only is not None:
        orders = [(kind, options.only) for kind in kinds]
        for kind in kinds:
            print(f"{kind} {options.only}: {made(kind, options.only, options.seed).words}")
    start = time.monotonic()
    found = run_all(orders, options.seed, ways, min(options.jobs, len(orders)))
    report(found, time.monotonic() - start)
    return int(any(each.verdict in FAILURES for each in found))


if __name__ == "__main__":
    sys.exit(main())
