"""Multiply steps: what one iteration of the K loops of an MMA does.

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
from tilewright.passes.tile.product.product import AtomProduct, TileProduct
from tilewright.passes.tile.product.registers import OperandRegisters, operand_registers
from tilewright.passes.tile.product.source import OperandSource
from tilewright.passes.tile.product.tiles import AccumulatorTile
from tilewright.passes.tile.values import most

STREAM = as_expr(1)


class MultiplyStep(Protocol):
    """The work of every iteration of the K loops."""

    def begin(self, dim: Expr) -> None:
        """Emit what comes before the loop over `dim`."""

    def multiply(self) -> None:
        """Emit the products at the current indices of the K loops, and add them to the accumulator."""


@dataclass
class AtomStep:
    """One MMA by an atom, on what the sources give, or on registers to which that is copied first."""

    product: AtomProduct
    left: OperandSource
    right: OperandSource
    tile: AccumulatorTile
    sums: Value
    registers: OperandRegisters | None = None

    def begin(self, dim: Expr) -> None:
        """Emit the registers of operands before the K loop, if the atom takes whole tiles from registers."""
        how, tile = self.product.how, self.tile
        if dim is self.product.axes.k and how.whole and how.slab is None and self.registers is None:
            self.registers = operand_registers(self.product.w, how, tile.rows, tile.columns)

    def multiply(self) -> None:
        """Emit the MMA of the current K step."""
        p, how, tile = self.product, self.product.how, self.tile
        k, width, held = p.at[p.axes.k], p.width(p.axes.m), self.registers
        last = width - 1 if tile.ragged_rows and isinstance(width, Expr) else None  # rows past it are not stored
        a = self.left.rows(tile.rows, p.deep, tile.row, k, last)
        a = a if held is None else self._loaded(a, held.left, held.streams[0])
        b = self.right.columns(p.deep, tile.columns, k, tile.column)
        b = b if held is None else self._loaded(b, held.right, held.streams[1])
        if how.blocks > 1:
            self._by_blocks(a, b, k // p.steps[p.axes.k])
            return
        skip = held is None and how.slab is None and (self.left.skips or self.right.skips)
        p.w.emit("mma", (self.sums, a, b), atom=how.atom.name, skip=skip or None)

    def _loaded(self, operand: Value, registers: Value, stream: bool) -> Value:
        """Emit the copy of an operand to registers, and return those."""
        self.product.w.emit("copy", (operand, registers), stream=STREAM if stream else None)
        return registers

    def _by_blocks(self, a: Value, b: Value, number: Expr) -> None:
        """Emit one MMA for each block of a block-diagonal B in slab number `number`."""
        w, how = self.product.w, self.product.how
        n, slab = how.atom.shape[1], how.slab or 1
        each = most(self.product.width(self.product.axes.k)) // how.blocks
        deep = min(each, slab)
        with w.loop("j", min(slab, each * how.blocks) // deep, unroll=True) as j:
            block = (slab * number + deep * j) // each
            i, c, f = w.axes((how.rows, deep, n))
            left = w.view(a, (i, c), [(i, False), (deep * j + c, False)])
            right = w.view(b, (c, f), [(deep * j + c, False), (n * block + f, False)])
            total = w.columns(self.sums, (i, f), i, n * block + f)
            w.emit("mma", (total, left, right), atom=how.atom.name)


@dataclass
class VectorStep:
    """One multiply-add of vectors that lie along a dimension of A, B and C."""

    product: TileProduct
    left: OperandSource
    right: OperandSource
    sums: Value
    dtype: DType
    """The type of A, which is widened to that of the sums; B is packed in that."""

    def begin(self, dim: Expr) -> None:
        """Emit nothing."""

    def multiply(self) -> None:
        """Emit the multiply-add at the current indices."""
        a, b = self.left.vectors(), self.right.vectors()
        wide = converted(Formula.operand(1), self.dtype, self.sums.type.dtype)
        formula = Formula("fma", (wide, Formula.operand(2), Formula.operand(3)))
        self.product.w.emit("map", (self.sums, a, b, self.sums), formula=formula)


@dataclass
class TermStep:
    """One map of all elements of C, with the terms of the current step along the last summed dimension."""

    product: TileProduct
    left: OperandSource
    right: OperandSource
    sums: Value
    last: Expr

    def begin(self, dim: Expr) -> None:
        """Emit nothing."""

    def multiply(self) -> None:
        """Emit the map: the accumulator plus the products of the terms, one after another."""
        p, storage = self.product, self.product.low.storage
        inner = {d: p.parts[d] for d in p.c}
        formula = storage.held(self.sums, p.c, inner).formula
        by_lanes = p.low.bound.unrolled_terms is not None
        fused = by_lanes and self.sums.type.dtype.is_float  # lanes have an instruction for it
        for n in range(p.steps[self.last]):
            factors = self.left.formula(self.last, n), self.right.formula(self.last, n)
            formula = Formula("fma", (*factors, formula)) if fused else call("add", formula, Formula("mul", factors))
        storage.put(self.sums, p.c, inner, formula)
