"""Rank the legal blockings (tile sizes and loop orders) of a product on a CPU by predicted cost, over all its units."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.machine import Machine, MultiplyAtom, OpaqueOperand
from tilewright.plan.block_list import BlockUnit, blockings
from tilewright.plan.block_size import why_too_large
from tilewright.plan.blocking import LaneUnit
from tilewright.plan.choice import Refusal
from tilewright.plan.contraction import Contraction, merge_rows, merge_taps, size
from tilewright.plan.fixed import FREE, StatedTiles
from tilewright.plan.lanes import lane_block_unit, lane_unit, why_no_lanes
from tilewright.plan.model import roofline
from tilewright.plan.search.block_work import block_cost
from tilewright.plan.search.ranked_blocks import CostedBlocking, RankedBlocks, ordering_of
from tilewright.plan.tile_registers import tile_unit
from tilewright.plan.validate import why_illegal, why_not_atom
from tilewright.plan.vectors import vector_unit

Unit = MultiplyAtom | LaneUnit
"""A unit of a CPU: an MMA atom, or the SIMD unit with vectors along a dimension that A, B and the result share."""


def choose(
    space: Contraction,
    machine: Machine,
    fixed: StatedTiles = FREE,
    is_tried: Callable[[Unit], bool] = lambda unit: True,
) -> RankedBlocks:
    """Rank all legal blockings (tile sizes, loop orders) of the contraction `space` on a CPU; return RankedBlocks.

    The units of the machine for which `is_tried` is true are tried. Dimensions of M are merged first where memory
    allows. The result also has all units that do not fit, with reasons, and the roofline: lower bounds of the cycles,
    None if no unit fits. If N of `space` does not have exactly one digit (mixed-radix part), there are no candidates
    and no roofline.
    """
    space = merge_rows(space)
    if len(space.columns) != 1:
        return RankedBlocks(
            machine, (), (Refusal("columns", f"they have {len(space.columns)} digits; one is handled"),), None
        )
    refused: list[Refusal] = []
    units: list[Unit] = []
    for atom in machine.multiply.values():
        why = why_not_atom(variant(space, atom), atom)
        if why is None:
            units.append(atom)
        else:
            refused.append(Refusal(f"atom {atom.name}", why))
    why = why_no_lanes(space, machine)
    if why is None:
        units.append(lane_unit(space, machine))
    else:
        refused.append(Refusal("lanes", why))
    tried = list(filter(is_tried, units))
    candidates = list(_candidates(space, tried, machine, fixed))
    if not candidates and fixed != FREE and tried:
        candidates = list(_candidates(space, tried, machine, FREE))
    candidates.sort(key=ordering_of(candidates))
    bound = roofline(space, machine, units) if units else None
    return RankedBlocks(machine, tuple(candidates), tuple(refused), bound)


def variant(space: Contraction, atom: Unit) -> Contraction:
    """Return the index space in which `atom` computes a product: `space`, perhaps with taps merged into channels.

    `space` has M, N, K and the operands of the product. Its last filter dimension and its channels become one dimension
    of K under three conditions: the atom uses tile registers; its K is at least twice the number of channels; and the
    two dimensions are contiguous in A and in B. So 3 taps of 8 channels become 24. Otherwise `space` is returned
    unchanged.
    """
    in_tiles = isinstance(atom, MultiplyAtom) and isinstance(atom.c, OpaqueOperand)
    return merge_taps(space) if in_tiles and 2 * size(space.depth[-1]) <= atom.shape[2] else space


def _candidates(
    space: Contraction, atoms: list[Unit], machine: Machine, fixed: StatedTiles
) -> Iterator[CostedBlocking]:
    """Yield a CostedBlocking (blocking and predicted cost) for each legal blocking of a product, with each of `atoms`.

    `space` (a Contraction) has M, N, K and the operands of the product. A blocking is a choice of tile sizes and loop
    order. All blockings follow the author's constraints `fixed`. Blockings are left out that have too many
    instructions, or in which a task (one core's tile) first copies too many bytes of A.
    """
    for atom in atoms:
        suited = variant(space, atom)
        for blocking in blockings(suited, _unit(suited, atom, machine, fixed), machine, fixed):
            if why_illegal(suited, blocking, machine) is None and why_too_large(suited, blocking, machine) is None:
                yield CostedBlocking(blocking, suited, block_cost(suited, blocking, machine))


def _unit(space: Contraction, atom: Unit, machine: Machine, fixed: StatedTiles) -> BlockUnit:
    """Return a BlockUnit: which tile sizes, task counts and ways to stage A are tried for a product with `atom`.

    `space` is the product's index space. `atom` is an MMA atom, or a LaneUnit: vectors along a dimension that A, B and
    the result share. `fixed` are the author's constraints.
    """
    if isinstance(atom, LaneUnit):
        return lane_block_unit(space, machine)
    make = tile_unit if isinstance(atom.c, OpaqueOperand) else vector_unit
    return make(space, atom, machine, fixed)
