"""Blockings of a depthwise contraction on a CPU: vectors run along a dimension that A, B and the result share.

A depthwise convolution has no columns to fill a vector with, but neighbouring channels do. A line is the last digit of
M, such as the positions of an image row. A block is `rows` positions of a line by some vectors of channels: the
accumulators that stay in registers.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.algebra.expr import ZERO, Const, index
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.machine import Machine
from tilewright.plan.blocking import (
    BY_LANES,
    LANES,
    ROWS,
    Blocking,
    LaneUnit,
    required_lane_digit,
    round_up,
    single_digits,
)
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.fixed import FREE, Fixed
from tilewright.plan.model import Cost, cores, element_bytes, l2, operand_bytes
from tilewright.plan.schedule import Split
from tilewright.plan.sliding import lane_digit

WRITTEN = 16
"""Taps of the last digit of K that are unrolled at most, so that neighbouring rows share their loads."""
WIDE = (1, 2, 3, 4)
"""Vectors along the shared dimension that a block may have."""
ALONE = 6
"""Blocks of a line that may be peeled; with more edge blocks than that, single loads have predicates instead."""


def lane_unit(contraction: Contraction, machine: Machine) -> LaneUnit:
    """Return a LaneUnit, the machine's SIMD unit for the contraction's accumulator type: type, lanes and cycles.

    The lanes are the elements of a vector register; the cycles are for one multiply-add of vectors.
    """
    dtype, costs = contraction.sum_dtype, machine.costs.lanes
    lanes = (machine.limits.vector_bytes or 0) // element_bytes(dtype)
    vector_atoms = (
        x for x in machine.multiply.values() if x.shape == (1, lanes, 1) and x.a.dtype is x.c.dtype is dtype
    )
    cycles = min((x.cycles for x in vector_atoms), default=costs.product if dtype.is_float else costs.integer_product)
    return LaneUnit(dtype, lanes, cycles)


def why_no_lanes(contraction: Contraction, machine: Machine) -> str | None:
    """Return text: why vectors cannot run along a digit that A, B and the result share; None if they can.

    A digit is a mixed-radix part of a dimension.
    """
    if not contraction.batch:
        return "no digit is in both operands and the result"
    digit = lane_digit(contraction)
    if digit is None:
        return f"no digit of both operands and the result is contiguous in {contraction.a.name}"
    if not contraction.rows or not contraction.depth:
        return "it has no rows or no depth"
    form = linear_form(contraction.out.coordinates[-1], [digit])
    stride = None if form is None else form[0].get(digit)
    if not isinstance(stride, Const) or any(digit in e.symbols for e in contraction.out.coordinates[:-1]):
        return f"{digit.name} is not the last coordinate of {contraction.out.name}"
    if any(digit in x.symbols for _, x in contraction.a.conditions):
        return f"{digit.name} may leave {contraction.a.name}"
    if (
        not (contraction.sum_dtype.is_float or contraction.sum_dtype.name == "i32")
        or lane_unit(contraction, machine).lanes < 1
    ):
        return f"sums of {contraction.sum_dtype} have no vectors"
    return None


def lane_blockings(contraction: Contraction, machine: Machine, fixed: Fixed = FREE) -> Iterator[Blocking]:
    """Yield every Blocking with vectors along a digit that A, B and the result share, whose blocks fit the registers.

    A digit is a mixed-radix part of a dimension. `fixed` are the author's constraints. Nothing is yielded without such
    a digit, or if the constraints split the columns.
    """
    if why_no_lanes(contraction, machine) is not None:
        return
    if fixed.columns is not None and fixed.columns < contraction.extent(
        contraction.columns
    ):  # a task goes over all of them
        return
    unit, steps, workers = lane_unit(contraction, machine), default_steps(contraction), cores(machine)
    singles = single_digits(contraction, True)
    tasks = (LANES, *(d.name for d in singles), ROWS)
    line, padded = size(contraction.rows[-1]), round_up(size(required_lane_digit(contraction)), unit.lanes)
    flat = contraction.extent(tuple(singles)) == 1 and not contraction.a.conditions
    for vectors in WIDE:
        width = vectors * unit.lanes
        if width > padded:
            break
        groups = -(-padded // width)
        for rows in range(1, line + 1):
            if not _fits_registers(contraction, rows, vectors, steps, machine):
                break
            for strip in _line_extents(line, rows, workers, flat, fixed):
                for task_groups in sorted({-(-groups // parts) for parts in (1, 2, workers) if parts <= groups}):
                    yield Blocking(unit, rows, width, strip, task_groups * width, BY_LANES, steps, tasks, "contiguous")


def _fits_registers(
    contraction: Contraction, rows: int, vectors: int, steps: tuple[Split, ...], machine: Machine
) -> bool:
    """True if the vector registers hold a block (accumulator tile) of `rows` rows by `vectors` vectors.

    Registers are needed for accumulators, for inputs that a later filter tap reads again, for partial products of
    integers, and for filter values. `steps` are the splits of K.
    """
    kept_vectors = max(1, window(contraction, rows, steps)[1] + (contraction.a.dtype is not contraction.sum_dtype))
    if any(contraction.rows[-1] in x.symbols for _, x in contraction.a.conditions):
        kept_vectors = max(kept_vectors, rows)
    partial_products = (
        0 if contraction.sum_dtype.is_float else rows
    )  # of integers, those of two taps may be added up first
    return (rows + kept_vectors + partial_products + 1) * vectors <= machine.limits.registers


def _line_extents(line: int, rows: int, workers: int, flat: bool, fixed: Fixed) -> list[int]:
    """Return the extents of a task (one core's tile) along an image line to try, in positions; [] if none fits.

    It is the author's extent in `fixed` if there is one: the whole line, or a multiple of `rows` (positions of a
    block). Otherwise it is the whole line of `line` positions; if `flat` (nothing but the line can be split among the
    `workers` cores) it is about a quarter of a core's share, in whole blocks.
    """
    if fixed.rows is not None:
        return [fixed.rows] if fixed.rows == line or (fixed.rows < line and fixed.rows % rows == 0) else []
    full_blocks = line // rows
    return [-(-full_blocks // min(full_blocks, 4 * workers)) * rows] if flat and full_blocks > 1 else [line]


def default_steps(contraction: Contraction) -> tuple[Split, ...]:
    """Return the splits of K, one per digit, of one filter tap each: `unit` if the taps are unrolled, else `loop`.

    A digit is a mixed-radix part of K. Its taps are unrolled if a bounds check depends on both the digit and the row,
    or if it is the last digit and has at most WRITTEN (16) taps.
    """
    last = contraction.depth[-1]
    unrolled = [t for t in contraction.depth if t in contraction.coupled or (t is last and size(t) <= WRITTEN)]
    return tuple(Split("unit" if t in unrolled else "loop", 1, t.name) for t in contraction.depth)


def registers(rows: int, vectors: int) -> int:
    """Return the number of vector registers of a block of `rows` rows by `vectors` vectors.

    It is the sum of the accumulators, a filter value per vector, and one input.
    """
    return (rows + 1) * vectors + 1


# -- along a line -----------------------------------------------------------------------------------------


def edges(contraction: Contraction, rows: int) -> tuple[int, int]:
    """Return (number of blocks at the start, number at the end) of an image line whose taps may be out of bounds.

    A block has `rows` positions of the line; its taps are the filter taps that it reads.

    >>> from tilewright.ir.dtypes import f32
    >>> from tilewright.plan.contraction import Operand
    >>> q, s, g = index("q", 20), index("s", 3), index("g", 4)
    >>> x, w = Operand("x", f32, (20, 4), (q + s - 1, g)), Operand("w", f32, (3, 4), (s, g))
    >>> y = Operand("y", f32, (20, 4), (q, g))
    >>> c = Contraction("conv", (q,), (), (s,), x, w, y, 0.0, f32, (), (g,))
    >>> edges(c, 5), edges(c, 6)
    ((1, 1), (1, 0))
    """
    line = contraction.rows[-1]
    full_blocks = size(line) // rows
    bounds_checks = [x for _, x in contraction.a.conditions if line in x.symbols]
    lane = index("i", rows)

    def inside(block: int) -> bool:
        """True if all filter taps are in bounds at all positions of the block number `block`."""
        images = Substitution({line: rows * block + lane})
        results = [images(x) for x in bounds_checks]
        return all(isinstance(x, Const) and x.value for x in results)

    first = next((b for b in range(full_blocks) if inside(b)), full_blocks)
    last = next((full_blocks - 1 - b for b in reversed(range(first, full_blocks)) if inside(b)), 0)
    return first, last


def peeled_blocks(contraction: Contraction, rows: int) -> tuple[int, int]:
    """Return (number of blocks at the start, number at the end) of an image line to peel: taps may be out of bounds.

    These are all blocks in which a filter tap may be out of bounds; it is (0, 0) if they are more than ALONE (6). A
    block has `rows` positions of the line.
    """
    edge_blocks = edges(contraction, rows)
    return edge_blocks if sum(edge_blocks) <= ALONE else (0, 0)


def written_taps(contraction: Contraction, steps: tuple[Split, ...]) -> int:
    """Return the number of filter taps of K's last digit (mixed-radix part) that are unrolled; 1 if it stays a loop.

    `steps` are the splits of K.
    """
    last = contraction.depth[-1]
    return size(last) if any(s.is_unrolled for s in steps if s.digit == last.name) else 1


def window(contraction: Contraction, rows: int, steps: tuple[Split, ...]) -> tuple[int, int]:
    """Return (number of inputs that `rows` positions read over all unrolled taps, most inputs kept for a later tap).

    An input that two taps read counts once, and is kept in a register between them. Positions are along an image line,
    the last digit (mixed-radix part) of M; `steps` are the splits of K. If coordinates are not linear, nothing is
    shared: (rows * taps, 0).
    """
    line, tap = contraction.rows[-1], contraction.depth[-1]
    taps = written_taps(contraction, steps)
    strides = []
    for e in contraction.a.coordinates:
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
            position = tuple(i * p + s * t for p, t in strides)
            first.setdefault(position, s)
            last[position] = s
    waiting = (sum(first[x] <= s < last[x] for x in first) for s in range(taps))
    return len(first), max(waiting)


# -- cost -------------------------------------------------------------------------------------------------


def lane_cost(contraction: Contraction, blocking: Blocking, machine: Machine) -> Cost:
    """Return a Cost, the predicted cycles of the busiest core by cause, for vectors along a shared digit.

    A, B and the result all have that digit (mixed-radix part of a dimension).
    """
    limits, workers = machine.limits, cores(machine)
    line, padded = size(contraction.rows[-1]), round_up(size(required_lane_digit(contraction)), blocking.atom.shape[1])
    full_blocks, tail = divmod(line, blocking.rows)
    groups, rest = (
        n // blocking.atom.shape[1] for n in (padded - padded % blocking.columns, padded % blocking.columns)
    )
    groups //= blocking.vectors
    strips = max(1, -(-full_blocks // max(1, blocking.strip // blocking.rows))) if blocking.strip < line else 1
    parts = -(-(groups + bool(rest)) // (blocking.task_columns // blocking.columns))
    lines = contraction.extent(tuple(single_digits(contraction, True)))
    tasks = lines * strips * parts
    busiest = -(-tasks // workers)

    def blocks(rows: int) -> float:
        """Return the cycles of one core for one block of `rows` rows of a line, over all vectors of the digit."""
        full_groups = groups * _block_cycles(contraction, blocking, machine, rows, blocking.vectors) if groups else 0.0
        return full_groups + (_block_cycles(contraction, blocking, machine, rows, rest) if rest else 0.0)

    line_cycles = full_blocks * blocks(blocking.rows) + (blocks(tail) if tail else 0.0)
    compute_cycles = busiest * (
        lines * line_cycles * contraction.extent(contraction.columns) / tasks + machine.costs.lanes.task
    )
    tensor_bytes = operand_bytes(contraction.a) + operand_bytes(contraction.out)
    rate = limits.l2_rate if tensor_bytes <= workers * l2(limits) else limits.far_rate
    run_bytes = blocking.columns * element_bytes(contraction.a.dtype)
    memory_cycles = (
        tensor_bytes / rate * (1 + machine.limits.line_bytes / 2 / run_bytes) / workers
    )  # short pieces are read ahead badly
    memory_cycles *= machine.costs.lanes.parted if parts > 1 else 1
    return Cost(
        products=compute_cycles,
        memory=memory_cycles / 2 if compute_cycles >= memory_cycles else memory_cycles - compute_cycles / 2,
        launch=limits.launch_cycles,
        tasks=tasks,
        busiest=busiest,
        instructions=_instructions(
            contraction, blocking, full_blocks, tail, (blocking.vectors if groups else 0) + rest, strips > 1
        ),
    )


def _block_cycles(contraction: Contraction, blocking: Blocking, machine: Machine, rows: int, vectors: int) -> float:
    """Return the cycles of one core for one block of `rows` rows by `vectors` vectors, over all of K.

    It is the sum over all iterations of the tap loops, plus the stores. An iteration computes its unrolled taps. It
    takes the larger of the cycles of multiply-adds and of loads, plus half of the smaller; or the exposed latency if
    that is more; plus the loop's own cycles.
    """
    unrolled_taps, costs = written_taps(contraction, blocking.steps), machine.costs.lanes
    loads = window(contraction, rows, blocking.steps)[0]
    conversion = (
        0.0 if contraction.a.dtype is contraction.sum_dtype else loads * costs.conversion
    )  # where products are done, too
    compute, load = rows * unrolled_taps * blocking.atom.cycles + conversion, (loads + unrolled_taps) * costs.load
    tap_cycles = vectors * (max(compute, load) + min(compute, load) / 2)
    latency = machine.limits.latency
    exposed_latency = (
        latency * unrolled_taps if rows * vectors * blocking.atom.cycles < latency else 0.0
    )  # too few sums to hide it
    step = linear_form(contraction.out.coordinates[-1], contraction.batch)
    is_strided = step is not None and any(isinstance(x, Const) and x.value > 1 for x in step[0].values())
    stores = rows * vectors * (costs.apart if is_strided else 1)
    return (
        contraction.extent(contraction.depth) / unrolled_taps * (max(tap_cycles, exposed_latency) + costs.turn)
        + costs.end
        + stores
    )


def _instructions(
    contraction: Contraction, blocking: Blocking, full_blocks: int, tail: int, vectors: int, parted: bool
) -> int:
    """Return the estimated number of instructions of the whole program: unrolled taps times peeled and looped blocks.

    An image line has `full_blocks` whole blocks and a last block of `tail` rows. `vectors` is the sum of the vectors of
    a full group of columns and of the last group. If `parted` (tasks split lines) no block is peeled.
    """
    unrolled = 1
    for s in blocking.steps:
        unrolled *= size(contraction.summed(s.digit)) if s.is_unrolled else 1
    peeled = 0 if parted else sum(peeled_blocks(contraction, blocking.rows))
    rows = (peeled + (full_blocks > peeled)) * blocking.rows + tail
    narrow = contraction.a.dtype is not contraction.sum_dtype
    return int(rows * vectors * (unrolled * (2 + narrow) + 3) + 300)
