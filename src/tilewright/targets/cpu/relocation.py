"""Relocations of machine code: places in it that hold addresses, and how a family of CPUs writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CodePlace:
    """A place in a piece of machine code that is to hold an address: its offset there, and its own address."""

    code: bytearray
    offset: int
    address: int

    def word(self, size: int = 4) -> int:
        """Return the number that stands at this place now."""
        return int.from_bytes(self.code[self.offset : self.offset + size], "little")

    def put(self, value: int, size: int = 4) -> None:
        """Writes a number there; what does not fit is cut off."""
        self.code[self.offset : self.offset + size] = (value % (1 << 8 * size)).to_bytes(size, "little")


Relocate = Callable[[CodePlace, int], bool]
"""Writes an address into a place; False where the address lies too far away."""


@dataclass(frozen=True)
class ObjectForm:
    """The form of a family's object files: the number of the machine in their header, and their relocations by number.

    `absolute` is the relocation that puts the 64-bit address of a symbol into data; a loader does it.
    """

    machine: int
    absolute: int
    relocations: dict[int, Relocate]


def fits(value: int, bits: int) -> bool:
    """Whether a signed number has so few bits.

    >>> fits(-128, 8), fits(128, 8)
    (True, False)
    """
    return -(1 << bits - 1) <= value < 1 << bits - 1
