"""Bind the axes of a plan to the dimensions of a kernel: task widths and loop tiles.

A task is one tile of the grid. Its width is its extent along one dimension, in elements.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.algebra.expr import Expr
from tilewright.errors import ArgumentError
from tilewright.ir.core import Op
from tilewright.limits import did_you_mean
from tilewright.plan.boxes import why_whole
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.pinned import FRESH
from tilewright.plan.refusals import refused, tasks_line
from tilewright.plan.schedule import Axis, Schedule
from tilewright.plan.tile_tasks import states_tile_task

LEVELS = ("task", "loop")
"""The levels that a split of an axis may have here, outermost first. Boxes are rewritten before a kernel is bound."""


def axes_of(kernel: KernelProgram, plan: Schedule) -> dict[Expr, Axis]:
    """Return {dimension of the kernel: the plan's axis of the same name}, with an entry for every dimension.

    Raise an ArgumentError for an axis that names no dimension, that has several digits (mixed-radix parts), or that is
    padded or has another extent than its dimension. Raise an ArgumentError too for a dimension without an axis.
    """
    axes: dict[Expr, Axis] = {}
    for axis in plan.axes:
        d = kernel.dims.get(axis.name)
        if d is None:
            near = did_you_mean(axis.name, kernel.dims)
            cpu_hint = "" if kernel.machine.lanes else ", where a plan has no line `atom`"
            raise refused(
                axis, f"there is no dimension {axis.name}; there are {', '.join(kernel.dims)}{cpu_hint}{near}"
            )
        extent = max(1, kernel.size(d))
        if [digit.name for digit in axis.digits] != [axis.name]:
            boxes = "; boxes of lanes need a line `mma by loops`" if axis.split("unit") is not None else ""
            raise refused(axis, f"{axis.name} is one number here: `({axis.name} {extent})`{boxes}")
        if (axis.digits[0].extent, axis.digits[0].padded_extent) != (extent, extent):
            raise ArgumentError(
                f"plan: it is for other sizes: `{axis}` says {axis.digits[0]}, the program has {axis.name} {extent}; "
                f"{FRESH}"
            )
        axes[d] = axis
    for name, d in kernel.dims.items():
        if d not in axes:
            last = plan.lines()[len(plan.axes) - 1]
            example = f"`axis {name} = ({name} {max(1, kernel.size(d))}): whole`"
            raise refused(last, f"no line says how {name} is split, such as {example}")
    return axes


def check_tasks(kernel: KernelProgram, plan: Schedule, axes: Mapping[Expr, Axis], parallel: tuple[Expr, ...]) -> None:
    """Raise an ArgumentError unless the plan's axes and its statement `grid` split the kernel into tasks.

    A task is one workgroup's tile. `axes` maps each dimension to the plan's axis; `parallel` are the dimensions that
    the grid may split. An axis may state at most one task extent followed by one loop tile, which must not exceed the
    task extent. Only dimensions in `parallel`, or of extent 1, may have a task extent. `grid` must list exactly the
    axes with a task extent.
    """
    with_task: list[str] = []
    for d, axis in axes.items():
        levels = [cut.level for cut in axis.splits]
        if levels[-1:] == ["unit"] and states_tile_task(plan):  # steps of K
            continue
        if levels != [level for level in LEVELS if level in levels]:
            raise refused(axis, f"its levels are {', '.join(levels)}; here they are at most one task, then one loop")
        if levels == [*LEVELS] and axis.splits[0].size < min(axis.splits[1].size, kernel.size(d)):
            raise refused(
                axis, f"a level is a part of the one before it; `{axis.splits[1]}` is more than `{axis.splits[0]}`"
            )
        if levels[:1] != ["task"]:
            continue
        if d not in parallel and kernel.size(d) > 1:
            cut = axis.splits[0]
            raise ArgumentError(
                f"plan: axis {axis.name}: {cut}: tasks cannot split it, because {why_whole(kernel.program, d)}; "
                f"in `{axis}`"
            )
        with_task.append(axis.name)
    if sorted(with_task) != sorted(plan.grid):
        named = ", ".join(with_task) or "none"
        raise refused(tasks_line(plan), f"the axes with a task are {named}: `grid` orders these")


def loop_tile_size(axis: Axis) -> int | None:
    """Return the tile size that a plan's axis states for a loop, in elements; None if it states none."""
    cut = axis.split("loop")
    return None if cut is None else cut.size


def tile_of_loop(kernel: KernelProgram, op: Op, axis: Axis) -> int:
    """Return the tile size in elements of the program's loop `op`; `axis` is the plan's axis of its dimension.

    If any tile size gives the same result (`op` is in `kernel.free`), it is the loop tile that `axis` states, or the
    whole dimension if `axis` states none. For any other loop it is the author's tile, or the whole dimension if the
    author gives none. The plan must not change the tile of such a loop: raise an ArgumentError if `axis` states a
    different one, or states none although the author's tile is smaller than the dimension.
    """
    d = kernel.loops[op]
    extent = kernel.size(d)
    tile = loop_tile_size(axis)
    stated = kernel.author_loop_tiles.get(str(d))
    if op not in kernel.free:
        fixed = min(stated or extent, extent)
        if (tile or extent) != fixed and not (tile == stated):
            raise refused(axis, f"the loop over {d} gives other results for other tiles: its tile is {fixed}")
        return stated or extent
    return extent if tile is None else tile
