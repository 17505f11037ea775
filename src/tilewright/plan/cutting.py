"""Rewrite a plan of a contraction to the program that is lowered, whose dimensions are digits (mixed-radix parts)."""

from __future__ import annotations

from dataclasses import replace

from tilewright.algebra.expr import Symbol, index
from tilewright.algebra.expr_use import Substitution
from tilewright.plan.blocking import COLUMNS, LANES, ROWS, Blocking, required_lane_digit, round_up
from tilewright.plan.contraction import Contraction, Operand, merged_digit_table, size
from tilewright.plan.lanes import peeled_blocks
from tilewright.plan.schedule import Axis, Digit, ProductUnit, Schedule, Split
from tilewright.plan.sliding import halo_of
from tilewright.plan.tile_register_tasks import LineLayout


def in_lines(contraction: Contraction, blocking: Blocking) -> Contraction:
    """Return the contraction with the last two digits of M merged into one, if a task copies lines of A to a buffer.

    The digits (mixed-radix parts of M) are image line and pixel in the line. The merged digit counts the padding pixels
    between lines too. `blocking` says whether a task (one core's tile) copies lines. If A is read in place, or if M has
    one digit, the contraction is returned unchanged.
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

    The tiles of the lowered program have their dimensions in this order. If vectors run along a digit of the batch, as
    `blocking` (tile sizes, loop orders) says, this digit comes after N instead.
    """
    vectorised = (required_lane_digit(contraction),) if blocking.by_lanes else ()
    return (
        *(d for d in contraction.batch if d not in vectorised),
        *contraction.rows,
        *contraction.columns,
        *vectorised,
        *contraction.depth,
    )


def plan_over_digits(plan: Schedule, contraction: Contraction, blocking: Blocking) -> Schedule:
    """Return a contraction's plan with axes rewritten to digits, the dimensions of the lowered program.

    Digits are mixed-radix parts of dimensions, those of the contraction that `in_lines` returns. `blocking` has the
    tile sizes and loop orders that the plan states. If a task stages image lines of A, their axis has two digits: line,
    and position in the line.
    """
    walk, walked = _staged_lines(contraction, blocking), in_lines(contraction, blocking)
    (m, n, _), lanes = blocking.atom.shape, blocking.by_lanes
    *lines, row = walked.rows if blocking.in_tiles or lanes else walked.rows[-2:]
    name, across = (LANES, required_lane_digit(contraction)) if lanes else (COLUMNS, contraction.columns[0])
    inside = [] if blocking.in_tiles or lanes else lines
    several = dict(blocking.singles)
    strip = inside[0] if inside else row
    tasks = {
        **{d.name: Split("task", several.get(d.name, 1)) for d in (*walked.batch, *walked.rows)},
        strip.name: Split("task", blocking.strip),
        across.name: Split("task", blocking.task_columns),
    }
    blocks: dict[str, dict[Symbol, tuple[Split, ...]]] = {
        COLUMNS: {d: (Split("loop", 1),) for d in contraction.columns},
        ROWS: {**{d: (Split("loop", 1),) for d in inside}, row: (Split("loop", blocking.rows), Split("unit", m))},
        name: {across: (Split("loop", blocking.columns), Split("unit", n))},
    }
    one_by_one = {d: (Split("loop", 1),) for d in (*walked.batch, *walked.rows) if d.name in several}
    loops = one_by_one | {d: splits for role in blocking.order for d, splits in blocks[role].items()}
    axis_of_role = {ROWS: strip, name: across}
    grid = [axis_of_role[x].name if x in axis_of_role else x for x in blocking.tasks]
    if lanes and blocking.strip >= size(row):  # the grid does not split lines
        grid.remove(row.name)
    steps: dict[str, tuple[Split, ...]] = {}
    order = [d.name for d in loops]
    for step in blocking.steps:
        digit = contraction.summed(step.digit).name
        steps[digit] = (*steps.get(digit, ()), replace(step, digit=None))
        order.append(digit if len(steps[digit]) == 1 else f"{digit}.{len(steps[digit])}")
    axes = []
    for d in digits_of(walked, blocking):
        splits = (*([tasks[d.name]] if d.name in grid else []), *loops.get(d, steps.get(d.name, ())))
        axes.append(Axis(d.name, (Digit(d.name, size(d), size(d)),), splits))
    by_name = {axis.name: axis for axis in axes}
    if walk is not None and len(contraction.rows) > 1:
        digits = Digit("line", walk.total_lines, walk.total_lines), Digit("place", walk.length, walk.pitch)
        task, *rest = by_name[row.name].splits
        by_name[row.name] = Axis(row.name, digits, (replace(task, digit="line"), *rest))
    if lanes:
        has_ragged_tail = round_up(size(across) % blocking.columns, n) == blocking.columns
        peeled = {row.name: peeled_blocks(contraction, blocking.rows), across.name: (0, int(has_ragged_tail))}
        by_name |= {x: replace(by_name[x], peeled=ends) for x, ends in peeled.items()}
    product = ProductUnit("mma", blocking.atom.name, blocking.rows, blocking.columns)
    return replace(
        plan, axes=tuple(by_name.values()), grid=tuple(grid), loops=tuple(order), atom=None, products=(product,)
    )


def _staged_lines(contraction: Contraction, blocking: Blocking) -> LineLayout | None:
    """Return a LineLayout: the image lines of A that a task copies to a buffer (stages); None if A is read in place.

    A task is one core's tile. The layout's pitch is the number of pixels from one line to the next, padding included;
    an im2col panel has no padding. If M is one digit (mixed-radix part of a dimension), all rows of a task count as one
    line. `blocking` has the tile sizes, and says whether A is staged as lines or as an im2col panel.
    """
    if not blocking.stage:
        return None
    if len(contraction.rows) == 1:
        return LineLayout(1, -(-size(contraction.rows[-1]) // blocking.strip), blocking.strip, blocking.strip)
    halo, length = halo_of(contraction), size(contraction.rows[-1])
    pitch = length if halo is None or blocking.stage == "panel" else halo.pitch
    return LineLayout(blocking.strip, size(contraction.rows[-2]), length, pitch)
