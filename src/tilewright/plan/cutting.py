"""Turn the blocking of a contraction into the lowering parameters of its program over digits."""

from __future__ import annotations

from dataclasses import replace

from tilewright.algebra.expr import Expr, Symbol, index
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op
from tilewright.machine import MultiplyAtom
from tilewright.plan.blocking import COLUMNS, LANES, ROWS, Blocking, required_lane_digit, round_up
from tilewright.plan.contraction import Contraction, Operand, dimension, merged_digit_table, size
from tilewright.plan.general import Cuts
from tilewright.plan.lanes import peeled_blocks
from tilewright.plan.microkernel import Axes, LaneKernel, Microkernel
from tilewright.plan.sliding import halo_of
from tilewright.plan.tiled import Depth, Tiled, Walk


def in_lines(contraction: Contraction, blocking: Blocking) -> Contraction:
    """Return the contraction with image line and pixel, the last two digits of M, merged if `blocking` stages A.

    Digits are mixed-radix parts of dimensions. `blocking` (a Blocking) has the tile sizes and says whether a task
    copies lines of A to a buffer (stages A). The merged digit also counts the padding pixels between lines. The
    contraction is returned unchanged if A is read in place, or if M has one digit.
    """
    walk = _staged_lines(contraction, blocking)
    if walk is None or len(contraction.rows) == 1:
        return contraction
    *others, line, place = contraction.rows
    row_digit = index("rows_0", walk.extent)
    images = Substitution({line: row_digit // walk.pitch, place: row_digit % walk.pitch})

    def over_lines(operand: Operand) -> Operand:
        """Return an operand with its coordinates in terms of the merged digit, instead of image line and pixel."""
        return replace(operand, coordinates=tuple(map(images, operand.coordinates)))

    a, out, *extras = map(over_lines, (contraction.a, contraction.out, *contraction.extras))
    over = merged_digit_table(contraction.over, (line, place), row_digit)
    return replace(contraction, rows=(*others, row_digit), a=a, out=out, extras=tuple(extras), over=over)


def digits_of(contraction: Contraction, blocking: Blocking) -> tuple[Symbol, ...]:
    """Return all digits (mixed-radix parts of dimensions) of a contraction, in the order batch, M, N, K.

    The tiles of the contraction's program have their dimensions in this order. If `blocking` (tile sizes, loop orders)
    vectorises a digit of the batch, this digit stands after N instead.
    """
    vectorised = (required_lane_digit(contraction),) if blocking.by_lanes else ()
    return (
        *(d for d in contraction.batch if d not in vectorised),
        *contraction.rows,
        *contraction.columns,
        *vectorised,
        *contraction.depth,
    )


def cuts_of(contraction: Contraction, blocking: Blocking, product: Op) -> Cuts:
    """Return Cuts, the parameters for the lowering of a contraction on a CPU, as `blocking` (a Blocking) has them.

    These are tile sizes, loop orders, staging and the unit that multiplies. `product` is the mma of the contraction's
    program. The dimensions of that program are the digits (mixed-radix parts) of the contraction that `in_lines`
    returns.
    """
    walk, walked = _staged_lines(contraction, blocking), in_lines(contraction, blocking)
    *lines, row = map(dimension, walked.rows if blocking.in_tiles or blocking.by_lanes else walked.rows[-2:])
    axis, digit = (LANES, required_lane_digit(contraction)) if blocking.by_lanes else (COLUMNS, contraction.columns[0])
    inside, across = [] if blocking.in_tiles or blocking.by_lanes else lines, dimension(digit)
    pieces: dict[str, dict[Expr, int]] = {
        COLUMNS: {dimension(d): 1 for d in contraction.columns},
        ROWS: {**dict.fromkeys(inside, 1), row: blocking.rows},
        axis: {across: blocking.columns},
    }
    task_sizes = dict(blocking.singles)
    singles = {d.name: (dimension(d), task_sizes.get(d.name, 1)) for d in (*walked.batch, *walked.rows)}
    one_by_one: dict[Expr, int] = {singles[name][0]: 1 for name in task_sizes}
    widths = {
        ROWS: ((inside or [row])[0], blocking.strip if walk is None else walk.width),
        axis: (across, blocking.task_columns),
    }
    tasks: dict[Expr, int] = dict({**singles, **widths}[name] for name in blocking.tasks)
    cuts = Cuts(
        tasks,
        {**one_by_one, **{d: n for name in blocking.order for d, n in pieces[name].items()}},
        extended={across: blocking.columns},
        depth=tuple(Depth(dimension(contraction.summed(s.digit)), s.size, s.is_unrolled) for s in blocking.steps),
        schedule=blocking.schedule,
        packed=True,
    )
    if not isinstance(blocking.atom, MultiplyAtom):
        if blocking.strip >= size(contraction.rows[-1]):
            del tasks[row]
        width, unit = blocking.columns, blocking.atom.lanes
        has_ragged_tail = round_up(size(digit) % width, unit) == width
        ends: dict[Expr, tuple[int, int]] = {
            row: peeled_blocks(contraction, blocking.rows),
            across: (0, int(has_ragged_tail)),
        }
        by = {product: LaneKernel(unit, row, across)}
        return replace(cuts, extended={across: unit}, apart=ends, lanes=by)
    products: dict[Op, Microkernel | None] = {product: Microkernel(blocking.atom, blocking.rows, blocking.columns)}
    if not blocking.in_tiles:
        return replace(cuts, products=products)
    streams, shifts = (
        ("a" in blocking.streams, "b" in blocking.streams),
        _tap_shifts(contraction) if blocking.stage == "strip" else {},
    )
    around = tuple(d for d in product.operands[2].type.dims if d not in (row, across))
    deep = dimension(contraction.depth[-1])
    taps = tuple(dict.fromkeys(s.dim for s in cuts.depth if s.dim is not deep))
    axes = Axes(row, across, deep, around, taps, swapped=False)
    return replace(
        cuts, products=products, overlap=blocking.overlap, tiled={product: Tiled(axes, streams, shifts, walk)}
    )


def _staged_lines(contraction: Contraction, blocking: Blocking) -> Walk | None:
    """Return a Walk: the image lines of A that a task (one core's tile) stages, and their pitch; None if A is unstaged.

    To stage is to copy to a buffer first. The pitch is the number of pixels from one line to the next, padding
    included; an im2col panel has no padding. If M is one digit (mixed-radix part of a dimension), all rows of a task
    count as one line. `blocking` has the tile sizes and the kind of staging.
    """
    if not blocking.stage:
        return None
    if len(contraction.rows) == 1:
        return Walk(1, -(-size(contraction.rows[-1]) // blocking.strip), blocking.strip, blocking.strip)
    halo, length = halo_of(contraction), size(contraction.rows[-1])
    pitch = length if halo is None or blocking.stage == "panel" else halo.pitch
    return Walk(blocking.strip, size(contraction.rows[-2]), length, pitch)


def _tap_shifts(contraction: Contraction) -> dict[Expr, tuple[int, int]]:
    """Return how far each filter tap moves in staged A: {dimension of the tap: (lines, pixels) per step of the tap}.

    A is staged (copied to a buffer first) as image lines, with padding between them. The contraction must be a sliding
    window.
    """
    halo = halo_of(contraction)
    assert halo is not None
    steps = (halo.lines, (halo.lines.step, 0)), (halo.places, (0, halo.places.step))
    return {dimension(slide.tap): step for slide, step in steps if slide.tap is not None}
