"""Relocations of AArch64 objects, as the ABI for them numbers them: those that position-independent code has."""

from __future__ import annotations

from tilewright.targets.cpu.relocation import CodePlace, ObjectForm, Relocate, fits

PAGE_BITS = 12


def _field(place: CodePlace, value: int, low: int, bits: int) -> None:
    """Writes some bits of an instruction."""
    mask = (1 << bits) - 1
    place.put(place.word() & ~(mask << low) | (value & mask) << low)


def _branch(place: CodePlace, target: int) -> bool:
    """A branch or call: the distance in instructions, 26 bits."""
    distance = target - place.address
    _field(place, distance >> 2, 0, 26)
    return fits(distance, 28)


def _conditional(place: CodePlace, target: int) -> bool:
    """A conditional branch: the distance in instructions, 19 bits."""
    distance = target - place.address
    _field(place, distance >> 2, 5, 19)
    return fits(distance, 21)


def _page(place: CodePlace, target: int) -> bool:
    """ADRP: the distance in pages, 21 bits, the low two of them apart."""
    distance = (target >> PAGE_BITS) - (place.address >> PAGE_BITS)
    _immediate(place, distance)
    return fits(distance, 21)


def _near(place: CodePlace, target: int) -> bool:
    """ADR: the distance in bytes, 21 bits."""
    distance = target - place.address
    _immediate(place, distance)
    return fits(distance, 21)


def _immediate(place: CodePlace, value: int) -> None:
    _field(place, value, 29, 2)
    _field(place, value >> 2, 5, 19)


def _within_page(scale: int) -> Relocate:
    """ADD, or a load or store of 2**scale bytes: where in its page the target lies."""

    def write(place: CodePlace, target: int) -> bool:
        offset = target & ((1 << PAGE_BITS) - 1)
        _field(place, offset >> scale, 10, 12)
        return offset % (1 << scale) == 0

    return write


def _relative(place: CodePlace, target: int) -> bool:
    """The distance from the place, in 32 bits: entries of jump tables."""
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
