"""Rules of plans with a pipeline: waves, registers, stages, splits of K. Halo tiles obey the same ones.

Each rule refuses the lines that break it together; shared memory is counted when the kernel is lowered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from tilewright.ir.core import Op
from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.microkernel import Microkernel, can_multiply_blocks
from tilewright.plan.refusals import raster_line, refused, tasks_line
from tilewright.plan.schedule import DELAYED, ORDERED, Axis, Pipeline, ProductUnit, Schedule


def check_roles(roles: Pipeline, machine: Machine) -> None:
    """Refuses registers and stages that no pipeline of the machine has."""
    file = machine.register_file
    unit, least, most = file.role_unit, file.role_least, machine.limits.registers
    why = None
    if machine.lanes is None or not any(a.asynchronous for a in machine.copies.values()):
        why = f"{machine.name} has no asynchronous copies to shared memory"
    elif any(n % unit or not least <= n <= most for _, n in (roles.producer, roles.consumer)):
        why = f"registers are given in multiples of {unit}, at least {least}, at most {most // unit * unit}"
    elif roles.stages < 1 or roles.epilogue_stages < 1:
        why = "a ring has at least one stage"
    if why is not None:
        raise refused(roles, why)


def groups_of(roles: Pipeline, line: ProductUnit, atom: MultiplyAtom, machine: Machine, products: int = 1) -> int:
    """The groups of waves that compute a task, each of which starts the atom by itself."""
    assert machine.lanes is not None
    group = atom.c.lanes // machine.lanes
    count, halves = roles.consumer[0], 2 if roles.pingpong else 1
    if count % (group * halves) or count < group * halves:
        many = f"waves that multiply are multiples of {group * halves}"
        raise refused((roles, line), f"{atom.name} takes {group} waves: {many}")
    if roles.producer[0] not in (1, group):
        raise refused(roles, f"1 wave starts asynchronous copies, or {group} copy by themselves")
    waves = -(-roles.producer[0] // group) * group + count
    if waves > machine.waves:
        raise refused(roles, f"{waves} waves, of at most {machine.waves} in a workgroup")
    if roles.pingpong and (not atom.asynchronous or roles.producer[0] > 1 or products > 1):
        raise refused(roles, "only one asynchronous product whose operands one wave copies is done in pingpong")
    if not atom.asynchronous and count == group:
        raise refused((roles, line), f"{atom.name} is done by lanes: a second group multiplies while one loads")
    return count // group // halves


def check_sharing(roles: Pipeline, line: ProductUnit, how: Microkernel) -> None:
    """Refuses a tile that groups of waves do not share in whole atoms."""
    m, n, _ = how.atom.shape
    across = how.columns // n if how.groups > 1 and how.blocks == 1 else 1
    uneven = how.groups % max(1, across) or (how.rows // m) % max(1, how.groups // max(1, across))
    if how.columns % n or how.rows % m or uneven:
        tile = f"{how.rows}x{how.columns}"
        raise refused((line, roles), f"{how.groups} groups of waves do not share {tile} in whole atoms of {m}x{n}")


def check_blocks(line: ProductUnit, how: Microkernel, n: int, k: int) -> None:
    """Refuses a product of N x K with blocks on a diagonal of B that its atom does not multiply one by one."""
    if how.blocks == 1:
        return
    if line.transposed:
        raise refused(line, "blocks on a diagonal lie along the atom's columns: it is not `transposed`")
    if line.columns != n:
        raise refused(line, f"a task has all {how.blocks} blocks of the diagonal: {n} columns")
    if not can_multiply_blocks(how.atom, how.blocks, n, k):
        raise refused(
            line, f"{how.atom.name} does not multiply blocks of {n // how.blocks}x{k // how.blocks} one by one"
        )


def check_registers(
    roles: Pipeline,
    lines: Iterable[ProductUnit],
    products: Mapping[Op, Microkernel],
    machine: Machine,
    held: int | None = None,
) -> None:
    """Refuses registers that are not there, or that do not hold the accumulators.

    In a loop the accumulators of all products are alive, and `held` registers of operands that stay; None: no loop.

    All groups begin with the same registers, in whole units; a role takes what the other leaves.
    """
    how = next(iter(products.values()))
    file, unit = machine.spaces["register"].bytes, machine.register_file.role_unit
    assert file is not None
    groups = how.groups * (2 if roles.pingpong else 1)
    each = file // machine.register_file.word_bytes // how.atom.c.lanes // (groups + 1) // unit * unit
    used, there = roles.producer[1] + groups * roles.consumer[1], (groups + 1) * each
    if used > there:
        begin = f"{groups + 1} groups begin with {each} each, {there} in all"
        raise refused(roles, f"lanes of {groups} groups and one that loads take {used} registers; {begin}")
    sums = [how.sums for how in products.values()]
    most = max(sums) if held is None else sum(sums) + held
    if roles.consumer[1] <= most:
        raise refused((*lines, roles), f"a lane's sums alone take {most} registers of {roles.consumer[1]}")


def k_rows(axis: Axis, step: int, extent: int, line: ProductUnit, row: int) -> int:
    """The rows of shared memory that a K step has; refuses one that has no whole rows, or more than there are."""
    if step % row:
        why = f"a K step of {step} is no multiple of a row of shared memory, {row}"
        raise refused((axis, line), why)
    if step > -(-extent // row) * row:
        raise refused(axis, f"a K step of {step} is longer than K: {extent}, in whole rows of shared memory {row}")
    return step // row


def check_group(plan: Schedule, rows: str) -> None:
    """Refuses a group that is no whole tasks of the axes before rows, where tasks are taken one by one."""
    if plan.raster > 1 and len(plan.grid) < 2:
        raise refused(tasks_line(plan), "a group is of the last two axes with a task; here is one")
    if plan.order != "dynamic" or rows not in plan.grid:
        return
    left, around = plan.raster, plan.grid[: plan.grid.index(rows)]
    for name in reversed(around):
        left //= gcd(left, plan.axis(name).tasks)
    if left > 1:
        there = f"along the axes before {rows}, {', '.join(around) or 'none'}"
        raise refused(
            (tasks_line(plan), raster_line(plan)),
            f"dynamic tasks are grouped {there}: {plan.raster} do not divide theirs",
        )


def check_length(axis: Axis, tile: int, extent: int, unit: int) -> None:
    """Refuses a loop whose tile is longer than its axis, in whole units."""
    if tile > -(-extent // unit) * unit:
        raise refused(axis, f"`loop {tile}` is longer than the axis: it has {extent}")


def lines_of_stages(plan: Schedule) -> tuple[str, ...]:
    """The lines that say how much shared memory stages take: tiles, K steps, the ring."""
    loops = [axis for axis in plan.axes if not any(cut.level == "task" for cut in axis.splits)]
    return tuple(map(str, (*loops, *plan.products, *([plan.pipeline] if plan.pipeline else []))))


def check_overlap(plan: Schedule, looped: bool, products: Mapping[Op, Microkernel]) -> None:
    """Refuses an overlap of products that do not run one after the other in a loop."""
    if plan.overlap == "none":
        return
    line = plan.line("overlap")
    if plan.overlap == DELAYED:
        raise refused(line, "stores are delayed in tile registers only")
    if not looped or len(products) < 2 or not all(how.at_once for how in products.values()):
        raise refused(line, "a loop with two products, each with all of its K at once, has this line")
    if plan.overlap == ORDERED and next(iter(products.values())).groups < 2:
        raise refused(line, "groups of waves take turns; here is one")
    if plan.pipeline is not None and plan.pipeline.joint:
        raise refused(plan.pipeline, "what products use one ahead of the other is not handed over together")
