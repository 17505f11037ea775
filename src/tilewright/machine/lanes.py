"""Copies in which every lane has an address of its own and moves a few neighbouring elements.

The address need not be the same distance apart from lane to lane, and a lane may be switched off; a wave of lanes
works together only in time. `lane_load` and `lane_store` go to and from registers, `lane_transfer` from one memory
to another, where what is not in the source arrives as zero.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tilewright.algebra import Layout
from tilewright.machine.copy import (
    Arguments,
    Array,
    CopyAtom,
    Hint,
    Refused,
    flags,
    integers,
    need_alignment,
    table,
)
from tilewright.machine.lane_views import register_conditions, transfer_conditions
from tilewright.machine.request import CopyRequest


def lane_load(
    name: str, source: str, width: int, wave: int, features: tuple[str, ...] = (), hint: Hint = "keep"
) -> CopyAtom:
    """Each lane loads `width` bytes from its own address; lanes that are switched off get zeros."""
    return CopyAtom(
        name,
        source,
        "register",
        lambda size, _: _layout(wave, width, size),
        _load,
        lambda _, request: _register_arguments(request, width, wave),
        lambda request: register_conditions(request, width, wave),
        wave * width,
        features,
        hint,
    )


def lane_store(
    name: str, target: str, width: int, wave: int, features: tuple[str, ...] = (), hint: Hint = "keep"
) -> CopyAtom:
    """Each lane that is switched on stores `width` bytes to its own address."""
    return CopyAtom(
        name,
        "register",
        target,
        lambda size, _: _layout(wave, width, size),
        _store,
        lambda _, request: _register_arguments(request, width, wave),
        lambda request: register_conditions(request, width, wave),
        wave * width,
        features,
        hint,
    )


def lane_transfer(
    name: str, width: int, wave: int, features: tuple[str, ...], completes: str | None, hint: Hint = "keep"
) -> CopyAtom:
    """Each lane moves up to `width` bytes from global to shared memory; what it does not read arrives as zero."""
    return CopyAtom(
        name,
        "global",
        "shared",
        lambda size, _: _layout(wave, width, size),
        _transfer,
        lambda _, request: _transfer_arguments(request, width, wave),
        lambda request: transfer_conditions(request, width),
        wave * width,
        features,
        hint,
        completes,
    )


def _layout(wave: int, width: int, size: int) -> Layout:
    """(lane, value) -> the element that it is, the lanes' elements one after another."""
    count = max(width // size, 1)
    return Layout((wave, count), (count, 1))


def _moved(layout: object, lanes: int) -> tuple[Array, Array]:
    """(whose address, how far from it) for each [lane, value]; further waves do as the first."""
    numbers = table(layout)
    wave, count = numbers.shape
    lane = np.arange(lanes)
    found = numbers[lane % wave]
    return found // count + (lane // wave * wave)[:, None], found % count


def _load(
    layout: object,
    source: Array,
    target: Array,
    *,
    offsets: tuple[int, ...],
    active: tuple[bool, ...],
    value: int,
) -> None:
    owner, step = _moved(layout, target.shape[0])
    on = np.array(active)
    found = np.zeros(step.shape, source.dtype)
    found[on] = source[(np.array(offsets)[owner] + step)[on]]
    target[:, value : value + step.shape[1]] = found


def _store(
    layout: object,
    source: Array,
    target: Array,
    *,
    offsets: tuple[int, ...],
    active: tuple[bool, ...],
    value: int,
) -> None:
    owner, step = _moved(layout, source.shape[0])
    on = np.array(active)
    target[(np.array(offsets)[owner] + step)[on]] = source[:, value : value + step.shape[1]][on]


def _transfer(
    layout: object,
    source: Array,
    target: Array,
    *,
    sources: tuple[int, ...],
    targets: tuple[int, ...],
    counts: tuple[int, ...],
) -> None:
    owner, step = _moved(layout, len(sources))
    arrives = np.zeros(step.shape, source.dtype)
    reads = step < np.array(counts)[owner]
    arrives[reads] = source[(np.array(sources)[owner] + step)[reads]]
    target[np.array(targets)[:, None] + np.arange(step.shape[1])] = arrives


def _count(request: CopyRequest, width: int) -> int:
    """How many elements a lane moves."""
    if width % request.size:
        raise Refused(f"a lane moves {width} bytes, which is no multiple of an element's {request.size}")
    return width // request.size


def _register_arguments(request: CopyRequest, width: int, wave: int) -> Iterable[Arguments]:
    numbers, count = request.registers(), _count(request, width)
    lanes, values = numbers.shape
    if lanes % wave:
        raise Refused(f"the registers have {lanes} lanes, not whole waves of {wave}")
    if values % count:
        raise Refused(f"a lane holds {values} values, no multiple of the {count} that {width} bytes are")
    place, offsets, inside = request.memory()
    found = []
    for value in range(0, values, count):
        held = numbers[:, value : value + count]
        on = inside[held]
        if (on.any(axis=1) != on.all(axis=1)).any():
            raise Refused(f"the edge of memory cuts a run of {count} elements; a narrower copy ends there")
        active = on[:, 0]
        runs = offsets[held][active]
        if (runs != runs[:, :1] + np.arange(count)).any():
            raise Refused(f"a lane's {count} values are not neighbours in memory: their stride is not 1")
        need_alignment(place, runs[:, 0], request.size, width)
        starts = np.where(active, offsets[held][:, 0], 0)
        found.append({"offsets": integers(starts), "active": flags(active), "value": value})
    return found


def _transfer_arguments(request: CopyRequest, width: int, wave: int) -> Iterable[Arguments]:
    count = _count(request, width)
    to, written = request.target_table
    if not written.all():
        raise Refused("part of the box is outside the target, and it has no mask for writing")
    if to.size % count:
        raise Refused(f"the box has {to.size} elements, no multiple of the {count} that {width} bytes are")
    order = np.argsort(to, kind="stable").reshape(-1, count)
    if (to[order] != to[order[:, :1]] + np.arange(count)).any():
        raise Refused(f"runs of {count} elements are not neighbours in the target")
    need_alignment(request.target, to[order[:, 0]], request.size, width)
    sources, inside = request.source_table
    read = inside[order]
    counts = read.sum(axis=1)
    if (read != (np.arange(count) < counts[:, None])).any():
        raise Refused("what is outside the source is not at the end of a run: only an end can be zero-filled")
    starts = sources[order[:, 0]]
    if ((sources[order] != starts[:, None] + np.arange(count)) & read).any():
        raise Refused(f"runs of {count} elements are not neighbours in the source: their stride is not 1")
    need_alignment(request.source, starts, request.size, width)
    targets = to[order[:, 0]]
    return [
        {
            "sources": integers(starts[first : first + wave]),
            "targets": integers(targets[first : first + wave]),
            "counts": integers(counts[first : first + wave]),
        }
        for first in range(0, starts.size, wave)
    ]
