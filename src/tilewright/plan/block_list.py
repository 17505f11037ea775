"""The list of blockings of a product on a CPU: accumulator tiles of a unit, tasks made of them, loop orders, staging.

A unit is tile registers, vectors along N, or vectors along a dimension that A, B and the result share. Each unit lists
the accumulator tiles, splits of K and stagings to try; the tasks and loop orders to try are the same for all units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.blocking import (
    BY_LANES,
    COLUMNS,
    LANES,
    ROWS,
    Blocking,
    LaneUnit,
    is_tile_atom,
    required_lane_digit,
    round_up,
    single_digits,
)
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.fixed import StatedTiles
from tilewright.plan.model import element_bytes, l1
from tilewright.plan.schedule import Split

ORDERS = ((COLUMNS, ROWS), (ROWS, COLUMNS))
"""The orders to try of the loops over a task's accumulator tiles, outermost first."""


@dataclass(frozen=True)
class BlockUnit:
    """A unit of a CPU that multiplies, and the blocking parameters to try with it.

    `tiles` are (rows, columns) of accumulator tiles, in elements. `row_counts` and `column_counts` are numbers of tasks
    along M and N. `steps` are the splits of K, `stages` the ways to stage A, as in a Blocking.
    """

    atom: MultiplyAtom | LaneUnit
    tiles: tuple[tuple[int, int], ...]
    row_counts: Collection[int]
    column_counts: Collection[int]
    steps: tuple[Split, ...]
    stages: tuple[str, ...] = ("",)
    schedule: str = "contiguous"
    overlap: str = "none"

    @property
    def by_lanes(self) -> bool:
        """True if vectors run along a dimension that A, B and the result share, such as depthwise channels."""
        return isinstance(self.atom, LaneUnit)


def blockings(space: Contraction, unit: BlockUnit, machine: Machine, fixed: StatedTiles) -> Iterator[Blocking]:
    """Yield each Blocking (tile sizes, loop order, staging) to try for a contraction; not all of them are legal.

    `space` is the contraction, `unit` the atom with the accumulator tiles and task counts to try. All blockings follow
    the author's constraints `fixed`. `machine` decides which loads bypass the L1 cache.
    """
    singles = [d.name for d in single_digits(space, unit.by_lanes)]
    grid = (LANES, *singles, ROWS) if unit.by_lanes else (COLUMNS, *singles, ROWS)
    if unit.schedule == "cyclic":  # neighbouring tasks share rows of A
        grid = (*singles, ROWS, COLUMNS)
    for rows, columns in unit.tiles:
        for stage in unit.stages:
            for strip in _row_extents(space, unit, rows, stage, fixed):
                for task_columns in _column_extents(space, unit, columns, fixed):
                    for order in _orders(unit, task_columns == columns):
                        streams = _streamed_operand(space, unit, (rows, columns), order, machine)
                        streams = streams if stage else streams.replace("a", "")  # A in place is prefetched
                        rest = unit.steps, grid, unit.schedule, stage, streams, unit.overlap
                        yield Blocking(unit.atom, rows, columns, strip, task_columns, order, *rest)


def _orders(unit: BlockUnit, is_single: bool) -> tuple[tuple[str, ...], ...]:
    """Return the loop orders over accumulator tiles to try, each a tuple of loop names, outermost first.

    Usually these are (columns, rows) and (rows, columns). With `is_single` (a task has one accumulator tile along N)
    only the first of them is tried. If `unit` has vectors along a digit that A, B and the result share, there is one
    order: (rows, lanes, columns).
    """
    if unit.by_lanes:
        return (BY_LANES,)
    return ORDERS[:1] if is_single else ORDERS


def _row_extents(space: Contraction, unit: BlockUnit, block_rows: int, stage: str, fixed: StatedTiles) -> list[int]:
    """Return the extents of a task (one core's tile) along M to try; [] if the author's extent does not fit.

    Extents are in image lines if M has several digits (mixed-radix parts) and tasks span lines, else in rows. If
    `fixed` has the author's extent, only that is tried; it must be whole accumulator tiles of `block_rows` rows, or
    whole lines. Otherwise there is one extent for each number of tasks along M in `unit`. `stage` is the way A is
    staged; "" means in place. `space` is the contraction.
    """
    line = size(space.rows[-1])
    if unit.by_lanes and fixed.rows is not None:
        fits = fixed.rows == line or (fixed.rows < line and fixed.rows % block_rows == 0)
        return [fixed.rows] if fits else []
    is_single = unit.by_lanes or len(space.rows) == 1
    if fixed.rows is not None:
        step = block_rows if is_single else line
        return [fixed.rows // (1 if is_single else step)] if fixed.rows % step == 0 else []
    if not is_single:
        lines = size(space.rows[-2])
        return sorted({-(-lines // min(count, lines)) for count in unit.row_counts})
    blocks = max(1, -(-line // block_rows) if stage else line // block_rows)
    extents = {-(-blocks // min(count, blocks)) * block_rows for count in unit.row_counts}
    if unit.by_lanes:  # a task has the whole line, or whole accumulator tiles of it
        return sorted({line if n >= blocks * block_rows else n for n in extents})
    return sorted(extents)


def _column_extents(space: Contraction, unit: BlockUnit, block_columns: int, fixed: StatedTiles) -> list[int]:
    """Return the extents of a task (one core's tile) along N to try, in columns; [] if the author's does not fit.

    If `fixed` has the author's extent along N, it is the only one, and must be whole accumulator tiles of
    `block_columns` columns. Otherwise there is one extent for each number of tasks along N in `unit`. `space` is the
    contraction.

    With vectors along a digit that A, B and the result share, the extents are those along that digit, one for each
    number of tasks. A task then has all of N: the result is [] if the author's extent along N is smaller.
    """
    if unit.by_lanes:
        if fixed.columns is not None and fixed.columns < space.extent(space.columns):
            return []
        extent = round_up(size(required_lane_digit(space)), unit.atom.shape[1])
    elif fixed.columns is not None:
        return [fixed.columns] if fixed.columns % block_columns == 0 else []
    else:
        extent = size(space.columns[0])
    blocks = -(-extent // block_columns)
    return sorted({-(-blocks // count) * block_columns for count in unit.column_counts if count <= blocks})


def _streamed_operand(
    space: Contraction, unit: BlockUnit, tile: tuple[int, int], order: tuple[str, ...], machine: Machine
) -> str:
    """Return "a" or "b": the operand whose loads bypass the L1 cache; "" if the loads of `unit` have no such hint.

    Only loads of tile registers have the hint. The inner loop over accumulator tiles reads one operand again in each
    iteration (a tile's columns of B, or its rows of A), and new elements of the other operand each time. If L1 holds
    the operand that is read again, the other one bypasses L1; else the one that is read again does. `order` are the
    loops, outermost first. `tile` is (rows, columns) of an accumulator tile, `space` the contraction.
    """
    if not is_tile_atom(unit.atom):
        return ""
    outer_is_b = order[0] == COLUMNS
    depth = round_up(size(space.depth[-1]), unit.atom.shape[2]) * space.extent(space.depth[:-1])
    kept_bytes = tile[1 if outer_is_b else 0] * depth * element_bytes(space.b.dtype)
    return ("a" if outer_is_b else "b") if kept_bytes <= l1(machine.limits) else ("b" if outer_is_b else "a")
