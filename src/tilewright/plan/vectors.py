"""Blockings of a contraction by vectors: all that are worth a thought, and what each costs."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.blocking import COLUMNS, ROWS, Blocking, up
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.fixed import FREE, Fixed
from tilewright.plan.model import Cost, cores, element_bytes, l2, operand_bytes, reading, stays_near
from tilewright.plan.schedule import Split
from tilewright.plan.sliding import rows_apart

UNROLLED = 4
"""Steps of the last digit of the depth that are written out, at least where they divide it."""
WRITTEN = 16
"""Steps of the depth that are written out within a line, at most: the program stays short."""
WIDE = (1, 2, 3, 4)
"""Vectors of columns in a block of sums."""


def vector_blockings(c: Contraction, atom: MultiplyAtom, machine: Machine, fixed: Fixed = FREE) -> Iterator[Blocking]:
    """The blockings of a contraction with a vector atom."""
    if why_no_vectors(c, atom) is not None:
        return
    lanes = atom.shape[1]
    (column,) = c.columns
    line, workers = size(c.rows[-1]), cores(machine)
    wanted = {1, 2, *(workers << n for n in range(5)), *map(size, c.rows[-2:-1])}  # single lines, too
    tasks = (COLUMNS, *(d.name for d in (*c.batch, *c.rows[:-2])), ROWS)
    steps = _steps(c, atom, fixed)
    for vectors in WIDE:
        if vectors > 1 and (vectors - 1) * lanes >= size(column):
            continue
        columns = vectors * lanes
        most = max(n for n in range(1, machine.limits.registers) if n == 1 or fits(n, vectors, atom, machine))
        dividing = None if fixed.rows is None else [n for n in range(1, min(line, most) + 1) if fixed.rows % n == 0]
        for rows in _rows(line, most) if dividing is None else dividing:
            for taken in fixed.tasks(c, (rows, columns), max(1, line // rows), wanted, {1, 2, workers}):
                yield Blocking(atom, rows, columns, *taken, steps, tasks, "contiguous")


def why_no_vectors(c: Contraction, atom: MultiplyAtom) -> str | None:
    """Why vectors of an atom do not fit."""
    last, group = c.depth[-1], atom.shape[2]
    if size(last) % group:
        return f"it adds {group} neighbours at once, which do not divide the {size(last)} of {last.name}"
    if group > 1 and any(last in x.symbols for _, x in c.a.conditions):
        return f"it adds {group} neighbours at once, of which some may lie outside {c.a.name}"
    return None


def registers(rows: int, vectors: int, atom: MultiplyAtom) -> int:
    """Vector registers of a block: sums, vectors of B, and what of A is multiplied.

    Where products pick A by lane, every row has a register of it, and vectors of B for the next step are loaded beside
    those of this one.
    """
    return rows * vectors + (vectors + 1 if atom.picks == 1 else 2 * vectors + rows)


def most_picked(atom: MultiplyAtom) -> int:
    """Rows of which an atom picks elements, at most: those of the next step are loaded beside those of this one.

    0: as many as the registers hold.
    """
    return atom.picks_from // 2


def fits(rows: int, vectors: int, atom: MultiplyAtom, machine: Machine) -> bool:
    """Whether the registers hold a block of so many rows and vectors."""
    return registers(rows, vectors, atom) <= machine.limits.registers and rows <= (most_picked(atom) or rows)


def step_cycles(
    machine: Machine, atom: MultiplyAtom, rows: int, vectors: int, apart: int, deep: int | None = None
) -> float:
    """Cycles of one step of K of a block of so many rows and vectors: its products, or what feeds them; too few sums do
    not hide a product's latency.

    A's rows lie `apart` bytes apart. Where the first cache does not keep that many, a line of A comes from the second
    one at each use, and not once for all of its elements; B's vectors come the same way. They come from behind it where
    it does not keep what a block reads of B for all of a K so `deep`; None: that is counted elsewhere.
    """
    limits, (_, lanes, group) = machine.limits, atom.shape
    fed = max(rows * vectors * atom.cycles, (rows / atom.picks + vectors) * limits.load_cycles)
    of_b = vectors * lanes * group * element_bytes(atom.b.dtype)
    if of_b / group * (deep or 0) > l2(limits):
        fed = max(fed, of_b / limits.far_rate)
    if not stays_near(limits, rows, limits.line_bytes, apart):
        fed = max(fed, (rows / atom.picks * limits.line_bytes + of_b) / limits.l2_rate)
    waiting = limits.latency if rows * vectors < limits.latency / atom.cycles else 0.0
    return max(fed, waiting)


def _rows(line: int, most: int) -> list[int]:
    """Rows of a block that are worth a thought: as many as fit, what divides the line, what leaves little over."""
    most = max(1, min(line, most))
    fewest_blocks = {-(-line // count) for count in range(-(-line // most), -(-line // most) + 4)}
    return sorted(n for n in {most, *fewest_blocks} if 1 <= n <= most)


def _steps(c: Contraction, atom: MultiplyAtom, fixed: Fixed) -> tuple[Split, ...]:
    last, group = c.depth[-1], atom.shape[2]
    most = max(UNROLLED, atom.picks)  # what one load of A brings is multiplied in one go
    deep = max(n for n in range(1, most + 1) if size(last) % (n * group) == 0)
    if fixed.depth is not None and size(last) % fixed.depth == 0 == fixed.depth % group:
        deep = fixed.depth // group
    few = [t for t in c.depth[:-1] if t in c.coupled and size(t) * deep <= WRITTEN]
    taps = [Split("unit" if t in few else "loop", 1, t.name) for t in c.depth[:-1]]
    return (*taps, Split("loop", deep * group, last.name), Split("unit", group, last.name))


def vector_cost(c: Contraction, how: Blocking, machine: Machine) -> Cost:
    """What a blocking costs."""
    limits, atom = machine.limits, how.atom
    assert isinstance(atom, MultiplyAtom)
    group, vectors = how.atom.shape[2], how.vectors
    line = size(c.rows[-1])
    depth = c.extent(c.depth)
    each = element_bytes(c.b.dtype)
    apart = (rows_apart(c) or 0) * element_bytes(c.a.dtype)
    blocks = up(size(c.columns[0]), how.columns) // how.columns
    per = min(how.task_columns // how.columns, blocks)
    column_tasks = -(-blocks // per)
    if len(c.rows) > 1:
        lines, row_tasks, count = min(how.strip, size(c.rows[-2])), -(-size(c.rows[-2]) // how.strip), line
    else:
        whole = line // how.rows * how.rows
        row_tasks = max(1, -(-whole // how.strip))
        lines, count = 1, how.strip if row_tasks > 1 else line
    full, tail = divmod(count, how.rows)
    tasks = row_tasks * column_tasks * c.extent(c.batch) * c.extent(c.rows[:-2])
    busiest = -(-tasks // cores(machine))

    def block(rows: int) -> float:
        """Cycles of a block."""
        return depth / group * step_cycles(machine, atom, rows, vectors, apart) + machine.costs.vectors.block

    of_a_line = full * block(how.rows) + (block(tail) if tail else 0)
    products = lines * of_a_line * per + machine.costs.vectors.task
    left = line % how.rows if len(c.rows) == 1 and row_tasks > 1 else 0
    ragged = per * block(left) if left else 0.0  # the last strip has these rows besides
    ragged *= -(-(column_tasks * c.extent(c.batch)) // cores(machine))
    panel = how.columns * depth * each
    strip = operand_bytes(c.a) / (row_tasks * c.extent(c.rows[:-2]) * c.extent(c.batch))
    taken = min(size(c.depth[-1]) * each * how.rows * 3, strip)
    rounds = lines * (full + bool(tail))
    shown = 0.0
    if how.order[0] == COLUMNS:
        of_a = reading(limits, strip, per, panel)
        read = per * reading(limits, panel, rounds, taken) + of_a
        if strip + panel > l2(limits):  # rows of A lie apart: they are not fetched ahead as a panel is
            shown = limits.copy_shown * of_a
    else:
        read = reading(limits, panel * per, rounds, taken) + reading(limits, strip, 1, 0)
    shared = min(column_tasks * c.extent(c.batch), cores(machine))
    if operand_bytes(c.b) / shared + strip > l2(limits):  # not there from the last launch
        read = read + per * panel * (1 / limits.far_rate - 1 / limits.l2_rate)
    return Cost(
        products=busiest * products + ragged,
        memory=busiest * max(shown, read - products),
        launch=limits.launch_cycles,
        tasks=tasks,
        busiest=busiest,
        instructions=_instructions(c, how, full, tail),
    )


def _instructions(c: Contraction, how: Blocking, full: int, tail: int) -> int:
    """Instructions of a program of so many whole blocks in a line, and a last one of `tail` rows."""
    group, vectors = how.atom.shape[2], how.vectors
    inner = edges = 1
    for s in how.steps:
        if s.digit == c.depth[-1].name:
            often = 1 if s.written else s.size // group
            inner, edges = inner * often, edges * often
            continue
        digit = c.summed(s.digit)
        inner *= size(digit) if s.written else 1
        edges *= size(digit) if s.written or digit in c.coupled else 1
    each_row = vectors + 1
    blocks_written = [(how.rows, inner)] if full else []
    if c.a.conditions:
        blocks_written = [(how.rows, edges)] * min(full, 2) + [(how.rows, inner)] * (full > 2)
    if tail:
        blocks_written.append((tail, edges))
    return int(sum(rows * each_row * count for rows, count in blocks_written) * 1.1 + 300)
