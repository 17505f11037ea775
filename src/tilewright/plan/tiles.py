"""Blockings of a contraction in tile registers: all that are worth a thought, and what each costs."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.blocking import COLUMNS, ROWS, Blocking, up
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.fixed import FREE, Fixed
from tilewright.plan.model import Cost, cores, element_bytes, l1, l2, operand_bytes, reading
from tilewright.plan.schedule import Split
from tilewright.plan.sliding import halo_of, is_direct

WRITTEN = 72
"""Steps of the depth that are written out, at most."""


def tile_blockings(c: Contraction, atom: MultiplyAtom, machine: Machine, fixed: Fixed = FREE) -> Iterator[Blocking]:
    """The blockings of a contraction with an atom of tile registers."""
    workers, height = cores(machine), size(c.rows[-1])
    most = size(c.rows[-2 if len(c.rows) > 1 else -1])
    wanted = {1, 2, 3, 3 * workers, *(workers << n for n in range(most.bit_length()))}
    parts = {1, 2, workers, 2 * workers}
    tasks = (*(d.name for d in (*c.batch, *c.rows[:-2])), ROWS, COLUMNS)
    steps = _steps(c, atom, fixed)
    for rows, columns in _blocks(c, atom, machine):
        for stage in stages(c, atom):
            down = max(1, -(-height // rows) if stage else height // rows)
            for strip, task_columns, order in fixed.tasks(c, (rows, columns), down, wanted, parts):
                streams = _streams(c, atom, rows, columns, order, machine)
                how = steps, tasks, "cyclic", stage, streams, "delayed store"
                yield Blocking(atom, rows, columns, strip, task_columns, order, *how)


def _blocks(c: Contraction, atom: MultiplyAtom, machine: Machine) -> Iterator[tuple[int, int]]:
    """Rows and columns of blocks of sums that the tile registers hold."""
    m, n, _ = atom.shape
    most = machine.limits.tile_registers
    across = -(-size(c.columns[0]) // n)
    fitting = [(a, b) for a in (1, 2, 3) for b in (1, 2, 3) if registers(a, b) <= most and b <= max(1, across)]
    best = max((a * b / (a + b) for a, b in fitting), default=0)
    for a, b in fitting:  # a block with fewer products for its loads only where the columns end before it
        if a * b / (a + b) == best or b == across:
            yield a * m, b * n


def registers(rows: int, columns: int) -> int:
    """Tile registers of a block of so many tiles: sums and both factors."""
    return rows * columns + rows + columns


def stages(c: Contraction, atom: MultiplyAtom) -> list[str]:
    """Where rows can be read."""
    if is_direct(c, atom.shape[2]):
        return [""]
    return ["strip", "panel"] if halo_of(c) is not None else ["panel"]


def _steps(c: Contraction, atom: MultiplyAtom, fixed: Fixed) -> tuple[Split, ...]:
    """The steps of the depth: written out as far as that is not too much."""
    last, depth = c.depth[-1], atom.shape[2]
    chunks, taps = -(-size(last) // depth), c.extent(c.depth[:-1])
    each = tuple(Split("unit", 1, t.name) for t in c.depth[:-1])
    end = Split("unit", depth, last.name)
    if fixed.depth is not None and fixed.depth % depth == 0 and fixed.depth < chunks * depth:
        return (Split("loop", fixed.depth, last.name), *each, end)
    if taps * chunks <= WRITTEN:
        return (*each, end)
    if chunks == 1 or taps > WRITTEN:
        return (*(Split("loop", 1, t.name) for t in c.depth[:-1]), Split("loop", depth, last.name))
    per = max(1, WRITTEN // taps)
    while chunks % per:
        per -= 1
    return (Split("loop", per * depth, last.name), *each, end)


def _streams(
    c: Contraction, atom: MultiplyAtom, rows: int, columns: int, order: tuple[str, str], machine: Machine
) -> str:
    """The factor that passes the first cache by: the one that the inner loop changes, if the other fits."""
    outer_is_b = order[0] == COLUMNS
    kept = (columns if outer_is_b else rows) * up(size(c.depth[-1]), atom.shape[2]) * c.extent(c.depth[:-1])
    fits = kept * element_bytes(c.b.dtype) <= l1(machine.limits)
    return ("a" if outer_is_b else "b") if fits else ("b" if outer_is_b else "a")


def rows_of(c: Contraction, how: Blocking) -> tuple[int, int, int]:
    """(tasks over rows, rows that the largest computes, bytes that it stages)."""
    last, each = c.rows[-1], element_bytes(c.a.dtype)
    deep = up(size(c.depth[-1]), how.atom.shape[2])
    taps = c.extent(c.depth[:-1])
    if len(c.rows) == 1:
        whole = size(last) // how.rows * how.rows if not how.stage else size(last)
        tasks = max(1, -(-whole // how.strip))
        rows = how.strip if tasks > 1 else max(how.rows, whole)
        return tasks, rows, 0 if not how.stage else how.strip * deep * taps * each
    lines = size(c.rows[-2])
    tasks = -(-lines // how.strip)
    strip = min(how.strip, lines)
    if how.stage == "panel":
        rows = strip * size(last)
        return tasks, rows, rows * deep * taps * each
    halo = halo_of(c)
    assert halo is not None
    return tasks, strip * halo.pitch, (strip + halo.lines.reach) * halo.pitch * deep * each


def tile_cost(c: Contraction, how: Blocking, machine: Machine) -> Cost:
    """What a how costs."""
    limits, costs, atom = machine.limits, machine.costs.tiles, how.atom
    assert isinstance(atom, MultiplyAtom)
    m, n, k = atom.shape
    each = element_bytes(c.a.dtype)
    across, down = how.columns // n, how.rows // m
    deep = up(size(c.depth[-1]), k) * c.extent(c.depth[:-1])
    steps = deep // k
    row_tasks, rows, staged = rows_of(c, how)
    blocks_of_columns = up(size(c.columns[0]), how.columns) // how.columns
    per = how.task_columns // how.columns
    column_tasks = -(-blocks_of_columns // per)
    row_blocks = -(-rows // how.rows)
    per = min(per, blocks_of_columns)
    tasks = row_tasks * column_tasks * c.extent(c.batch) * c.extent(c.rows[:-2])
    busiest = -(-tasks // cores(machine))
    fed = max(down * across * atom.cycles, (down + across) * atom.load_cycles)
    blocks = row_blocks * per
    products = blocks * (steps * fed + costs.block)
    left = not how.stage and size(c.rows[-1]) % how.rows
    ragged = (
        per * (steps * (fed + costs.staged) + costs.block) if left else 0.0
    )  # the last strip has these rows besides, staged
    ragged *= -(-(column_tasks * c.extent(c.batch)) // cores(machine))
    panel, strip = how.columns * deep * each, rows * deep * each if not how.stage else staged
    block_rows = how.rows * deep * each
    if how.order[0] == COLUMNS:
        of_b = reading(limits, panel, row_blocks, block_rows if how.streams != "a" else 0)
        read = per * of_b + reading(limits, strip, per, panel)
    else:
        of_a = reading(limits, strip / row_blocks, per, panel if how.streams != "b" else 0)
        read = row_blocks * of_a + reading(limits, panel * per, row_blocks, block_rows)
    shared = min(column_tasks * c.extent(c.batch), cores(machine))
    if operand_bytes(c.b) / shared + strip > l2(limits):  # not there from the last launch
        read = read + per * panel * (1 / limits.far_rate - 1 / limits.l2_rate)
    own = operand_bytes(c.a) / (row_tasks * c.extent(c.batch) * c.extent(c.rows[:-2]))  # of one strip of one image
    staging = staged / limits.copy_rate + (own / limits.far_rate if staged and own > l2(limits) else 0)
    storing = costs.task if how.overlap == "delayed store" else blocks * how.rows * how.columns * costs.store
    lines = blocks * how.rows * how.columns * element_bytes(c.out.dtype) / limits.line_bytes
    if not how.stage and how.order[0] == COLUMNS and per > 1:  # results of a row are not written together
        storing += lines * costs.scattered
    if column_tasks > 1:  # several workers write parts of one row
        storing += lines * costs.shared
    written = 1
    for s in how.steps:
        written *= _count(c, s, how) if s.written else 1
    instructions = int(written * (down * across + down + across) * (2 if not how.steps[0].written else 1) * 1.3 + 500)
    return Cost(
        products=busiest * products + ragged,
        memory=busiest * max(0.0, read - products),
        staging=busiest * staging,
        storing=busiest * storing,
        launch=limits.launch_cycles,
        tasks=tasks,
        busiest=busiest,
        instructions=instructions,
        scratch=staged + how.rows * how.columns * 4,
        staged_bytes=busiest * staged,
    )


def _count(c: Contraction, s: Split, how: Blocking) -> int:
    last = c.depth[-1]
    if s.digit != last.name:
        return size(c.summed(s.digit))
    outer = next((x.size for x in how.steps if x.digit == last.name and x is not s), None)
    return (outer or up(size(last), how.atom.shape[2])) // how.atom.shape[2]
