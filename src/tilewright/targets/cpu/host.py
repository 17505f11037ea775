"""The CPU at hand: its family, its features, and the machine that describes it."""

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
    """Return the family of this CPU; the portable one if no other family has a machine that this CPU's features
    cover."""
    result = family_of_architecture(platform.machine())
    if result is None or not any(features() >= level for level in result.levels.values()):
        return family("portable")
    return result


@cache
def features() -> frozenset[str]:
    """Return the features of this CPU that the compiler uses, by LLVM's names."""
    its_family = family_of_architecture(platform.machine())
    return frozenset() if its_family is None else its_family.detect()


@cache
def cpu_name() -> str:
    """Return LLVM's name of this CPU."""
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name())


def host_text() -> str:
    """Return as text the properties on which code for this CPU depends: name, features, caches, number of threads."""
    known = (platform.machine(), cpu_name(), sorted(features()), caches(), environment.threads())
    return " ".join(map(str, known))


def host_machine() -> Machine:
    """Return the machine of this CPU, with its caches and the number of cores that this process may use."""
    return _described(environment.threads(), features())


@cache
def _described(cores: int, offered: frozenset[str]) -> Machine:
    """Return the machine with these features, `cores` cores and the caches of this CPU."""
    row = host_family().described(offered)
    measured, limits = caches(), row.limits
    return replace(
        row,
        limits=replace(
            limits,
            cores=cores,
            line_bytes=measured.line or limits.line_bytes,
            l1_bytes=measured.l1 or limits.l1_bytes,
            l1_ways=measured.ways or limits.l1_ways,
            l2_bytes=measured.l2 or limits.l2_bytes,
        ),
    )
