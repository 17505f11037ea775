"""Bind lane boxes: M as digits (n, p, q), and a box of neighbouring results for every lane.

axis M = (M_2 256, M_1 28, M_0 28): task 224, unit M_0 7

Here every lane has seven neighbours along M_0. The kernel is lowered from a program over boxes: dimension `outer`
counts boxes, and `inner` are the dimensions within one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Axis, Digit, Schedule, Split


def lane_box_of(plan: Schedule, rows: str) -> dict[str, int] | None:
    """Return the box of results that one lane computes, as {digit of M: extent}; None if the plan has no boxes.

    A box is a rectangle of neighbouring results; digits are the mixed-radix parts of M. `rows` is the name of M's axis
    in the plan. The extents are the splits of this axis at level `unit` that name a digit: `unit p 2, unit q 4` gives
    {p: 2, q: 4}. None too if the plan has no axis of this name.
    """
    axis = next((a for a in plan.axes if a.name == rows), None)
    units = {} if axis is None else {c.digit: c.size for c in axis.splits if c.level == "unit" and c.digit is not None}
    return units or None


@dataclass(frozen=True)
class BoxedRows:
    """M split into lane boxes (one rectangle of neighbouring results per lane), and the new dimensions of the boxes.

    `name` is M's name in a plan, `digits` are its mixed-radix parts. `outer` counts boxes, `inner` are the dimensions
    within one.
    """

    name: str
    digits: tuple[Digit, ...]
    sizes: tuple[int, ...]
    """The extent of a box along each digit (mixed-radix part of M)."""
    outer: str
    inner: tuple[str, ...]

    @property
    def axis(self) -> Axis:
        """The plan's axis of M for these lane boxes: its digits and the extents of a box, without a task extent.

        A lane box is the rectangle of neighbouring results of one lane. The digits (mixed-radix parts) of M are padded
        to whole boxes. Each extent of a box above 1 is a `unit` split (the elements of one lane).
        """
        walked = [replace(d, padded_extent=-(-d.extent // n) * n) for d, n in zip(self.digits, self.sizes, strict=True)]
        units = [Split("unit", n, d.name) for d, n in zip(walked, self.sizes, strict=True) if n > 1]
        return Axis(self.name, tuple(walked), tuple(units))

    def to_boxed_plan(self, plan: Schedule) -> Schedule:
        """Return `plan` with axes of lane boxes in place of M's axis: one counts boxes, one is for each box dimension.

        A lane box is the rectangle of neighbouring results of one lane; dimensions of extent 1 get no axis. The axes
        replace M in `grid` too. Raise an ArgumentError if M's axis is not padded to whole boxes, if a task (one
        workgroup's tile) is not whole boxes, or if M's axis has splits other than the task and the extents of a box.
        """
        rows_axis, box_elements = plan.axis(self.name), prod(self.sizes)
        task = rows_axis.split("task")
        if rows_axis.digits != self.axis.digits:
            digits = ", ".join(map(str, self.axis.digits))
            raise refused(rows_axis, f"boxes go on to the end of the last one: `({digits})`")
        if task is None or task.size % box_elements:
            raise refused(rows_axis, f"a task has whole boxes of lanes: a multiple of {box_elements}")
        if rows_axis.splits[1:] != self.axis.splits:
            raise refused(
                rows_axis, f"behind the task stand the digits of a box: `{', '.join(map(str, self.axis.splits))}`"
            )
        boxes = prod(d.padded_extent for d in rows_axis.digits) // box_elements
        lengths = [n for n in self.sizes if n > 1]
        inner = [
            Axis(word, (Digit(word, n, n),), (Split("task", n),)) for word, n in zip(self.inner, lengths, strict=True)
        ]
        outer = Axis(self.outer, (Digit(self.outer, boxes, boxes),), (replace(task, size=task.size // box_elements),))
        axes = [x for a in plan.axes for x in ([outer, *inner] if a is rows_axis else [a])]
        grid = [x for name in plan.grid for x in ([self.outer, *self.inner] if name == self.name else [name])]
        return replace(plan, axes=tuple(axes), grid=tuple(grid))
