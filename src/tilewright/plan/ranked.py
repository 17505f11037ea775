"""Task widths of a CPU program with a single MMA by vectors: those that the cost model of contractions ranks first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from tilewright.algebra.expr import Expr, Symbol, as_expr, index
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.machine import Machine, MultiplyAtom, OpaqueOperand
from tilewright.plan.blocking import COLUMNS, Blocking
from tilewright.plan.contraction import Contraction, Operand
from tilewright.plan.microkernel import Axes, Microkernel, atoms_for, axes_in, row_stride_of_a, types_of
from tilewright.plan.model import Size, element_bytes
from tilewright.plan.validate import why_too_large
from tilewright.plan.vectors import vector_blockings, vector_cost


def rank_vector_blockings(
    program: Program, op: Op, parallel: Collection[Expr], size: Size, machine: Machine
) -> tuple[dict[Expr, int], dict[Expr, int], Microkernel] | None:
    """Return ({dimension: extent of a task}, {dimension: loop tile}, Microkernel) of the fastest vector tiling of `op`.

    A task is one core's tile; extents and tiles are in elements. Tilings with vectors along N and the loop over N
    outermost are compared by predicted cycles. None if no such tiling is legal: some atom for the types of `op` is no
    vector atom, `op` has no accumulator tile or an extent of 0, M is not its last row dimension, or a loop tile is
    along a dimension that is not in `parallel` (those that the grid may split). `size(d)` evaluates the extent of d.
    """
    axes = axes_in(op, size)
    if isinstance(axes, str) or any(size(d) == 0 for v in op.operands for d in v.type.dims):
        return None
    b_dims = axes.factors(op)[1].type.dims
    rows = [d for d in (*axes.around, axes.m) if d not in b_dims]
    if rows[-1] is not axes.m:
        return None
    batch = [d for d in axes.around if d not in rows]
    contraction = _contraction(program, op, axes, (rows, batch), size, machine)
    best: tuple[float, Blocking] | None = None
    for atom in atoms_for(machine, *types_of(op, axes.swapped, machine)):
        if isinstance(atom.c, OpaqueOperand) or atom.shape[0] > 1:
            return None
        for blocking in vector_blockings(contraction, atom, machine):
            cost = vector_cost(contraction, blocking, machine)
            if (
                blocking.order[0] == COLUMNS
                and why_too_large(cost, machine) is None
                and (best is None or cost.cycles < best[0])
            ):
                best = cost.cycles, blocking
    if best is None:
        return None
    blocking = best[1]
    strip = rows[-2] if len(rows) > 1 else axes.m
    widths = dict.fromkeys((*batch, *rows[:-2]), 1) | {
        axes.m: size(axes.m),
        axes.n: min(blocking.task_columns, size(axes.n)),
    }
    blocks = {axes.n: blocking.columns, axes.m: blocking.rows} | {d: 1 for d in axes.around if size(d) > 1}
    assert isinstance(blocking.atom, MultiplyAtom)
    if not set(blocks) <= set(parallel):
        return None
    return widths | {strip: blocking.strip}, blocks, Microkernel(blocking.atom, blocking.rows, blocking.columns)


def _contraction(
    program: Program, op: Op, axes: Axes, dims: tuple[list[Expr], list[Expr]], size: Size, machine: Machine
) -> Contraction:
    """Return the mma `op` as a Contraction, the cost model's input: its extents, its bytes and the row stride of A.

    The model needs no other coordinates of A and B; these are 0. `dims` is (row dimensions, batch dimensions) of `op`,
    `axes` are its M, N and K. `size(d)` evaluates the extent of a dimension d.
    """
    rows, batch = dims
    makers = program.makers()

    def digits(dims: list[Expr]) -> tuple[Symbol, ...]:
        """Return one index symbol for each of `dims`, with the extent of the dimension."""
        return tuple(index(f"d_{n}_{d}" if isinstance(d, Symbol) else f"d_{n}", size(d)) for n, d in enumerate(dims))

    def operand(value: Value) -> Operand:
        """Return an Operand with the type of `value` and the number of elements of the tensor it is read from.

        If `value` is computed, it has the number of elements of its tile.
        """
        read = makers.get(value)
        memory = read.operands[0].type if read is not None and read.name == "read" else None
        shape = [size(d) for d in value.type.dims]
        if isinstance(memory, MemoryType) and None not in memory.sizes:
            shape = [size(d) for d in memory.sizes if d is not None]
        return Operand("", value.type.dtype, (prod(shape),), (as_expr(0),))

    a, b = map(operand, axes.factors(op))
    row_digits, depth = digits(rows), digits([*axes.deep, axes.k])
    row_stride = row_stride_of_a(program, op, axes, size) // element_bytes(a.dtype)
    a = replace(a, coordinates=(row_stride * row_digits[-1],))
    accumulator = types_of(op, axes.swapped, machine)[2]
    return Contraction(program.name, row_digits, digits([axes.n]), depth, a, b, a, 0.0, accumulator, (), digits(batch))
