"""Cost constants of a machine that no instruction's row gives: starting tasks, ending accumulator tiles, scattered
stores.

They rank plans and do not change what a program computes. The defaults belong to no machine: a cost that is not stated
is zero. Each target states its own constants, measured or counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class VectorCosts:
    """Costs of kernels for a SIMD unit with vectors along N, in cycles.

    `block` is the cost of a register tile of the accumulator beside its multiply-adds, `task` that of a task beside its
    tiles. `shown` is the exposed share of the shorter of two times: multiply-adds, and the loads that feed them.
    `scattered` is the cost of a cache line of the result, or of an operand of the epilogue, that is accessed away from
    its neighbours. `shared` is the cost of each of the first `shared_lines` cache lines of a piece of a row whose other
    pieces other cores write: their prefetches fetch these lines too. `sharpness` is the exponent of the p-norm that
    joins multiply-adds with reads of operands from caches and memory (0: the longer of both).

    Two more fields are no times, but numbers of cache lines, for tasks that read a piece of every row: `piece` is the
    longest piece, `ahead` what is fetched in vain after each piece.
    """

    block: float = 0
    task: float = 0
    shown: float = 0
    scattered: float = 0
    shared: float = 0
    shared_lines: float = 0
    sharpness: float = 0
    piece: int = 1
    ahead: float = 0


@dataclass(frozen=True)
class LaneCosts:
    """Costs of SIMD kernels with vectors along a dimension that both operands keep (such as depthwise channels), in
    cycles.

    `product` and `integer_product` are the cost of a vector multiply-add if the machine has no atom for it; `load` and
    `conversion` that of a vector; `lane_store` that of each vector that is stored lane by lane. `task` is the cost of
    starting a task, `end` of ending an accumulator tile, `turn` of going on to the next filter tap. `parted` is the
    factor for memory accesses if workers share every cache line.
    """

    product: float = 1
    integer_product: float = 1
    load: float = 0
    conversion: float = 0
    lane_store: float = 0
    parted: float = 1
    task: float = 0
    end: float = 0
    turn: float = 0


@dataclass(frozen=True)
class TileCosts:
    """Costs of kernels for tile registers (matrices in registers), in cycles; for machines that have them.

    `block` is the cost of an accumulator tile beside its products if its store is delayed. `task` is that of a
    task: the last tile's store overlaps nothing. `staged` is the cost of a K step of a tile with fewer rows than a
    full one: its rows of A are copied first. `scattered` is that of a cache line written away from its neighbours,
    `shared` that of one that other workers write too. `store` is the cost of an accumulator element whose store is
    not delayed. `packing` multiplies the cycles of staging rows of A at the machine's copy rate. `exposed` is the
    cost of a load of the next K step's operands that misses L1 and has no free register, and so waits for the MMAs
    of this one. `sharpness` is the exponent of the p-norm that joins MMAs with reads of operands (0: the longer of
    both).
    """

    block: float = 0
    task: float = 0
    staged: float = 0
    scattered: float = 0
    shared: float = 0
    store: float = 0
    packing: float = 1
    exposed: float = 0
    sharpness: float = 0


@dataclass(frozen=True)
class TileLoadCosts:
    """Factors for tile-register loads of rows that are not contiguous in memory, relative to the L2 cache's rate.

    `strided` applies to all such rows; `conflict` is a further factor if they share sets of the L1 cache, `bypass` if
    loads bypass that cache.
    """

    strided: float = 1
    conflict: float = 1
    bypass: float = 1


@dataclass(frozen=True)
class TermCosts:
    """Costs of SIMT products (without matrix units), in instructions of a wave except for the last three fields.

    `load` is the cost of a load beside the conversion of its values: its address and bounds check. `result` is that of
    a result beside its conversion; `task` that of a task: its coordinates, and the operand that all lanes share.
    `waiting` is the factor for an instruction that waits for another of its wave if no other wave runs.
    `values_in_flight` is the number of values that a lane may have loaded for an unrolled sum, `unrolled_products` the
    number of products of a lane that are unrolled for a tile of results.
    """

    load: float = 0
    result: float = 0
    task: float = 0
    waiting: float = 1
    values_in_flight: int = 0
    unrolled_products: int = 0


@dataclass(frozen=True)
class ResidentCosts:
    """Costs of kernels without products whose tasks share a core, several at a time, until their rows are reduced and
    stored.

    The register file of a core serves `lanes` lanes at a time (0: not modelled). A lane needs `registers` registers
    beside its part of a row; values that find no register are spilled. `exchange` are the cycles of a reduction over a
    row that several waves share. `uneven` is the factor for tasks whose row length is no power of two, the number by
    which lanes are distributed. `sharpness` says how arithmetic overlaps with memory: with infinity only the longer of
    both counts, with 1 they add up.
    """

    lanes: int = 0
    registers: int = 0
    exchange: float = 0
    uneven: float = 1
    sharpness: float = 1


@dataclass(frozen=True)
class Costs:
    """All cost constants of a machine.

    `one_wave` is the factor, relative to the cache's rate, for a kernel with one wave a task. `functions` gives the
    cost of functions such as exp, in operations of the simplest kind.
    """

    vectors: VectorCosts = VectorCosts()
    lanes: LaneCosts = LaneCosts()
    tiles: TileCosts = TileCosts()
    tile_loads: TileLoadCosts = TileLoadCosts()
    terms: TermCosts = TermCosts()
    resident: ResidentCosts = ResidentCosts()
    one_wave: float = 1
    functions: Mapping[str, float] = field(default_factory=dict)
