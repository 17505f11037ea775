"""Blockings of a contraction by vectors along N: those to try, and their costs.

A task is one tile of the grid. A block is the accumulator tile of `rows` rows by some vectors of columns that stays in
vector registers over K.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.blocking import COLUMNS, ROWS, Blocking, round_up
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.fixed import FREE, Fixed
from tilewright.plan.model import Cost, cores, element_bytes, l2, operand_bytes, read_cycles, stays_in_l1
from tilewright.plan.schedule import Split
from tilewright.plan.sliding import stride_between_rows

UNROLLED = 4
"""K steps of the last digit that are unrolled, if they divide it."""
WRITTEN = 16
"""K steps that are unrolled within a line, at most: the program stays short."""
WIDE = (1, 2, 3, 4)
"""Vectors of columns that a block may have."""


def vector_blockings(
    contraction: Contraction, atom: MultiplyAtom, machine: Machine, fixed: Fixed = FREE
) -> Iterator[Blocking]:
    """Yield each Blocking (tile sizes and loop order) of a contraction to try with a vector atom; vectors run along N.

    All follow the author's constraints `fixed`. Nothing is yielded if the atom cannot compute the contraction.
    """
    if why_no_vectors(contraction, atom) is not None:
        return
    lanes = atom.shape[1]
    (column,) = contraction.columns
    line, workers = size(contraction.rows[-1]), cores(machine)
    row_counts = {1, 2, *(workers << n for n in range(5)), *map(size, contraction.rows[-2:-1])}  # single lines, too
    tasks = (COLUMNS, *(d.name for d in (*contraction.batch, *contraction.rows[:-2])), ROWS)
    steps = _k_splits(contraction, atom, fixed)
    for vectors in WIDE:
        if vectors > 1 and (vectors - 1) * lanes >= size(column):
            continue
        columns = vectors * lanes
        most_rows = max(n for n in range(1, machine.limits.registers) if n == 1 or fits(n, vectors, atom, machine))
        dividing = (
            None if fixed.rows is None else [n for n in range(1, min(line, most_rows) + 1) if fixed.rows % n == 0]
        )
        for rows in _row_choices(line, most_rows) if dividing is None else dividing:
            for task in fixed.tasks(contraction, (rows, columns), max(1, line // rows), row_counts, {1, 2, workers}):
                yield Blocking(atom, rows, columns, *task, steps, tasks, "contiguous")


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
    """Return the number of vector registers for a block (accumulator tile, `rows` x `vectors` vectors) and operands.

    An atom that broadcasts one element of A needs one register for it. An atom that picks an element of A by its lane
    number needs one register of A per row, and B of the next K step has registers too.
    """
    return rows * vectors + (vectors + 1 if atom.picks == 1 else 2 * vectors + rows)


def max_picked_rows(atom: MultiplyAtom) -> int:
    """Return the largest number of rows of a block (accumulator tile) that an atom allows; 0 if the atom sets no limit.

    Some atoms pick elements of A from a few registers only. Half of these are loaded for the next K step while the atom
    picks from the other half, so that the limit is half their number.
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

    It is the largest of: the cycles of multiply-adds, the cycles of the loads that feed them, and the latency if there
    are too few accumulators to hide it. `row_stride` is the number of bytes between rows of A: if L1 does not keep one
    cache line of each row, loads count at the rate of L2. If L2 does not hold the block's B for a K of `k_extent`
    elements, B counts at the rate of memory; None leaves this out.
    """
    limits, (_, lanes, group) = machine.limits, atom.shape
    busy = max(rows * vectors * atom.cycles, (rows / atom.picks + vectors) * limits.load_cycles)
    b_bytes = vectors * lanes * group * element_bytes(atom.b.dtype)
    if b_bytes / group * (k_extent or 0) > l2(limits):
        busy = max(busy, b_bytes / limits.far_rate)
    if not stays_in_l1(limits, rows, limits.line_bytes, row_stride):
        busy = max(busy, (rows / atom.picks * limits.line_bytes + b_bytes) / limits.l2_rate)
    waiting = limits.latency if rows * vectors < limits.latency / atom.cycles else 0.0
    return max(busy, waiting)


def _row_choices(line: int, most_rows: int) -> list[int]:
    """Return the numbers of rows of a block (accumulator tile) to try along `line` rows, each at most `most_rows`.

    They are `most_rows`, and the numbers that split the line almost evenly into the fewest blocks possible, or into
    one, two or three blocks more.
    """
    most_rows = max(1, min(line, most_rows))
    fewest_blocks = {-(-line // count) for count in range(-(-line // most_rows), -(-line // most_rows) + 4)}
    return sorted(n for n in {most_rows, *fewest_blocks} if 1 <= n <= most_rows)


def _k_splits(contraction: Contraction, atom: MultiplyAtom, fixed: Fixed) -> tuple[Split, ...]:
    """Return the splits of K for vectors along N, outermost first: filter taps, then channels, then the atom's K.

    Each digit (mixed-radix part of K) of the taps has a split of size 1. It is unrolled if a bounds check of A depends
    on both the digit and the position in an image line, and if its taps times the unrolled channel steps are at most
    WRITTEN (16); otherwise it is a loop. The split of the channels is a loop; its tile is the author's in `fixed`, or
    up to 4 atom steps, or as many as one load of A feeds.
    """
    last, group = contraction.depth[-1], atom.shape[2]
    unroll_limit = max(UNROLLED, atom.picks)  # what one load of A brings is multiplied in one go
    unroll = max(n for n in range(1, unroll_limit + 1) if size(last) % (n * group) == 0)
    if fixed.depth is not None and size(last) % fixed.depth == 0 == fixed.depth % group:
        unroll = fixed.depth // group
    unrolled_taps = [t for t in contraction.depth[:-1] if t in contraction.coupled and size(t) * unroll <= WRITTEN]
    taps = [Split("unit" if t in unrolled_taps else "loop", 1, t.name) for t in contraction.depth[:-1]]
    return (*taps, Split("loop", unroll * group, last.name), Split("unit", group, last.name))


def vector_cost(contraction: Contraction, blocking: Blocking, machine: Machine) -> Cost:
    """Return a Cost, the predicted cycles of the busiest core by cause, of a blocking with vectors along N.

    `blocking` has the tile sizes and the loop order. The causes are multiply-adds, memory accesses that they do not
    hide, and the launch (fixed cycles to start a kernel).
    """
    limits, atom = machine.limits, blocking.atom
    assert isinstance(atom, MultiplyAtom)
    group, vectors = blocking.atom.shape[2], blocking.vectors
    line = size(contraction.rows[-1])
    depth = contraction.extent(contraction.depth)
    element_size = element_bytes(contraction.b.dtype)
    row_stride = (stride_between_rows(contraction) or 0) * element_bytes(contraction.a.dtype)
    blocks = round_up(size(contraction.columns[0]), blocking.columns) // blocking.columns
    task_blocks = min(blocking.task_columns // blocking.columns, blocks)
    column_tasks = -(-blocks // task_blocks)
    if len(contraction.rows) > 1:
        lines, row_tasks, count = (
            min(blocking.strip, size(contraction.rows[-2])),
            -(-size(contraction.rows[-2]) // blocking.strip),
            line,
        )
    else:
        blocked_rows = line // blocking.rows * blocking.rows
        row_tasks = max(1, -(-blocked_rows // blocking.strip))
        lines, count = 1, blocking.strip if row_tasks > 1 else line
    full_blocks, tail = divmod(count, blocking.rows)
    tasks = row_tasks * column_tasks * contraction.extent(contraction.batch) * contraction.extent(contraction.rows[:-2])
    busiest = -(-tasks // cores(machine))

    def block(rows: int) -> float:
        """Return the cycles of one core for one block of `rows` rows, over all of K."""
        return depth / group * step_cycles(machine, atom, rows, vectors, row_stride) + machine.costs.vectors.block

    line_cycles = full_blocks * block(blocking.rows) + (block(tail) if tail else 0)
    products = lines * line_cycles * task_blocks + machine.costs.vectors.task
    tail_rows = line % blocking.rows if len(contraction.rows) == 1 and row_tasks > 1 else 0
    ragged = task_blocks * block(tail_rows) if tail_rows else 0.0  # the last strip has these rows besides
    ragged *= -(-(column_tasks * contraction.extent(contraction.batch)) // cores(machine))
    b_bytes = blocking.columns * depth * element_size
    a_bytes = operand_bytes(contraction.a) / (
        row_tasks * contraction.extent(contraction.rows[:-2]) * contraction.extent(contraction.batch)
    )
    reused_bytes = min(size(contraction.depth[-1]) * element_size * blocking.rows * 3, a_bytes)
    row_blocks = lines * (full_blocks + bool(tail))
    exposed = 0.0
    if blocking.order[0] == COLUMNS:
        read_a = read_cycles(limits, a_bytes, task_blocks, b_bytes)
        read_all = task_blocks * read_cycles(limits, b_bytes, row_blocks, reused_bytes) + read_a
        if a_bytes + b_bytes > l2(limits):  # rows of A lie apart: they are not fetched ahead as a panel is
            exposed = limits.copy_shown * read_a
    else:
        read_all = read_cycles(limits, b_bytes * task_blocks, row_blocks, reused_bytes) + read_cycles(
            limits, a_bytes, 1, 0
        )
    sharing = min(column_tasks * contraction.extent(contraction.batch), cores(machine))
    if operand_bytes(contraction.b) / sharing + a_bytes > l2(limits):  # not there from the last launch
        read_all = read_all + task_blocks * b_bytes * (1 / limits.far_rate - 1 / limits.l2_rate)
    return Cost(
        products=busiest * products + ragged,
        memory=busiest * max(exposed, read_all - products),
        launch=limits.launch_cycles,
        tasks=tasks,
        busiest=busiest,
        instructions=_instructions(contraction, blocking, full_blocks, tail),
    )


def _instructions(contraction: Contraction, blocking: Blocking, full_blocks: int, tail: int) -> int:
    """Return the estimated number of instructions in the generated code of a blocking with vectors along N.

    Unrolled K steps are included. An image line has `full_blocks` whole blocks (accumulator tiles) and a last block of
    `tail` rows.
    """
    group, vectors = blocking.atom.shape[2], blocking.vectors
    inner = edges = 1
    for s in blocking.steps:
        if s.digit == contraction.depth[-1].name:
            unroll = 1 if s.is_unrolled else s.size // group
            inner, edges = inner * unroll, edges * unroll
            continue
        digit = contraction.summed(s.digit)
        inner *= size(digit) if s.is_unrolled else 1
        edges *= size(digit) if s.is_unrolled or digit in contraction.coupled else 1
    row_instructions = vectors + 1
    unrolled_blocks = [(blocking.rows, inner)] if full_blocks else []
    if contraction.a.conditions:
        unrolled_blocks = [(blocking.rows, edges)] * min(full_blocks, 2) + [(blocking.rows, inner)] * (full_blocks > 2)
    if tail:
        unrolled_blocks.append((tail, edges))
    return int(sum(rows * row_instructions * count for rows, count in unrolled_blocks) * 1.1 + 300)
