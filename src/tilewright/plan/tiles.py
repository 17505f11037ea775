"""Blockings of a contraction in tile registers: those to try, and their costs.

A task is one tile of the grid. A block is the accumulator tile that stays in tile registers over K.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.blocking import COLUMNS, ROWS, Blocking, round_up
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.fixed import FREE, Fixed
from tilewright.plan.model import Cost, cores, element_bytes, l1, l2, operand_bytes, read_cycles
from tilewright.plan.schedule import Split
from tilewright.plan.sliding import can_load_in_place, halo_of

WRITTEN = 72
"""K steps that are unrolled, at most."""


def tile_blockings(
    contraction: Contraction,
    atom: MultiplyAtom,
    machine: Machine,
    fixed: Fixed = FREE,
    *,
    single_lines: bool = False,
) -> Iterator[Blocking]:
    """Yield each Blocking (tile sizes and loop order) of a contraction to try with an atom of tile registers.

    All follow the author's constraints `fixed`. With `single_lines`, a task (one core's tile) has one image line of M.
    The caller checks which of them are legal.
    """
    workers, height = cores(machine), size(contraction.rows[-1])
    lines = size(contraction.rows[-2 if len(contraction.rows) > 1 else -1])
    row_counts = {lines} if single_lines else {1, 2, 3, 3 * workers, *(workers << n for n in range(lines.bit_length()))}
    column_counts = {1, 2, workers, 2 * workers}
    tasks = (*(d.name for d in (*contraction.batch, *contraction.rows[:-2])), ROWS, COLUMNS)
    steps = _k_splits(contraction, atom, fixed)
    for rows, columns in _accumulator_tiles(contraction, atom, machine):
        for stage in staging_choices(contraction, atom):
            row_blocks = max(1, -(-height // rows) if stage else height // rows)
            for strip, task_columns, order in fixed.tasks(
                contraction, (rows, columns), row_blocks, row_counts, column_counts
            ):
                streams = _streamed_operand(contraction, atom, rows, columns, order, machine)
                rest = steps, tasks, "cyclic", stage, streams, "delayed store"
                yield Blocking(atom, rows, columns, strip, task_columns, order, *rest)


def _accumulator_tiles(contraction: Contraction, atom: MultiplyAtom, machine: Machine) -> Iterator[tuple[int, int]]:
    """Yield (rows, columns), in elements, of each accumulator tile to try; tile and operands fit the tile registers.

    These are the tiles with the most MMAs per load, and the tiles whose columns cover all of N.
    """
    m, n, _ = atom.shape
    tile_registers = machine.limits.tile_registers
    column_tiles = -(-size(contraction.columns[0]) // n)
    fitting = [
        (a, b) for a in (1, 2, 3) for b in (1, 2, 3) if registers(a, b) <= tile_registers and b <= max(1, column_tiles)
    ]
    best = max((a * b / (a + b) for a, b in fitting), default=0)
    for a, b in fitting:  # a block with fewer products for its loads only where the columns end before it
        if a * b / (a + b) == best or b == column_tiles:
            yield a * m, b * n


def registers(rows: int, columns: int) -> int:
    """Return the number of tile registers that an accumulator tile of `rows` x `columns` registers needs in all.

    It is the sum of rows * columns accumulators, `rows` registers of A and `columns` registers of B.
    """
    return rows * columns + rows + columns


def staging_choices(contraction: Contraction, atom: MultiplyAtom) -> list[str]:
    """Return the ways to try in which tile registers read A: "" (in place), "strip" (staged lines) or "panel" (im2col).

    It is [""] if A can be read in place; else ["strip", "panel"] if A is a sliding window over an image; else
    ["panel"].
    """
    if can_load_in_place(contraction, atom.shape[2]):
        return [""]
    return ["strip", "panel"] if halo_of(contraction) is not None else ["panel"]


def _k_splits(contraction: Contraction, atom: MultiplyAtom, fixed: Fixed) -> tuple[Split, ...]:
    """Return the splits of K for tile registers, outermost first: which parts of K are loops, and which are unrolled.

    The first case that holds decides. If the author's K tile in `fixed` is a multiple of the atom's K and less than the
    channels: a loop of that tile, the rest unrolled. At most WRITTEN (72) K steps: all unrolled. More filter taps than
    WRITTEN, or one K step per tap: all loops. Otherwise: a loop over channels, with at most WRITTEN steps unrolled
    within it.
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


def _streamed_operand(
    contraction: Contraction, atom: MultiplyAtom, rows: int, columns: int, order: tuple[str, str], machine: Machine
) -> str:
    """Return "a" or "b": the operand whose loads bypass the L1 cache, so that the other operand stays there.

    The operand that the inner loop over accumulator tiles keeps should stay in L1: the other is returned. If L1 cannot
    hold what the inner loop keeps, the kept operand is returned. `rows` and `columns` are the elements of an
    accumulator tile, `order` are the loops over these tiles, outermost first.
    """
    outer_is_b = order[0] == COLUMNS
    kept_elements = (
        (columns if outer_is_b else rows)
        * round_up(size(contraction.depth[-1]), atom.shape[2])
        * contraction.extent(contraction.depth[:-1])
    )
    fits = kept_elements * element_bytes(contraction.b.dtype) <= l1(machine.limits)
    return ("a" if outer_is_b else "b") if fits else ("b" if outer_is_b else "a")


def task_rows(contraction: Contraction, blocking: Blocking) -> tuple[int, int, int]:
    """Return (number of tasks along M, rows that the largest task computes, bytes of A that one task stages).

    A task is one tile of the grid; `blocking` has the tile sizes. The bytes are 0 if A is read in place.
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


def tile_cost(contraction: Contraction, blocking: Blocking, machine: Machine) -> Cost:
    """Return a Cost, the predicted cycles of the busiest core by cause, of a blocking in tile registers.

    The causes are MMAs, memory accesses that MMAs do not hide, staging of A, storing of results, and the launch.
    """
    limits, costs, atom = machine.limits, machine.costs.tiles, blocking.atom
    assert isinstance(atom, MultiplyAtom)
    m, n, k = atom.shape
    element_size = element_bytes(contraction.a.dtype)
    column_tiles, row_tiles = blocking.columns // n, blocking.rows // m
    k_elements = round_up(size(contraction.depth[-1]), k) * contraction.extent(contraction.depth[:-1])
    k_steps = k_elements // k
    row_tasks, rows, staged_bytes = task_rows(contraction, blocking)
    blocks_of_columns = round_up(size(contraction.columns[0]), blocking.columns) // blocking.columns
    task_blocks = blocking.task_columns // blocking.columns
    column_tasks = -(-blocks_of_columns // task_blocks)
    row_blocks = -(-rows // blocking.rows)
    task_blocks = min(task_blocks, blocks_of_columns)
    tasks = row_tasks * column_tasks * contraction.extent(contraction.batch) * contraction.extent(contraction.rows[:-2])
    busiest = -(-tasks // cores(machine))
    step_cycles = max(row_tiles * column_tiles * atom.cycles, (row_tiles + column_tiles) * atom.load_cycles)
    blocks = row_blocks * task_blocks
    products = blocks * (k_steps * step_cycles + costs.block)
    has_tail = not blocking.stage and size(contraction.rows[-1]) % blocking.rows
    ragged = (
        task_blocks * (k_steps * (step_cycles + costs.staged) + costs.block) if has_tail else 0.0
    )  # the last strip has these rows besides, staged
    ragged *= -(-(column_tasks * contraction.extent(contraction.batch)) // cores(machine))
    b_bytes, a_bytes = (
        blocking.columns * k_elements * element_size,
        rows * k_elements * element_size if not blocking.stage else staged_bytes,
    )
    block_a_bytes = blocking.rows * k_elements * element_size
    if blocking.order[0] == COLUMNS:
        read_b = read_cycles(limits, b_bytes, row_blocks, block_a_bytes if blocking.streams != "a" else 0)
        read_all = task_blocks * read_b + read_cycles(limits, a_bytes, task_blocks, b_bytes)
    else:
        read_a = read_cycles(limits, a_bytes / row_blocks, task_blocks, b_bytes if blocking.streams != "b" else 0)
        read_all = row_blocks * read_a + read_cycles(limits, b_bytes * task_blocks, row_blocks, block_a_bytes)
    sharing = min(column_tasks * contraction.extent(contraction.batch), cores(machine))
    if operand_bytes(contraction.b) / sharing + a_bytes > l2(limits):  # not there from the last launch
        read_all = read_all + task_blocks * b_bytes * (1 / limits.far_rate - 1 / limits.l2_rate)
    image_bytes = operand_bytes(contraction.a) / (
        row_tasks * contraction.extent(contraction.batch) * contraction.extent(contraction.rows[:-2])
    )  # of one strip of one image
    staging = staged_bytes / limits.copy_rate + (
        image_bytes / limits.far_rate if staged_bytes and image_bytes > l2(limits) else 0
    )
    storing = (
        costs.task if blocking.overlap == "delayed store" else blocks * blocking.rows * blocking.columns * costs.store
    )
    stored_lines = blocks * blocking.rows * blocking.columns * element_bytes(contraction.out.dtype) / limits.line_bytes
    if (
        not blocking.stage and blocking.order[0] == COLUMNS and task_blocks > 1
    ):  # results of a row are not written together
        storing += stored_lines * costs.scattered
    if column_tasks > 1:  # several workers write parts of one row
        storing += stored_lines * costs.shared
    unrolled = 1
    for s in blocking.steps:
        unrolled *= _iterations(contraction, s, blocking) if s.is_unrolled else 1
    instructions = int(
        unrolled
        * (row_tiles * column_tiles + row_tiles + column_tiles)
        * (2 if not blocking.steps[0].is_unrolled else 1)
        * 1.3
        + 500
    )
    return Cost(
        products=busiest * products + ragged,
        memory=busiest * max(0.0, read_all - products),
        staging=busiest * staging,
        storing=busiest * storing,
        launch=limits.launch_cycles,
        tasks=tasks,
        busiest=busiest,
        instructions=instructions,
        scratch=staged_bytes + blocking.rows * blocking.columns * 4,
        staged_bytes=busiest * staged_bytes,
    )


def _iterations(contraction: Contraction, split: Split, blocking: Blocking) -> int:
    """Return the number of iterations of the loop (or of steps, if unrolled) that a split of K makes.

    `blocking` has all splits of K. If K's last digit (mixed-radix part) is split twice, it is the number per iteration
    of the other split of that digit.
    """
    last = contraction.depth[-1]
    if split.digit != last.name:
        return size(contraction.summed(split.digit))
    outer = next((x.size for x in blocking.steps if x.digit == last.name and x is not split), None)
    return (outer or round_up(size(last), blocking.atom.shape[2])) // blocking.atom.shape[2]
