"""Copy atoms for 8x8 matrices of 16-bit elements between shared memory and mma fragments: ldmatrix, stmatrix.

Lane i gives the address of row i % 8 of matrix i // 8. Each lane holds two elements of every matrix: lane 4g + t those
in row g, columns 2t and 2t + 1; with .trans those in rows 2t and 2t + 1, column g.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from tilewright.algebra import Layout
from tilewright.machine import Condition, CopyAtom, CopyRequest, Refused, ViewRequest
from tilewright.machine.copy import Arguments, Array, integers, need_alignment, table
from tilewright.machine.offsets import Offsets

WARP = 32

# (lane as (t, g), value) -> row + 8 * column
PLAIN = Layout(((4, 8), 2), ((16, 1), 8))
TRANSPOSED = Layout(((4, 8), 2), ((2, 8), 1))


def _places(layout: Any, lanes: int, rows: tuple[int, ...] | Array) -> Array:
    """Return an array [lane, value] of the offsets in memory of the elements that one ldmatrix or stmatrix moves.
    `lanes` is the number of lanes, whole warps. `rows` has the offsets of the eight rows of each matrix, for one warp
    after another. `layout` is the layout of one matrix in the lanes of a warp.
    """
    starts = np.asarray(rows).reshape(lanes // WARP, -1, 8)
    numbers = table(layout)
    offsets = starts[:, :, numbers % 8] + numbers // 8  # [warp, matrix, lane, half]
    places: Array = np.moveaxis(offsets, 1, 2).reshape(lanes, -1)
    return places


def _load(layout: Any, source: Array, target: Array, *, rows: tuple[int, ...], value: int = 0) -> None:
    """Execute ldmatrix in the interpreter: copy 8 x 8 matrices from the flat array `source` to `target`, an array
    [lane, value] of registers, from column `value` on. `rows` are the offsets of the matrices' rows in `source`.
    `layout` is the layout of one matrix in the lanes of a warp.
    """
    places = _places(layout, target.shape[0], rows)
    target[:, value : value + places.shape[1]] = source[places]


def _store(layout: Any, source: Array, target: Array, *, rows: tuple[int, ...], value: int = 0) -> None:
    """Execute stmatrix in the interpreter: copy 8 x 8 matrices from `source`, an array [lane, value] of registers, from
    column `value` on, to the flat array `target`. `rows` are the offsets of the matrices' rows in `target`. `layout` is
    the layout of one matrix in the lanes of a warp.
    """
    places = _places(layout, source.shape[0], rows)
    target[places] = source[:, value : value + places.shape[1]]


def _rule(layout: Layout, matrices: int) -> Callable[[CopyAtom, CopyRequest], Iterable[Arguments]]:
    """Return the rule for an ldmatrix or stmatrix of `matrices` matrices. A rule is a function (atom, copy request)
    that yields the arguments of each instruction of the copy. `layout` is the layout of one matrix in the lanes of a
    warp.
    """

    def rule(_: CopyAtom, request: CopyRequest) -> Iterable[Arguments]:
        """Yield {"rows": offsets in memory of the matrices' rows, "value": first register of each lane} for each
        instruction of the copy `request`. Raise Refused, while iterating, unless the registers hold matrices whose rows
        are eight contiguous elements of 2 bytes, aligned to 16 bytes and in bounds.
        """
        if request.size != 2:
            raise Refused(f"it moves elements of 2 bytes, not of {request.size}")
        numbers = request.registers()
        lanes, values = numbers.shape
        if lanes % WARP:
            raise Refused(f"the registers have {lanes} lanes, not whole warps of {WARP}")
        if values % (2 * matrices):
            raise Refused(f"a lane holds {values} values, no multiple of the {2 * matrices} of {matrices} matrices")
        place, offsets, inside = request.memory()
        if not inside.all():
            raise Refused("part of the box is outside memory, and it has no mask")
        fragment = table(layout)
        for value in range(0, values, 2 * matrices):
            addresses = offsets[numbers[:, value : value + 2 * matrices]].reshape(lanes // WARP, WARP, matrices, 2)
            starts = np.stack(  # [warp, matrix, row]: where the lane and value that hold column 0 of the row lie
                [addresses[:, lane, :, half] for lane, half in (np.argwhere(fragment == row)[0] for row in range(8))],
                axis=-1,
            )
            rows = integers(starts)
            if (_places(layout, lanes, rows) != addresses.reshape(lanes, -1)).any():
                raise Refused("the fragments are not rows of 8 neighbouring elements of 8x8 matrices in shared memory")
            need_alignment(place, starts.reshape(-1), 2, 16)
            yield {"rows": rows, "value": value}

    return rule


def _on_views(layout: Layout, matrices: int) -> Callable[[ViewRequest], Iterator[Condition]]:
    """Return a function (copy request between views) that yields the conditions on symbolic sizes for an ldmatrix or
    stmatrix of `matrices` matrices. `layout` is the layout of one matrix in the lanes of a warp.
    """

    def conditions(request: ViewRequest) -> Iterator[Condition]:
        """Yield the conditions on symbolic sizes under which each matrix of the copy `request` has eight rows of eight
        contiguous elements of 2 bytes, aligned to 16 bytes and in bounds. Raise Refused, while iterating, if no sizes
        allow it.
        """
        if request.size != 2:
            raise Refused(f"it moves elements of 2 bytes, not of {request.size}")
        registers, memory = request.sides()
        elements = registers.elements
        lanes, values = elements.shape
        if lanes % WARP:
            raise Refused(f"{registers.name} has {lanes} lanes, not whole warps of {WARP}")
        if values % (2 * matrices):
            raise Refused(
                f"a lane holds {values} values of {registers.name}, no multiple of the {2 * matrices} of {matrices} "
                "matrices"
            )
        if memory.alignment % 16:
            raise Refused(f"{memory.name} is aligned to {memory.alignment} bytes; rows of a matrix need 16")
        offsets = Offsets.of(memory, request.axes)
        yield from offsets.inside(1, "it has no mask")
        offsets.require_whole_runs(8)
        fragment = table(layout)
        matrix_elements = (
            elements.reshape(-1, WARP, values // 2, 2).swapaxes(1, 2).reshape(-1, WARP, 2)
        )  # [matrix, lane, half]
        firsts = np.stack(
            [matrix_elements[:, lane, half] for lane, half in (np.argwhere(fragment == r)[0] for r in range(8))], 1
        )
        reason = f"the fragments of {registers.name} are not rows of 8 neighbours of 8x8 matrices in {memory.name}"
        yield from offsets.require_steps(matrix_elements, firsts[:, fragment % 8], fragment // 8, reason)
        yield from offsets.aligned(firsts, 8, 2)

    return conditions


def _atom(name: str, loads: bool, matrices: int, layout: Layout, feature: str) -> CopyAtom:
    """Return the copy atom `name` for `matrices` 8 x 8 matrices: a load from shared memory if `loads`, else a store to
    shared memory. `layout` is the layout of one matrix in the lanes of a warp. `feature` is the GPU feature that the
    atom needs.
    """
    source, target = ("shared", "register") if loads else ("register", "shared")
    return CopyAtom(
        name,
        source,
        target,
        lambda *_: layout,
        _load if loads else _store,
        _rule(layout, matrices),
        _on_views(layout, matrices),
        128 * matrices,
        (feature,),
    )


LDMATRIX = [
    _atom(f"ldmatrix.x{matrices}{suffix}", True, matrices, layout, "sm_75")
    for matrices in (1, 2, 4)
    for suffix, layout in (("", PLAIN), (".trans", TRANSPOSED))
]

STMATRIX = [
    _atom(f"stmatrix.x4{suffix}", False, 4, layout, "sm_90") for suffix, layout in (("", PLAIN), (".trans", TRANSPOSED))
]
