"""Rule: GPU kernels with MMAs and without a pipeline, by atoms on register fragments or by lanes.

All waves copy and multiply. A task (one tile of the grid) of a single MMA has one accumulator tile. Tasks of several
MMAs split the dimensions that all MMAs share, so far that each core gets some tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product as combinations
from math import ceil

from tilewright.algebra.expr import Expr
from tilewright.machine import Machine
from tilewright.plan.facts import Facts
from tilewright.plan.general import blocks_of
from tilewright.plan.search.product_tasks import task_widths
from tilewright.plan.search.ranking import PlanCandidate, Ranking
from tilewright.plan.search.uniform import loop_tiles, microkernels, uniform_candidate
from tilewright.plan.search.uniform_kernel import UniformKernelSchedule

NARROWED = 6
"""How often task widths are halved, at most, to fit shared memory."""
SHALLOWEST = 32
"""The smallest tile of a K loop that is tried."""


def kernels_of_fragments(facts: Facts, machine: Machine, ranking: Ranking) -> Iterator[PlanCandidate]:
    """Yield GPU candidates with MMAs but without a pipeline: all waves run the same code, load operands and multiply.

    There is one per distinct choice of task widths (extents of a workgroup's tile) and K tiles. If the epilogue reads
    several accumulators, each choice is also tried without keeping accumulator tiles in registers. Yields nothing if
    the program has no MMA, or on a machine without lanes (a CPU). The number of candidates is added to `ranking.timed`.
    """
    if not facts.products or machine.lanes is None:
        return
    tiles = loop_tiles(facts)
    widths = task_widths(facts, machine, tiles) if facts.cut else {}
    tried: list[tuple[dict[Expr, int], dict[Expr, int]]] = []
    tasks, k_tiles = (widths, *_smaller_tasks(widths)), tuple(_smaller_k_tiles(facts, tiles))
    holding = (True, False) if len(facts.accumulators) > 1 else (True,)  # several are held at once in smaller tiles
    for narrow, loops, holds in combinations(tasks, k_tiles, holding):
        kernel = _fragment_kernel(facts, machine, narrow, loops, narrowed=narrow != widths, holds=holds)
        if (kernel.widths, kernel.loops) not in tried:
            tried.append((kernel.widths, kernel.loops))
            ranking.timed += 1
            yield uniform_candidate(kernel, len(tried))


def _fragment_kernel(
    facts: Facts,
    machine: Machine,
    widths: Mapping[Expr, int],
    loops: dict[Expr, int],
    *,
    narrowed: bool,
    holds: bool,
) -> UniformKernelSchedule:
    """Return the UniformKernelSchedule with `widths` elements per workgroup and `loops` elements per iteration.

    With `holds`, a workgroup has the extents of one accumulator tile instead of `widths`, and the tile stays in
    registers. `widths` are kept if registers cannot hold the tiles of all MMAs at once, or if a tile exceeds a width
    that the author states. `narrowed` means that `widths` were halved to save shared memory: the accumulator tile is
    then that of an atom of one wave, which reads operands from registers.
    """
    size = facts.number_of

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
    blocks = blocks_of(in_registers, facts.cut, width, machine) if holds else {}
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
    """Yield NARROWED (6) choices of {dimension: elements per workgroup}, each smaller than the one before, to save
    shared memory. When all dimensions have one element, the choice is repeated.

    Each choice halves, rounding up, the widest dimension of the one before; the first starts from `widths`: {m: 64, n:
    32} gives {m: 32, n: 32}, then {m: 16, n: 32}. Yields nothing if `widths` is empty.
    """
    for _ in range(NARROWED if widths else 0):
        widest = max(widths, key=lambda d: widths[d])
        widths = {**widths, widest: ceil(widths[widest] / 2)}
        yield widths
