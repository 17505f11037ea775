"""The tasks of a blocking on a CPU: how many there are, and the accumulator tiles of the largest one."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilewright.plan.blocking import Blocking, required_lane_digit, round_up, single_digits
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.tiles import task_rows


@dataclass(frozen=True)
class TaskShape:
    """Tasks of a blocking, and the accumulator tiles of the largest task.

    A task has `lines` lines, which are runs of rows that accumulator tiles do not cross; each has `blocks` whole tiles
    and a ragged one of `tail` rows. Only the last task along M has the ragged tile of `last_tail` rows. There are
    `across` tiles along N. All of that is done `repeats` times, for elements of a batch that the task has.
    """

    row_tasks: int
    column_tasks: int
    around: int
    """Tasks along the batch and along digits (mixed-radix parts) of M that a task's tile does not span."""
    repeats: int
    lines: int
    rows: int
    """Rows of one repetition, padding between staged lines included."""
    blocks: int
    tail: int
    last_tail: int
    across: int
    staged_bytes: int
    """Bytes of A that one repetition stages."""

    @property
    def tasks(self) -> int:
        """The number of tasks in all."""
        return self.row_tasks * self.column_tasks * self.around

    @property
    def row_tiles(self) -> int:
        """The number of accumulator tiles along M, ragged ones included, of one repetition."""
        return self.lines * (self.blocks + bool(self.tail))

    @property
    def a_parts(self) -> int:
        """The number of parts of A that different tasks, or repetitions of a task, read."""
        return self.row_tasks * self.around * self.repeats


def task_shape(space: Contraction, blocking: Blocking) -> TaskShape:
    """Return the TaskShape of a blocking of a product; `space` is the product's index space."""
    line, rows, staged = size(space.rows[-1]), blocking.rows, 0
    lines, last_tail = 1, 0
    if blocking.stage:
        row_tasks, count, staged = task_rows(space, blocking)
        blocks, tail = ceil(count / rows), 0
    elif blocking.by_lanes or len(space.rows) == 1:
        row_tasks = max(1, ceil(line // rows * rows / blocking.strip))
        count = blocking.strip if row_tasks > 1 else line
        blocks, tail = divmod(count, rows)
        last_tail = line % rows if row_tasks > 1 else 0
    else:
        lines, row_tasks = min(blocking.strip, size(space.rows[-2])), ceil(size(space.rows[-2]) / blocking.strip)
        count, (blocks, tail) = lines * line, divmod(line, rows)
    column_tiles = ceil(columns_of(space, blocking) / blocking.columns)
    across = min(blocking.task_columns // blocking.columns, column_tiles)
    around, repeats, widths = 1, 1, dict(blocking.singles)
    for digit in single_digits(space, blocking.by_lanes):
        width = widths.get(digit.name, 1)
        around, repeats = around * ceil(size(digit) / width), repeats * width
    return TaskShape(
        row_tasks, ceil(column_tiles / across), around, repeats, lines, count, blocks, tail, last_tail, across, staged
    )


def columns_of(space: Contraction, blocking: Blocking) -> int:
    """Return the extent, padded to whole atoms, of what the columns of accumulator tiles cover: N, or a shared digit.

    `space` is the product's index space. A digit is a mixed-radix part of a dimension; A, B and the result share it.
    """
    digit = required_lane_digit(space) if blocking.by_lanes else space.columns[0]
    return round_up(size(digit), blocking.atom.shape[1])
