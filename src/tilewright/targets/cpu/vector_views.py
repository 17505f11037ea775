"""Conditions under which vector copies move elements between views: the lanes of each register are contiguous in
memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.machine import Condition, MemoryView, Refused, ViewRequest
from tilewright.machine.copy import Array
from tilewright.machine.offsets import Offsets


def whole_conditions(request: ViewRequest, width: int, alignment: int = 1) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which full vectors of `width` bytes can do the copy `request`
    between registers and memory. Addresses must be multiples of `alignment` bytes. Raise Refused, while the conditions
    are iterated, if the copy is known to be impossible for all sizes, for example because lanes are not contiguous in
    memory.
    """
    elements, memory = _registers(request, width)
    offsets = Offsets.of(memory, request.axes)
    yield from _contiguous_lanes(offsets, elements)
    yield from offsets.inside(len(elements), "a tail needs a mask")
    if alignment > 1:
        if memory.alignment % alignment:
            raise Refused(f"{memory.name} is aligned to {memory.alignment} bytes, and {alignment} are needed")
        yield from offsets.aligned(elements[0], alignment // request.size, request.size)


def masked_conditions(request: ViewRequest, width: int, sizes: tuple[int, ...]) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which masked vectors of `width` bytes can do the copy `request`
    between registers and memory. The mask excludes elements out of bounds. `sizes` are the element sizes, in bytes,
    that masks support. Raise Refused, while the conditions are iterated, if the element size is not in `sizes`, or if
    the copy is known to be impossible for all sizes.
    """
    if request.size not in sizes:
        allowed = " or ".join(map(str, sizes))
        raise Refused(f"its mask is for elements of {allowed} bytes, not of {request.size}")
    elements, memory = _registers(request, width)
    yield from _contiguous_lanes(Offsets.of(memory, request.axes), elements)


def repeated_conditions(request: ViewRequest, width: int) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which broadcast loads to vectors of `width` bytes can do the copy
    `request` from memory to registers. All lanes of a register then hold one element of memory. Raise Refused, while
    the conditions are iterated, if the copy is known to be impossible for all sizes.
    """
    elements, memory = _registers(request, width)
    offsets = Offsets.of(memory, request.axes)
    reason = f"the lanes of a vector hold different elements of {memory.name}: a broadcast fills all with one"
    yield from offsets.require_steps(elements, elements[:1], np.zeros(()), reason)
    yield from offsets.inside(1, "a broadcast has no mask")


def _registers(request: ViewRequest, width: int) -> tuple[Array, MemoryView]:
    """Return (elements, view in memory) for the copy `request`. `elements` is an array [lane, register] of element
    numbers. Raise Refused if the registers are not vectors of `width` bytes.
    """
    registers, memory = request.sides()
    lanes = width // request.size
    if registers.elements.shape[0] != lanes:
        raise Refused(
            f"{registers.name} has {registers.elements.shape[0]} lanes; a vector of {width} bytes has {lanes} elements "
            f"of {request.dtype}"
        )
    return registers.elements, memory


def _contiguous_lanes(offsets: Offsets, elements: Array) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which the lanes of each register are contiguous in memory. `offsets`
    has the memory offsets of all elements. `elements` is an array [lane, register] of element numbers. Raise Refused,
    while the conditions are iterated, if this is known to be impossible for all sizes.
    """
    if offsets.view.swizzle is not None:
        offsets.require_whole_runs(len(elements))
        yield from offsets.aligned(elements[0], len(elements), 1)
    lanes = np.arange(len(elements))[:, None]
    reason = f"neighbouring lanes are not neighbours in {offsets.view.name}: the stride must be 1 throughout"
    yield from offsets.require_steps(elements, elements[:1], lanes, reason)
