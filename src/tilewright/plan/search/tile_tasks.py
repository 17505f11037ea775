"""Rule: kernels of several MMAs with the same M and N in a CPU's tile registers, with delayed stores."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.machine import Machine
from tilewright.plan.facts import Facts
from tilewright.plan.microkernel import Microkernel
from tilewright.plan.search.core_tasks import task_width_choices, whole_tiles
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.uniform import uniform_candidate
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule
from tilewright.plan.tile_tasks import TileTask, tile_task, tiles_that_fit

WHAT = "several products in tile registers, with delayed stores"
"""This rule's kernels, as refusals name them."""


def kernels_of_tile_tasks(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield CPU candidates for several MMAs with the same M and N: one per choice of accumulator tile, task widths, and
    rows of A that are copied or read in place.

    Yields nothing on a machine without tile registers, for fewer than two MMAs, if the program logs, if its elements
    must be computed in order, or if a size is known only at the call. If the MMAs do not fit, `ranking` gets the
    reason.
    """
    in_order = facts.logs or facts.in_order or facts.opened
    if machine.lanes is not None or not machine.limits.tile_registers or len(facts.products) < 2 or in_order:
        return
    task = tile_task_of(facts, machine)
    if isinstance(task, str):
        ranking.reject(WHAT, task)
        return
    size, axes, count = facts.number_of, task.axes, 0
    for rows, columns in tiles_that_fit(task, machine):
        products = {op: Microkernel(task.atom, rows, columns) for op in task.products}
        tile = {axes.n: columns, axes.m: rows}
        for choice in task_width_choices(facts, machine, products, {}):
            widths = whole_tiles(facts, {**choice, **dict.fromkeys(axes.around, 1)}, tile)
            if any(widths[d] % n and widths[d] < size(d) for d, n in tile.items()):  # the author states them
                continue
            for staged in (False, True) if task.in_place else (True,):
                kernel = UniformKernelSchedule(
                    facts, machine, widths, 1, {}, dict(products), tile, tile_task=task, staged=staged
                )
                count += 1
                yield uniform_candidate(kernel, count)
    ranking.timed += count


def tile_task_of(facts: Facts, machine: Machine) -> TileTask | str:
    """Return a TileTask if tasks in tile registers can compute all MMAs of the analysed program; else text: why not."""
    if facts.loops or facts.stated_loops:
        return "a loop carries more than products, or its author states its tile"
    products = [op for p in facts.products if (op := facts.nodes[p.node].source) is not None]
    return tile_task(facts.program, products, facts.cut, facts.number_of, machine)
