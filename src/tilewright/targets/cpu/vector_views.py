"""When a vector copy of a CPU can move elements between views: the lanes of each register are neighbours in memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tilewright.machine import Condition, MemoryView, Refused, ViewRequest
from tilewright.machine.copy import Array
from tilewright.machine.offsets import Offsets


def whole_conditions(request: ViewRequest, width: int, alignment: int = 1) -> Iterator[Condition]:
    """What a copy of whole vectors needs; their addresses are multiples of `alignment` bytes."""
    held, memory = _registers(request, width)
    found = Offsets.of(memory, request.axes)
    yield from _neighbours(found, held)
    yield from found.inside(len(held), "a tail needs a mask")
    if alignment > 1:
        if memory.alignment % alignment:
            raise Refused(f"{memory.name} is aligned to {memory.alignment} bytes, and {alignment} are needed")
        yield from found.aligned(held[0], alignment // request.size, request.size)


def masked_conditions(request: ViewRequest, width: int, sizes: tuple[int, ...]) -> Iterator[Condition]:
    """What a copy under a mask needs: what lies outside is not touched."""
    if request.size not in sizes:
        allowed = " or ".join(map(str, sizes))
        raise Refused(f"its mask is for elements of {allowed} bytes, not of {request.size}")
    held, memory = _registers(request, width)
    yield from _neighbours(Offsets.of(memory, request.axes), held)


def repeated_conditions(request: ViewRequest, width: int) -> Iterator[Condition]:
    """What a broadcast needs: all lanes of a register hold one element."""
    held, memory = _registers(request, width)
    found = Offsets.of(memory, request.axes)
    reason = f"the lanes of a vector hold different elements of {memory.name}: a broadcast fills all with one"
    yield from found.apart(held, held[:1], np.zeros(()), reason)
    yield from found.inside(1, "a broadcast has no mask")


def _registers(request: ViewRequest, width: int) -> tuple[Array, MemoryView]:
    """The elements that [lane, value] hold, and the view in memory."""
    registers, memory = request.sides()
    lanes = width // request.size
    if registers.elements.shape[0] != lanes:
        raise Refused(
            f"{registers.name} has {registers.elements.shape[0]} lanes; a vector of {width} bytes has {lanes} elements "
            f"of {request.dtype}"
        )
    return registers.elements, memory


def _neighbours(found: Offsets, held: Array) -> Iterator[Condition]:
    if found.view.swizzle is not None:
        found.keeps_runs(len(held))
        yield from found.aligned(held[0], len(held), 1)
    lanes = np.arange(len(held))[:, None]
    reason = f"neighbouring lanes are not neighbours in {found.view.name}: the stride must be 1 throughout"
    yield from found.apart(held, held[:1], lanes, reason)
