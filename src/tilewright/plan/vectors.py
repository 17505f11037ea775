"""SIMD along N (vector atoms): accumulator tiles and splits of K to try, registers, and cycles of a K step.

A task is one tile of the grid. A block is the accumulator tile of `rows` rows by some vectors of columns that stays in
vector registers over K.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.block_list import BlockUnit
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.fixed import StatedTiles
from tilewright.plan.model import cores, element_bytes, l2, stays_in_l1
from tilewright.plan.schedule import Split

UNROLLED = 4
"""K steps along K's last digit (mixed-radix part) that are unrolled, if they divide it."""
WRITTEN = 16
"""The most K steps that are unrolled, so that the code stays short."""
WIDE = (1, 2, 3, 4)
"""The numbers of vectors of columns that a block may have."""


def vector_unit(space: Contraction, atom: MultiplyAtom, machine: Machine, fixed: StatedTiles) -> BlockUnit:
    """Return the BlockUnit of a vector atom: accumulator tiles and task counts to try; vectors run along N.

    `space` is the contraction that it computes. If the author's constraints `fixed` give a task's rows, the rows of an
    accumulator tile divide them.
    """
    line, workers = size(space.rows[-1]), cores(machine)
    row_counts = {1, 2, *(workers << n for n in range(5)), *map(size, space.rows[-2:-1])}  # single lines, too
    tiles = tuple(_accumulator_tiles(size(space.columns[0]), line, atom, machine, fixed))
    return BlockUnit(atom, tiles, row_counts, {1, 2, workers}, _k_splits(space, atom, fixed))


def _accumulator_tiles(
    columns: int, line: int, atom: MultiplyAtom, machine: Machine, fixed: StatedTiles
) -> Iterator[tuple[int, int]]:
    """Yield (rows, columns), in elements, of each accumulator tile to try, with vectors along N.

    N has `columns` columns, and tiles do not cross lines of `line` rows. Every tile fits the vector registers, if it
    has more than one row. If `fixed` has the author's rows of a task, the rows of a tile divide these.
    """
    lanes = atom.shape[1]
    for vectors in WIDE:
        if vectors > 1 and (vectors - 1) * lanes >= columns:
            continue
        most_rows = max(n for n in range(1, machine.limits.registers) if n == 1 or fits(n, vectors, atom, machine))
        row_choices = _row_choices(line, most_rows)
        if fixed.rows is not None:
            row_choices = [n for n in range(1, min(line, most_rows) + 1) if fixed.rows % n == 0]
        yield from ((rows, vectors * lanes) for rows in row_choices)


def why_no_vectors(contraction: Contraction, atom: MultiplyAtom) -> str | None:
    """Return text: why a vector atom cannot compute a contraction; None if it can.

    If the atom adds several neighbours along K, their number must divide K's last digit (mixed-radix part), and a
    bounds check of A must not depend on that digit.
    """
    last, group = contraction.depth[-1], atom.shape[2]
    if size(last) % group:
        return f"it adds {group} neighbours at once, which do not divide the {size(last)} of {last.name}"
    if group > 1 and any(last in x.symbols for _, x in contraction.a.conditions):
        return f"it adds {group} neighbours at once, of which some may lie outside {contraction.a.name}"
    return None


def registers(rows: int, vectors: int, atom: MultiplyAtom) -> int:
    """Return the number of vector registers for a block of `rows` rows by `vectors` vectors, and for its operands.

    A block is an accumulator tile. Some atoms broadcast a single element of A: they need a register for that element,
    and one for each vector of B. Other atoms pick an element of A from a register by its lane number: they need a
    register of A per row, and two for each vector of B, because the vectors of the next K step are loaded meanwhile.
    """
    return rows * vectors + (vectors + 1 if atom.picks == 1 else 2 * vectors + rows)


def max_picked_rows(atom: MultiplyAtom) -> int:
    """Return the largest number of rows of a block (accumulator tile) that an atom allows; 0 if the atom sets no limit.

    Some atoms pick elements of A from a few registers only. Half of these are loaded for the next K step while the atom
    picks from the other half: the limit is half of their number.
    """
    return atom.picks_from // 2


def fits(rows: int, vectors: int, atom: MultiplyAtom, machine: Machine) -> bool:
    """True if a block (accumulator tile) of `rows` rows by `vectors` vectors fits the vector registers and the atom.

    Some atoms allow few rows (`max_picked_rows`).
    """
    return registers(rows, vectors, atom) <= machine.limits.registers and rows <= (max_picked_rows(atom) or rows)


def step_cycles(
    machine: Machine, atom: MultiplyAtom, rows: int, vectors: int, row_stride: int, k_extent: int | None = None
) -> float:
    """Return the cycles of one core for one K step of a block (accumulator tile) of `rows` rows by `vectors` vectors.

    It is the longer of the multiply-adds and the loads that feed them, plus a fraction of the shorter that the machine
    does not hide. Too few accumulators cannot hide the latency: the result is then at least the latency. `row_stride`
    is the number of bytes between rows of A: if L1 does not keep one cache line of each row, loads count at the rate of
    L2. If L2 does not hold the block's B for a K of `k_extent` elements, B counts at the rate of memory; None leaves
    this out.
    """
    limits, (_, lanes, group) = machine.limits, atom.shape
    multiplying, loading = rows * vectors * atom.cycles, (rows / atom.picks + vectors) * limits.load_cycles
    busy = max(multiplying, loading) + machine.costs.vectors.shown * min(multiplying, loading)
    b_bytes = vectors * lanes * group * element_bytes(atom.b.dtype)
    if b_bytes / group * (k_extent or 0) > l2(limits):
        busy = max(busy, b_bytes / limits.far_rate)
    if not stays_in_l1(limits, rows, limits.line_bytes, row_stride):
        busy = max(busy, (rows / atom.picks * limits.line_bytes + b_bytes) / limits.l2_rate)
    waiting = limits.latency if rows * vectors < limits.latency / atom.cycles else 0.0
    return max(busy, waiting)


def _row_choices(line: int, most_rows: int) -> list[int]:
    """Return the numbers of rows, in ascending order, to try for a block (accumulator tile) on a line of `line` rows.

    Each is at most `most_rows`. One is `most_rows` (or `line`, if that is smaller). The others split the line almost
    evenly into b, b + 1, b + 2 or b + 3 blocks, where b is the fewest blocks possible. For 14 rows, at most 6 each, b
    is 3 and the result is [3, 4, 5, 6].
    """
    most_rows = max(1, min(line, most_rows))
    fewest_blocks = {-(-line // count) for count in range(-(-line // most_rows), -(-line // most_rows) + 4)}
    return sorted(n for n in {most_rows, *fewest_blocks} if 1 <= n <= most_rows)


def _k_splits(contraction: Contraction, atom: MultiplyAtom, fixed: StatedTiles) -> tuple[Split, ...]:
    """Return the splits of K for vectors along N, outermost first: filter taps, then channels, then the atom's K.

    Each digit (mixed-radix part of K) of the taps has a split of size 1, usually a loop. It is unrolled under two
    conditions: a bounds check of A depends on both the digit and the position in an image line; and its taps times the
    unrolled channel steps are at most WRITTEN (16).

    The channels have a loop. Its tile is the author's in `fixed`, if that divides them. Otherwise it is a few atom
    steps: up to UNROLLED (4), or as many as one load of A feeds.
    """
    last, group = contraction.depth[-1], atom.shape[2]
    unroll_limit = max(UNROLLED, atom.picks)  # use all of a load of A
    unroll = max(n for n in range(1, unroll_limit + 1) if size(last) % (n * group) == 0)
    if fixed.depth is not None and size(last) % fixed.depth == 0 == fixed.depth % group:
        unroll = fixed.depth // group
    unrolled_taps = [t for t in contraction.depth[:-1] if t in contraction.coupled and size(t) * unroll <= WRITTEN]
    taps = [Split("unit" if t in unrolled_taps else "loop", 1, t.name) for t in contraction.depth[:-1]]
    return (*taps, Split("loop", unroll * group, last.name), Split("unit", group, last.name))
