"""Which problems of the plan corpus are planned for which machines, and which are left out, with the reason."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from corpus_plans import machine_names
from corpus_problems import TYPES, problems
from corpus_text import Key

from tilewright.problems import shape_lists

LAYERS = {
    "hopper": TYPES,
    **dict.fromkeys(("ampere", "cdna3", "xe"), ("f32", "bf16")),
    "x86.avx2": ("f32",),
    "x86.avx512": TYPES,
    "x86.amx": ("bf16", "i8"),
    "aarch64.neon": ("f32",),
    "aarch64.neon.dotprod": ("i8",),
    "aarch64.neon.fullfp16.dotprod.bf16.i8mm": ("bf16",),
}
"""The types in which the layers of the shape lists are planned for each row: those that it has instructions for."""
WHOLE = ("hopper/132", "x86.avx512/16", "x86.amx/16", "aarch64.neon.dotprod/2")
"""Machines that all other problems are planned for."""
SHARES = {"ampere": 2, "cdna3": 2, "xe": 2}
"""One in so many of the other problems is planned for a row that is not among those; one in OTHERS where none is
named. Which ones depends on the row, not on the number of cores."""
OTHERS = 4
LEFT_OUT: dict[Key, str] = {}
"""Entries that are not planned, and why."""


def entries() -> list[Key]:
    """All entries, in the order in which they are recorded; those that are left out are not among them."""
    machines = machine_names()
    return [
        key
        for kind, problem in problems()
        for machine in machines
        if (key := (kind, problem, machine)) not in LEFT_OUT and _is_planned(*key)
    ]


def _is_planned(kind: str, problem: str, machine: str) -> bool:
    row = machine.rpartition("/")[0]
    if kind in shape_lists():
        return problem.partition(" ")[0] in LAYERS[row]
    return kind == "dynamic" or machine in WHOLE or number_of(f"{row} {kind} {problem}") % SHARES.get(row, OTHERS) == 0


def number_of(text: str) -> int:
    """A number that depends on a text and on nothing else."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def sample(keys: Iterable[Key], count: int, seed: int) -> list[Key]:
    """So many of the entries; another entry in the list changes at most one of them."""
    return sorted(keys, key=lambda key: number_of(f"{seed} {key}"))[:count]
