"""Relocations of AArch64 object files that position-independent code has, by their numbers in the ABI."""

from __future__ import annotations

from tilewright.targets.cpu.relocation import CodePlace, ObjectForm, Relocate, fits

PAGE_BITS = 12


def _field(place: CodePlace, value: int, low: int, bits: int) -> None:
    """Write the low `bits` bits of `value` into the instruction at `place`, from bit number `low` on."""
    mask = (1 << bits) - 1
    place.put(place.word() & ~(mask << low) | (value & mask) << low)


def _branch(place: CodePlace, target: int) -> bool:
    """Write the distance to `target` into the branch or call at `place`: 26 bits, in instructions. Return False if it
    is too far."""
    distance = target - place.address
    _field(place, distance >> 2, 0, 26)
    return fits(distance, 28)


def _conditional(place: CodePlace, target: int) -> bool:
    """Write the distance to `target` into the conditional branch at `place`: 19 bits, in instructions. Return False if
    it is too far."""
    distance = target - place.address
    _field(place, distance >> 2, 5, 19)
    return fits(distance, 21)


def _page(place: CodePlace, target: int) -> bool:
    """Write the distance to the page of `target` into the ADRP at `place`: 21 bits, in pages of 4 KB. Return False if
    it is too far."""
    distance = (target >> PAGE_BITS) - (place.address >> PAGE_BITS)
    _immediate(place, distance)
    return fits(distance, 21)


def _near(place: CodePlace, target: int) -> bool:
    """Write the distance to `target` into the ADR at `place`: 21 bits, in bytes. Return False if it is too far."""
    distance = target - place.address
    _immediate(place, distance)
    return fits(distance, 21)


def _immediate(place: CodePlace, value: int) -> None:
    """Write `value` as the 21-bit immediate of the ADR or ADRP at `place`: its low two bits go to bits 29 and 30, the
    others to bits 5 to 23."""
    _field(place, value, 29, 2)
    _field(place, value >> 2, 5, 19)


def _within_page(scale: int) -> Relocate:
    """Return the relocation of ADD (`scale` 0), or of a load or store of 2**scale bytes: the offset of the target in
    its page, 12 bits, in units of 2**scale bytes. The relocation returns False if the offset is no multiple of that
    unit."""

    def write(place: CodePlace, target: int) -> bool:
        """Write the offset of `target` in its page into the instruction at `place`; return False if it is not
        aligned."""
        offset = target & ((1 << PAGE_BITS) - 1)
        _field(place, offset >> scale, 10, 12)
        return offset % (1 << scale) == 0

    return write


def _relative(place: CodePlace, target: int) -> bool:
    """Write the distance to `target` into the 32-bit word at `place`, such as an entry of a jump table. Return False if
    it is too far."""
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
