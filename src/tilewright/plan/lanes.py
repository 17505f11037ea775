"""Blockings of a contraction by lanes: all that are worth a thought, and what each costs.

A depthwise convolution keeps its channels: there are no columns to fill a vector with, but neighbouring channels do.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.algebra.expr import ZERO, Const, index
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.machine import Machine
from tilewright.plan.blocking import BY_LANES, LANES, ROWS, Blocking, LaneUnit, kept_digit, single_digits, up
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.fixed import FREE, Fixed
from tilewright.plan.model import Cost, cores, element_bytes, l2, operand_bytes
from tilewright.plan.schedule import Split
from tilewright.plan.sliding import lane_digit

WRITTEN = 16
"""Taps of the last digit of the depth that are written out, so that neighbouring rows share what they load."""
WIDE = (1, 2, 3, 4)
"""Vectors of a block of sums."""
ALONE = 6
"""Blocks of a line that may be rounds of their own; where more would have to be, single loads are guarded."""


def lane_unit(c: Contraction, machine: Machine) -> LaneUnit:
    """What multiplies: the machine's vectors of the sums' type."""
    kind, costs = c.sum_dtype, machine.costs.lanes
    lanes = (machine.limits.vector_bytes or 0) // element_bytes(kind)
    same = (x for x in machine.multiply.values() if x.shape == (1, lanes, 1) and x.a.dtype is x.c.dtype is kind)
    cycles = min((x.cycles for x in same), default=costs.product if kind.is_float else costs.integer_product)
    return LaneUnit(kind, lanes, cycles)


def why_no_lanes(c: Contraction, machine: Machine) -> str | None:
    """Why a contraction has no such blocking, whatever the plan; None if it has."""
    if not c.batch:
        return "no digit is kept by both factors"
    digit = lane_digit(c)
    if digit is None:
        return f"no digit that both factors keep lies side by side in {c.a.name}"
    if not c.rows or not c.depth:
        return "it has no rows or no depth"
    form = linear_form(c.out.coordinates[-1], [digit])
    factor = None if form is None else form[0].get(digit)
    if not isinstance(factor, Const) or any(digit in e.symbols for e in c.out.coordinates[:-1]):
        return f"{digit.name} is not the last coordinate of {c.out.name}"
    if any(digit in x.symbols for _, x in c.a.conditions):
        return f"{digit.name} may leave {c.a.name}"
    if not (c.sum_dtype.is_float or c.sum_dtype.name == "i32") or lane_unit(c, machine).lanes < 1:
        return f"sums of {c.sum_dtype} have no vectors"
    return None


def lane_blockings(c: Contraction, machine: Machine, fixed: Fixed = FREE) -> Iterator[Blocking]:
    """The blockings of a contraction by lanes; none where there is no digit for it."""
    if why_no_lanes(c, machine) is not None:
        return
    if fixed.columns is not None and fixed.columns < c.extent(c.columns):  # a task goes over all of them
        return
    unit, steps, workers = lane_unit(c, machine), default_steps(c), cores(machine)
    singles = single_digits(c, True)
    tasks = (LANES, *(d.name for d in singles), ROWS)
    line, walked = size(c.rows[-1]), up(size(kept_digit(c)), unit.lanes)
    flat = c.extent(tuple(singles)) == 1 and not c.a.conditions
    for vectors in WIDE:
        width = vectors * unit.lanes
        if width > walked:
            break
        groups = -(-walked // width)
        for rows in range(1, line + 1):
            if not _fits(c, rows, vectors, steps, machine):
                break
            for strip in _strips(line, rows, workers, flat, fixed):
                for per in sorted({-(-groups // parts) for parts in (1, 2, workers) if parts <= groups}):
                    yield Blocking(unit, rows, width, strip, per * width, BY_LANES, steps, tasks, "contiguous")


def _fits(c: Contraction, rows: int, vectors: int, steps: tuple[Split, ...], machine: Machine) -> bool:
    """Whether the registers hold the sums, what waits for a later tap, and filters; at edges, all that a tap reads."""
    waiting = max(1, window(c, rows, steps)[1] + (c.a.dtype is not c.sum_dtype))
    if any(c.rows[-1] in x.symbols for _, x in c.a.conditions):
        waiting = max(waiting, rows)
    products = 0 if c.sum_dtype.is_float else rows  # of integers, those of two taps may be added up first
    return (rows + waiting + products + 1) * vectors <= machine.limits.registers


def _strips(line: int, rows: int, workers: int, flat: bool, fixed: Fixed) -> list[int]:
    """What a task may take of a line: all of it, unless there is nothing else to share out."""
    if fixed.rows is not None:
        return [fixed.rows] if fixed.rows == line or (fixed.rows < line and fixed.rows % rows == 0) else []
    full = line // rows
    return [-(-full // min(full, 4 * workers)) * rows] if flat and full > 1 else [line]


def default_steps(c: Contraction) -> tuple[Split, ...]:
    """Every digit of the depth one by one; written out where it depends on the row whether there is a tap.

    Tap by tap it is then known which rows fall outside, and rows share what they load.
    """
    last = c.depth[-1]
    written = [t for t in c.depth if t in c.coupled or (t is last and size(t) <= WRITTEN)]
    return tuple(Split("unit" if t in written else "loop", 1, t.name) for t in c.depth)


def registers(rows: int, vectors: int) -> int:
    """Vector registers of a block: sums, a vector of filters for each, and what is multiplied."""
    return (rows + 1) * vectors + 1


# -- along a line -----------------------------------------------------------------------------------------


def edges(c: Contraction, rows: int) -> tuple[int, int]:
    """(first, last) blocks of a line of which a tap may fall outside; those between lie inside.

    >>> from tilewright.ir.dtypes import f32
    >>> from tilewright.plan.contraction import Operand
    >>> q, s, g = index("q", 20), index("s", 3), index("g", 4)
    >>> x, w = Operand("x", f32, (20, 4), (q + s - 1, g)), Operand("w", f32, (3, 4), (s, g))
    >>> y = Operand("y", f32, (20, 4), (q, g))
    >>> c = Contraction("conv", (q,), (), (s,), x, w, y, 0.0, f32, (), (g,))
    >>> edges(c, 5), edges(c, 6)
    ((1, 1), (1, 0))
    """
    line = c.rows[-1]
    full = size(line) // rows
    bound = [x for _, x in c.a.conditions if line in x.symbols]
    lane = index("i", rows)

    def inside(block: int) -> bool:
        images = Substitution({line: rows * block + lane})
        found = [images(x) for x in bound]
        return all(isinstance(x, Const) and x.value for x in found)

    first = next((b for b in range(full) if inside(b)), full)
    last = next((full - 1 - b for b in reversed(range(first, full)) if inside(b)), 0)
    return first, last


def own_rounds(c: Contraction, rows: int) -> tuple[int, int]:
    """(first, last) blocks of a line that are written on their own, because a tap may fall outside."""
    found = edges(c, rows)
    return found if sum(found) <= ALONE else (0, 0)


def written_taps(c: Contraction, steps: tuple[Split, ...]) -> int:
    """Taps of the last digit of the depth that stand side by side in the program."""
    last = c.depth[-1]
    return size(last) if any(s.written for s in steps if s.digit == last.name) else 1


def window(c: Contraction, rows: int, steps: tuple[Split, ...]) -> tuple[int, int]:
    """(elements along the line that so many rows read for the taps written out, the most that wait for a later tap)."""
    line, tap = c.rows[-1], c.depth[-1]
    taps = written_taps(c, steps)
    strides = []
    for e in c.a.coordinates:
        if line not in e.symbols and tap not in e.symbols:
            continue
        form = linear_form(e, [line, tap])
        factors = [] if form is None else [form[0].get(d, ZERO) for d in (line, tap)]
        known = [x.value for x in factors if isinstance(x, Const)]
        if len(known) != 2:
            return rows * taps, 0
        strides.append(known)
    first: dict[tuple[int, ...], int] = {}
    last: dict[tuple[int, ...], int] = {}
    for s in range(taps):
        for i in range(rows):
            place = tuple(i * p + s * t for p, t in strides)
            first.setdefault(place, s)
            last[place] = s
    waiting = (sum(first[x] <= s < last[x] for x in first) for s in range(taps))
    return len(first), max(waiting)


# -- cost -------------------------------------------------------------------------------------------------


def lane_cost(c: Contraction, how: Blocking, machine: Machine) -> Cost:
    """What a blocking costs."""
    limits, workers = machine.limits, cores(machine)
    line, walked = size(c.rows[-1]), up(size(kept_digit(c)), how.atom.shape[1])
    full, tail = divmod(line, how.rows)
    groups, rest = (n // how.atom.shape[1] for n in (walked - walked % how.columns, walked % how.columns))
    groups //= how.vectors
    strips = max(1, -(-full // max(1, how.strip // how.rows))) if how.strip < line else 1
    parts = -(-(groups + bool(rest)) // (how.task_columns // how.columns))
    others = c.extent(tuple(single_digits(c, True)))
    tasks = others * strips * parts
    busiest = -(-tasks // workers)

    def blocks(rows: int) -> float:
        """Cycles of some rows, in all groups of vectors."""
        whole = groups * _block(c, how, machine, rows, how.vectors) if groups else 0.0
        return whole + (_block(c, how, machine, rows, rest) if rest else 0.0)

    a_line = full * blocks(how.rows) + (blocks(tail) if tail else 0.0)
    computed = busiest * (others * a_line * c.extent(c.columns) / tasks + machine.costs.lanes.task)
    moved = operand_bytes(c.a) + operand_bytes(c.out)
    rate = limits.l2_rate if moved <= workers * l2(limits) else limits.far_rate
    piece = how.columns * element_bytes(c.a.dtype)
    copied = moved / rate * (1 + machine.limits.line_bytes / 2 / piece) / workers  # short pieces are read ahead badly
    copied *= machine.costs.lanes.parted if parts > 1 else 1
    return Cost(
        products=computed,
        memory=copied / 2 if computed >= copied else copied - computed / 2,
        launch=limits.launch_cycles,
        tasks=tasks,
        busiest=busiest,
        instructions=_instructions(c, how, full, tail, (how.vectors if groups else 0) + rest, strips > 1),
    )


def _block(c: Contraction, how: Blocking, machine: Machine, rows: int, vectors: int) -> float:
    """Cycles of a block of sums: its products or its loads, what each round of taps costs, and its end."""
    written, costs = written_taps(c, how.steps), machine.costs.lanes
    read = window(c, rows, how.steps)[0]
    converted = 0.0 if c.a.dtype is c.sum_dtype else read * costs.conversion  # where products are done, too
    computed, loaded = rows * written * how.atom.cycles + converted, (read + written) * costs.load
    a_round = vectors * (max(computed, loaded) + min(computed, loaded) / 2)
    latency = machine.limits.latency
    few = latency * written if rows * vectors * how.atom.cycles < latency else 0.0  # too few sums to hide it
    step = linear_form(c.out.coordinates[-1], c.batch)
    apart = step is not None and any(isinstance(x, Const) and x.value > 1 for x in step[0].values())
    stored = rows * vectors * (costs.apart if apart else 1)
    return c.extent(c.depth) / written * (max(a_round, few) + costs.turn) + costs.end + stored


def _instructions(c: Contraction, how: Blocking, full: int, tail: int, vectors: int, parted: bool) -> int:
    """Instructions of the program, roughly: blocks of rows and vectors that are written on their own."""
    written = 1
    for s in how.steps:
        written *= size(c.summed(s.digit)) if s.written else 1
    apart = 0 if parted else sum(own_rounds(c, how.rows))
    rows = (apart + (full > apart)) * how.rows + tail
    narrow = c.a.dtype is not c.sum_dtype
    return int(rows * vectors * (written * (2 + narrow) + 3) + 300)
