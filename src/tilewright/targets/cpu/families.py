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
    """Return the family of CPUs named "x86", "aarch64" or "portable". Its module is imported at the first call."""
    return cast(Family, import_module(_MODULES[name]).FAMILY)


def family_names() -> tuple[str, ...]:
    """Return the names of all families of CPUs."""
    return tuple(_MODULES)


def family_of_architecture(architecture: str) -> Family | None:
    """Return the family of CPUs for `architecture`, a name from Python's `platform.machine()` such as "x86_64". None if
    no family lists it; only the portable family then fits.
    """
    return next((f for f in map(family, _MODULES) if architecture in f.architectures), None)


def family_of(machine: Machine) -> Family:
    """Return the CPU family that `machine` belongs to; it is the first part of its name ("x86" of "x86.avx2")."""
    return family(machine.name.partition(".")[0])


def is_cpu(name: str) -> bool:
    """True if `name`, the name of a machine, is that of a CPU.

    >>> is_cpu("x86.avx2"), is_cpu("hopper")
    (True, False)
    """
    return name.partition(".")[0] in _MODULES
