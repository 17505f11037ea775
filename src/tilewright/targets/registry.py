"""All machines by name; a target's folder is loaded when one of its machines is asked for.

>>> machine("x86.amx").multiply_atom("amx.bf16").shape
(16, 16, 32)
>>> machine("hoper")
Traceback (most recent call last):
tilewright.machine.description.UnknownName: Tilewright has no machine 'hoper'; it has hopper, ...
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

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


def machine(name: str) -> Machine:
    """The machine of that name."""
    folder = _FOLDERS.get(name)
    if folder is None:
        raise UnknownName("Tilewright", "machine", name, MACHINES)
    return cast(Machine, import_module(f"tilewright.targets.{folder}.machine").MACHINES[name])
