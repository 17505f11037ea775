"""What work costs that no instruction's row tells: beginning a task, ending a block of sums, stores that lie apart.

The numbers were measured on one machine of a kind, by fitting times of many plans; a row of a target that was measured
says its own. They rank plans, and change nothing that a program computes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class VectorCosts:
    """By vectors of columns, in cycles: a block of sums beside its products, a task beside its blocks."""

    block: float = 30
    task: float = 100


@dataclass(frozen=True)
class LaneCosts:
    """By vectors along a dimension that both factors keep, in cycles.

    `product` and `integer_product` where no atom of the machine tells, `load` and `conversion` of a vector, `apart` for
    each vector that is stored lane by lane; `task` to begin one, `end` to end a block of sums, `turn` to go on to the
    next tap. `parted` is how much longer memory takes where workers share every line.
    """

    product: float = 0.5
    integer_product: float = 1.5
    load: float = 0.5
    conversion: float = 1.0
    apart: float = 16
    parted: float = 1.5
    task: float = 50
    end: float = 12
    turn: float = 3


@dataclass(frozen=True)
class TileCosts:
    """By tile registers, in cycles; a machine that has them says how many.

    `block` for a block of sums beside its products, its store deferred; `task` for a task beside its blocks: the last
    block's store hides behind nothing. `staged` to stage a block's rows for one step, where they end before the block
    does. `scattered` and `shared` for a cache line that is written apart from its neighbours, or beside other workers';
    `store` for a sum that is stored where that is not deferred.
    """

    block: float = 0
    task: float = 0
    staged: float = 0
    scattered: float = 0
    shared: float = 0
    store: float = 0


@dataclass(frozen=True)
class Costs:
    """All of them."""

    vectors: VectorCosts = VectorCosts()
    lanes: LaneCosts = LaneCosts()
    tiles: TileCosts = TileCosts()
