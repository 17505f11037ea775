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
    """Return the family of CPUs with the name `name`: "x86", "aarch64" or "portable". Raise KeyError for other names.
    The first call for a name imports the family's module.
    """
    return cast(Family, import_module(_MODULES[name]).FAMILY)


def family_names() -> tuple[str, ...]:
    """Return ("x86", "aarch64", "portable"), the names of all families of CPUs."""
    return tuple(_MODULES)


def family_of_architecture(architecture: str) -> Family | None:
    """Return the family of CPUs for `architecture`, a result of Python's `platform.machine()` such as "x86_64" or
    "arm64". Return None for other architectures, such as "riscv64".
    """
    return next((f for f in map(family, _MODULES) if architecture in f.architectures), None)


def family_of(machine: Machine) -> Family:
    """Return the family of the CPU `machine`. The machine's name begins with it: "x86" in "x86.avx2". Raise KeyError if
    `machine` is not a CPU.
    """
    return family(machine.name.partition(".")[0])


def is_cpu(name: str) -> bool:
    """True if `name`, the name of a machine, begins with a family of CPUs. Whether the machine exists is not checked.

    >>> is_cpu("x86.avx2"), is_cpu("hopper")
    (True, False)
    """
    return name.partition(".")[0] in _MODULES
