"""One entry of the plan corpus: a problem planned for a machine, and what is recorded of that.

Machines are rows of `targets`, their caches too, with the number of cores that the entry's name says: what is recorded
does not depend on the CPU at hand.
"""

from __future__ import annotations

import hashlib
import signal
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from corpus_problems import Problem, problems

from tilewright.compiler.native import kernel_for
from tilewright.errors import TilewrightError
from tilewright.machine import Machine
from tilewright.plan.choice import Choice
from tilewright.targets.registry import machine

CPUS = (
    *("x86.avx2", "x86.avx512", "x86.amx"),
    *("aarch64.neon", "aarch64.neon.dotprod", "aarch64.neon.fullfp16.dotprod.bf16.i8mm"),
)
CORES = (2, 16)
GPUS = ("hopper", "ampere", "cdna3", "xe")
LIMIT = 60
"""Seconds of a core that planning an entry may take."""
CANDIDATES = 8
"""How many candidates of a choice are recorded."""


class TooLong(Exception):
    """Planning an entry took more than LIMIT seconds."""


@dataclass(frozen=True)
class Planned:
    """The record of an entry: its plan and hashes of what goes with it, or the error that planning gave."""

    error: str = ""
    cycles: float = 0.0
    plan: str = ""
    candidates: str = ""
    """How many there are, and the hash of the first eight."""
    refused: str = ""
    """How many there are, and their hash."""
    programs: tuple[str, ...] = ()
    """The hash of every block program."""


@cache
def machine_of(name: str) -> Machine:
    """The machine `ROW/CORES`, with the row's own caches.

    >>> machine_of("x86.avx512/16").limits.cores
    16
    """
    row, _, cores = name.rpartition("/")
    found = machine(row)
    if found.limits.cores == int(cores):
        return found
    return replace(found, limits=replace(found.limits, cores=int(cores)))


def machine_names() -> list[str]:
    """All machines of the corpus: CPUs with the numbers of cores that are given, GPUs with those of their rows."""
    gpus = [f"{name}/{machine(name).limits.cores}" for name in GPUS]
    return [*gpus, *(f"{name}/{cores}" for name in CPUS for cores in CORES)]


def short_hash(texts: Iterable[str]) -> str:
    """Ten digits of the sha256 of texts."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:10]


def planned(problem: Problem, machine_name: str, limit: int | None = LIMIT, plan: str | None = None) -> Planned:
    """The plan of a problem for a machine, chosen or given; without a limit planning may take any time."""
    try:
        with warnings.catch_warnings(), _at_most(limit):
            warnings.simplefilter("ignore")  # of products without atoms: the plan says so
            found = kernel_for(
                problem.make(),
                problem.sizes,
                machine=machine_of(machine_name),
                dynamic=problem.dynamic,
                constant=problem.constant,
                plan=plan,
            )
            return _recorded(found)
    except TooLong:
        return Planned(error=f"TooLong: more than {limit} s")
    except (
        TilewrightError,
        AssertionError,
        ArithmeticError,
        LookupError,
        AttributeError,
        TypeError,
        ValueError,
    ) as fault:
        # faults of the planner are recorded too, so that mending them shows
        first, *_ = [*str(fault).strip().splitlines(), ""]
        return Planned(error=f"{type(fault).__name__}: {first}".strip().removesuffix(":"))


@contextmanager
def _at_most(seconds: int | None) -> Iterator[None]:
    """Raises TooLong within it after so many seconds of this process; in its main thread only."""
    if seconds is None:
        yield
        return

    def stop(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _recorded(found: Any) -> Planned:
    """The record of a planned kernel."""
    choices = list(_choices(found.choice))
    plans = [[str(candidate.plan) for candidate in choice.candidates] for choice in choices]
    refused = [[f"{r}\n{r.plan or ''}" for r in choice.refused] for choice in choices]
    first = [text for texts in plans for text in texts[:CANDIDATES]]
    every = [text for texts in refused for text in texts]
    return Planned(
        cycles=float(f"{found.choice.cycles:.9g}"),
        plan="\n".join(map(str, found.plan.lines())),
        candidates=f"{sum(map(len, plans))}:{short_hash(first)}",
        refused=f"{len(every)}:{short_hash(every)}",
        programs=tuple(f"{name}:{short_hash([str(program)])}" for name, program in found.module.programs.items()),
    )


def _choices(choice: Choice) -> Iterator[Choice]:
    """A choice, and those of the programs that it is done as."""
    yield choice
    for part in choice.parts:
        yield from _choices(part)


@cache
def _problems() -> dict[tuple[str, str], Problem]:
    return problems()


def planned_by_name(kind: str, name: str, machine_name: str, limit: int | None = LIMIT) -> Planned:
    """The record of an entry, made in another process: kernels cannot be sent to one."""
    return planned(_problems()[kind, name], machine_name, limit)


def pinned_by_name(kind: str, name: str, machine_name: str) -> tuple[Planned, Planned]:
    """The record of an entry, and that of its plan given as `plan=`, made in another process."""
    chosen = planned_by_name(kind, name, machine_name)
    given = planned(_problems()[kind, name], machine_name, plan=chosen.plan) if chosen.plan else chosen
    return chosen, given
