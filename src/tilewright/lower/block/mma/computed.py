"""Operand A computed from arguments in registers, one K step at a time (such as dequantised weights).

%slab_ready = wait %ring_0                             a K step of the argument in its own type: bytes
map %left = bf16(%slab_ready)*%s_part_wide             widened, and scaled by a value of the row
mma %sums += %left * %slab_1_view using ATOM.ra
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra import Swizzle
from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.formula import Formula
from tilewright.ir.tile_formulas import converted
from tilewright.lower.block.accesses import marked
from tilewright.lower.block.lazy_tiles import Load, Tile, load, loads, most, rewritten
from tilewright.lower.block.mma.product import AtomProduct
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.staged_stores import swizzle_of
from tilewright.plan.computed import equal_neighbours
from tilewright.plan.model import element_bytes


@dataclass
class Computed(OperandSource):
    """Operand A, computed from arguments in registers, one K step at a time.

    An argument with an element for each element of A, or for some neighbours along K, is copied to a tile in shared
    memory; one with an element for each row is kept in registers by the lanes that have the row; others are read from
    memory.
    """

    product: AtomProduct
    tile: Tile
    held: Value
    tiles: dict[Load, tuple[Value, int]]
    """{load that is copied step by step: (its shared tile, number of neighbours along K that share an element)}."""

    @classmethod
    def of(cls, product: AtomProduct, tile: Tile) -> Computed:
        """Return the source of an operand A that is computed in registers, one K step at a time; `tile` has the formula
        of its element.

        The allocations of registers for a K step, and of a shared tile for each argument that is copied step by step,
        are emitted.
        """
        kernel, axes, w, low = product.microkernel, product.axes, product.w, product.low
        step = kernel.k_step_elements(most(product.width(axes.k)))
        held = w.registers(kernel.atom.a.dtype, (kernel.rows, step), f"{kernel.atom.name}.a", "left", kernel.group_grid)
        tiles: dict[Load, tuple[Value, int]] = {}
        for each in dict.fromkeys(loads(tile.formula)):
            neighbours = equal_neighbours(each.at, low.scope.coordinate(axes.k), step)
            if neighbours < step and any(low.scope.coordinate(axes.m) in e.symbols for e in each.at):
                shape = kernel.rows, step // neighbours
                tiles[each] = (
                    w.alloc(each.tensor.type.dtype, shape, "slab", _staged_swizzle(product, each, shape[1])),
                    neighbours,
                )
        return cls(product, tile, held, tiles)

    def rows(self, rows: int, deep: int, row: Expr, k: Expr, last: Expr | None = None) -> Value:
        """Emit the copies and the computation of A, of shape (rows, deep), from row `row` and K index `k` on; return
        the registers that have it.

        `last` is not used. Raise a ProgramError if an argument that is read in place ends within a K step.
        """
        p, w = self.product, self.product.w
        i, c = w.axes((rows, deep))
        formula_of: dict[Load, Formula] = {}
        for each in dict.fromkeys(loads(self.tile.formula)):
            images = self._images(row + i, k + c)
            coordinates = [images(e) for e in each.at]
            if each in self.tiles:
                held, neighbours = self.tiles[each]
                self._copy_step(each, rows, deep, row, k)
                formula_of[each] = load(held, i, c // neighbours)
            elif not any(c in e.symbols for e in coordinates):
                formula_of[each] = load(self._row_values(each, i, coordinates, (rows, deep)), i, c)
            elif any(mark for _, mark in marked(coordinates, each.tensor.type.shape)):
                raise ProgramError(f"%{each.tensor.name}, from which operand A is computed, ends within a K step")
            else:
                formula_of[each] = load(each.tensor, *coordinates)
        formula = converted(self.tile.formula, self.tile.dtype, p.microkernel.atom.a.dtype)
        formula = rewritten(formula, self._images(row + i, k + c), formula_of.__getitem__)
        w.map(self.held, (i, c), formula, Substitution({}))
        return self.held

    def _copy_step(self, each: Load, rows: int, deep: int, row: Expr, k: Expr) -> None:
        """Emit the copy of the argument that `each` loads to its shared tile, for one K step of A.

        The step has (rows, deep) elements of A, from row `row` and K index `k` on. If n neighbours along K share an
        element of the argument, only deep / n elements of a row are copied. Several copies are emitted if the machine's
        bulk copy cannot have as many rows. `low.storage.shared_loads[copy]` is set to "ring": a copy of a pipeline
        stage.
        """
        p, w, (held, neighbours) = self.product, self.product.w, self.tiles[each]
        copies = -(-rows // p.low.machine.bulk_copy.box_extent)
        with w.loop("s", copies, unroll=True) as s:
            i, e = w.axes((rows // copies, deep // neighbours))
            tile_row = rows // copies * s + i
            images = self._images(row + tile_row, k + neighbours * e)
            view = w.view(each.tensor, (i, e), marked([images(x) for x in each.at], each.tensor.type.shape))
            target = held if copies == 1 else w.view(held, (i, e), [(tile_row, False), (e, False)])
            p.low.storage.shared_loads[w.emit("copy", (view, target), otherwise=0)] = "ring"

    def _images(self, row: Expr, k: Expr) -> Substitution:
        """Return the substitution of A's coordinate symbols: the one along M gets index `row`, the one along K index
        `k`, and any other the current loop index.
        """
        p = self.product
        at = {**p.at, p.axes.m: row, p.axes.k: k}
        return Substitution(
            {p.low.scope.coordinate(d): p.parts[d][0] + e for d, e in at.items() if d in self.tile.dims}
        )

    def _row_values(self, each: Load, i: Symbol, places: list[Expr], shape: tuple[int, int]) -> Value:
        """Emit the load of one value for each row to registers, and its broadcast along A's columns; return the
        registers of the broadcast, which have A's layout.

        Both are emitted in front of the loops on which they do not depend. `each` loads the value, at the coordinates
        `places` for row `i`; `shape` is that of A.
        """
        p, w = self.product, self.product.w
        dtype, name = each.tensor.type.dtype, f"{each.tensor.name}_part"
        with w.before(places):
            row_registers = w.distributed(dtype, shape[:1], name)
            view = w.view(each.tensor, (i,), marked(places, each.tensor.type.shape))
            w.emit("copy", (view, row_registers), otherwise=0)
            repeated = w.registers(
                dtype, shape, f"{p.microkernel.atom.name}.a", f"{name}_wide", p.microkernel.group_grid
            )
            w.emit("broadcast", (row_registers, repeated), along=1)
        return repeated


def _staged_swizzle(product: AtomProduct, each: Load, count: int) -> Swizzle | None:
    """Return the swizzle of a shared tile of the argument that `each` loads, with `count` elements a row. Return None
    if no bulk copy of the machine has rows of that length, or if a row needs no swizzle.

    With the swizzle, elements of neighbouring rows, which neighbouring lanes read, are in different banks.
    """
    size, copies = element_bytes(each.tensor.type.dtype), product.low.machine.copies_between("global", "shared")
    atom = next((x for x in copies if x.asynchronous and count * size in x.rows), None)
    return None if atom is None else swizzle_of(atom, count * size, size, product.low.machine)
