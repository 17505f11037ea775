"""Operand A, computed and kept in registers for all of K."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Value
from tilewright.ir.tile_formulas import converted
from tilewright.lower.block.lazy_tiles import Tile, most
from tilewright.lower.block.mma.product import AtomProduct
from tilewright.lower.block.mma.source import OperandSource


@dataclass
class InRegisters(OperandSource):
    """Operand A in registers with the atom's layout: all of K, with zeros past its end."""

    product: AtomProduct
    tensor: Value

    @classmethod
    def of(cls, product: AtomProduct, a: Tile) -> InRegisters:
        """Emit the computation of all of operand A, the Tile `a`, into registers; return the source that reads these
        registers.

        The code is emitted in front of all loops on which A does not depend. The registers' extent along K is rounded
        up to whole K steps; if that adds columns, A goes through memory that is filled with zeros first.
        """
        kernel, axes, low = product.microkernel, product.axes, product.low
        deep = most(product.width(axes.k))
        shape = kernel.rows, -(-deep // kernel.k_step_elements(deep)) * kernel.k_step_elements(deep)
        with low.writer.before([product.parts[d][0] for d in a.dims]):
            held = low.writer.registers(kernel.atom.a.dtype, shape, f"{kernel.atom.name}.a", "left", kernel.group_grid)
            low.storage.sums[held] = axes.m, axes.k
            formula = converted(a.formula, a.dtype, kernel.atom.a.dtype)
            if shape[1] == deep:
                low.storage.put(held, a.dims, product.parts, formula)
            else:  # parts of registers cannot be written: their layout is the atom's
                rows = low.writer.alloc(kernel.atom.a.dtype, shape, "left_rows")
                low.storage.sums[rows] = axes.m, axes.k
                low.writer.emit("fill", (rows,), value=0)
                low.storage.put(rows, a.dims, product.parts, formula)
                low.writer.emit("copy", (rows, held))
            if (
                not kernel.all_of_k_at_once or low.bound.blocks
            ):  # its inputs need registers that the K loop then has free
                low.writer.emit("edge", (held,))
        return cls(product, held)

    @property
    def unrolls(self) -> bool:
        """True: the registers of a K step are selected by a constant index, so that the K loop must be unrolled."""
        return True

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Emit a view of the registers of A for the K step of `deep` elements from `k` on, and return the view.

        If the plan does all of K at once, return the whole register tensor instead, and emit nothing. `row` and `last`
        are not used: registers have all rows.
        """
        if self.product.microkernel.all_of_k_at_once:
            return self.tensor
        i, c = self.product.w.axes((rows, deep))
        return self.product.w.columns(self.tensor, (i, c), i, k + c)
