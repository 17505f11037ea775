"""SIMD along a dimension that A, B and the result share, such as channels of a depthwise convolution.

A depthwise convolution has no columns (N) to fill a vector with, but has neighbouring channels. A line is the last
digit (mixed-radix part) of M, such as the positions of an image row. A block is `rows` positions of a line by some
vectors of channels: the accumulators that stay in registers.
"""

from __future__ import annotations

from tilewright.algebra.expr import ZERO, Const, index
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.machine import Machine
from tilewright.plan.block_list import BlockUnit
from tilewright.plan.blocking import Blocking, LaneUnit, required_lane_digit, round_up, single_digits
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.model import cores, element_bytes
from tilewright.plan.schedule import Split
from tilewright.plan.sliding import lane_digit

WRITTEN = 16
"""The most filter taps of K's last digit that are unrolled, so that neighbouring rows share their loads."""
WIDE = (1, 2, 3, 4)
"""The numbers of vectors along the shared dimension that a block may have."""
ALONE = 6
"""The most blocks of a line that are peeled; with more edge blocks, single loads have predicates instead."""


def lane_unit(contraction: Contraction, machine: Machine) -> LaneUnit:
    """Return a LaneUnit, the machine's SIMD unit for the contraction's accumulator type, in the role of an MMA atom.

    It has the accumulator type, the number of elements of a vector register, and the cycles of one vector multiply-add.
    """
    dtype, costs = contraction.sum_dtype, machine.costs.lanes
    lanes = (machine.limits.vector_bytes or 0) // element_bytes(dtype)
    vector_atoms = (
        x for x in machine.multiply.values() if x.shape == (1, lanes, 1) and x.a.dtype is x.c.dtype is dtype
    )
    cycles = min((x.cycles for x in vector_atoms), default=costs.product if dtype.is_float else costs.integer_product)
    return LaneUnit(dtype, lanes, cycles)


def why_no_lanes(contraction: Contraction, machine: Machine) -> str | None:
    """Return text: why vectors cannot run along a digit that A, B and the result share; None if vectors can.

    A digit is a mixed-radix part of a dimension, such as the channels of a depthwise convolution.
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


def lane_block_unit(space: Contraction, machine: Machine) -> BlockUnit:
    """Return the BlockUnit (accumulator tiles, task counts to try) of vectors along a digit of A, B and the result.

    A digit is a mixed-radix part of a dimension, such as the channels of a depthwise convolution. `space` is the
    contraction, which must have such a digit. Every accumulator tile fits the vector registers. A task has whole image
    lines; only if there is a single line, without bounds checks, tasks split it.
    """
    unit, steps, workers = lane_unit(space, machine), default_steps(space), cores(machine)
    padded = round_up(size(required_lane_digit(space)), unit.lanes)
    tiles = [
        (rows, vectors * unit.lanes)
        for vectors in WIDE
        if vectors * unit.lanes <= padded
        for rows in range(1, size(space.rows[-1]) + 1)
        if _fits_registers(space, rows, vectors, steps, machine)
    ]
    is_one_line = space.extent(tuple(single_digits(space, True))) == 1 and not space.a.conditions
    return BlockUnit(unit, tuple(tiles), {4 * workers if is_one_line else 1}, {1, 2, workers}, steps)


def _fits_registers(
    contraction: Contraction, rows: int, vectors: int, steps: tuple[Split, ...], machine: Machine
) -> bool:
    """True if the vector registers hold a block (accumulator tile) of `rows` rows by `vectors` vectors and its inputs.

    For each of its vectors, a block needs registers for `rows` accumulators, for the inputs that a later filter tap
    reads again, for partial products of integers, and for one filter value. If a bounds check depends on the position
    in an image line, at least `rows` inputs count. `steps` are the splits of K of `contraction`.
    """
    kept_vectors = max(
        1, input_window(contraction, rows, steps)[1] + (contraction.a.dtype is not contraction.sum_dtype)
    )
    if any(contraction.rows[-1] in x.symbols for _, x in contraction.a.conditions):
        kept_vectors = max(kept_vectors, rows)
    partial_products = (
        0 if contraction.sum_dtype.is_float else rows
    )  # of integers, those of two taps may be added up first
    return (rows + kept_vectors + partial_products + 1) * vectors <= machine.limits.registers


def default_steps(contraction: Contraction) -> tuple[Split, ...]:
    """Return the splits of K for vectors along a digit that A, B and the result share: one Split per digit of K.

    A digit is a mixed-radix part of a dimension, such as the filter's width. Each Split has size 1; it is a loop, or it
    is unrolled. Two kinds of digits are unrolled: one that a bounds check of A depends on together with the position in
    an image line; and the last digit of K, if it has at most WRITTEN (16) filter taps.
    """
    last = contraction.depth[-1]
    unrolled = [t for t in contraction.depth if t in contraction.coupled or (t is last and size(t) <= WRITTEN)]
    return tuple(Split("unit" if t in unrolled else "loop", 1, t.name) for t in contraction.depth)


def registers(rows: int, vectors: int) -> int:
    """Return the least number of vector registers for a block (accumulator tile) of `rows` rows by `vectors` vectors.

    It is the sum of the accumulators, a filter value per vector, and one input.
    """
    return (rows + 1) * vectors + 1


# -- along a line -----------------------------------------------------------------------------------------


def out_of_bounds_blocks(contraction: Contraction, rows: int) -> tuple[int, int]:
    """Return (count at the start, count at the end) of an image line's blocks in which a read may be out of bounds.

    A block is `rows` neighbouring positions of the line. The reads are those of operand A, at all filter taps. A
    shorter block at the end of the line does not count. If every block may be out of bounds, all count at the start. In
    the example, 3 taps with padding 1 read past both ends of a line of 20.

    >>> from tilewright.ir.dtypes import f32
    >>> from tilewright.plan.contraction import Operand
    >>> q, s, g = index("q", 20), index("s", 3), index("g", 4)
    >>> x, w = Operand("x", f32, (20, 4), (q + s - 1, g)), Operand("w", f32, (3, 4), (s, g))
    >>> y = Operand("y", f32, (20, 4), (q, g))
    >>> c = Contraction("conv", (q,), (), (s,), x, w, y, 0.0, f32, (), (g,))
    >>> out_of_bounds_blocks(c, 5), out_of_bounds_blocks(c, 6)
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
    """Return (count at the start, count at the end) of the blocks of an image line that get code of their own (peeled).

    A block is `rows` neighbouring positions (pixels). The blocks in which a filter tap may be out of bounds are peeled.
    If there are more than ALONE (6) of these blocks, none is peeled, and single loads have predicates instead: (0, 0).
    """
    edge_blocks = out_of_bounds_blocks(contraction, rows)
    return edge_blocks if sum(edge_blocks) <= ALONE else (0, 0)


def unrolled_tap_count(contraction: Contraction, steps: tuple[Split, ...]) -> int:
    """Return the number of unrolled filter taps along K's last digit (mixed-radix part); 1 if the digit is a loop.

    `steps` are the splits of K, each unrolled or a loop.
    """
    last = contraction.depth[-1]
    return size(last) if any(s.is_unrolled for s in steps if s.digit == last.name) else 1


def input_window(contraction: Contraction, rows: int, steps: tuple[Split, ...]) -> tuple[int, int]:
    """Return (number of distinct inputs that `rows` positions of an image line read, most inputs kept in registers).

    All unrolled filter taps are counted together. An input that several taps read counts once, and is kept in a
    register from the first of these taps to the last. The second number is the most inputs that are kept at once. With
    4 positions and 3 taps of stride 1 these are (6, 3). `steps` are the splits of K. If the coordinates of A are not
    linear, no input is shared: (rows * taps, 0).
    """
    line, tap = contraction.rows[-1], contraction.depth[-1]
    taps = unrolled_tap_count(contraction, steps)
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
    waiting = (sum(first[x] <= s < last[x] for x in first) for s in range(taps))  # for each tap s
    return len(first), max(waiting)


def block_cycles(contraction: Contraction, blocking: Blocking, machine: Machine, rows: int, vectors: int) -> float:
    """Return the cycles of one core for one block (accumulator tile, `rows` rows by `vectors` vectors), over all of K.

    `blocking` has the splits of K of `contraction`. The result is the sum of all iterations of the loops over filter
    taps, each with the loop overhead, and the stores. An iteration takes the larger of its multiply-add cycles and its
    load cycles, plus half of the smaller. If there are too few accumulators to hide the latency, it takes at least the
    latency.
    """
    unrolled_taps, costs = unrolled_tap_count(contraction, blocking.steps), machine.costs.lanes
    loads = input_window(contraction, rows, blocking.steps)[0]
    conversion = (
        0.0 if contraction.a.dtype is contraction.sum_dtype else loads * costs.conversion
    )  # inputs are converted to the accumulator's type
    compute, load = rows * unrolled_taps * blocking.atom.cycles + conversion, (loads + unrolled_taps) * costs.load
    tap_cycles = vectors * (max(compute, load) + min(compute, load) / 2)
    latency = machine.limits.latency
    exposed_latency = (
        latency * unrolled_taps if rows * vectors * blocking.atom.cycles < latency else 0.0
    )  # there are too few accumulators to hide it
    step = linear_form(contraction.out.coordinates[-1], contraction.batch)
    is_strided = step is not None and any(isinstance(x, Const) and x.value > 1 for x in step[0].values())
    stores = rows * vectors * (costs.lane_store if is_strided else 1)
    return (
        contraction.extent(contraction.depth) / unrolled_taps * (max(tap_cycles, exposed_latency) + costs.turn)
        + costs.end
        + stores
    )
