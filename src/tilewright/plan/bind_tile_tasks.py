"""Bind a plan whose tasks compute several MMAs in tile registers: it must have the statements of such tasks."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest

from tilewright.plan.bind_products import bind_products
from tilewright.plan.bound import BoundKernel
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import DELAYED
from tilewright.plan.tile_tasks import plan_of_tile_task, registers, tasks_alone, tile_task


def bind_tile_task(bound: BoundKernel) -> BoundKernel:
    """Check a plan of tasks in tile registers, and return it as it was given.

    The plan may choose the extents of a task, the accumulator tile, whether a task copies rows of A, and whether stores
    are delayed. All other statements follow from these. Raise an ArgumentError that quotes the first statement that is
    illegal, for this program or beside the others.
    """
    kernel, plan, machine = bound.kernel, bound.plan, bound.kernel.machine
    packed = next(line for line in plan.values if line.form == "packed")
    task = tile_task(kernel.program, list(kernel.products.values()), kernel.parallel, kernel.size, machine)
    if isinstance(task, str):
        raise refused(packed, f"a task of several products in tile registers has packed operands, and {task}")
    if kernel.opened:
        raise refused(packed, "operands of a task of several products are packed if all sizes are known")
    names = {d: name for name, d in kernel.dims.items()}
    for d in task.axes.around:
        if kernel.size(d) > 1 and bound.widths[d] != 1:
            raise refused(bound.axes[d], f"a task in tile registers has one element of {names[d]}: `task 1`")
    bind_products(plan.products, kernel.program, machine, {})
    stated = plan.products
    if len(stated) < len(kernel.products):
        raise refused(packed, f"each of the {len(kernel.products)} products needs a line `mma by ATOM, tile ...`")
    first = stated[0]
    for line in stated:
        if (line.atom, line.rows, line.columns) != (task.atom.name, first.rows, first.columns):
            raise refused(line, f"all products of a task have the atom {task.atom.name}, and tiles of one size")
    m, n, _ = task.atom.shape
    needed, most = registers(len(stated), first.rows // m, first.columns // n), machine.limits.tile_registers
    if needed > most:
        raise refused(
            first, f"accumulators of all {len(stated)} products and operands of one take {needed} registers of {most}"
        )
    staged = any(line.at == "task" for line in plan.values)
    if not staged and not task.in_place:
        raise refused(
            packed,
            f"rows of A are read in place if they are contiguous along K, and K is whole steps of "
            f"{task.atom.shape[2]}; others are copied: `{next(iter(task.arguments.values()))[0]} panel at task`",
        )
    wanted = plan_of_tile_task(
        replace(plan, axes=tasks_alone(plan.axes)), task, (first.rows, first.columns), staged, names, kernel.size
    )
    if plan.overlap == "none":
        wanted = replace(wanted, overlap="none")
    elif plan.overlap != DELAYED:
        raise refused(plan.line("overlap"), f"stores of tile registers overlap: `overlap {DELAYED}`")
    for given, expected in zip_longest(plan.lines(), wanted.lines()):
        if given != expected:
            raise refused(given or packed, f"a task of these products in tile registers says `{expected}`")
    return bound
