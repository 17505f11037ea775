"""The record of the plan corpus as text: a file for each kind of problem, a line for each entry, plans written once.

    problem bf16 nt 1000x1000x1000
      hopper/132 17431.25 plan 59ba1f0c2d candidates 40:07a3a8f24a refused 5:73949d7384 programs gemm:589a66615d
      xe/128 error ProgramError: shared memory: ...
      plan 59ba1f0c2d
        axis M = (M 1000): task 128
        ...

A plan stands under its problem, after the machines that have it, so that a change of plans shows as lines of plans.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path

from corpus_plans import Planned, short_hash

FOLDER = Path(__file__).parent / "corpus"
SAME = 2e-9
"""Cycles that differ by no more, relatively, are the same: nine digits are kept."""
HEADER = """\
# Written by `benchmarks/plan_corpus.py record`, never by hand.
# MACHINE/CORES, predicted cycles, the plan, how many candidates there are and the hash of the first eight, the same of
# what was refused, every block program and the hash of its text; or the error.
"""
Key = tuple[str, str, str]
"""Kind, problem and machine of an entry."""
Record = dict[Key, Planned]


def shown(key: Key) -> str:
    """An entry's name: machine and cores, kind, problem.

    >>> shown(("products", "bf16 nt 64x64x64", "hopper/132"))
    'hopper/132 products: bf16 nt 64x64x64'
    """
    kind, problem, machine = key
    return f"{machine} {kind}: {problem}"


def text_of(record: Mapping[Key, Planned], kind: str) -> str:
    """The file of one kind; entries stand in the order of the record."""
    by_problem: dict[str, dict[str, Planned]] = {}
    for (its, problem, machine), entry in record.items():
        if its == kind:
            by_problem.setdefault(problem, {})[machine] = entry
    lines = [HEADER]
    for problem, entries in by_problem.items():
        lines.append(f"problem {problem}\n")
        lines += (f"  {machine} {_line(entry)}\n" for machine, entry in entries.items())
        for name, plan in {short_hash([e.plan]): e.plan for e in entries.values() if not e.error}.items():
            lines.append(f"  plan {name}\n")
            lines += (f"    {line}\n" for line in plan.splitlines())
    return "".join(lines)


def _line(entry: Planned) -> str:
    if entry.error:
        return f"error {entry.error}"
    parts = f"candidates {entry.candidates} refused {entry.refused} programs {' '.join(entry.programs)}"
    return f"{entry.cycles:.9g} plan {short_hash([entry.plan])} {parts}"


def parse(text: str, kind: str) -> Record:
    """The entries of one kind's file."""
    found: dict[Key, tuple[str, Planned]] = {}
    plans: dict[str, list[str]] = {}
    problem, plan = "", ""
    for line in text.splitlines():
        word, _, rest = line.strip().partition(" ")
        if not line or line.startswith("#"):
            continue
        if not line.startswith(" "):
            problem = rest
        elif line.startswith("    "):
            plans[plan].append(line.strip())
        elif word == "plan":
            plan = rest
            plans[plan] = []
        else:
            found[kind, problem, word] = _read(rest)
    return {
        key: entry if entry.error else Planned("", entry.cycles, "\n".join(plans[name]), *_rest(entry))
        for key, (name, entry) in found.items()
    }


def _read(rest: str) -> tuple[str, Planned]:
    """(the hash of the plan, what else a line says)."""
    word, _, said = rest.partition(" ")
    if word == "error":
        return "", Planned(error=said)
    _, plan, _, candidates, _, refused, _, *programs = said.split()
    return plan, Planned("", float(word), "", candidates, refused, tuple(programs))


def _rest(entry: Planned) -> tuple[str, str, tuple[str, ...]]:
    return entry.candidates, entry.refused, entry.programs


def read(folder: Path = FOLDER) -> Record:
    """The record."""
    found: Record = {}
    for path in sorted(folder.glob("*.txt")):
        found |= parse(path.read_text(encoding="utf-8"), path.stem)
    return found


def write(record: Mapping[Key, Planned], folder: Path = FOLDER) -> None:
    """Writes the files of all kinds; those of others are removed."""
    kinds = list(dict.fromkeys(kind for kind, _, _ in record))
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.txt"):
        if path.stem not in kinds:
            path.unlink()
    for kind in kinds:
        (folder / f"{kind}.txt").write_text(text_of(record, kind), encoding="utf-8")


def differences(old: Planned, new: Planned) -> Iterator[str]:
    """The differences between the record and the plans of now, in lines; none: they are the same."""
    if old.error != new.error:
        yield f"error: {old.error or 'none'} -> {new.error or 'none'}"
    if abs(old.cycles - new.cycles) > SAME * max(abs(old.cycles), abs(new.cycles)):
        ratio = f" ({new.cycles / old.cycles:.4f} times)" if old.cycles else ""
        yield f"cycles: {old.cycles:.9g} -> {new.cycles:.9g}{ratio}"
    if old.plan != new.plan:
        yield "plan:"
        for line in difflib.ndiff(old.plan.splitlines(), new.plan.splitlines()):
            if not line.startswith("?"):
                yield f"  {line}"
    for what in ("candidates", "refused"):
        before, after = getattr(old, what), getattr(new, what)
        if before != after:
            yield f"{what}: {before or 'none'} -> {after or 'none'}"
    if old.programs != new.programs:
        gone = [p for p in old.programs if p not in new.programs]
        come = [p for p in new.programs if p not in old.programs]
        yield f"programs: {' '.join(gone) or 'none'} -> {' '.join(come) or 'none'}"
