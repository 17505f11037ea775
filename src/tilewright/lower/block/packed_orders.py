"""The packed orders of operand B, and the programs that pack an argument before another program runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.algebra.expr import Expr
from tilewright.analysis.flat_memory import Size
from tilewright.ir.core import Program, Value
from tilewright.ir.dtypes import DType
from tilewright.lower.block.lazy_tiles import pieces
from tilewright.plan.microkernel import Microkernel


@dataclass(frozen=True)
class BlockOrder:
    """B as [around][block of N][deep][K / depth][tiles of a block][rows of a tile][N of a tile][group], padded with
    zeros.

    `depth` is K of the atom, and `group` neighbours along K belong to one column. The elements that an accumulator tile
    reads are contiguous, K step after K step. `around` are batch dimensions, `deep` dimensions that are summed beside
    K.
    """

    microkernel: Microkernel
    around: tuple[Size, ...]
    """The extents of batch dimensions."""
    deep: tuple[Size, ...]
    """The extents of dimensions summed beside K: filter taps."""
    wide: Size
    long: Size
    """The extents of N and K."""

    @property
    def dtype(self) -> DType:
        """The element type of the packed tensor: the atom's type of B."""
        return self.microkernel.atom.b.dtype

    @property
    def shape(self) -> tuple[Size, ...]:
        """The extents of the packed tensor: (batch ..., blocks of N, taps ..., K / depth, tiles of a block, rows,
        columns, group).

        `depth` is K of the atom. The last three extents are those of an atom's tile of B: groups along K, columns, and
        the k_pack neighbours along K of a group.
        """
        _, n, k = self.microkernel.atom.shape
        blocks, chunks = pieces(self.wide, self.microkernel.columns), pieces(self.long, k)
        inner = (chunks, self.microkernel.columns // n, k // self.microkernel.k_pack, n, self.microkernel.k_pack)
        return (*self.around, blocks, *self.deep, *inner)

    @property
    def ends(self) -> tuple[tuple[Size, bool], ...]:
        """A tuple of (extent of B, is_padded), one for each dimension of B: batch dimensions, taps, K and N, in this
        order.

        `is_padded` is True if the packed tensor has zeros behind the end of the dimension.
        """
        last = (
            (self.long, self.long % self.microkernel.atom.shape[2] != 0),
            (self.wide, self.wide % self.microkernel.columns != 0),
        )
        return (*((n, False) for n in (*self.around, *self.deep)), *last)

    def source(self, at: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the coordinates in B, (batch ..., taps ..., K, N), of the element at the coordinates `at` of the
        packed tensor.

        The coordinates along K and N may lie past the end of B, where the packed tensor has zeros.
        """
        _, n, k = self.microkernel.atom.shape
        before = len(self.around)
        f, (e, t, r, j, g) = at[before], at[-5:]
        outer = (*at[:before], *at[before + 1 : -5])
        return (*outer, k * e + self.microkernel.k_pack * r + g, self.microkernel.columns * f + n * t + j)

    def places(self, outer: Sequence[Expr], k: Expr, column: Expr, inner: Expr) -> tuple[Expr, ...]:
        """Return the coordinates in the packed tensor of an element of B, for an index along each of B's dimensions.

        `outer` are the indices along batch dimensions and taps, `k` is the index along K. The index along N is `column`
        + `inner`; it lies in the same block of N as `column`.
        """
        _, n, depth = self.microkernel.atom.shape
        place, along, before = column % self.microkernel.columns + inner, k % depth, len(self.around)
        group = self.microkernel.k_pack
        last = (k // depth, place // n, along // group, place % n, along % group)
        return (*outer[:before], column // self.microkernel.columns, *outer[before:], *last)


@dataclass(frozen=True)
class LaneOrder:
    """The packed order [group][other dimensions][element of a group] of an operand that is vectorised along one
    dimension.

    A group has `width` neighbours along the vectorised dimension; the last group is padded with zeros.
    """

    dtype: DType
    others: tuple[Size, ...]
    wide: int
    width: int
    """`wide` is the extent of the vectorised dimension, `width` that of a group."""
    around: tuple[Size, ...] = ()

    @property
    def shape(self) -> tuple[Size, ...]:
        """The extents of the packed tensor: (groups of neighbours, other dimensions ..., neighbours in a group)."""
        return (-(-self.wide // self.width), *self.others, self.width)

    @property
    def ends(self) -> tuple[tuple[Size, bool], ...]:
        """A tuple of (extent of B, is_padded), one for each dimension of B: the other dimensions, then the vectorised
        one.

        `is_padded` is True if the packed tensor has zeros behind the end of the dimension.
        """
        return (*((n, False) for n in self.others), (self.wide, self.wide % self.width > 0))

    def source(self, at: Sequence[Expr]) -> tuple[Expr, ...]:
        """Return the coordinates in B, (other dimensions ..., vectorised dimension), of the element at the coordinates
        `at` of the packed tensor.

        The coordinate along the vectorised dimension may lie past the end of B, where the packed tensor has zeros.
        """
        return (*at[1:-1], self.width * at[0] + at[-1])


Order: TypeAlias = BlockOrder | LaneOrder
"""The packed order of B: [batch][block of N][...]; the packing program has a task for each block."""


@dataclass(frozen=True)
class Pack:
    """A program that packs an argument, that argument (`source`), and the packed tensor that the main program reads
    instead.
    """

    program: Program
    source: Value
    packed: Value
