"""Rule: the order of tasks, and the raster group (how many along the first axis run next to each other)."""

from __future__ import annotations

from math import ceil, prod

from tilewright.plan.model import l2, moving_cycles
from tilewright.plan.search.tiles import GRID, AxisTile
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.work import Work

RASTERS = (1, 2, 4, 8, 16)
"""Tasks along the rows of C that may be walked together."""
Side = tuple[int, int]
"""(tile, tasks) along a side of C."""
DYNAMIC, CYCLIC = "dynamic", "cyclic"
"""Whoever is done takes the next task, or tasks are dealt in order."""


def order_of(work: Work) -> str:
    """Return the order in which cores take tasks: "dynamic" if their lengths differ, else "cyclic"."""
    return DYNAMIC if len(work.lengths) > 1 else CYCLIC


def raster_of(t: Tiling) -> int:
    """Return the raster group (tasks along M that run next to each other) with
    which concurrent tasks read the fewest rows.

    If all tasks run at a time, the shorter side comes first: neighbours share the operand of the longer one.
    """
    rows, columns = _sides(t)
    tall, wide = rows[1], columns[1]
    choices = {group for group in RASTERS if group <= tall} | ({tall} if tall <= RASTERS[-1] else set())
    return min(choices, key=lambda group: (_read(t, (rows, columns), group), -group if tall < wide else group))


def _read(t: Tiling, sides: tuple[Side, Side], group: int) -> int:
    """Return how many rows of both operands the concurrent tasks read, with a
    raster group of `group` along the first side.

    `sides` are (tile size, tasks) along the two sides of C, in the order of the grid.
    """
    (tile, tall), (width, wide) = sides
    running = min(t.machine.limits.cores or 1, tall * wide)
    across = min(wide, ceil(running / min(group, tall)))
    return ceil(running / across) * tile + across * width


def raster_factor(t: Tiling, raster: int, columns_first: bool) -> float:
    """Return the slowdown of copies (1 or more) with the raster group `raster`, compared with that of `raster_of`.

    If all tasks run at a time, it depends on which operand neighbours share; otherwise on the rows that are read.
    `columns_first` says that the grid has N before M.
    """
    rows, columns = _sides(t)
    best, walked = raster_of(t), (columns, rows) if columns_first else (rows, columns)
    if rows[1] * columns[1] <= (t.machine.limits.cores or 1):
        along_rows = (min(raster, walked[0][1]) > 1) != columns_first
        is_square = rows[1] == columns[1] or 1 in (rows[1], columns[1])
        return 1.0 if is_square or along_rows == (best > 1) else t.machine.limits.far_users
    more = _read(t, walked, raster) / _read(t, (rows, columns), best)
    return float(max(1.0, more) ** t.machine.limits.read_power)


def _sides(t: Tiling) -> tuple[Side, Side]:
    """Return ((tile size, number of tasks) along M of C, the same along N);
    tasks that read the same elements count once.
    """
    sides = []
    for role in "rc":
        grid = [tile for c, tile in t.pairs() if role in c.roles and tile.level == GRID]
        sides.append((prod(tile.size for tile in grid), prod(_distinct(t, tile) for tile in grid)))
    return (sides[1], sides[0]) if t.o.flips[-1] else (sides[0], sides[1])


def _distinct(t: Tiling, tile: AxisTile) -> int:
    """Return the number of tasks along an axis that read different elements.

    Windows that slide by one read nearly the same elements again, so their tasks count once.
    """
    windows = {d for r in t.facts.reads for window in r.place.windows for d in window}
    sliding = [d for d, n in tile.box if d in windows and n == 1]
    if not sliding or any(d in windows for d, n in tile.box if n > 1):
        return tile.count
    return max(1, tile.count // t.facts.size(sliding))


def heads_together(t: Tiling, around: list[str]) -> int:
    """Return how many batch entries (such as attention heads) run next to each other, if tasks differ in length.

    `around` names the grid dimensions before M. Few entries keep their operands in L2; but twice as many tasks as cores
    are needed, so that with the longest tasks first all cores stay busy.
    """
    limits, facts = t.machine.limits, t.facts
    cores = limits.cores or 1
    extents = [facts.extents.get(d, 1) for d in around]
    each = moving_cycles(t.machine, facts.moved_bytes) * limits.far_rate * cores / prod(extents)
    counts = [1]
    for extent in reversed(extents):
        counts += [counts[-1] * n for n in range(2, extent + 1) if extent % n == 0]
    enough = 2 * cores * prod(extents) / t.tasks
    kept = max((n for n in counts if n * each <= l2(limits) / 2), default=1)
    return max(kept, next((n for n in counts if n >= enough), counts[-1]))
