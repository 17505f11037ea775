"""MMAs by the machine's atoms, in any place: in loops, in grid programs, under conditions.

    %s = mma %q, %k, %zero                for f in 0..2 {            blocks of N
                                            for m in 0..4 {          blocks of M
                                              %sums = alloc register f32 (13, 32) as ATOM.c
                                              copy %acc_view -> %sums
                                              for e in 0..16 { mma %sums += %q_view * %packed_view ... }
                                              copy %sums -> %acc_view

C is in the worker's memory between operations, one accumulator tile at a time in registers. A is read in place if the
atom can, otherwise from a panel; B likewise, packed in the order in which the atom reads it. Edges of C are tiles of
their own, as small as the atom allows; panels are padded with zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tilewright.analysis.flat_memory import Size
from tilewright.lower.block.lazy_tiles import Tile, most, pieces
from tilewright.lower.block.mma.accumulator import Accumulator
from tilewright.lower.block.mma.k_loops import KLoop, KRun, chunks, over_taps
from tilewright.lower.block.mma.masked import unmasked_run
from tilewright.lower.block.mma.operands import sources_of
from tilewright.lower.block.mma.parts import ProductParts
from tilewright.lower.block.mma.product import AtomProduct
from tilewright.lower.block.mma.registers import TaskRegisters
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.mma.steps import AtomStep
from tilewright.lower.block.mma.tiles import over_tiles
from tilewright.plan.tile_register_tasks import ReductionLoop

STEPS = 4
"""The most K steps by vectors that are unrolled, unless the atom selects from more elements of a vector."""


def by_atom(
    product: AtomProduct, a: Tile, b: Tile, accumulator: Accumulator, task: TaskRegisters | None = None
) -> ProductParts:
    """Return the ProductParts (operand sources, accumulator, loops, multiply step) of C += a * b by an atom.

    `task` has the registers that a task keeps for the MMA; None: it keeps none. Allocations, panels and packed copies
    that the operands need first are emitted here.
    """
    left, right = sources_of(product, a, b, task is not None)
    operand_registers, is_late = (None, False) if task is None else (task.operands, task.late)

    def loops() -> list[KLoop]:
        """Return the K loops: those that operand B or A needs. If they need none in particular, those of the plan in a
        task with tile registers, else those of `_order`.
        """
        order = right.loops() or left.loops() or (_order(product, left) if task is None else product.depth)
        return _loops(product, left, order, is_late)

    return ProductParts(
        product,
        left,
        right,
        accumulator,
        tiles=partial(over_tiles, product, lambda: left.skips),
        loops=loops,
        step=lambda tile, sums: AtomStep(product, left, right, tile, sums, operand_registers),
    )


def _order(product: AtomProduct, left: OperandSource) -> list[ReductionLoop]:
    """Return the K loops of an accumulator tile, outermost first: filter taps (reduction dimensions beside K), then K.

    K goes in steps of the atom, and is unrolled if operand A (`left`) or a block-diagonal B needs that. A tap is
    unrolled if the plan says so. At the tensor's edge, a tap for which the row decides whether `left` is in bounds is
    unrolled too, and comes first.
    """
    low, axes = product.low, product.axes
    dims = [s.dim for s in low.bound.depth if s.dim in axes.deep] or axes.deep
    unrolled = {d for d, loop in low.bound.summed.items() if loop.unrolled}
    peeled = [d for d in dims if low.bound.depth and d not in unrolled and low.task.edge and left.slides(d)]
    taps = [ReductionLoop(d, 1, d in unrolled or d in peeled) for d in (*peeled, *(d for d in dims if d not in peeled))]
    return [*taps, ReductionLoop(axes.k, 1, left.unrolls or product.microkernel.blocks > 1)]


def _loops(product: AtomProduct, left: OperandSource, order: Sequence[ReductionLoop], late: bool) -> list[KLoop]:
    """Return the K loops to emit (KLoops) for the loops of `order`, outermost first. If K is first in `order`, and a
    second time, the first loop iterates over blocks of K, and the second over the steps of a block.

    With `late`, the first block of K is a run of its own, during which the results of the previous accumulator tile are
    stored. `left` is operand A, which may limit loops over filter taps.
    """
    k, depth = product.axes.k, product.microkernel.atom.shape[2]
    width, block_loops = product.width(k), list[KLoop]()
    if order[0].dim is k and any(s.dim is k for s in order[1:]):
        block = order[0].size // depth * depth
        count, first = int(pieces(width, depth)) * depth // block, int(late)
        runs = [KRun(1, block)] * first + [KRun(count, block, first)] * (count > first)
        block_loops, order, width = [KLoop(k, "k", lambda: runs)], order[1:], block

    def over(loop: ReductionLoop) -> KLoop:
        """Return the KLoop for `loop`, over K or over a filter tap."""
        if loop.dim is k:
            return KLoop(k, "e", lambda: _unmasked(product, _k_steps(product, width, loop.unrolled)))
        return over_taps(product, left, loop.dim, loop.unrolled, product.taps.get(loop.dim, 1))

    return [*block_loops, *map(over, order)]


def _unmasked(product: AtomProduct, runs: list[KRun]) -> list[KRun]:
    """Return the K iterations `runs` without leading and trailing ones in which a mask of the MMA is false for the
    whole tile.

    Return `runs` itself if the MMA has no masks, or inside another loop over K.
    """
    k = product.axes.k
    if not product.masks or k in product.at:
        return runs
    return [unmasked_run(product.low, run, product.masks, k, product.parts) for run in runs]


def _k_steps(product: AtomProduct, width: Size, unrolled: bool) -> list[KRun]:
    """Return [KRun, ...], the iterations over `width` elements of K.

    For a matrix atom it is one run; an iteration has the atom's K, or a K step in shared memory, and is unrolled if
    `unrolled`. An atom of one row (vectors) does several steps in each iteration, and the rest is a second run.
    """
    kernel = product.microkernel
    depth = kernel.atom.shape[2]
    if kernel.is_matrix_atom:
        step = depth if kernel.slab is None else kernel.k_step_elements(most(width))
        return [KRun(pieces(width, step), step, unroll=unrolled)]
    k_loop = product.low.bound.summed.get(product.axes.k)
    most_at_once = max(STEPS, kernel.atom.picks) if k_loop is None else k_loop.size // depth  # at least one load of A
    return chunks(pieces(width, depth), most_at_once, depth)
