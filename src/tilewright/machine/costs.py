"""What work costs that no instruction's row tells: beginning a task, ending a block of sums, stores that lie apart.

They rank plans, and change nothing that a program computes. The defaults are no machine's: what is not said costs
nothing. A row of a target says its own, measured or counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class VectorCosts:
    """By vectors of columns, in cycles: a block of sums beside its products, a task beside its blocks.

    `shown` is the share that shows of the shorter of multiply-adds and the loads that feed them.
    """

    block: float = 0
    task: float = 0
    shown: float = 0


@dataclass(frozen=True)
class LaneCosts:
    """By vectors along a dimension that both factors keep, in cycles.

    `product` and `integer_product` where no atom of the machine tells, `load` and `conversion` of a vector, `apart` for
    each vector that is stored lane by lane; `task` to begin one, `end` to end a block of sums, `turn` to go on to the
    next tap. `parted` is how much longer memory takes where workers share every line.
    """

    product: float = 1
    integer_product: float = 1
    load: float = 0
    conversion: float = 0
    apart: float = 0
    parted: float = 1
    task: float = 0
    end: float = 0
    turn: float = 0


@dataclass(frozen=True)
class TileCosts:
    """By tile registers, in cycles; a machine that has them says how many.

    `block` for a block of sums beside its products, its store deferred; `task` for a task beside its blocks: the last
    block's store hides behind nothing. `staged` to stage a block's rows for one step, where they end before the block
    does. `scattered` and `shared` for a cache line that is written apart from its neighbours, or beside other workers';
    `store` for a sum that is stored where that is not deferred. `packing` is how many times as long as by the rate of
    copies it takes to stage rows of A.
    """

    block: float = 0
    task: float = 0
    staged: float = 0
    scattered: float = 0
    shared: float = 0
    store: float = 0
    packing: float = 1


@dataclass(frozen=True)
class TileLoadCosts:
    """By tile registers that load rows which lie apart in memory: how many times as long as by the L2 cache's rate.

    `apart` for any such rows; `conflict` is how much longer it takes if they share sets of the L1 cache, `bypass` if
    loads bypass that cache.
    """

    apart: float = 1
    conflict: float = 1
    bypass: float = 1


@dataclass(frozen=True)
class TermCosts:
    """By lanes that do a product term by term, in instructions of a wave, but for the last two.

    `load` for a load beside what widens its values: where it lies, whether it is in bounds; `result` for a result
    beside what narrows it; `task` for a task: which it is, the factor that all lanes share. `waiting` is the time of an
    instruction that waits for another of its wave, where no other wave runs. `values_in_flight` are the values that a
    lane may have loaded of a sum whose terms are unrolled, `unrolled_products` the products of a lane that are unrolled
    for a box of results.
    """

    load: float = 0
    result: float = 0
    task: float = 0
    waiting: float = 1
    values_in_flight: int = 0
    unrolled_products: int = 0


@dataclass(frozen=True)
class ResidentCosts:
    """By tasks without products, of which a core has several at a time, until their rows are reduced and stored.

    The registers of a core are shared out for so many `lanes` at a time (0: that is not counted); `registers` are those
    of a lane beside what it holds of a row. What finds no register is stored and loaded again. `exchange` are the
    cycles of a reduction whose row several waves share, `uneven` is how much longer tasks take whose rows are no power
    of two, by which lanes are dealt. `sharpness` says how much of what runs beside memory shows: the longer of both is
    alone where it is infinite, both add up where it is 1.
    """

    lanes: int = 0
    registers: int = 0
    exchange: float = 0
    uneven: float = 1
    sharpness: float = 1


@dataclass(frozen=True)
class Costs:
    """All of them; `one_wave` is how much longer than by the cache's rate a program takes that has one wave a task.

    `functions` are the operations of the simplest kind that a function of one element is, where it is several.
    """

    vectors: VectorCosts = VectorCosts()
    lanes: LaneCosts = LaneCosts()
    tiles: TileCosts = TileCosts()
    tile_loads: TileLoadCosts = TileLoadCosts()
    terms: TermCosts = TermCosts()
    resident: ResidentCosts = ResidentCosts()
    one_wave: float = 1
    functions: Mapping[str, float] = field(default_factory=dict)
