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
    """Return the family of the CPU at hand. It is the portable family if no other family has this architecture, or if
    the CPU lacks features of the family's lowest level.
    """
    result = family_of_architecture(platform.machine())
    if result is None or not any(features() >= level for level in result.levels.values()):
        return family("portable")
    return result


@cache
def features() -> frozenset[str]:
    """Return LLVM's names of the features that the CPU at hand has, of those that the compiler uses. The set is empty
    if the architecture is unknown.
    """
    its_family = family_of_architecture(platform.machine())
    return frozenset() if its_family is None else its_family.detect()


@cache
def cpu_name() -> str:
    """Return LLVM's name of the CPU at hand, such as "sapphirerapids". The first call loads LLVM."""
    import llvmlite.binding as llvm

    return str(llvm.get_host_cpu_name())


def host_text() -> str:
    """Return one line of text with everything on which code for the CPU at hand depends: architecture, name, features,
    caches, number of threads. The text is used in cache keys.
    """
    known = (platform.machine(), cpu_name(), sorted(features()), caches(), environment.threads())
    return " ".join(map(str, known))


def host_machine() -> Machine:
    """Return the machine that describes the CPU at hand. It has the features and caches of the CPU, and
    `environment.threads()` cores.
    """
    return _described(environment.threads(), features())


@cache
def _described(cores: int, offered: frozenset[str]) -> Machine:
    """Return the machine of the host's family with the features `offered` and `cores` cores. Its caches are those of
    the CPU at hand; sizes that the system does not report are those of the family's description.
    """
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
