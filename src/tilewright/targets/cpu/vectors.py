"""Vector copies of CPUs: one address a vector, its elements contiguous; whole, masked, streaming, and broadcast.

Each element of a vector register is one lane: [lane, value] is element `lane` of vector register number `value`.
`vector_views` has the conditions for copies between views.
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

# the scratch memory of CPUs is ordinary memory
ORDINARY = ("shared",)


def _contiguous_layout(width: int) -> Callable[[int, Arguments], Layout]:
    """Return a function (element size in bytes, arguments) -> layout of a vector register of `width` bytes. The layout
    maps (lane, 0) to the offset `lane`, in elements from the vector's address. The arguments are not used.
    """
    return lambda size, _: Layout((width // size, 1), (1, 0))


def _load(layout: Any, source: Array, target: Array, *, start: int, value: int) -> None:
    """Execute a vector load or a broadcast in the interpreter: copy elements of the flat array `source` to column
    `value` of `target`, an array [lane, register]. `layout` maps (lane, 0) to the offset of the lane from `start`.
    """
    target[:, value] = source[start + table(layout)[:, 0]]


def _load_masked(layout: Any, source: Array, target: Array, *, start: int, value: int, mask: tuple[bool, ...]) -> None:
    """Execute a masked vector load in the interpreter: copy elements of the flat array `source` to column `value` of
    `target`, an array [lane, register]. `layout` maps (lane, 0) to the offset of the lane from `start`. Lanes with a
    False `mask` are not read and become zero.
    """
    active = np.array(mask)
    elements = np.zeros(active.size, source.dtype)
    elements[active] = source[(start + table(layout)[:, 0])[active]]
    target[:, value] = elements


def _store(layout: Any, source: Array, target: Array, *, start: int, value: int) -> None:
    """Execute a vector store in the interpreter: copy column `value` of `source`, an array [lane, register], to
    elements of the flat array `target`. `layout` maps (lane, 0) to the offset of the lane from `start`.
    """
    target[start + table(layout)[:, 0]] = source[:, value]


def _store_masked(layout: Any, source: Array, target: Array, *, start: int, value: int, mask: tuple[bool, ...]) -> None:
    """Execute a masked vector store in the interpreter: copy column `value` of `source`, an array [lane, register], to
    elements of the flat array `target`. `layout` maps (lane, 0) to the offset of the lane from `start`. Lanes with a
    False `mask` are not written.
    """
    active = np.array(mask)
    target[(start + table(layout)[:, 0])[active]] = source[active, value]


def _registers_of(request: CopyRequest, width: int) -> Iterable[tuple[int, Array, Array]]:
    """Yield (number of the register, offsets of its lanes in memory, True for each lane in bounds) for each vector
    register of the copy `request`. The last two are arrays [lane]. Raise Refused, while iterating, if the registers are
    not vectors of `width` bytes.
    """
    numbers = request.registers()
    lanes = width // request.size
    if numbers.shape[0] != lanes:
        raise Refused(f"the registers have {numbers.shape[0]} lanes; a vector of {width} bytes has {lanes}")
    _, offsets, inside = request.memory()
    for value in range(numbers.shape[1]):
        elements = numbers[:, value]
        yield value, offsets[elements], inside[elements]


def _contiguous_start(offsets: Array, inside: Array) -> int:
    """Return the offset of lane 0 of a vector in memory, computed from a lane in bounds; 0 if no lane is in bounds.
    `offsets` are the offsets of the lanes, and `inside` is True for lanes in bounds. Raise Refused if the lanes in
    bounds are not contiguous.
    """
    if not inside.any():
        return 0
    lane = np.arange(offsets.size)
    start = int(offsets[inside][0] - lane[inside][0])
    if (offsets != start + lane)[inside].any():
        active = np.flatnonzero(inside)
        step = offsets[active[1]] - offsets[active[0]]
        raise Refused(f"neighbouring lanes are {step} elements apart in memory: the stride must be 1 throughout")
    return start


def _whole(width: int, alignment: int) -> Callable[[CopyAtom, CopyRequest], Iterable[Arguments]]:
    """Return the rule for copies of full vectors of `width` bytes at addresses that are multiples of `alignment` bytes.
    A rule is a function (atom, copy request) that yields the arguments of each instruction of the copy.
    """

    def rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
        """Yield {"start": offset in memory, "value": number of the register} for each vector of the copy `request`.
        Raise Refused, while iterating, if a lane is out of bounds, or if a vector is not contiguous or not aligned.
        """
        place: Place = request.memory()[0]
        for value, offsets, inside in _registers_of(request, width):
            if not inside.all():
                raise Refused(
                    f"{np.count_nonzero(~inside)} elements of a vector are outside memory: a tail needs a mask"
                )
            start = _contiguous_start(offsets, inside)
            need_alignment(place, np.array([start]), request.size, alignment)
            yield {"start": start, "value": value}

    return rule


def _masked(width: int, sizes: tuple[int, ...]) -> Callable[[CopyAtom, CopyRequest], Iterable[Arguments]]:
    """Return the rule for masked copies of vectors of `width` bytes. `sizes` are the element sizes, in bytes, that
    masks support. A rule is a function (atom, copy request) that yields the arguments of each instruction of the copy.
    """

    def rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
        """Yield {"start": offset in memory, "value": number of the register, "mask": True for each lane in bounds} for
        each vector of the copy `request`. Raise Refused, while iterating, if masks do not support the element size, or
        if the lanes in bounds are not contiguous.
        """
        if request.size not in sizes:
            allowed = " or ".join(map(str, sizes))
            raise Refused(f"its mask is for elements of {allowed} bytes, not of {request.size}")
        for value, offsets, inside in _registers_of(request, width):
            yield {"start": _contiguous_start(offsets, inside), "value": value, "mask": flags(inside)}

    return rule


def _repeated(width: int) -> Callable[[CopyAtom, CopyRequest], Iterable[Arguments]]:
    """Return the rule for broadcast loads to vectors of `width` bytes. A rule is a function (atom, copy request) that
    yields the arguments of each instruction of the copy.
    """

    def rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
        """Yield {"start": offset in memory, "value": number of the register} for each broadcast of the copy `request`.
        Raise Refused, while iterating, if the lanes of a vector hold different elements, or an element out of bounds.
        """
        for value, offsets, inside in _registers_of(request, width):
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
    """Return the vector copy atoms of one feature level for registers of `width` bytes: loads, stores, broadcasts, and
    stores that bypass the caches.

    The names of the atoms begin with `level`. `features` are the CPU features that they need. `mask_features` and
    `mask_sizes` are the CPU features and element sizes (bytes) of masked copies. Without sizes, there are no masked
    copies.

    >>> [atom.name for atom in vector_copies("avx2", 32, ("avx2",), ("avx2",), (4, 8))]
    ['avx2.load', 'avx2.load.masked', 'avx2.broadcast', 'avx2.store', 'avx2.store.masked', 'avx2.store.stream']
    """

    def atom(name: str, loads: bool, **options: Any) -> CopyAtom:
        """Return the copy atom with the name LEVEL.NAME, where NAME is `name`: a load from memory if `loads`, else a
        store to memory. `options` are further fields of CopyAtom.
        """
        source, target = ("global", "register") if loads else ("register", "global")
        return CopyAtom(
            f"{level}.{name}",
            source,
            target,
            bytes_moved=width,
            alike=ORDINARY,
            **{"layout": _contiguous_layout(width), **options},
        )

    full = {"rule": _whole(width, 1), "on_views": partial(whole_conditions, width=width), "features": features}
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
    # these stores bypass the caches; their address must be a multiple of the vector's size
    streamed = {
        "rule": _whole(width, width),
        "on_views": partial(whole_conditions, width=width, alignment=width),
        "features": features,
        "hint": "stream",
    }
    atoms = [
        atom("load", True, meaning=_load, **full),
        atom("load.masked", True, meaning=_load_masked, **masked),
        atom("broadcast", True, meaning=_load, **repeated),
        atom("store", False, meaning=_store, **full),
        atom("store.masked", False, meaning=_store_masked, **masked),
        atom("store.stream", False, meaning=_store, **streamed),
    ]
    return atoms if mask_sizes else [atom for atom in atoms if not atom.name.endswith(".masked")]
