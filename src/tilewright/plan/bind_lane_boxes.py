"""Boxes of lanes in plans: rows that are counted in digits, of which every lane has a box of neighbours.

    axis M = (M_2 256, M_1 28, M_0 28): task 224, unit M_0 7

Every lane has seven neighbours of a line. The kernel is lowered from a program over boxes: `outer` counts boxes, and
`inner` are the dimensions of one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Axis, Digit, Schedule, Split


def lane_box_of(plan: Schedule, rows: str) -> dict[str, int] | None:
    """The box of a lane along an axis of a plan, by digit; None where the axis has none."""
    axis = next((a for a in plan.axes if a.name == rows), None)
    units = {} if axis is None else {c.digit: c.size for c in axis.splits if c.level == "unit" and c.digit is not None}
    return units or None


@dataclass(frozen=True)
class BoxedRows:
    """Rows as boxes of lanes: the name that a plan has for the rows, and the dimensions of the program over boxes."""

    name: str
    digits: tuple[Digit, ...]
    sizes: tuple[int, ...]
    """The extent of a box along each digit."""
    outer: str
    inner: tuple[str, ...]

    @property
    def axis(self) -> Axis:
        """The rows, without a task: each digit is walked in whole boxes."""
        walked = [replace(d, walked=-(-d.extent // n) * n) for d, n in zip(self.digits, self.sizes, strict=True)]
        units = [Split("unit", n, d.name) for d, n in zip(walked, self.sizes, strict=True) if n > 1]
        return Axis(self.name, tuple(walked), tuple(units))

    def to_boxed_plan(self, plan: Schedule) -> Schedule:
        """A plan over rows, restated over boxes; refuses one whose tasks are no whole boxes."""
        own, count = plan.axis(self.name), prod(self.sizes)
        task = own.split("task")
        if own.digits != self.axis.digits:
            digits = ", ".join(map(str, self.axis.digits))
            raise refused(own, f"boxes go on to the end of the last one: `({digits})`")
        if task is None or task.size % count:
            raise refused(own, f"a task has whole boxes of lanes: a multiple of {count}")
        if own.splits[1:] != self.axis.splits:
            raise refused(own, f"behind the task stand the digits of a box: `{', '.join(map(str, self.axis.splits))}`")
        boxes = prod(d.walked for d in own.digits) // count
        lengths = [n for n in self.sizes if n > 1]
        inner = [
            Axis(word, (Digit(word, n, n),), (Split("task", n),)) for word, n in zip(self.inner, lengths, strict=True)
        ]
        outer = Axis(self.outer, (Digit(self.outer, boxes, boxes),), (replace(task, size=task.size // count),))
        axes = [x for a in plan.axes for x in ([outer, *inner] if a is own else [a])]
        grid = [x for name in plan.grid for x in ([self.outer, *self.inner] if name == self.name else [name])]
        return replace(plan, axes=tuple(axes), grid=tuple(grid))
