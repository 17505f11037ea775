"""The CPU at hand: its family, what it offers, and the machine that describes it."""

from __future__ import annotations

import platform
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from tilewright.runtime import environment
from tilewright.targets.cpu.caches import caches
from tilewright.targets.cpu.families import family, family_of_architecture
from tilewright.targets.cpu.family import Family

if TYPE_CHECKING:
    from tilewright.machine import Machine


@cache
def host_family() -> Family:
    """The family of this CPU; the portable one where none has a machine that its features cover."""
    found = family_of_architecture(platform.machine())
    if found is None or not any(features() >= level for level in found.levels.values()):
        return family("portable")
    return found


@cache
def features() -> frozenset[str]:
    """The features of this CPU that the compiler uses, by LLVM's names."""
    found = family_of_architecture(platform.machine())
    return frozenset() if found is None else found.detect()


@cache
def cpu_name() -> str:
    """The CPU's name, as LLVM says it."""
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name())


def host_text() -> str:
    """Return as text what code for the CPU at hand depends on: its name, features, caches, number of threads."""
    known = (platform.machine(), cpu_name(), sorted(features()), caches(), environment.threads())
    return " ".join(map(str, known))


def host_machine() -> Machine:
    """The machine that this CPU is, with its caches and the cores that this process may use."""
    return _described(environment.threads(), features())


@cache
def _described(cores: int, offered: frozenset[str]) -> Machine:
    row = host_family().described(offered)
    known, limits = caches(), row.limits
    return replace(
        row,
        limits=replace(
            limits,
            cores=cores,
            line_bytes=known.line or limits.line_bytes,
            l1_bytes=known.l1 or limits.l1_bytes,
            l1_ways=known.ways or limits.l1_ways,
            l2_bytes=known.l2 or limits.l2_bytes,
        ),
    )
