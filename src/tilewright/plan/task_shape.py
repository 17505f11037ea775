"""The tasks (grid tiles) of a blocking on a CPU: their number, and the accumulator tiles of the largest one."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from tilewright.plan.blocking import Blocking, required_lane_digit, round_up, single_digits
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.tile_registers import task_rows


@dataclass(frozen=True)
class TaskShape:
    """The tasks of a blocking, and the accumulator tiles of the largest task.

    A task has `lines` lines (such as image lines), which accumulator tiles do not cross. Each line has `blocks` whole
    tiles along M and a ragged one of `tail` rows; only the last task along M has a ragged tile of `last_tail` rows.
    There are `across` tiles along N. A task repeats all of this `repeats` times, once for each element of its batch.
    There are `row_tasks` tasks along M and `column_tasks` along N.
    """

    row_tasks: int
    column_tasks: int
    around: int
    """The number of tasks along the batch, and along digits (mixed-radix parts) of M that no task spans."""
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
        """The number of tasks (tiles of the grid): along M, times along N, times along the batch."""
        return self.row_tasks * self.column_tasks * self.around

    @property
    def row_tiles(self) -> int:
        """The number of accumulator tiles along M of one task, ragged ones included.

        It is the number for one element of the task's batch.
        """
        return self.lines * (self.blocks + bool(self.tail))

    @property
    def a_parts(self) -> int:
        """The number of different tiles of A that the tasks read; tasks along N read the same tile.

        Tasks along M and along the batch read different tiles of A, and so does each element of a task's batch.
        """
        return self.row_tasks * self.around * self.repeats


def task_shape(space: Contraction, blocking: Blocking) -> TaskShape:
    """Return the TaskShape (number of tasks, accumulator tiles of the largest task) of a blocking.

    `space` is the contraction, `blocking` has its tile sizes and loop order.
    """
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
    """Return the number of columns that accumulator tiles cover: the extent of N, padded to whole atoms.

    If vectors run along a digit (mixed-radix part of a dimension) that A, B and the result share, it is that digit's
    padded extent. `space` is the contraction, `blocking` has the atom.
    """
    digit = required_lane_digit(space) if blocking.by_lanes else space.columns[0]
    return round_up(size(digit), blocking.atom.shape[1])
