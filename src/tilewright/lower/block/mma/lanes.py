"""MMAs by vectors along a dimension that A, B and C share, such as the channels of a depthwise convolution.

    %sums = alloc register f32 (14, 16) by (16,(14,1)):(14,(1,224))      14 rows, one vector for each
    for k_1 in max(-m_1 + 1, 0)..min(-m_1 + 15, 3) {                     only taps that are in bounds
      for k_0 in 0..3 unroll {                                           rows share their loads
        map %sums = fma(%x_view, %packed_view, %sums)

An accumulator tile stays in registers over all summed dimensions. Taps that slide along the rows are unrolled; elements
out of bounds are read as zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra import Layout
from tilewright.algebra.expr import ZERO, Expr
from tilewright.errors import ProgramError
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType
from tilewright.ir.formula import Formula
from tilewright.lower.block.lazy_tiles import Parts, Tile, most, only_load
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.mma.accumulator import WholeSums
from tilewright.lower.block.mma.in_place import InPlace
from tilewright.lower.block.mma.k_loops import over_taps
from tilewright.lower.block.mma.parts import ProductParts
from tilewright.lower.block.mma.product import MatrixProduct
from tilewright.lower.block.mma.source import OperandSource
from tilewright.lower.block.mma.steps import VectorStep
from tilewright.lower.block.mma.tiles import AccumulatorTile
from tilewright.lower.block.packed_orders import LaneOrder
from tilewright.lower.block.packing import packed_before
from tilewright.plan.microkernel import Axes, LaneKernel


def lane_product(
    low: Lowering, kernel: LaneKernel, a: Tile, b: Tile, parts: Parts, c: tuple[Expr, ...]
) -> MatrixProduct:
    """Return the MatrixProduct (axes, parts, loop indices) of an MMA by vectors along a dimension that A, B and C
    share, such as a depthwise convolution.

    `kernel` names that dimension, which becomes N, and the rows, which become M; `a` and `b` are the operands; `c` are
    the dimensions of C; `parts` is {dimension: (first index, extent)}. Nothing is emitted.
    """
    *deep, k = [s.dim for s in low.bound.depth]
    axes = Axes(
        kernel.rows, kernel.along, k, tuple(d for d in c if d not in (kernel.rows, kernel.along)), tuple(deep), False
    )
    product = MatrixProduct(low, axes, parts, c)
    product.at = dict.fromkeys((d for d in (*a.dims, *b.dims) if d not in (axes.m, axes.n, k, *deep)), ZERO)
    return product


def lane_sums(product: MatrixProduct, kernel: LaneKernel, wide: DType, start: Formula) -> Value:
    """Emit the allocation of the accumulator registers of an MMA by vectors, and the store of `start`, the formula of
    their first value; return the registers.

    `wide` is their element type; `kernel` has the length of a vector, and the dimensions of the registers.
    """
    storage = product.low.storage
    sums = _registers(product, kernel.lanes, wide, "sums")
    storage.sums[sums] = kernel.rows, kernel.along
    if start == formulas.number(0, wide):
        product.w.emit("fill", (sums,), value=0)
    else:
        storage.put(sums, product.c, product.parts, start)
    return sums


def by_lanes(product: MatrixProduct, kernel: LaneKernel, a: Tile, b: Tile, sums: Value) -> ProductParts:
    """Return the ProductParts (operand sources, loops, multiply step) of sums += a * b by vectors along a dimension
    that A, B and C share.

    `kernel` has the length of a vector, and names that dimension and the rows. B is packed before the program runs.
    Raise a ProgramError if A is no plain load, or B no argument that can be packed.
    """
    source = only_load(a.formula)
    if source is None:
        raise ProgramError("mma by vectors: operand A is computed here; it must be read in place")
    left = LaneVectors(product, source, kernel.lanes)
    right = PackedLanes.of(product, b, sums.type.dtype)
    depth = product.low.bound.depth
    rows, columns = (most(product.width(d)) for d in (kernel.rows, kernel.along))
    return ProductParts(
        product,
        left,
        right,
        WholeSums(sums),
        tiles=lambda one: one(AccumulatorTile(ZERO, ZERO, rows, columns)),
        loops=lambda: [over_taps(product, left, s.dim, s.unrolled) for s in depth],
        step=lambda tile, total: VectorStep(product, left, right, total, a.dtype),
    )


def _registers(product: MatrixProduct, lanes: int, dtype: DType, name: str) -> Value:
    """Emit the allocation of registers for an accumulator tile, as vectors of `lanes` elements along N; return the
    registers.
    """
    rows, width = (most(product.width(d)) for d in (product.axes.m, product.axes.n))
    layout = Layout((lanes, (rows, width // lanes)), (rows, (1, rows * lanes)))
    return product.w.vectors(dtype, (rows, width), layout, name)


@dataclass
class LaneVectors(InPlace):
    """Operand A, read in place by vectors; if it may be out of bounds, vectors are first copied to registers, with
    zeros.
    """

    lanes: int

    def vectors(self) -> Value:
        """Return the vectors of A at the current taps, over M and N.

        They are an emitted view of memory. If elements may be out of bounds, a copy of the view to new registers, with
        zeros for such elements, is emitted, and the registers are returned.
        """
        p = self.product
        i, j = p.w.axes((p.width(p.axes.m), p.width(p.axes.n)))
        view = self._view((i, j), {p.axes.m: i, p.axes.n: j})
        if not any(self.marks):
            return view
        held = _registers(p, self.lanes, self.operand_load.tensor.type.dtype, "held")
        p.w.emit("copy", (view, held), otherwise=0)
        return held


@dataclass
class PackedLanes(OperandSource):
    """Operand B, packed before the program runs: [block of lanes][dimensions `dims`][lanes of the block]."""

    product: MatrixProduct
    tensor: Value
    dims: list[Expr]

    @classmethod
    def of(cls, product: MatrixProduct, b: Tile, wide: DType) -> PackedLanes:
        """Return the source of operand `b` of an MMA, packed in the accumulator's type `wide` before the program runs.

        The packed order is [block of N][batch dimensions][taps][K][N of the block], with the plan's blocks of N. Raise
        a ProgramError if `b` is no argument that can be packed.
        """
        low, axes = product.low, product.axes
        dims = [*(d for d in b.dims if d in product.c and d is not axes.n), *axes.deep, axes.k]
        numbers = tuple(map(low.scope.number, dims))
        order = LaneOrder(wide, numbers, low.scope.number(axes.n), low.bound.blocks[axes.n])
        packed = packed_before(low, b, (*dims, axes.n), order)
        if packed is None:
            raise ProgramError("mma by vectors: operand B is packed before the program; it must be an argument")
        return cls(product, packed, dims)

    def vectors(self) -> Value:
        """Emit a view of the vectors of B at the current taps, over M and N, and return the view; all rows have the
        same vectors.
        """
        p = self.product
        i, j = p.w.axes((p.width(p.axes.m), p.width(p.axes.n)))
        block = p.parts[p.axes.n][0] // p.low.bound.blocks[p.axes.n]
        places = [block, *(p.parts[d][0] + p.at[d] for d in self.dims), j]
        return p.w.view(self.tensor, (i, j), [(e, False) for e in places])
