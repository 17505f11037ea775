"""Relocations of machine code: the fields in it that hold addresses, and how each family of CPUs writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class CodePlace:
    """A field in a piece of machine code that is to hold an address: its offset in the code, and its address when
    loaded."""

    code: bytearray
    offset: int
    address: int

    def word(self, size: int = 4) -> int:
        """Return the content of the field as a number of `size` bytes, little-endian and unsigned."""
        return int.from_bytes(self.code[self.offset : self.offset + size], "little")

    def put(self, value: int, size: int = 4) -> None:
        """Overwrite the field with the low `size` bytes of `value`, little-endian."""
        self.code[self.offset : self.offset + size] = (value % (1 << 8 * size)).to_bytes(size, "little")


Relocate = Callable[[CodePlace, int], bool]
"""Writes the address of a target into a field; returns False if it does not fit."""


@dataclass(frozen=True)
class ObjectForm:
    """The format of a family's object files: the machine number in their header, and functions for relocations by
    number.

    `absolute` is the number of the relocation that puts the 64-bit address of a symbol into data; a loader applies it.
    """

    machine: int
    absolute: int
    relocations: dict[int, Relocate]


def fits(value: int, bits: int) -> bool:
    """True if `value` fits in a signed integer of `bits` bits.

    >>> fits(-128, 8), fits(128, 8)
    (True, False)
    """
    return -(1 << bits - 1) <= value < 1 << bits - 1
