"""Rule: the order of tasks, and the raster group: the number of neighbouring tasks along one side of C."""

from __future__ import annotations

from functools import lru_cache
from math import ceil, prod

from tilewright.plan.model import l2, moving_cycles
from tilewright.plan.search.tiles import GRID, AxisTile
from tilewright.plan.search.tiling import Tiling
from tilewright.plan.search.work import Work

RASTERS = (1, 2, 4, 8, 16)
"""Raster groups to try: numbers of tasks along the rows of C that the grid visits before it steps along the columns."""
Side = tuple[int, int]
"""(tile, tasks) along a side of C."""
DYNAMIC, CYCLIC, CONTIGUOUS = "dynamic", "cyclic", "contiguous"
"""An idle core takes the next task; tasks are dealt to cores in turn; or each core has neighbouring tasks."""


def order_of(work: Work) -> str:
    """Return the order in which cores take tasks (workgroups' tiles): "dynamic" or "cyclic".

    "dynamic" if masks make tasks differ in length: each idle core then takes the next task. Else "cyclic": tasks are
    dealt to cores in turn. `work` has the lengths of tasks.
    """
    return DYNAMIC if len(work.lengths) > 1 else CYCLIC


@lru_cache
def raster_of(t: Tiling) -> int:
    """Return the raster group with the best L2 reuse: how many tiles along M the grid visits before a step along N.

    With it, the tiles that run at the same time read the fewest distinct rows of A and B. Among equals it is the
    largest group if C has fewer tiles along M than along N, else the smallest. `t` is the Tiling (tile sizes). The
    result is cached, as every pipeline of a tiling asks for it.
    """
    rows, columns = _grid_tiles_of_c(t)
    tall, wide = rows[1], columns[1]
    choices = {group for group in RASTERS if group <= tall} | ({tall} if tall <= RASTERS[-1] else set())
    return min(choices, key=lambda group: (_rows_read(t, (rows, columns), group), -group if tall < wide else group))


def _rows_read(t: Tiling, sides: tuple[Side, Side], group: int) -> int:
    """Return the number of distinct rows of A and B together that all concurrently running tiles of C read.

    C has two sides. `sides` has a pair (tile size in elements, number of tiles) for each, the first side in grid order
    first. `group` is the raster group: the grid visits `group` tiles along the first side, then steps along the second.
    `t` (a Tiling) has the machine.
    """
    (tile, tall), (width, wide) = sides
    running = min(t.machine.limits.cores or 1, tall * wide)
    across = min(wide, ceil(running / min(group, tall)))
    return ceil(running / across) * tile + across * width


def raster_factor(t: Tiling, raster: int, columns_first: bool) -> float:
    """Return the factor (1 or more) by which copies take longer with the raster group `raster` than with the best one.

    A raster group is the number of tiles of C along M that the grid visits before it steps along N; `columns_first`
    swaps M and N. `t` is the Tiling (tile sizes). There are two cases:

    - More tiles than cores: the factor grows with the number of distinct rows of A and B that concurrent tiles read.
    - All tiles run at once: they read the same rows in any order. The factor is the machine's `far_users` if
      neighbouring tiles share A where the best group lets them share B, or the reverse. Otherwise it is 1; also if C
      has as many tiles along M as along N, or only one along either.
    """
    best = raster_of(t)
    if raster == best and not columns_first:
        return 1.0
    rows, columns = _grid_tiles_of_c(t)
    sides = (columns, rows) if columns_first else (rows, columns)
    if rows[1] * columns[1] <= (t.machine.limits.cores or 1):
        along_rows = (min(raster, sides[0][1]) > 1) != columns_first
        is_square = rows[1] == columns[1] or 1 in (rows[1], columns[1])
        return 1.0 if is_square or along_rows == (best > 1) else t.machine.limits.far_users
    more = _rows_read(t, sides, raster) / _rows_read(t, (rows, columns), best)
    return float(max(1.0, more) ** t.machine.limits.read_power)


def share_read_alone(t: Tiling, raster: int, columns_first: bool, order: str) -> float:
    """Return the fraction (0 to 1) of a tile's operand rows that no other core reads at about the same time.

    Operand rows that neighbouring tasks (workgroups' tiles) share are loaded once for all of these tasks. Operand rows
    that only distant tasks share are loaded by each task, but at most once for each part of L2. `raster` is the raster
    group (tiles along M before a step along N), `columns_first` swaps M and N. `order` is the order in which cores take
    tasks; in contiguous order, neighbours run on one core, one after another, and share less. `t` is the Tiling (tile
    sizes).
    """
    rows, columns = _grid_tiles_of_c(t)
    (tile, tall), (width, wide) = (columns, rows) if columns_first else (rows, columns)
    cores, parts, group = t.machine.limits.cores or 1, t.machine.limits.l2_parts, min(raster, tall)
    running = min(cores, tall * wide)
    in_turn = ceil(tall * wide / cores) if order == CONTIGUOUS else 1
    if group > 1:  # neighbours lie along the first side: they share the second side's operand
        tile_users, tile_neighbours = min(wide, ceil(running / group)), 1
        width_users, width_neighbours = ceil(running / tile_users), max(1, group // in_turn)
    else:
        tile_neighbours = max(1, wide // in_turn)
        tile_users, width_neighbours = min(tile_neighbours, running), 1
        width_users = ceil(running / tile_users)
    tile_share = min(1.0, 1 / tile_neighbours, parts / tile_users)
    width_share = min(1.0, 1 / width_neighbours, parts / width_users)
    grid = [tile for _, tile in t.pairs() if tile.level == GRID]
    positions = prod(max(1, tile.count // _distinct_tasks(t, tile)) for tile in grid)
    return (tile * tile_share + width * width_share) / (tile + width) / positions


def _grid_tiles_of_c(t: Tiling) -> tuple[Side, Side]:
    """Return ((tile size in elements, number of tiles) along M of C, the same pair along N) for the grid's tiles.

    Neighbouring tiles that read nearly the same elements through a sliding window count as one tile. `t` (a Tiling) has
    the kernel's tile sizes.
    """
    sides = []
    for role in "rc":
        grid = [tile for c, tile in t.pairs() if role in c.roles and tile.level == GRID]
        sides.append((prod(tile.size for tile in grid), prod(_distinct_tasks(t, tile) for tile in grid)))
    return (sides[1], sides[0]) if t.o.flips[-1] else (sides[0], sides[1])


def _distinct_tasks(t: Tiling, tile: AxisTile) -> int:
    """Return the number of workgroups, along the dimensions of the grid tile `tile`, that read different elements.

    Neighbouring workgroups along a sliding window read nearly the same elements. They count as one if the tile has a
    single position along each dimension of a sliding window. Otherwise every workgroup counts. `t` (a Tiling) has the
    sliding windows.
    """
    windows = t.o.window_dims
    sliding = [d for d, n in tile.box if d in windows and n == 1]
    if not sliding or any(d in windows for d, n in tile.box if n > 1):
        return max(1, tile.count)  # blocks on a diagonal may be more than the batch has
    return max(1, tile.count // t.facts.size(sliding))


def batch_entries_per_group(t: Tiling, outer_dims: list[str]) -> int:
    """Return the number of batch entries (such as attention heads) whose workgroups the grid visits together.

    It is for kernels whose workgroups differ in length. It is the larger of two numbers: the most entries whose
    operands take at most half of L2 together; and the fewest entries that together have two workgroups per core, so
    that all cores stay busy if the longest workgroups come first. Both are numbers that tile the batch: whole inner
    dimensions, times a divisor of the next dimension. `outer_dims` names the grid dimensions before M, outermost first.
    `t` (a Tiling) has the kernel's tile sizes.
    """
    limits, facts = t.machine.limits, t.facts
    cores = limits.cores or 1
    extents = [facts.extents.get(d, 1) for d in outer_dims]
    entry_bytes = moving_cycles(t.machine, facts.moved_bytes) * limits.far_rate * cores / prod(extents)
    counts = [1]
    for extent in reversed(extents):
        counts += [counts[-1] * n for n in range(2, extent + 1) if extent % n == 0]
    needed = 2 * cores * prod(extents) / t.tasks
    in_l2 = max((n for n in counts if n * entry_bytes <= l2(limits) / 2), default=1)
    return max(in_l2, next((n for n in counts if n >= needed), counts[-1]))
