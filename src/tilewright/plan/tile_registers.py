"""Tile registers (a CPU's matrix unit): accumulator tiles, splits of K and stagings of A to try.

A task is one tile of the grid. A block is the accumulator tile that stays in tile registers over K.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.block_list import BlockUnit
from tilewright.plan.blocking import Blocking, round_up
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.fixed import StatedTiles
from tilewright.plan.model import cores, element_bytes, l1, missing_share
from tilewright.plan.schedule import Split
from tilewright.plan.sliding import can_load_in_place, halo_of

WRITTEN = 72
"""The most K steps that are unrolled."""


def tile_unit(space: Contraction, atom: MultiplyAtom, machine: Machine, fixed: StatedTiles) -> BlockUnit:
    """Return the BlockUnit of an atom of tile registers: accumulator tiles, task counts and stagings to try.

    `space` is the contraction that it computes. The splits of K follow the author's constraints `fixed`.
    """
    workers, lines = cores(machine), size(space.rows[-2 if len(space.rows) > 1 else -1])
    grid_sides = {1 << n for n in range(workers.bit_length())}  # tasks along one side of a grid of one task per core
    row_counts = {*grid_sides, 3, 3 * workers, *(workers << n for n in range(lines.bit_length()))}
    return BlockUnit(
        atom,
        tuple(_accumulator_tiles(space, atom, machine)),
        row_counts,
        {*grid_sides, workers, 2 * workers},
        _k_splits(space, atom, fixed),
        tuple(staging_choices(space, atom)),
        schedule="cyclic",
        overlap="delayed store",
    )


def _accumulator_tiles(contraction: Contraction, atom: MultiplyAtom, machine: Machine) -> Iterator[tuple[int, int]]:
    """Yield (rows, columns), in elements, of each accumulator tile to try; tile and operands fit the tile registers.

    A tile has at most three registers along M, and along N. It is yielded if it has the most MMAs per load; if it has
    the most MMAs per load among tiles that leave registers for the operands of the next step; if its columns just cover
    all of N; or if its rows just cover all of M.
    """
    m, n, _ = atom.shape
    tile_registers = machine.limits.tile_registers
    column_tiles = -(-size(contraction.columns[0]) // n)
    row_tiles = -(-contraction.extent(contraction.rows[-2:]) // m)
    fitting = [
        (a, b) for a in (1, 2, 3) for b in (1, 2, 3) if registers(a, b) <= tile_registers and b <= max(1, column_tiles)
    ]
    doubled = [(a, b) for a, b in fitting if registers(a, b) + a + b <= tile_registers]
    best, best_doubled = (max((a * b / (a + b) for a, b in tiles), default=0) for tiles in (fitting, doubled))
    for a, b in fitting:
        has_most = a * b / (a + b) == best or ((a, b) in doubled and a * b / (a + b) == best_doubled)
        if has_most or b == column_tiles or a == row_tiles:
            yield a * m, b * n


def registers(rows: int, columns: int) -> int:
    """Return the number of tile registers for an accumulator tile of `rows` x `columns` registers and its operands.

    It is the sum of rows * columns accumulators, `rows` registers of A and `columns` registers of B.
    """
    return rows * columns + rows + columns


def step_cycles(machine: Machine, atom: MultiplyAtom, rows: int, columns: int, bytes_over_k: float) -> float:
    """Return the cycles of one K step of an accumulator tile of `rows` x `columns` tile registers.

    Loads of the next step's operands overlap the MMAs of this one if tile registers are free for them. The other loads
    are exposed: each adds a constant of the machine, times the share of the operands' bytes that misses L1.
    `bytes_over_k` are the bytes of both operands that the tile reads over all of K.
    """
    operands, free = rows + columns, machine.limits.tile_registers - registers(rows, columns)
    exposed = max(0, operands - free) * missing_share(bytes_over_k, l1(machine.limits))
    return max(rows * columns * atom.cycles, operands * atom.load_cycles) + machine.costs.tiles.exposed * exposed


def staging_choices(contraction: Contraction, atom: MultiplyAtom) -> list[str]:
    """Return a list of the ways to read A in which tile registers may load it; the planner tries each.

    "" reads it in place. "strip" first copies the input lines of a task to a buffer. "panel" copies an im2col matrix
    whose rows are contiguous, so that they load faster. The list is ["", "panel"] if A can be read in place; else
    ["strip", "panel"] if A is a sliding window over an image; else ["panel"].
    """
    if can_load_in_place(contraction, atom.shape[2]):
        return ["", "panel"]
    return ["strip", "panel"] if halo_of(contraction) is not None else ["panel"]


def _k_splits(contraction: Contraction, atom: MultiplyAtom, fixed: StatedTiles) -> tuple[Split, ...]:
    """Return the splits of K for tile registers, outermost first: which parts of K are loops, and which are unrolled.

    The first case that holds decides:

    - the author's K tile in `fixed` is a multiple of the atom's K and less than the channels: a loop of that tile, the
      rest unrolled;
    - at most WRITTEN (72) K steps: all unrolled;
    - more filter taps than WRITTEN, or one K step per tap: all loops;
    - otherwise a loop over channels, with at most WRITTEN steps unrolled within it.
    """
    last, depth = contraction.depth[-1], atom.shape[2]
    chunks, taps = -(-size(last) // depth), contraction.extent(contraction.depth[:-1])
    taps_unrolled = tuple(Split("unit", 1, t.name) for t in contraction.depth[:-1])
    last_split = Split("unit", depth, last.name)
    if fixed.depth is not None and fixed.depth % depth == 0 and fixed.depth < chunks * depth:
        return (Split("loop", fixed.depth, last.name), *taps_unrolled, last_split)
    if taps * chunks <= WRITTEN:
        return (*taps_unrolled, last_split)
    if chunks == 1 or taps > WRITTEN:
        return (*(Split("loop", 1, t.name) for t in contraction.depth[:-1]), Split("loop", depth, last.name))
    chunks_per_loop = max(1, WRITTEN // taps)
    while chunks % chunks_per_loop:
        chunks_per_loop -= 1
    return (Split("loop", chunks_per_loop * depth, last.name), *taps_unrolled, last_split)


def task_rows(contraction: Contraction, blocking: Blocking) -> tuple[int, int, int]:
    """Return (number of tasks along M, rows that the largest task computes, bytes of A that one task stages).

    A task is one tile of the grid; staging is copying to a buffer. Rows in the padding between staged image lines
    count. If A is read in place, rows after the last whole accumulator tile do not count, and the bytes are 0.
    `blocking` has the tile sizes, and says how A is staged.
    """
    last, element_size = contraction.rows[-1], element_bytes(contraction.a.dtype)
    k_padded = round_up(size(contraction.depth[-1]), blocking.atom.shape[2])
    taps = contraction.extent(contraction.depth[:-1])
    if len(contraction.rows) == 1:
        tiled_rows = size(last) // blocking.rows * blocking.rows if not blocking.stage else size(last)
        tasks = max(1, -(-tiled_rows // blocking.strip))
        rows = blocking.strip if tasks > 1 else max(blocking.rows, tiled_rows)
        return tasks, rows, 0 if not blocking.stage else blocking.strip * k_padded * taps * element_size
    lines = size(contraction.rows[-2])
    tasks = -(-lines // blocking.strip)
    strip = min(blocking.strip, lines)
    if blocking.stage == "panel":
        rows = strip * size(last)
        return tasks, rows, rows * k_padded * taps * element_size
    halo = halo_of(contraction)
    assert halo is not None
    return tasks, strip * halo.pitch, (strip + halo.lines.reach) * halo.pitch * k_padded * element_size
