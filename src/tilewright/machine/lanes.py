"""Copy atoms in which every lane has an address of its own and moves a few contiguous elements.

Addresses may lie at any distance from lane to lane, and lanes may be switched off. `lane_load` and `lane_store` copy to
and from registers; `lane_transfer` copies from global to shared memory, and fills with zero outside the source.
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
    """Return a copy atom `name` in which each lane loads `width` bytes from its own address.

    A lane may be inactive, because its elements are out of bounds; it then gets zeros. `source` is the memory space,
    `wave` the number of lanes of a wave, `features` those the machine must have, `hint` the treatment of caches (keep,
    stream or bypass).
    """
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
    """Return a copy atom `name` in which each lane stores `width` bytes to its own address.

    A lane may be inactive, because its elements are out of bounds; it then stores nothing. `target` is the memory
    space, `wave` the number of lanes of a wave, `features` those the machine must have, `hint` the treatment of caches
    (keep, stream or bypass).
    """
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
    """Return a copy atom `name` in which each lane copies up to `width` bytes from global to shared memory.

    If a lane copies fewer bytes, because the others are out of bounds, the rest of its `width` bytes become zero.
    `wave` is the number of lanes of a wave, `features` those the machine must have, `completes` what makes an
    asynchronous copy visible (None: the copy is synchronous), `hint` the treatment of caches (keep, stream or bypass).
    """
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
    """Return the layout (lane, value) -> element of one wave: lane i holds the i-th run of `width` contiguous bytes.

    `wave` is the number of lanes of a wave, `size` the bytes of an element; a run has at least one element. 16 bytes of
    4-byte elements: (wave, 4):(4, 1).
    """
    count = max(width // size, 1)
    return Layout((wave, count), (count, 1))


def _addresses(layout: object, lanes: int) -> tuple[Array, Array]:
    """Return two arrays indexed [lane, value]: (lane whose address is used, distance of the element from that address).

    The distance is in elements. `layout` maps (lane, value) of one wave to elements, numbered lane after lane, so it
    may assign a value to the address of another lane. It is repeated, wave after wave, for all `lanes` lanes.
    """
    elements = table(layout)
    wave, count = elements.shape
    lane = np.arange(lanes)
    element = elements[lane % wave]
    return element // count + (lane // wave * wave)[:, None], element % count


def _load(
    layout: object,
    source: Array,
    target: Array,
    *,
    offsets: tuple[int, ...],
    active: tuple[bool, ...],
    value: int,
) -> None:
    """Execute a lane load: each lane reads a run of elements from memory into its registers.

    Lane i reads from the flat array `source`, beginning at offsets[i]. `target` is indexed [lane, value] and written in
    place: the run goes to the values from number `value` on. Lanes that are not `active` get zeros. `layout` maps the
    (lane, value) of a wave to elements; its number of values is the length of a run.
    """
    owner, step = _addresses(layout, target.shape[0])
    active_lanes = np.array(active)
    loaded = np.zeros(step.shape, source.dtype)
    loaded[active_lanes] = source[(np.array(offsets)[owner] + step)[active_lanes]]
    target[:, value : value + step.shape[1]] = loaded


def _store(
    layout: object,
    source: Array,
    target: Array,
    *,
    offsets: tuple[int, ...],
    active: tuple[bool, ...],
    value: int,
) -> None:
    """Execute a lane store: each active lane writes a run of its values to memory.

    Lane i writes to the flat array `target` in place, beginning at offsets[i]. `source` is indexed [lane, value]; the
    run begins at value number `value`. Lanes that are not `active` store nothing. `layout` maps the (lane, value) of a
    wave to elements; its number of values is the length of a run.
    """
    owner, step = _addresses(layout, source.shape[0])
    active_lanes = np.array(active)
    target[(np.array(offsets)[owner] + step)[active_lanes]] = source[:, value : value + step.shape[1]][active_lanes]


def _transfer(
    layout: object,
    source: Array,
    target: Array,
    *,
    sources: tuple[int, ...],
    targets: tuple[int, ...],
    counts: tuple[int, ...],
) -> None:
    """Execute a lane transfer: each lane copies a run of elements from the flat array `source` to the flat array
    `target`.

    Lane i copies counts[i] elements, beginning at sources[i] of `source` and at targets[i] of `target`, which is
    written in place. The rest of its run in `target` becomes zero. `layout` maps the (lane, value) of a wave to
    elements; its number of values is the length of a run.
    """
    owner, step = _addresses(layout, len(sources))
    values = np.zeros(step.shape, source.dtype)
    is_read = step < np.array(counts)[owner]
    values[is_read] = source[(np.array(sources)[owner] + step)[is_read]]
    target[np.array(targets)[:, None] + np.arange(step.shape[1])] = values


def _run_length(request: CopyRequest, width: int) -> int:
    """Return the number of elements of `request` in `width` bytes, which a lane moves; raise Refused unless it is a
    whole number.
    """
    if width % request.size:
        raise Refused(f"a lane moves {width} bytes, which is no multiple of an element's {request.size}")
    return width // request.size


def _register_arguments(request: CopyRequest, width: int, wave: int) -> Iterable[Arguments]:
    """Return the arguments of the lane loads or stores that do `request`: one dictionary for each instruction, in
    order, with the keyword arguments of `_load` and `_store`.

    `width` is the bytes that a lane moves with one instruction, `wave` the lanes of a wave. A lane whose elements are
    out of bounds is inactive. Raise Refused unless the registers are whole waves, and the values of a lane whole runs
    of `width` bytes. Each run must be contiguous and aligned in memory, and either in bounds or out of bounds as a
    whole.
    """
    numbers, count = request.registers(), _run_length(request, width)
    lanes, values = numbers.shape
    if lanes % wave:
        raise Refused(f"the registers have {lanes} lanes, not whole waves of {wave}")
    if values % count:
        raise Refused(f"a lane holds {values} values, no multiple of the {count} that {width} bytes are")
    place, offsets, inside = request.memory()
    instructions = []
    for value in range(0, values, count):
        run_elements = numbers[:, value : value + count]
        is_inside = inside[run_elements]
        if (is_inside.any(axis=1) != is_inside.all(axis=1)).any():
            raise Refused(f"the edge of memory cuts a run of {count} elements; a narrower copy ends there")
        active = is_inside[:, 0]
        runs = offsets[run_elements][active]
        if (runs != runs[:, :1] + np.arange(count)).any():
            raise Refused(f"a lane's {count} values are not neighbours in memory: their stride is not 1")
        need_alignment(place, runs[:, 0], request.size, width)
        starts = np.where(active, offsets[run_elements][:, 0], 0)
        instructions.append({"offsets": integers(starts), "active": flags(active), "value": value})
    return instructions


def _transfer_arguments(request: CopyRequest, width: int, wave: int) -> Iterable[Arguments]:
    """Return the arguments of the lane transfers that do `request`: one dictionary for each instruction, in order, with
    the keyword arguments of `_transfer`.

    `width` is the bytes that a lane moves with one instruction, `wave` the lanes of a wave. Raise Refused unless the
    box is whole runs that are contiguous and aligned in source and target. The target must be in bounds, and the source
    may be out of bounds only at the end of a run.
    """
    count = _run_length(request, width)
    target_offsets, written = request.target_table
    if not written.all():
        raise Refused("part of the box is outside the target, and it has no mask for writing")
    if target_offsets.size % count:
        raise Refused(f"the box has {target_offsets.size} elements, no multiple of the {count} that {width} bytes are")
    order = np.argsort(target_offsets, kind="stable").reshape(-1, count)
    if (target_offsets[order] != target_offsets[order[:, :1]] + np.arange(count)).any():
        raise Refused(f"runs of {count} elements are not neighbours in the target")
    need_alignment(request.target, target_offsets[order[:, 0]], request.size, width)
    sources, inside = request.source_table
    read = inside[order]
    counts = read.sum(axis=1)
    if (read != (np.arange(count) < counts[:, None])).any():
        raise Refused("what is outside the source is not at the end of a run: only an end can be zero-filled")
    starts = sources[order[:, 0]]
    if ((sources[order] != starts[:, None] + np.arange(count)) & read).any():
        raise Refused(f"runs of {count} elements are not neighbours in the source: their stride is not 1")
    need_alignment(request.source, starts, request.size, width)
    targets = target_offsets[order[:, 0]]
    return [
        {
            "sources": integers(starts[first : first + wave]),
            "targets": integers(targets[first : first + wave]),
            "counts": integers(counts[first : first + wave]),
        }
        for first in range(0, starts.size, wave)
    ]
