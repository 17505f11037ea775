"""The parts that the lowering of an MMA is made of, and the function that emits an MMA from them.

| part        | choices                                                                                          |
|-------------|--------------------------------------------------------------------------------------------------|
| sources     | in place, panel, packed, staged, halo tile, in registers, computed, formulas; one for A, one for B |
| accumulator | all of C in a tensor; in memory, one tile at a time in registers; carried or new                 |
| tiles       | those of C, in loops over the batch, N and M; or C as one tile                                   |
| K loops     | taps and K in the order of the plan, limited, unrolled, peeled or split                          |
| step        | an atom, a multiply-add of vectors, terms of formulas                                            |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.ir.core import Value
from tilewright.lower.block.mma.accumulator import Accumulator
from tilewright.lower.block.mma.k_loops import KLoop, write_nest
from tilewright.lower.block.mma.product import TileProduct
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.mma.steps import MultiplyStep
from tilewright.lower.block.mma.tiles import AccumulatorTile


@dataclass(frozen=True)
class ProductParts:
    """The parts of the lowering of one MMA."""

    product: TileProduct
    left: OperandSource
    right: OperandSource
    accumulator: Accumulator
    tiles: Callable[[Callable[[AccumulatorTile], None]], None]
    """tiles(body) emits loops over the accumulator tiles of C, and calls body(tile) inside."""
    loops: Callable[[], Sequence[KLoop]]
    """loops() returns the K loops of an accumulator tile, outermost first."""
    step: Callable[[AccumulatorTile, Value], MultiplyStep]
    """step(tile, tensor) returns the multiply step of an accumulator tile, which adds to the tensor."""


def write(parts: ProductParts) -> None:
    """Emit an MMA from its `parts`: for every accumulator tile its K loops, with the multiply step inside."""

    def one(tile: AccumulatorTile) -> None:
        """Emit the K loops of one accumulator tile, and the code that the accumulator needs before and after."""
        with parts.accumulator.opened(tile) as sums:
            parts.left.begin()
            parts.right.ragged = tile.ragged_columns
            write_nest(parts.product, parts.loops(), (parts.left, parts.right), parts.step(tile, sums))

    parts.tiles(one)
