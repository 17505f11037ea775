"""Tasks of programs without products on machines whose waves have many lanes: how wide, and by how many waves each.

What bounds such a program is memory: enough bytes must be under way. Every lane has a few vectors of a task in
registers, and a core has room for several workgroups, so that some load while others compute.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from tilewright.algebra.expr import ONE, Expr, Symbol
from tilewright.algebra.expr_use import linear_form
from tilewright.ir.core import MemoryType, Program, TileType
from tilewright.machine import Machine
from tilewright.plan.boxes import WRITES, side_by_side
from tilewright.plan.model import cores, element_bytes

VALUES, MOST_VALUES = 32, 64
"""Values of a tile that a lane should have, and may have where rows are long."""
WAVES, FEW, MANY = 8, 4, 16
"""Waves of a task, of one with short rows, and of one with long rows."""
LINE = 128
"""Bytes that should be read together."""


def rows_and_waves(
    program: Program, widths: Mapping[Expr, int], size: Callable[[Expr], int], machine: Machine
) -> tuple[dict[Expr, int], int]:
    """(the width of a task along each dimension that tasks may cut, the waves that do it).

    Dimensions that tasks do not cut are gone along as a whole: a row. Short rows are several to a task, a long one is
    shared by as many waves as hold it. Where rows lie across memory, a task has a line's worth of them side by side.
    """
    lanes = machine.lanes or 1
    most = min(machine.waves, 32)
    values = [v.type.dims for op in program.walk() for v in op.results if isinstance(v.type, TileType)]
    row = max((prod(max(1, size(d)) for d in dims if d not in widths) for dims in values), default=1)
    if row == 1:
        return dict(widths), min(WAVES, most)
    side = [d for d in _beside_rows(program, widths) if d in widths]
    if side:
        smallest = min(element_bytes(a.type.dtype) for a in program.args if isinstance(a.type, MemoryType))
        found = dict.fromkeys(widths, 1) | {d: min(size(d), LINE // smallest) for d in side}
        return found, min(MANY, most)
    waves = FEW
    while waves < min(most, MANY) and waves * lanes * VALUES < row:
        waves *= 2
    left = max(1, waves * lanes * VALUES // row)
    found = dict.fromkeys(widths, 1)
    for d in reversed(list(widths)):
        enough = max(1, prod(map(size, widths)) // (4 * cores(machine)))  # every core should have some
        found[d] = _cut(size(d), min(left, enough))
        left //= found[d]
        if found[d] < size(d):
            break
    return found, min(waves, most)


def _beside_rows(program: Program, widths: Mapping[Expr, int]) -> list[Expr]:
    """The dimensions that lie side by side in what has rows."""
    found: list[Expr] = []
    for op in program.walk():
        if op.name == "read" or op.name in WRITES:
            kind: TileType = op.results[0].type if op.name == "read" else op.operands[0].type
            if any(d not in widths for d in kind.dims):
                steps = dict(zip(kind.dims, op.attrs.get("over", ()), strict=False))
                found += [d for d in side_by_side(op) if d not in steps or _is_single(op.attrs["at"][-1], steps[d])]
    return list(dict.fromkeys(found))


def _is_single(e: Expr, axis: Symbol) -> bool:
    """Whether neighbours along an axis are neighbours in an expression of it."""
    form = linear_form(e, [axis])
    return form is None or form[0].get(axis) is ONE


def _cut(size: int, most: int) -> int:
    """A width up to `most`: one that divides the size, unless that is less than half of it.

    >>> _cut(4096, 20), _cut(97, 16), _cut(3, 16)
    (16, 16, 3)
    """
    most = max(1, min(size, most))
    return next((n for n in range(most, most // 2, -1) if size % n == 0), most)
