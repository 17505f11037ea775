"""All machines by name; a target's folder is loaded when one of its machines is asked for.

>>> machine("x86.amx").multiply_atom("amx.bf16").shape
(16, 16, 32)
>>> machine("hoper")
Traceback (most recent call last):
tilewright.machine.description.UnknownName: Tilewright has no machine 'hoper'; it has hopper, ...
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from tilewright.machine import Machine, UnknownName

_FOLDERS = {
    "x86.avx2": "x86",
    "x86.avx512": "x86",
    "x86.amx": "x86",
    "ampere": "nvidia",
    "hopper": "nvidia",
    "cdna3": "amd",
    "xe": "intel",
}

MACHINES = tuple(_FOLDERS)
"""The names of all machines."""


NATIVE = ("x86",)
"""The targets whose programs run on the machine at hand."""


def native(target: str) -> Any:
    """The module of a target that runs here: `Kernel(program, machine, dump)`, `machine()` at hand, `has(atom)`."""
    return import_module(f"tilewright.targets.{target}.native")


def native_compiler(target: str) -> Callable[..., Any] | None:
    """What makes machine code of a program for a target, from (program, machine, dump); None: it is interpreted."""
    return cast(Callable[..., Any], native(target).Kernel) if target in NATIVE else None


def machine(name: str) -> Machine:
    """The machine of that name."""
    folder = _FOLDERS.get(name)
    if folder is None:
        raise UnknownName("Tilewright", "machine", name, MACHINES)
    return cast(Machine, import_module(f"tilewright.targets.{folder}.machine").MACHINES[name])
