"""Operand A, computed and kept in registers for all of K."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Value
from tilewright.ir.tile_formulas import converted
from tilewright.passes.tile.product.product import AtomProduct
from tilewright.passes.tile.product.source import OperandSource
from tilewright.passes.tile.values import Tile, most


@dataclass
class InRegisters(OperandSource):
    """Operand A in registers, as the atom takes it: all of K, zero past its end."""

    product: AtomProduct
    tensor: Value

    @classmethod
    def of(cls, product: AtomProduct, a: Tile) -> InRegisters:
        """Return the computed operand A, stored in registers once for all blocks of columns."""
        kernel, axes, low = product.how, product.axes, product.low
        deep = most(product.width(axes.k))
        shape = kernel.rows, -(-deep // kernel.k_step_elements(deep)) * kernel.k_step_elements(deep)
        with low.writer.before([product.parts[d][0] for d in a.dims]):  # once for all blocks of columns
            held = low.writer.registers(kernel.atom.a.dtype, shape, f"{kernel.atom.name}.a", "left", kernel.waves)
            low.storage.sums[held] = axes.m, axes.k
            low.storage.put(held, a.dims, product.parts, converted(a.formula, a.dtype, kernel.atom.a.dtype))
            if not kernel.at_once or low.bound.blocks:  # before the first step: what it is made of takes more registers
                low.writer.emit("edge", (held,))
        return cls(product, held)

    @property
    def unrolls(self) -> bool:
        """True: which registers a K step takes is known before the program runs."""
        return True

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Return A's block: all of it, or the registers of a K step."""
        if self.product.how.at_once:
            return self.tensor
        i, c = self.product.w.axes((rows, deep))
        return self.product.w.columns(self.tensor, (i, c), i, k + c)
