"""Legality rules of plans with producer and consumer waves: waves, registers, stages, K steps.

Each rule raises an error that quotes all statements of the plan which break it together. Shared memory is checked when
a kernel is lowered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd

from tilewright.ir.core import Op
from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.microkernel import Microkernel, can_multiply_blocks
from tilewright.plan.refusals import raster_line, refused, tasks_line
from tilewright.plan.schedule import DELAYED, ORDERED, Axis, Pipeline, ProductUnit, Schedule


def check_pipeline(pipeline: Pipeline, machine: Machine) -> None:
    """Raise an ArgumentError if the machine cannot run a pipeline of producer and consumer waves, whatever the MMA.

    Producer waves copy, consumer waves multiply; `pipeline` has their registers per lane and the stages between them.
    The machine must have asynchronous copies to shared memory. The registers of producers, and of consumers, must be in
    the machine's range and a multiple of its unit. There must be at least one stage and one epilogue stage.
    """
    register_file = machine.register_file
    unit, least, most = register_file.role_unit, register_file.role_least, machine.limits.registers
    why = None
    if machine.lanes is None or not any(a.asynchronous for a in machine.copies.values()):
        why = f"{machine.name} has no asynchronous copies to shared memory"
    elif any(n % unit or not least <= n <= most for _, n in (pipeline.producer, pipeline.consumer)):
        why = f"registers are given in multiples of {unit}, at least {least}, at most {most // unit * unit}"
    elif pipeline.stages < 1 or pipeline.epilogue_stages < 1:
        why = "a pipeline has at least one stage"
    if why is not None:
        raise refused(pipeline, why)


def groups_of(
    pipeline: Pipeline, mma_statement: ProductUnit, atom: MultiplyAtom, machine: Machine, linked: bool = False
) -> int:
    """Return the number of consumer wave groups that compute one task (workgroup's tile).

    The machine must have lanes (a GPU). A wave group is the waves (warps) that one `atom` spans; with ping-pong, half
    of the consumer groups compute a task. `pipeline` has the waves. `mma_statement` is the plan's statement for the
    MMA. `linked` says that an operand of an MMA is computed from another MMA. Raise an ArgumentError, which quotes the
    statements, in these cases:

    - the consumer waves are no whole groups, or the producer waves neither 1 nor one group;
    - all waves together are too many for a workgroup;
    - ping-pong has a synchronous atom, several producer waves or an MMA that waits for another;
    - a synchronous atom has one consumer group only: a second must multiply while one loads.
    """
    assert machine.lanes is not None
    waves_per_atom = atom.c.lanes // machine.lanes
    consumer_waves, halves = pipeline.consumer[0], 2 if pipeline.pingpong else 1
    if consumer_waves % (waves_per_atom * halves) or consumer_waves < waves_per_atom * halves:
        many = f"waves that multiply are multiples of {waves_per_atom * halves}"
        raise refused((pipeline, mma_statement), f"{atom.name} takes {waves_per_atom} waves: {many}")
    if pipeline.producer[0] not in (1, waves_per_atom):
        raise refused(pipeline, f"1 wave starts asynchronous copies, or {waves_per_atom} copy by themselves")
    waves = -(-pipeline.producer[0] // waves_per_atom) * waves_per_atom + consumer_waves
    if waves > machine.waves:
        raise refused(pipeline, f"{waves} waves, of at most {machine.waves} in a workgroup")
    if pipeline.pingpong and (not atom.asynchronous or pipeline.producer[0] > 1 or linked):
        raise refused(pipeline, "only asynchronous products whose operands one wave copies are done in pingpong")
    if not atom.asynchronous and consumer_waves == waves_per_atom:
        raise refused(
            (pipeline, mma_statement), f"{atom.name} is done by lanes: a second group multiplies while one loads"
        )
    return consumer_waves // waves_per_atom // halves


def check_sharing(pipeline: Pipeline, mma_statement: ProductUnit, microkernel: Microkernel) -> None:
    """Raise an ArgumentError if the wave groups of a microkernel cannot split its accumulator tile into whole atoms.

    A microkernel is an atom and its accumulator tile; a wave group is the waves (warps) that one atom spans. The error
    quotes `mma_statement` (the plan's statement for the MMA) and `pipeline`.
    """
    m, n, _ = microkernel.atom.shape
    across = microkernel.columns // n if microkernel.groups > 1 and microkernel.blocks == 1 else 1
    uneven = microkernel.groups % max(1, across) or (microkernel.rows // m) % max(
        1, microkernel.groups // max(1, across)
    )
    if microkernel.columns % n or microkernel.rows % m or uneven:
        tile = f"{microkernel.rows}x{microkernel.columns}"
        raise refused(
            (mma_statement, pipeline),
            f"{microkernel.groups} groups of waves do not share {tile} in whole atoms of {m}x{n}",
        )


def check_blocks(mma_statement: ProductUnit, microkernel: Microkernel, n: int, k: int) -> None:
    """Raise an ArgumentError if the atom cannot multiply each block of a block-diagonal B separately.

    A B of one block is legal. With more blocks, the MMA must not be transposed, and its accumulator tile must have all
    `n` columns. `n` and `k` are the extents of the whole B, in elements. The error quotes `mma_statement`, the plan's
    statement for the MMA.
    """
    if microkernel.blocks == 1:
        return
    if mma_statement.transposed:
        raise refused(mma_statement, "blocks on a diagonal lie along the atom's columns: it is not `transposed`")
    if mma_statement.columns != n:
        raise refused(mma_statement, f"a task has all {microkernel.blocks} blocks of the diagonal: {n} columns")
    if not can_multiply_blocks(microkernel.atom, microkernel.blocks, n, k):
        block = f"{n // microkernel.blocks}x{k // microkernel.blocks}"
        raise refused(mma_statement, f"{microkernel.atom.name} does not multiply blocks of {block} one by one")


def check_registers(
    pipeline: Pipeline,
    mma_statements: Iterable[ProductUnit],
    products: Mapping[Op, Microkernel],
    machine: Machine,
    loop_registers: int | None = None,
) -> None:
    """Raise an ArgumentError if a kernel with a pipeline needs more registers than the machine has.

    There are two checks. First, all waves together must fit the register file: those that load, and those that compute,
    which are twice as many with ping-pong. This error quotes the pipeline. Second, a lane that computes must have more
    registers than its accumulators take. This error quotes the pipeline and `mma_statements`, the plan's statements for
    the MMAs.

    `products` maps each MMA to its microkernel. `loop_registers` is None if no loop is around the MMAs: the second
    check then counts the accumulator of the largest MMA. Otherwise it counts those of all MMAs, plus `loop_registers`
    for operands that stay in registers during the loop.
    """
    microkernel = next(iter(products.values()))
    file_bytes, unit = machine.spaces["register"].bytes, machine.register_file.role_unit
    assert file_bytes is not None
    groups = microkernel.groups * (2 if pipeline.pingpong else 1)
    per_group = (
        file_bytes // machine.register_file.word_bytes // microkernel.atom.c.lanes // (groups + 1) // unit * unit
    )
    needed, available = pipeline.producer[1] + groups * pipeline.consumer[1], (groups + 1) * per_group
    if needed > available:
        begin = f"{groups + 1} groups begin with {per_group} each, {available} in all"
        raise refused(pipeline, f"lanes of {groups} groups and one that loads take {needed} registers; {begin}")
    accumulator_counts = [microkernel.accumulator_registers for microkernel in products.values()]
    accumulators = max(accumulator_counts) if loop_registers is None else sum(accumulator_counts) + loop_registers
    if pipeline.consumer[1] <= accumulators:
        raise refused(
            (*mma_statements, pipeline),
            f"a lane's accumulators alone take {accumulators} registers of {pipeline.consumer[1]}",
        )


def rows_in_k_step(axis: Axis, k_step: int, k_extent: int, mma_statement: ProductUnit, row_elements: int) -> int:
    """Return the number of rows of shared memory in a K step: `k_step` / `row_elements`.

    Both are numbers of elements along K; a row is the contiguous run of shared memory that the atom reads. Raise an
    ArgumentError if the K step is no whole number of rows, or if it is longer than K (`k_extent` elements) rounded up
    to whole rows. Both errors quote `axis`, the plan's axis of K. The first also quotes `mma_statement`, the statement
    for the MMA.
    """
    if k_step % row_elements:
        why = f"a K step of {k_step} is no multiple of a row of shared memory, {row_elements}"
        raise refused((axis, mma_statement), why)
    if k_step > -(-k_extent // row_elements) * row_elements:
        raise refused(
            axis, f"a K step of {k_step} is longer than K: {k_extent}, in whole rows of shared memory {row_elements}"
        )
    return k_step // row_elements


def check_raster(plan: Schedule, m_axis: str) -> None:
    """Raise an ArgumentError if the plan's raster group does not fit its grid.

    A raster group is a number of neighbouring tasks (workgroups' tiles) that run together. There are two rules. A grid
    of fewer than two axes cannot have a group above 1. With dynamic order, and M in `grid`, the group must divide the
    number of tasks along the axes before M, because only these tasks are grouped. `m_axis` is the name of M's axis.
    """
    if plan.raster > 1 and len(plan.grid) < 2:
        raise refused((tasks_line(plan), raster_line(plan)), "a group is of the last two axes with a task; here is one")
    if plan.order != "dynamic" or m_axis not in plan.grid:
        return
    remaining, around = plan.raster, plan.grid[: plan.grid.index(m_axis)]
    for name in reversed(around):
        remaining //= gcd(remaining, plan.axis(name).tasks)
    if remaining > 1:
        axes_text = f"along the axes before {m_axis}, {', '.join(around) or 'none'}"
        raise refused(
            (tasks_line(plan), raster_line(plan)),
            f"dynamic tasks are grouped {axes_text}: {plan.raster} do not divide theirs",
        )


def check_loop_tile(axis: Axis, tile: int, extent: int, unit: int) -> None:
    """Raise an ArgumentError if a loop tile of `tile` elements is longer than its axis, which has `extent` elements.

    The axis is first rounded up to a multiple of `unit`: the extent along it of an MMA's accumulator tile (M, N), or of
    what the atom reads at once (K). The error quotes `axis`, the axis statement of a plan.
    """
    if tile > -(-extent // unit) * unit:
        raise refused(axis, f"`loop {tile}` is longer than the axis: it has {extent}")


def stage_statements(plan: Schedule) -> tuple[str, ...]:
    """Return the statements of a plan, as texts, that decide the shared memory of its stages, for an error to quote.

    They are the axes that the grid does not split (their K steps), the MMAs with their accumulator tiles, and the
    pipeline.
    """
    loops = [axis for axis in plan.axes if not any(cut.level == "task" for cut in axis.splits)]
    return tuple(map(str, (*loops, *plan.products, *([plan.pipeline] if plan.pipeline else []))))


def check_overlap(plan: Schedule, looped: bool, products: Mapping[Op, Microkernel]) -> None:
    """Raise an ArgumentError if the plan's statement `overlap` (MMAs beside other work) does not fit a pipeline.

    A plan without overlap is legal. A delayed store is illegal: only tile registers (on CPUs) have it. Any other
    overlap needs three things: a loop around two or more MMAs (`looped` says whether there is a loop); all of each
    MMA's K in shared memory at once; and a pipeline that is not `joint` (one barrier for all operands). The overlap
    `ordered` (wave groups take turns) also needs two wave groups. `products` maps each MMA to its microkernel.
    """
    if plan.overlap == "none":
        return
    line = plan.line("overlap")
    if plan.overlap == DELAYED:
        raise refused(line, "stores are delayed in tile registers only")
    if not looped or len(products) < 2 or not all(microkernel.all_of_k_at_once for microkernel in products.values()):
        raise refused(line, "a loop with two products, each with all of its K at once, has this line")
    if plan.overlap == ORDERED and next(iter(products.values())).groups < 2:
        raise refused(line, "groups of waves take turns; here is one")
    if plan.pipeline is not None and plan.pipeline.joint:
        raise refused(plan.pipeline, "what products use one ahead of the other is not handed over together")
