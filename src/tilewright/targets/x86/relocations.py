"""Relocations of x86-64 object files that position-independent code has, by their numbers in the System V ABI."""

from __future__ import annotations

from tilewright.targets.cpu.relocation import CodePlace, ObjectForm, fits


def _relative(place: CodePlace, target: int) -> bool:
    """Write the distance from `place` to the address `target` into the 32-bit word at `place`. Return True if the
    distance fits. The word is written in both cases.
    """
    distance = target - place.address
    place.put(distance)
    return fits(distance, 32)


OBJECTS = ObjectForm(62, 1, {2: _relative, 4: _relative})
"""R_X86_64_64, R_X86_64_PC32 and R_X86_64_PLT32; a call of a function in the same file needs no table."""
