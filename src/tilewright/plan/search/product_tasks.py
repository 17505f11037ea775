"""Task widths of kernels with MMAs and without a pipeline: tasks for all cores, with values that caches hold."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.machine import Machine
from tilewright.plan.boxes import ROWS, radices, width_choices
from tilewright.plan.facts import Facts, ValueFacts
from tilewright.plan.general import room_of
from tilewright.plan.microkernel import axes_in


def task_widths(facts: Facts, machine: Machine, loops: Mapping[Expr, int]) -> dict[Expr, int]:
    """Return {dimension that the grid splits: elements per workgroup} for a kernel with MMAs and without a pipeline.

    A workgroup starts with whole dimensions. They are narrowed until all cores have workgroups, and caches hold each
    value of a workgroup: first batch dimensions, last M and N, which keep at least ROWS (16) elements, and the others
    in between. If the MMAs have dimensions in common, only these are narrowed. A width that the author states is used
    as it is. `loops` maps looped dimensions to elements per iteration; `facts` is the analysed program.
    """
    size, room = facts.number_of, room_of(machine)
    products = [facts.nodes[p.node] for p in facts.products]
    shared = [d for d in facts.cut if all(_digits_of(facts, d) & n.space for n in products)]
    dims = shared or list(facts.cut)
    batch = [d for d in dims if all(_digits_of(facts, d) <= p.batch for p in facts.products)]
    held = [_program_dims(facts, n) for n in facts.nodes if n.op != "write" and (n.op != "read" or n.place.can_leave)]
    axes = [axes_in(n.source, size) for n in products if n.source is not None]
    blocked = {d for x in axes if not isinstance(x, str) for d in (x.m, x.n)}
    widths = {d: size(d) for d in dims}

    def largest_value() -> int:
        """Return the number of elements of the largest value that a workgroup holds, with the present `widths`."""
        return max(prod(max(1, widths.get(d) or loops.get(d) or size(d)) for d in value) for value in held)

    other_dims = [d for d in dims if d not in batch and d not in blocked]
    for d in (*batch, *other_dims, *(d for d in dims if d in blocked and d not in batch)):
        for choice in width_choices(size(d), radices(facts.program, d, size)):
            tasks, values = prod(ceil(size(x) / n) for x, n in widths.items()), largest_value()
            is_enough = tasks >= room.product_tasks and values <= room.product_elements
            if (is_enough and (d not in batch or values <= room.elements[0])) or (d in blocked and choice < ROWS):
                break
            widths[d] = choice
    all_widths = {d: widths.get(d, size(d)) for d in facts.cut}
    return all_widths | {d: min(n, size(d)) for d in facts.cut if (n := facts.stated_tasks.get(str(d))) is not None}


def _digits_of(facts: Facts, d: Expr) -> frozenset[str]:
    """Return the names of the digits (mixed-radix parts, such as i//56 and i%56) of the program dimension `d`.

    A dimension that was not split gives its own name alone. `facts` is the analysed program.
    """
    return frozenset(facts.digits.get(str(d), (str(d),)))


def _program_dims(facts: Facts, n: ValueFacts) -> list[Expr]:
    """Return the dimensions of the value `n` as the program has them, not split into digits (mixed-radix parts)."""
    return [d for d in facts.order if _digits_of(facts, d) & n.dims]
