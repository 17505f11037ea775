"""All families of CPUs, and their machines by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from tilewright.targets.cpu.family import Family

if TYPE_CHECKING:
    from tilewright.machine import Machine

_MODULES = {
    "x86": "tilewright.targets.x86.family",
    "aarch64": "tilewright.targets.aarch64.family",
    "portable": "tilewright.targets.cpu.portable",
}


def family(name: str) -> Family:
    """Return the family of that name: "x86", "aarch64" or "portable"."""
    return cast(Family, import_module(_MODULES[name]).FAMILY)


def family_names() -> tuple[str, ...]:
    """Return the names of all families."""
    return tuple(_MODULES)


def family_of_architecture(architecture: str) -> Family | None:
    """Return the family for a name from Python's `platform.machine()`, such as "x86_64"; None if only the portable one
    fits."""
    return next((f for f in map(family, _MODULES) if architecture in f.architectures), None)


def family_of(machine: Machine) -> Family:
    """Return the family that a machine belongs to, from the first part of its name."""
    return family(machine.name.partition(".")[0])


def is_cpu(name: str) -> bool:
    """True if a machine's name is that of a CPU.

    >>> is_cpu("x86.avx2"), is_cpu("hopper")
    (True, False)
    """
    return name.partition(".")[0] in _MODULES
