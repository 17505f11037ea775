"""Register layouts of values between MMAs: distributed over lanes as the accumulators of the MMAs are.

An accumulator of M x N elements is distributed over lanes by its atom. Values over the same rows stay with the lanes
that have those rows: a value over M and another dimension as an accumulator of that width, a value over M alone in all
lanes that share the row. Then maps are local to a lane, a reduction along a row combines few lanes, and a row's value
is where it is needed.

    %sums = alloc register f32 (128, 64) as matrix.m64n64k16.bf16.c waves (2, 1)
    %best = alloc register f32 (128) by ((4,8,4,2),2):((0,1,16,64),8)
    reduce %sums -> %best along 1 with max
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.algebra import Layout
from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.inttuple import leaves
from tilewright.analysis.distribution import operand_layout
from tilewright.ir.core import Op
from tilewright.ir.tensors import Distribution
from tilewright.lower.block.lazy_tiles import Parts
from tilewright.machine import Machine, MultiplyAtom
from tilewright.plan.microkernel import Microkernel, axes_in


@dataclass(frozen=True)
class FragmentLayout:
    """A register layout of values over the dimension `row`, like that of the accumulators of chained MMAs.

    A task has `rows` elements of `row`. `atoms` maps the N extent of an accumulator tile of a group of waves to its
    atom; `waves` is (groups of waves along M, groups along N).
    """

    row: Expr
    rows: int
    waves: tuple[int, int]
    atoms: Mapping[int, MultiplyAtom]

    def axes(self, dims: tuple[Expr, ...], parts: Parts) -> tuple[Expr, ...] | None:
        """Return the dimensions of a register tensor for a value over `dims`: (`self.row`,) or (`self.row`, another
        dimension). Return None if the value must stay in memory.

        `parts` is {dimension: (first index, extent)}; dimensions of extent 1 are left out. The value must stay in
        memory if it lacks the row dimension or some of the layout's rows, if it has more than one other dimension, or
        if no atom has a tile as wide as that dimension.
        """
        columns = [d for d in dims if d is not self.row and parts[d][1] != 1]
        if self.row not in dims or parts[self.row][1] != self.rows or len(columns) > 1:
            return None
        axes = (self.row, *columns)
        return None if self.distribution(tuple(parts[d][1] for d in axes)) is None else axes

    def distribution(self, sizes: tuple[object, ...]) -> Distribution | None:
        """Return the layout over lanes of a register tensor of the shape `sizes`: (rows,) or (rows, columns).

        None if the shape has another rank, or if its first extent is not `self.rows`. None also if columns are no int,
        or if the columns of each group of waves are not those of an atom's tile (`self.atoms`).
        """
        if not sizes or sizes[0] != self.rows or len(sizes) > 2:
            return None
        if len(sizes) == 1:
            return Distribution(layout=self._of_rows())
        columns, waves_along_n = sizes[1], self.waves[1]
        atom = (
            self.atoms.get(columns // waves_along_n)
            if isinstance(columns, int) and columns % waves_along_n == 0
            else None
        )
        if atom is None:
            return None
        waves = None if self.waves == (1, 1) else (as_expr(self.waves[0]), as_expr(waves_along_n))
        return Distribution(operand=f"{atom.name}.c", waves=waves)

    def _of_rows(self) -> Layout:
        """Return the layout over lanes of a value with one element per row: the accumulator's layout, with all columns
        at stride 0.

        Every lane that has elements of a row in the accumulator has the row's one element here.
        """
        columns, atom = next(iter(self.atoms.items()))
        accumulator = operand_layout(atom, "c", (self.rows, columns * self.waves[1]), self.waves)
        modes = []
        for mode, is_lanes in ((accumulator[0], True), (accumulator[1], False)):
            pairs = zip(leaves(mode.shape), leaves(mode.stride), strict=True)
            steps = [(n, 0 if step % self.rows == 0 else step) for n, step in pairs]
            modes.append([(n, step) for n, step in steps if is_lanes or step] or [(1, 0)])
        shape, stride = (tuple(tuple(pair[i] for pair in mode) for mode in modes) for i in (0, 1))
        return Layout(shape, stride)


def fragment_layout_of(
    products: Mapping[Op, Microkernel | None], machine: Machine, width: Callable[[Expr], int]
) -> FragmentLayout | None:
    """Return the register layout (FragmentLayout) that the accumulators of all `products` share; None if there is none.

    `products` is {MMA: its Microkernel, or None for scalar loops}; `width(d)` is the extent of a task along the
    dimension d. None without MMAs, or if an MMA has no atom that reads operands from shared memory. None also unless
    all have the same M dimension, the same rows of an accumulator tile, and the same grid of wave groups.
    """
    kernels = [(op, kernel) for op, kernel in products.items() if kernel is not None and kernel.slab is not None]
    if not kernels or len(kernels) < len(products):
        return None
    first = kernels[0][1]
    c = first.atom.c
    axes = []
    for op, each in kernels:
        axes_of_product = axes_in(op, width)
        axes.append(axes_of_product if isinstance(axes_of_product, str) else each.oriented(axes_of_product))
    row = {None if isinstance(x, str) else x.m for x in axes}
    if len(row) > 1 or None in row or any((x.rows, x.group_grid) != (first.rows, first.group_grid) for _, x in kernels):
        return None
    atoms = {x.atom.shape[1] * x.blocks: x.atom for _, x in kernels}  # diagonal blocks are neighbours along N
    for atom in machine.multiply.values():
        if (atom.c.rows, atom.c.lanes, atom.c.dtype) == (c.rows, c.lanes, c.dtype):
            atoms.setdefault(atom.shape[1], atom)
    return FragmentLayout(row.pop(), first.rows, first.group_grid, atoms)  # type: ignore[arg-type]
