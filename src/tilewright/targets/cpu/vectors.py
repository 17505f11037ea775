"""Vector copies of CPUs: one address a vector, its elements neighbours; whole, masked, streaming, and broadcast.

A vector register is one lane an element: [lane, value] is element `lane` of the register that is the lane's `value`.
`vector_views` says when they can do a copy between views.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np

from tilewright.algebra import Layout
from tilewright.machine import CopyAtom, CopyRequest, Place, Refused
from tilewright.machine.copy import Arguments, Array, flags, need_alignment, table
from tilewright.targets.cpu.vector_views import masked_conditions, repeated_conditions, whole_conditions

# scratch memory is ordinary memory here
ORDINARY = ("shared",)


def _neighbours(width: int) -> Callable[[int, Arguments], Layout]:
    """(lane, 0) -> its distance from the vector's address, in elements."""
    return lambda size, _: Layout((width // size, 1), (1, 0))


def _load(layout: Any, source: Array, target: Array, *, start: int, value: int) -> None:
    target[:, value] = source[start + table(layout)[:, 0]]


def _load_masked(layout: Any, source: Array, target: Array, *, start: int, value: int, mask: tuple[bool, ...]) -> None:
    """Elements whose mask is unset are not touched, and arrive as zero."""
    on = np.array(mask)
    found = np.zeros(on.size, source.dtype)
    found[on] = source[(start + table(layout)[:, 0])[on]]
    target[:, value] = found


def _store(layout: Any, source: Array, target: Array, *, start: int, value: int) -> None:
    target[start + table(layout)[:, 0]] = source[:, value]


def _store_masked(layout: Any, source: Array, target: Array, *, start: int, value: int, mask: tuple[bool, ...]) -> None:
    on = np.array(mask)
    target[(start + table(layout)[:, 0])[on]] = source[on, value]


def _vectors(request: CopyRequest, width: int) -> Iterable[tuple[int, Array, Array]]:
    """(value, offsets, inside) for each vector register of the request."""
    numbers = request.registers()
    lanes = width // request.size
    if numbers.shape[0] != lanes:
        raise Refused(f"the registers have {numbers.shape[0]} lanes; a vector of {width} bytes has {lanes}")
    _, offsets, inside = request.memory()
    for value in range(numbers.shape[1]):
        held = numbers[:, value]
        yield value, offsets[held], inside[held]


def _need_neighbours(offsets: Array, inside: Array) -> int:
    """The address of lane 0, if the lanes that are inside memory are neighbours there."""
    if not inside.any():
        return 0
    lane = np.arange(offsets.size)
    start = int(offsets[inside][0] - lane[inside][0])
    if (offsets != start + lane)[inside].any():
        held = np.flatnonzero(inside)
        step = offsets[held[1]] - offsets[held[0]]
        raise Refused(f"neighbouring lanes are {step} elements apart in memory: the stride must be 1 throughout")
    return start


def _whole(width: int, alignment: int) -> Callable[[CopyAtom, CopyRequest], Iterable[Arguments]]:
    def rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
        place: Place = request.memory()[0]
        for value, offsets, inside in _vectors(request, width):
            if not inside.all():
                raise Refused(
                    f"{np.count_nonzero(~inside)} elements of a vector are outside memory: a tail needs a mask"
                )
            start = _need_neighbours(offsets, inside)
            need_alignment(place, np.array([start]), request.size, alignment)
            yield {"start": start, "value": value}

    return rule


def _masked(width: int, sizes: tuple[int, ...]) -> Callable[[CopyAtom, CopyRequest], Iterable[Arguments]]:
    def rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
        if request.size not in sizes:
            allowed = " or ".join(map(str, sizes))
            raise Refused(f"its mask is for elements of {allowed} bytes, not of {request.size}")
        for value, offsets, inside in _vectors(request, width):
            yield {"start": _need_neighbours(offsets, inside), "value": value, "mask": flags(inside)}

    return rule


def _repeated(width: int) -> Callable[[CopyAtom, CopyRequest], Iterable[Arguments]]:
    def rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
        for value, offsets, inside in _vectors(request, width):
            if not inside.all():
                raise Refused("an element is outside memory: a broadcast has no mask")
            if (offsets != offsets[0]).any():
                raise Refused("the lanes of a vector hold different elements: a broadcast fills all with one")
            yield {"start": int(offsets[0]), "value": value}

    return rule


def vector_copies(
    level: str,
    width: int,
    features: tuple[str, ...],
    mask_features: tuple[str, ...] = (),
    mask_sizes: tuple[int, ...] = (),
) -> list[CopyAtom]:
    """The vector copies of one feature level, with registers of `width` bytes; masked ones where masks have sizes.

    >>> [atom.name for atom in vector_copies("avx2", 32, ("avx2",), ("avx2",), (4, 8))]
    ['avx2.load', 'avx2.load.masked', 'avx2.broadcast', 'avx2.store', 'avx2.store.masked', 'avx2.store.stream']
    """

    def atom(name: str, loads: bool, **options: Any) -> CopyAtom:
        source, target = ("global", "register") if loads else ("register", "global")
        return CopyAtom(
            f"{level}.{name}",
            source,
            target,
            bytes_moved=width,
            alike=ORDINARY,
            **{"layout": _neighbours(width), **options},
        )

    whole = {"rule": _whole(width, 1), "on_views": partial(whole_conditions, width=width), "features": features}
    masked = {
        "rule": _masked(width, mask_sizes),
        "on_views": partial(masked_conditions, width=width, sizes=mask_sizes),
        "features": mask_features,
    }
    repeated = {
        "layout": lambda size, _: Layout((width // size, 1), (0, 0)),
        "rule": _repeated(width),
        "on_views": partial(repeated_conditions, width=width),
        "features": features,
    }
    # past the caches; the address must be a multiple of the vector
    streamed = {
        "rule": _whole(width, width),
        "on_views": partial(whole_conditions, width=width, alignment=width),
        "features": features,
        "hint": "stream",
    }
    found = [
        atom("load", True, meaning=_load, **whole),
        atom("load.masked", True, meaning=_load_masked, **masked),
        atom("broadcast", True, meaning=_load, **repeated),
        atom("store", False, meaning=_store, **whole),
        atom("store.masked", False, meaning=_store_masked, **masked),
        atom("store.stream", False, meaning=_store, **streamed),
    ]
    return found if mask_sizes else [atom for atom in found if not atom.name.endswith(".masked")]
