"""Relocations of AArch64 object files that position-independent code has, by their numbers in the ABI."""

from __future__ import annotations

from tilewright.targets.cpu.relocation import CodePlace, ObjectForm, Relocate, fits

PAGE_BITS = 12


def _field(place: CodePlace, value: int, low: int, bits: int) -> None:
    """Overwrite `bits` bits of the 32-bit instruction at `place` with the low bits of `value`. `low` is the number of
    the lowest bit that is overwritten.
    """
    mask = (1 << bits) - 1
    place.put(place.word() & ~(mask << low) | (value & mask) << low)


def _branch(place: CodePlace, target: int) -> bool:
    """Write the distance from `place` to the address `target` into the branch or call at `place`, as a 26-bit number of
    instructions of 4 bytes. Return True if the distance fits. The field is written in both cases.
    """
    distance = target - place.address
    _field(place, distance >> 2, 0, 26)
    return fits(distance, 28)


def _conditional(place: CodePlace, target: int) -> bool:
    """Write the distance from `place` to the address `target` into the conditional branch at `place`, as a 19-bit
    number of instructions of 4 bytes. Return True if the distance fits. The field is written in both cases.
    """
    distance = target - place.address
    _field(place, distance >> 2, 5, 19)
    return fits(distance, 21)


def _page(place: CodePlace, target: int) -> bool:
    """Write the distance from the 4 KB page of `place` to the page of the address `target` into the ADRP instruction at
    `place`, as a 21-bit number of pages. Return True if the distance fits. The field is written in both cases.
    """
    distance = (target >> PAGE_BITS) - (place.address >> PAGE_BITS)
    _immediate(place, distance)
    return fits(distance, 21)


def _near(place: CodePlace, target: int) -> bool:
    """Write the distance from `place` to the address `target` into the ADR instruction at `place`, as a 21-bit number
    of bytes. Return True if the distance fits. The field is written in both cases.
    """
    distance = target - place.address
    _immediate(place, distance)
    return fits(distance, 21)


def _immediate(place: CodePlace, value: int) -> None:
    """Write the low 21 bits of `value` as the immediate of the ADR or ADRP instruction at `place`. The lowest two bits
    go to bits 29 and 30 of the instruction, and the other 19 bits to its bits 5 to 23.
    """
    _field(place, value, 29, 2)
    _field(place, value >> 2, 5, 19)


def _within_page(scale: int) -> Relocate:
    """Return a function (place, target address) that relocates an ADD (`scale` 0), or a load or store of 2**scale
    bytes. The function writes the offset of the target in its 4 KB page, divided by 2**scale, as a 12-bit immediate. It
    returns True if the offset is a multiple of 2**scale.
    """

    def write(place: CodePlace, target: int) -> bool:
        """Write the offset of the address `target` in its 4 KB page, divided by 2**scale, into the instruction at
        `place`. Return True if the offset is a multiple of 2**scale.
        """
        offset = target & ((1 << PAGE_BITS) - 1)
        _field(place, offset >> scale, 10, 12)
        return offset % (1 << scale) == 0

    return write


def _relative(place: CodePlace, target: int) -> bool:
    """Write the distance from `place` to the address `target` into the 32-bit word at `place`, such as an entry of a
    jump table. Return True if the distance fits. The word is written in both cases.
    """
    distance = target - place.address
    place.put(distance)
    return fits(distance, 32)


OBJECTS = ObjectForm(
    183,
    257,
    {
        261: _relative,
        274: _near,
        275: _page,
        277: _within_page(0),
        278: _within_page(0),
        280: _conditional,
        282: _branch,
        283: _branch,
        284: _within_page(1),
        285: _within_page(2),
        286: _within_page(3),
        299: _within_page(4),
    },
)
