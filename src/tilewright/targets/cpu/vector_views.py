"""Conditions under which vector copies move elements between views: the lanes of each register are contiguous in
memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.machine import Condition, MemoryView, Refused, ViewRequest
from tilewright.machine.copy import Array
from tilewright.machine.offsets import Offsets


def whole_conditions(request: ViewRequest, width: int, alignment: int = 1) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which `request`, a copy between registers and memory, can move full
    vectors of `width` bytes at addresses that are multiples of `alignment` bytes. Raise Refused if no sizes allow it,
    such as for lanes that are not contiguous in memory.
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
    """Yield the conditions on symbolic sizes under which `request`, a copy between registers and memory, can move
    vectors of `width` bytes under a mask, which leaves elements out of bounds untouched. Raise Refused if no sizes
    allow it, or if the element size is not in `sizes`, the bytes of elements that masks support.
    """
    if request.size not in sizes:
        allowed = " or ".join(map(str, sizes))
        raise Refused(f"its mask is for elements of {allowed} bytes, not of {request.size}")
    elements, memory = _registers(request, width)
    yield from _contiguous_lanes(Offsets.of(memory, request.axes), elements)


def repeated_conditions(request: ViewRequest, width: int) -> Iterator[Condition]:
    """Yield the conditions on symbolic sizes under which `request`, a copy from memory to registers, can be broadcast
    loads into vectors of `width` bytes: all lanes of a register hold one element of memory. Raise Refused if no sizes
    allow it.
    """
    elements, memory = _registers(request, width)
    offsets = Offsets.of(memory, request.axes)
    reason = f"the lanes of a vector hold different elements of {memory.name}: a broadcast fills all with one"
    yield from offsets.require_steps(elements, elements[:1], np.zeros(()), reason)
    yield from offsets.inside(1, "a broadcast has no mask")


def _registers(request: ViewRequest, width: int) -> tuple[Array, MemoryView]:
    """Return (array [lane, value] with the element number that each lane of each register holds, the view in memory) of
    a copy. Raise Refused if the registers are not vectors of `width` bytes.
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
    """Yield the conditions on symbolic sizes under which the lanes of each register are contiguous in memory. Raise
    Refused if no sizes allow it. `offsets` are the memory offsets of all elements; `elements` holds element numbers as
    [lane, value].
    """
    if offsets.view.swizzle is not None:
        offsets.require_whole_runs(len(elements))
        yield from offsets.aligned(elements[0], len(elements), 1)
    lanes = np.arange(len(elements))[:, None]
    reason = f"neighbouring lanes are not neighbours in {offsets.view.name}: the stride must be 1 throughout"
    yield from offsets.require_steps(elements, elements[:1], lanes, reason)
