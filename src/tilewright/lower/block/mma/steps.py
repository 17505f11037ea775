"""Multiply steps: the body of the K loops of an MMA.

mma %sums += %left * %right using ATOM        by an atom, from memory or from registers
map %sums = fma(%x_view, %packed_view, %sums) by vectors along a dimension that A, B and C have
map %acc = ((%acc + a*b) + a*b) ...           by terms: formulas of elements
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tilewright.algebra.expr import Expr, as_expr
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.ir.tile_formulas import call, converted
from tilewright.lower.block.lazy_tiles import most
from tilewright.lower.block.mma.product import AtomProduct, TileProduct
from tilewright.lower.block.mma.registers import OperandRegisters, operand_registers
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.mma.tiles import AccumulatorTile

STREAM = as_expr(1)


class MultiplyStep(Protocol):
    """The body of the innermost K loop."""

    def begin(self, dim: Expr) -> None:
        """Emit operations in front of the K loop over `dim`; called each time that such a loop is emitted.
        Implementations may emit none.
        """

    def multiply(self) -> None:
        """Emit the multiply-adds of one K step, at the current indices of the K loops."""


@dataclass
class AtomStep:
    """A multiply step by an atom, on tiles of the operand sources, or on registers to which these tiles are copied
    first.
    """

    product: AtomProduct
    left: OperandSource
    right: OperandSource
    tile: AccumulatorTile
    sums: Value
    registers: OperandRegisters | None = None

    def begin(self, dim: Expr) -> None:
        """If `dim` is K, emit the allocation of registers for A and B, unless `self.registers` is set already.

        Nothing is emitted for atoms that read shared memory, for atoms of one row (vectors), and in front of loops over
        filter taps.
        """
        kernel, tile = self.product.microkernel, self.tile
        if dim is self.product.axes.k and kernel.is_matrix_atom and kernel.slab is None and self.registers is None:
            self.registers = operand_registers(self.product.w, kernel, tile.rows, tile.columns)

    def multiply(self) -> None:
        """Emit the MMA of the current K step; first copies of A and B to registers, if the atom needs them there.

        If B is block-diagonal, emit an MMA for each diagonal block of the step. Otherwise, an MMA that reads operands
        in place skips elements out of bounds if an operand may have any (its `skips` is True).
        """
        p, kernel, tile = self.product, self.product.microkernel, self.tile
        k, width, registers = p.at[p.axes.k], p.width(p.axes.m), self.registers
        last = width - 1 if tile.ragged_rows and isinstance(width, Expr) else None  # rows past it are not stored
        a = self.left.rows(tile.rows, p.deep, tile.row, k, last)
        a = a if registers is None else self._load(a, registers.left, registers.streams[0])
        b = self.right.columns(p.deep, tile.columns, k, tile.column)
        b = b if registers is None else self._load(b, registers.right, registers.streams[1])
        if kernel.blocks > 1:
            self._by_blocks(a, b, k // p.steps[p.axes.k])
            return
        skip = registers is None and kernel.slab is None and (self.left.skips or self.right.skips)
        p.w.emit("mma", (self.sums, a, b), atom=kernel.atom.name, skip=skip or None)

    def _load(self, operand: Value, registers: Value, stream: bool) -> Value:
        """Emit the copy of `operand`, a tile of A or B, to `registers`; return `registers`. With `stream`, the copy
        bypasses the L1 cache.
        """
        self.product.w.emit("copy", (operand, registers), stream=STREAM if stream else None)
        return registers

    def _by_blocks(self, a: Value, b: Value, number: Expr) -> None:
        """Emit one MMA for each diagonal block of a block-diagonal B in K step number `number`.

        `a` and `b` are the tiles of A and B in that step.
        """
        w, kernel = self.product.w, self.product.microkernel
        n, slab = kernel.atom.shape[1], kernel.slab or 1
        k_of_block = most(self.product.width(self.product.axes.k)) // kernel.blocks
        deep = min(k_of_block, slab)
        with w.loop("j", min(slab, k_of_block * kernel.blocks) // deep, unroll=True) as j:
            block_index = (slab * number + deep * j) // k_of_block
            i, c, f = w.axes((kernel.rows, deep, n))
            left = w.view(a, (i, c), [(i, False), (deep * j + c, False)])
            right = w.view(b, (c, f), [(deep * j + c, False), (n * block_index + f, False)])
            total = w.columns(self.sums, (i, f), i, n * block_index + f)
            w.emit("mma", (total, left, right), atom=kernel.atom.name)


@dataclass
class VectorStep:
    """A multiply step of one fma on vectors along a dimension that A, B and C have."""

    product: TileProduct
    left: OperandSource
    right: OperandSource
    sums: Value
    dtype: DType
    """The element type of A, which is widened to the accumulator's; B is packed in the accumulator's type."""

    def begin(self, dim: Expr) -> None:
        """Emit nothing in front of the K loop over `dim`: this step needs no operand registers."""

    def multiply(self) -> None:
        """Emit one fma, accumulator += A * B, on all vectors of the tile at the current indices of the K loops."""
        a, b = self.left.vectors(), self.right.vectors()
        wide = converted(Formula.operand(1), self.dtype, self.sums.type.dtype)
        formula = Formula("fma", (wide, Formula.operand(2), Formula.operand(3)))
        self.product.w.emit("map", (self.sums, a, b, self.sums), formula=formula)


@dataclass
class TermStep:
    """A multiply step of one map over all elements of C, with the terms of the current step along `last`.

    `last` is the last summed dimension.
    """

    product: TileProduct
    left: OperandSource
    right: OperandSource
    sums: Value
    last: Expr

    def begin(self, dim: Expr) -> None:
        """Emit nothing in front of the K loop over `dim`: this step needs no operand registers."""

    def multiply(self) -> None:
        """Emit one map over C: add a[k] * b[k] to each element, for every index k of the current K step in ascending
        order.
        """
        p, storage = self.product, self.product.low.storage
        inner = {d: p.parts[d] for d in p.c}
        formula = storage.held(self.sums, p.c, inner).formula
        by_lanes = p.low.bound.unrolled_terms is not None
        fused = by_lanes and self.sums.type.dtype.is_float  # lanes have an instruction for it
        for n in range(p.steps[self.last]):
            factors = self.left.formula(self.last, n), self.right.formula(self.last, n)
            formula = Formula("fma", (*factors, formula)) if fused else call("add", formula, Formula("mul", factors))
        storage.put(self.sums, p.c, inner, formula)
