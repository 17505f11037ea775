"""Rule: kernels with MMAs and without a pipeline, by atoms on register fragments or by lanes.

All waves copy and multiply. A task (one tile of the grid) of a single MMA has one accumulator tile. Tasks of several
MMAs have the dimensions that all MMAs share, as wide as leaves some tasks for each core.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product as combinations
from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.machine import Machine
from tilewright.plan.boxes import ROWS, numbers_of, radices, width_choices
from tilewright.plan.facts import Facts, ValueFacts
from tilewright.plan.general import blocks_of, room_of
from tilewright.plan.microkernel import axes_in
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.uniform import loop_tiles, microkernels, uniform_candidate
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule

NARROWED = 6
"""How often task widths are halved, at most, to fit shared memory."""
SHALLOWEST = 32
"""The smallest tile of a K loop that is tried."""


def kernels_of_fragments(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield GPU candidates with MMAs but without a pipeline: all waves run the same code, and load what they multiply.

    There is one for each distinct choice of task widths (extents of a workgroup's tile) and K tiles. Yields nothing if
    the program has no MMA, or on a machine without lanes (a CPU).
    """
    if not facts.products or machine.lanes is None:
        return
    tiles = loop_tiles(facts)
    widths = task_widths(facts, machine, tiles) if facts.cut else {}
    tried: list[tuple[dict[Expr, int], dict[Expr, int]]] = []
    for narrow, loops in combinations((widths, *_smaller_tasks(widths)), tuple(_smaller_k_tiles(facts, tiles))):
        kernel = _fragment_kernel(facts, machine, narrow, loops, narrowed=narrow != widths)
        if (kernel.widths, kernel.loops) not in tried:
            tried.append((kernel.widths, kernel.loops))
            ranking.timed += 1
            yield uniform_candidate(kernel, len(tried))


def _fragment_kernel(
    facts: Facts, machine: Machine, widths: Mapping[Expr, int], loops: dict[Expr, int], *, narrowed: bool
) -> UniformKernelSchedule:
    """Return the kernel (a UniformKernelSchedule) with `widths` elements per workgroup and `loops` per iteration.

    If registers hold the accumulator tiles of all MMAs, each workgroup gets one tile of each, unless that exceeds a
    width that the author states. `narrowed` says that the widths were halved to save shared memory: atoms then span one
    wave, because such an atom reads operands from registers, not from shared memory.
    """
    size = numbers_of(facts.sizes)

    def width(d: Expr) -> int:
        """Return the extent of `d` in the innermost tile, in elements.

        It is per workgroup if the grid splits `d`; else per iteration if the kernel loops over `d`; else all of `d`.
        """
        return widths.get(d) or loops.get(d) or size(d)

    def most_in_task(d: Expr) -> int:
        """Return the largest number of elements of `d` that a workgroup may have.

        It is all of `d` if the grid may split `d` and the author states no width for it; else `width(d)`.
        """
        return size(d) if d in facts.cut and str(d) not in facts.stated_tasks else width(d)

    one_wave = machine.lanes if narrowed else None  # its atoms need no slabs of shared memory
    in_registers = microkernels(facts, machine, most_in_task, one_wave)
    blocks = blocks_of(in_registers, facts.cut, width, machine)
    if any(n > width(d) for d, n in blocks.items() if str(d) in facts.stated_tasks):
        blocks = {}
    own_widths, products = dict(widths), in_registers if blocks else microkernels(facts, machine, width)
    in_bounds = {d: n if d in facts.opened else min(n, size(d)) for d, n in blocks.items()}
    own_widths |= {d: n for d, n in in_bounds.items() if str(d) not in facts.stated_tasks}
    return UniformKernelSchedule(facts, machine, own_widths, 1, loops, products, blocks)


def _smaller_k_tiles(facts: Facts, tiles: dict[Expr, int]) -> Iterator[dict[Expr, int]]:
    """Yield choices of {loop dimension: elements per iteration}: first `tiles`, then with one K tile made smaller.

    Smaller K tiles save shared memory. Each choice halves the tile of one K loop again, down to SHALLOWEST (32)
    elements and in multiples of it. Loops that carry more than an accumulator, and loops whose tile the author states,
    keep their tiles. `facts` is the analysed program.
    """
    yield tiles
    for axis, extent in tiles.items():
        tile = extent
        while str(axis) not in facts.loops and str(axis) not in facts.stated_loops and tile > SHALLOWEST:
            tile = max(SHALLOWEST, tile // 2 // SHALLOWEST * SHALLOWEST)
            yield {**tiles, axis: tile}


def _smaller_tasks(widths: dict[Expr, int]) -> Iterator[dict[Expr, int]]:
    """Yield NARROWED (6) smaller and smaller choices of {dimension: elements per workgroup}, to save shared memory.

    Each choice halves, rounding up, the widest dimension of the choice before it; the first choice halves `widths`.
    Yields nothing if `widths` is empty.
    """
    for _ in range(NARROWED if widths else 0):
        widest = max(widths, key=lambda d: widths[d])
        widths = {**widths, widest: ceil(widths[widest] / 2)}
        yield widths


def task_widths(facts: Facts, machine: Machine, loops: Mapping[Expr, int]) -> dict[Expr, int]:
    """Return {dimension that the grid splits: elements per workgroup} for a kernel with MMAs and without a pipeline.

    A width that the author states is used as it is. Other dimensions start whole, and are narrowed until there are
    enough workgroups for all cores and each value that a workgroup holds is at most a fixed fraction of L2: first batch
    dimensions (these even to a fraction of L1), then dimensions that are not M or N, then M and N, the last two to no
    less than ROWS (16) elements. If the MMAs have dimensions in common, only these are narrowed. `loops` maps looped
    dimensions to elements per iteration; `facts` is the analysed program.
    """
    size, room = numbers_of(facts.sizes), room_of(machine)
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

    around = [d for d in dims if d not in batch and d not in blocked]
    for d in (*batch, *around, *(d for d in dims if d in blocked and d not in batch)):
        for choice in width_choices(size(d), radices(facts.program, d, size)):
            tasks, values = prod(ceil(size(x) / n) for x, n in widths.items()), largest_value()
            is_enough = tasks >= room.product_tasks and values <= room.product_elements
            if (is_enough and (d not in batch or values <= room.elements[0])) or (d in blocked and choice < ROWS):
                break
            widths[d] = choice
    all_widths = {d: widths.get(d, size(d)) for d in facts.cut}
    return all_widths | {d: min(n, size(d)) for d in facts.cut if (n := facts.stated_tasks.get(str(d))) is not None}


def _digits_of(facts: Facts, d: Expr) -> frozenset[str]:
    """Return the names of the digits (such as i//56 and i%56 of a flattened i) of a program dimension.

    Digits are the mixed-radix parts into which it was split. A dimension that was not split gives its own name alone.
    """
    return frozenset(facts.digits.get(str(d), (str(d),)))


def _program_dims(facts: Facts, n: ValueFacts) -> list[Expr]:
    """Return the dimensions of the value `n` as the program has them, not split into digits (mixed-radix parts)."""
    return [d for d in facts.order if _digits_of(facts, d) & n.dims]
