"""Forms of a contraction by vectors: all that are worth a thought, and what each costs."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.contraction import Contraction, coupled, size
from tilewright.plan.fixed import FREE, Fixed
from tilewright.plan.forms import COLUMNS, ROWS, Step, VectorForm, up
from tilewright.plan.model import Cost, cores, element_bytes, l2, operand_bytes, reading

UNROLLED = 4
"""Steps of the last digit of the depth that are written out, at least where they divide it."""
WRITTEN = 16
"""Steps of the depth that are written out within a line, at most: the program stays short."""
ORDERS = ((COLUMNS, ROWS), (ROWS, COLUMNS))
WIDE = (1, 2, 3, 4)
"""Vectors of columns in a block of sums."""


def vector_forms(c: Contraction, atom: MultiplyAtom, machine: Machine, fixed: Fixed = FREE) -> Iterator[VectorForm]:
    """The forms of a contraction with a vector atom."""
    if why_no_vectors(c, atom) is not None:
        return
    lanes = atom.shape[1]
    (column,) = c.columns
    line = size(c.rows[-1])
    workers = cores(machine)
    singles = [d.name for d in (*c.batch, *c.rows[:-2])]
    steps = _steps(c, atom, fixed)
    for vectors in WIDE:
        if vectors > 1 and (vectors - 1) * lanes >= size(column):
            continue
        columns = vectors * lanes
        blocks = up(size(column), columns) // columns
        most = max(n for n in range(1, machine.limits.registers) if n == 1 or fits(n, vectors, atom, machine))
        for rows in _rows(line, most) if fixed.rows is None else _divisors(fixed.rows, min(line, most)):
            for strip in fixed.strips(c, rows, _strips(c, rows, workers)):
                for task_columns in fixed.task_columns(columns, blocks, {1, 2, workers}):
                    for order in ORDERS[: 1 if task_columns == columns else 2]:
                        yield VectorForm(
                            atom, rows, columns, strip, task_columns, order, steps, "none",
                            (COLUMNS, *singles, ROWS), "contiguous",
                        )  # fmt: skip


def why_no_vectors(c: Contraction, atom: MultiplyAtom) -> str | None:
    """Why vectors of an atom do not fit."""
    last, group = c.depth[-1], atom.shape[2]
    if size(last) % group:
        return f"it adds {group} neighbours at once, which do not divide the {size(last)} of {last.name}"
    if group > 1 and any(last in x.symbols for _, x in c.a.conditions()):
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


def _rows(line: int, most: int) -> list[int]:
    """Rows of a block that are worth a thought: as many as fit, what divides the line, what leaves little over."""
    most = max(1, min(line, most))
    fewest_blocks = {-(-line // count) for count in range(-(-line // most), -(-line // most) + 4)}
    return sorted(n for n in {most, *fewest_blocks} if 1 <= n <= most)


def _strips(c: Contraction, rows: int, workers: int) -> list[int]:
    wanted = {1, 2, *(workers << n for n in range(5))}
    if len(c.rows) == 1:
        blocks = max(1, size(c.rows[-1]) // rows)
        return sorted({-(-blocks // parts) * rows for parts in wanted if parts <= blocks})
    lines = size(c.rows[-2])
    return sorted({1, *(-(-lines // parts) for parts in wanted if parts <= lines)})


def _divisors(n: int, most: int) -> list[int]:
    return [d for d in range(1, most + 1) if n % d == 0]


def _steps(c: Contraction, atom: MultiplyAtom, fixed: Fixed) -> tuple[Step, ...]:
    last, group = c.depth[-1], atom.shape[2]
    most = max(UNROLLED, atom.picks)  # what one load of A brings is multiplied in one go
    deep = max(n for n in range(1, most + 1) if size(last) % (n * group) == 0)
    if fixed.depth is not None and size(last) % fixed.depth == 0 == fixed.depth % group:
        deep = fixed.depth // group
    few = [t for t in c.depth[:-1] if coupled(c, t) and size(t) * deep <= WRITTEN]
    taps = [Step(t.name, 1, t in few) for t in c.depth[:-1]]
    return (*taps, Step(last.name, deep * group, False), Step(last.name, group, True))


def vector_cost(c: Contraction, form: VectorForm, machine: Machine) -> Cost:
    """What a form costs."""
    limits = machine.limits
    group, vectors = form.group, form.columns // form.lanes
    line = size(c.rows[-1])
    depth = c.extent(c.depth)
    each = element_bytes(c.b.dtype)
    blocks = up(size(c.columns[0]), form.columns) // form.columns
    per = min(form.task_columns // form.columns, blocks)
    column_tasks = -(-blocks // per)
    if len(c.rows) > 1:
        lines, row_tasks, count = min(form.strip, size(c.rows[-2])), -(-size(c.rows[-2]) // form.strip), line
    else:
        whole = line // form.rows * form.rows
        row_tasks = max(1, -(-whole // form.strip))
        lines, count = 1, form.strip if row_tasks > 1 else line
    full, tail = divmod(count, form.rows)
    tasks = row_tasks * column_tasks * c.extent(c.batch) * c.extent(c.rows[:-2])
    busiest = -(-tasks // cores(machine))

    def block(rows: int) -> float:
        """Cycles of a block: products, or what feeds them; too few sums do not hide a product's latency."""
        loads = rows / form.atom.picks + vectors
        fed = max(rows * vectors * form.atom.cycles, loads * limits.load_cycles)
        waiting = limits.latency if rows * vectors < limits.latency / form.atom.cycles else 0.0
        return depth / group * max(fed, waiting) + machine.costs.vectors.block

    of_a_line = full * block(form.rows) + (block(tail) if tail else 0)
    products = lines * of_a_line * per + machine.costs.vectors.task
    left = line % form.rows if len(c.rows) == 1 and row_tasks > 1 else 0
    ragged = per * block(left) if left else 0.0  # the last strip has these rows besides
    ragged *= -(-(column_tasks * c.extent(c.batch)) // cores(machine))
    panel, strip = (
        form.columns * depth * each,
        operand_bytes(c.a) / (row_tasks * c.extent(c.rows[:-2]) * c.extent(c.batch)),
    )
    taken = min(size(c.depth[-1]) * each * form.rows * 3, strip)
    rounds = lines * (full + bool(tail))
    shown = 0.0
    if form.order[0] == COLUMNS:
        b_read = reading(limits, panel, rounds, taken)
        a_read = reading(limits, strip, per, panel)
        read = (per * b_read[0] + a_read[0], per * b_read[1] + a_read[1])
        if strip + panel > l2(limits):  # rows of A lie apart: they are not fetched ahead as a panel is
            shown = limits.copy_shown * a_read[0]
    else:
        b_read = reading(limits, panel * per, rounds, taken)
        a_read = reading(limits, strip, 1, 0)
        read = (b_read[0] + a_read[0], b_read[1] + a_read[1])
    shared = min(column_tasks * c.extent(c.batch), cores(machine))
    if operand_bytes(c.b) / shared + strip > l2(limits):  # not there from the last launch
        read = (read[0] + per * panel * (1 / limits.far_rate - 1 / limits.l2_rate), read[1])
    return Cost(
        busiest * products + ragged,
        busiest * max(shown, read[0] - products),
        0.0,
        0.0,
        limits.launch_cycles,
        tasks,
        busiest,
        _instructions(c, form, full, tail),
        0,
        busiest * read[1],
    )


def _instructions(c: Contraction, form: VectorForm, full: int, tail: int) -> int:
    """Instructions of a program of so many whole blocks in a line, and a last one of `tail` rows."""
    group, vectors = form.group, form.columns // form.lanes
    inner = edges = 1
    for s in form.steps:
        if s.digit == c.depth[-1].name:
            inner, edges = (
                inner * (s.size // group if not s.written else 1),
                edges * (s.size // group if not s.written else 1),
            )
            continue
        digit = next(t for t in c.depth if t.name == s.digit)
        inner *= size(digit) if s.written else 1
        edges *= size(digit) if s.written or coupled(c, digit) else 1
    each_row = vectors + 1
    blocks_written = [(form.rows, inner)] if full else []
    if c.a.conditions():
        blocks_written = [(form.rows, edges)] * min(full, 2) + [(form.rows, inner)] * (full > 2)
    if tail:
        blocks_written.append((tail, edges))
    return int(sum(rows * each_row * count for rows, count in blocks_written) * 1.1 + 300)
