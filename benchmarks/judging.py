"""Many small trials, shared by processes: each must end in a typed error or in none, within limits of time and memory.

A trial is a function of a kind, a number and a seed, in a module of its own; number I of seed S of a kind is the same
trial in every run. It notes in a `Trial` what it does. What it raises must be of `tilewright.errors`, and the message
must hold the value that is wrong. Anything else is a finding: another exception, more of the processor's time or of
memory than one trial may take, a process that dies or does not return, a message without the value.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import resource
import signal
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.errors import TilewrightError

SECONDS = 2.0
"""The most that one trial may take of the processor's time, that of code generation included."""
MEMORY = 500 << 20
"""The most memory that one trial may take beyond what the process holds before."""
PATIENCE = 60.0
"""Seconds without a sign of life after which a process is ended."""
CHUNK = 200
"""Trials that a process takes at a time."""
SAMPLED = 500
"""Messages that are drawn at the end: each must hold the value that is wrong."""
REPORTED = 10.0
"""Seconds between two lines that say how far a run is."""


@dataclass
class Trial:
    """What one trial notes of itself."""

    text: str = ""
    """What was tried, as text."""
    values: tuple[str, ...] = ()
    """What is wrong: of these, each message must hold one."""
    removed: bool = False
    """Whether something is missing: what a parser finds in its place is wrong too."""
    joined: bool = False
    """Whether numbers stand beside words without a space, as in mb1ic64."""
    origin: int = 0
    """Which text it was made from."""
    parsed: bool = False
    """Whether the text passed its parser."""
    count: int = 0
    """How many messages there were."""
    silent: list[str] = field(default_factory=list)
    """Those that do not hold what is wrong."""
    fault: BaseException | None = None
    """What it ended in."""

    def allowed(self, use: Callable[..., Any], *args: Any) -> Any:
        """What comes of a use; None where a typed error refuses it, which may then name the first argument too."""
        from tilewright.errors import TilewrightError

        try:
            return use(*args)
        except TilewrightError as fault:
            self.heard(fault, str(args[0]))
            return None

    def heard(self, fault: TilewrightError, *values: str) -> None:
        """Looks at the message of an error; these values may be named as well."""
        from tilewright.errors import ParseError

        values += self.values
        if self.removed and isinstance(fault, ParseError):
            values += ((fault.text[fault.position :].split() or ["ends"])[0],)
        where = getattr(fault, "location", None)
        if self.removed and where is not None:
            values += (where.text.strip(),)
        self.count += 1
        if not any(holds(str(fault), v, self.joined) for v in values):
            self.silent.append(str(fault))


Doing = Callable[[str, int, int, Trial], None]
"""Does trial number so and so of a kind and a seed."""


@dataclass
class Outcome:
    """What came of some trials of a kind."""

    kind: str
    count: int = 0
    parsed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str, str]] = field(default_factory=list)
    """(number, what, where)"""
    messages: int = 0
    silent: list[tuple[int, str]] = field(default_factory=list)
    """(number, message) of those that do not hold the value that is wrong."""
    seconds: float = 0.0
    memory: int = 0

    def add(self, other: Outcome) -> None:
        """Counts another's in."""
        self.count += other.count
        self.parsed += other.parsed
        self.errors += other.errors
        self.findings += other.findings
        self.messages += other.messages
        self.silent += other.silent
        self.seconds = max(self.seconds, other.seconds)
        self.memory = max(self.memory, other.memory)


# -- messages ----------------------------------------------------------------------------------------------------------

BEGINNING = 16
"""Of a long value, so many characters must be shown."""


def holds(message: str, value: str, joined: bool = False) -> bool:
    """Whether a message holds a value: as a word of its own, or the beginning of what is long.

    Where numbers and words are joined, a number ends where no digit follows.

    >>> holds("the extent 16 is", "16"), holds("the extent 16 is", "6"), holds("9999999999999999...", "9" * 5000)
    (True, False, True)
    """
    value = " ".join(value.split())
    if len(value) > BEGINNING:
        return value[:BEGINNING] in " ".join(message.split())
    edges = ["", ""]
    for place, end in enumerate((value[:1], value[-1:])):
        if end.isalnum() or end == "_":
            edges[place] = (r"\d" if end.isdigit() else "") if joined else r"\w"
    before, after = (f"(?{how}{edge})" if edge else "" for how, edge in zip(("<!", "!"), edges, strict=True))
    return bool(value) and re.search(before + re.escape(value) + after, message) is not None


# -- one trial ---------------------------------------------------------------------------------------------------------


class TooLong(BaseException):
    """Raised in a trial that takes longer than it may."""


def _stop(number: int, frame: FrameType | None) -> None:
    raise TooLong


def _status(process: int | str, *names: str) -> list[int]:
    """Values of a process's status, in bytes."""
    text = Path(f"/proc/{process}/status").read_text()
    return [int(re.search(rf"{name}:\s+(\d+)", text)[1]) << 10 for name in names]  # type: ignore[index]


class Meter:
    """Time and memory that a trial takes: of this process and of the one that generates machine code."""

    def __init__(self) -> None:
        from tilewright.runtime.codegen import HELPER

        self.helper = HELPER.process.pid if HELPER.process is not None and HELPER.process.poll() is None else None
        self.held = {process: self._fresh(process) for process in ("self", self.helper) if process is not None}
        self.seconds = time.process_time() + self._helpers_seconds()

    @staticmethod
    def _fresh(process: int | str) -> int:
        """What a process holds; the most that it held is forgotten."""
        with suppress(OSError):  # where a system does not forget, the most so far counts
            Path(f"/proc/{process}/clear_refs").write_text("5")
        return _status(process, "VmRSS")[0]

    def _helpers_seconds(self) -> float:
        if self.helper is None or not Path(f"/proc/{self.helper}").exists():
            return 0.0
        times = Path(f"/proc/{self.helper}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")

    def taken(self) -> tuple[float, int]:
        """Seconds and bytes since this meter was made."""
        seconds = max(0.0, time.process_time() + self._helpers_seconds() - self.seconds)
        there = [process for process in self.held if Path(f"/proc/{process}").exists()]
        return seconds, max(_status(process, "VmHWM")[0] - self.held[process] for process in there)


def judge(do: Doing, kind: str, number: int, seed: int, trial: Trial | None = None) -> Outcome:
    """One trial, in this process; it is noted in `trial`."""
    from tilewright.errors import CodeGenerationError, TilewrightError

    outcome, trial, meter = Outcome(kind, 1), trial or Trial(), Meter()
    before = signal.signal(signal.SIGPROF, _stop)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            do(kind, number, seed, trial)
        signal.setitimer(signal.ITIMER_PROF, 0)
        outcome.errors["refused in part" if trial.count else "none"] += 1
    except TilewrightError as fault:
        signal.setitimer(signal.ITIMER_PROF, 0)
        outcome.errors[type(fault).__name__] += 1
        trial.fault = fault
        trial.heard(fault)
        if isinstance(fault, CodeGenerationError):  # LLVM was given what it does not take
            outcome.findings.append((number, f"CodeGenerationError: {str(fault)[:200]}", "codegen"))
    except (Exception, TooLong) as fault:
        signal.setitimer(signal.ITIMER_PROF, 0)
        trial.fault = fault
        frames = traceback.extract_tb(fault.__traceback__)
        ours = [f for f in frames if "tilewright" in f.filename] or frames
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}"
        outcome.findings.append((number, f"{type(fault).__name__}: {str(fault)[:200]} in {trial.text[:200]!r}", where))
    finally:
        signal.signal(signal.SIGPROF, before)
    outcome.seconds, outcome.memory = meter.taken()
    if outcome.seconds > SECONDS and not outcome.findings:
        outcome.findings.append((number, f"took {outcome.seconds:.1f} s", trial.text[:80]))
    if outcome.memory > MEMORY:
        outcome.findings.append((number, f"took {outcome.memory >> 20} MB", trial.text[:80]))
    outcome.parsed += trial.parsed
    outcome.messages = trial.count
    outcome.silent = [(number, message) for message in trial.silent]
    return outcome


# -- processes -------------------------------------------------------------------------------------------------------


def _work(do: Doing, begin: Callable[[], None], pipe: Any) -> None:
    """Does the trials that come through a pipe, and sends each one's outcome back."""
    os.environ["TILEWRIGHT_CACHE_DIR"] = "off"
    import numpy as np

    from tilewright.runtime.codegen import HELPER

    np.ones((2, 2)) @ np.ones((2, 2))  # what a library reserves for each core, once, is no trial's memory
    HELPER.start()
    begin()
    while (order := pipe.recv()) is not None:
        kind, number, seed = order
        most = _status("self", "VmSize")[0] + MEMORY + (MEMORY >> 2)  # reserved, not only touched
        resource.setrlimit(resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))
        outcome = judge(do, kind, number, seed)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        pipe.send(outcome)


class Worker:
    """A process that does trials; one that hangs or dies is replaced, and that is a finding."""

    def __init__(self, do: Doing, begin: Callable[[], None]):
        self.made_of = do, begin
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_work, args=(*self.made_of, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.fresh = True

    def outcome(self, kind: str, number: int, seed: int) -> Outcome:
        """What comes of one trial."""
        try:
            self.pipe.send((kind, number, seed))
            if self.pipe.poll(PATIENCE * (4 if self.fresh else 1)):
                self.fresh = False
                return self.pipe.recv()  # type: ignore[no-any-return]
            what = f"no return in {PATIENCE:.0f} s"
        except (EOFError, BrokenPipeError, ConnectionResetError):
            what = "the process died"
        self.process.kill()
        self.process.join()
        self._start()
        return Outcome(kind, 1, findings=[(number, what, "")])

    def end(self) -> None:
        """Lets the process go."""
        self.pipe.send(None)
        self.process.join()


def run(
    do: Doing,
    begin: Callable[[], None],
    kinds: tuple[str, ...],
    numbers: range,
    seed: int,
    jobs: int,
    seconds: float | None = None,
) -> dict[str, Outcome]:
    """The trials of these numbers of each kind, shared by processes; as many as begin within some seconds."""
    total = {kind: Outcome(kind) for kind in kinds}
    chunks: SimpleQueue[tuple[str, range]] = SimpleQueue()
    for first in range(0, len(numbers), CHUNK):
        for kind in kinds:
            chunks.put((kind, numbers[first : first + CHUNK]))
    lock = threading.Lock()

    def orders() -> Iterator[tuple[str, range]]:
        while True:
            try:
                yield chunks.get_nowait()
            except Empty:
                return

    def gather() -> None:
        worker = Worker(do, begin)
        for kind, chunk in orders():
            for number in chunk:
                if seconds is not None and time.monotonic() - start > seconds:
                    break
                found = worker.outcome(kind, number, seed)
                with lock:
                    total[kind].add(found)
        worker.end()

    start = time.monotonic()
    threads = [threading.Thread(target=gather) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    said = start
    while any(thread.is_alive() for thread in threads):
        for thread in threads:
            thread.join(0.2)
        if time.monotonic() - said > REPORTED:
            said = time.monotonic()
            done = sum(o.count for o in total.values())
            found = sum(len(o.findings) for o in total.values())
            share = f"{done} of {len(numbers) * len(kinds)}"
            print(f"{share}, {found} findings, {done / (said - start):.0f}/s", file=sys.stderr, flush=True)
    return total


# -- the command line --------------------------------------------------------------------------------------------------


def command(
    arguments: list[str] | None,
    about: str,
    script: str,
    do: Doing,
    kinds: tuple[str, ...],
    begin: Callable[[tuple[str, ...]], Callable[[], None]],
    count: int,
    least_parsed: float | None = None,
) -> int:
    """What a script of trials does when it is called: its exit code.

    `begin` gives, for the kinds that are asked for, what each process does first.
    """
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("count", nargs="?", type=int, default=count, help="trials in all, shared by the kinds")
    parser.add_argument("--kind", choices=kinds, action="append", help="this kind only; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first trial of each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes that work at once")
    parser.add_argument("--seconds", type=float, help="begin no trial after that, and report what was done")
    parser.add_argument("--show", action="store_true", help="print each trial and how it ends, in this process")
    options = parser.parse_args(arguments)
    chosen = tuple(options.kind or kinds)
    numbers = range(options.first, options.first + -(-options.count // len(chosen)))
    if options.show:
        begin(chosen)()
        for kind in chosen:
            for number in numbers:
                show(do, kind, number, options.seed)
        return 0
    total = run(do, begin(chosen), chosen, numbers, options.seed, options.jobs, options.seconds)
    return not report(total, options.seed, script, least_parsed)


def show(do: Doing, kind: str, number: int, seed: int) -> None:
    """Prints a trial: its text, what is wrong in it, and how it ends, with the traceback of what is no typed error."""
    from tilewright.errors import TilewrightError

    trial = Trial()
    outcome = judge(do, kind, number, seed, trial)
    print(trial.text[:4000], f"wrong: {[value[:80] for value in trial.values]}", outcome, sep="\n")
    if trial.fault is not None:
        traceback.print_exception(trial.fault, limit=0 if isinstance(trial.fault, TilewrightError) else None)


# -- the report --------------------------------------------------------------------------------------------------------


def report(total: dict[str, Outcome], seed: int, script: str, least_parsed: float | None) -> bool:
    """Prints findings and a table; whether all is as it should be."""
    for outcome in total.values():
        groups: dict[tuple[str, str], list[tuple[int, str]]] = {}
        for number, what, where in outcome.findings:
            groups.setdefault((what.split(":")[0], where), []).append((number, what))
        for (_, where), found in sorted(groups.items(), key=lambda group: -len(group[1])):
            again = f"{script} --kind {outcome.kind} --seed {seed} --first {found[0][0]} --show 1"
            print(f"{len(found)}x {found[0][1]}\n    at {where}; {again}")
        for number, message in outcome.silent[:20]:
            again = f"{script} --kind {outcome.kind} --seed {seed} --first {number} --show 1"
            print(f"{outcome.kind}: a message without the value: {message[:300]!r}\n    {again}")
    heads = ("kind", "trials", "parsed", "typed errors", "findings", "slowest s", "most MB", "messages", "with value")
    print(" | ".join(f"{head:>12}" for head in heads))
    good = True
    both = Outcome("all")
    for outcome in total.values():
        both.add(outcome)
    for outcome in (*total.values(), both):
        count = max(outcome.count, 1)
        named = 1 - len(outcome.silent) / max(outcome.messages, 1)
        typed = sum(n for name, n in outcome.errors.items() if name not in ("none", "refused in part"))
        cells = (
            *(outcome.kind, outcome.count, "" if least_parsed is None else f"{outcome.parsed / count:.1%}", typed),
            *(len(outcome.findings), f"{outcome.seconds:.2f}", outcome.memory >> 20, outcome.messages),
            f"{named:.2%}",
        )
        print(" | ".join(f"{cell:>12}" for cell in cells))
        enough = least_parsed is None or outcome.parsed / count >= least_parsed or outcome.count < 100
        good = good and not outcome.findings and enough
    drawn = random.Random(seed).sample(range(both.messages), min(SAMPLED, both.messages))
    named = sum(place >= len(both.silent) for place in drawn)  # messages in any order: those without the value first
    print(f"of {len(drawn)} messages drawn at random, {named} hold the value: {named / max(len(drawn), 1):.1%}")
    return good and named == len(drawn)
