"""Tasks and blocks of a program with one product by vectors: those that the model of contractions ranks first."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from tilewright.algebra.expr import Expr, Symbol, as_expr, index
from tilewright.ir.core import MemoryType, Op, Program, Value
from tilewright.machine import Machine, MultiplyAtom, OpaqueOperand
from tilewright.plan.blocking import COLUMNS, Blocking
from tilewright.plan.contraction import Contraction, Operand
from tilewright.plan.microkernel import Axes, Microkernel, atoms_for, axes_in, names_of, rows_apart, types_of
from tilewright.plan.model import Size, element_bytes
from tilewright.plan.validate import too_much
from tilewright.plan.vectors import vector_blockings, vector_cost


def ranked(
    program: Program, cut: Collection[Expr], size: Size, machine: Machine
) -> tuple[dict[Expr, int], dict[Expr, int], Microkernel] | None:
    """(what a task takes of each dimension, the pieces by which it goes over them, the product's microkernel) that are
    best by the model of a contraction; None where no vectors multiply, or pieces are not of dimensions that are `cut`.
    """
    (op,) = names_of(program).values()
    axes = axes_in(op, size)
    if isinstance(axes, str) or any(size(d) == 0 for v in op.operands for d in v.type.dims):
        return None
    right = axes.factors(op)[1].type.dims
    rows = [d for d in (*axes.around, axes.m) if d not in right]
    if rows[-1] is not axes.m:
        return None
    batch = [d for d in axes.around if d not in rows]
    c = _contraction(program, op, axes, (rows, batch), size, machine)
    best: tuple[float, Blocking] | None = None
    for atom in atoms_for(machine, *types_of(op, axes.swapped, machine)):
        if isinstance(atom.c, OpaqueOperand) or atom.shape[0] > 1:
            return None
        for how in vector_blockings(c, atom, machine):
            cost = vector_cost(c, how, machine)
            if how.order[0] == COLUMNS and too_much(cost, machine) is None and (best is None or cost.cycles < best[0]):
                best = cost.cycles, how
    if best is None:
        return None
    how = best[1]
    strip = rows[-2] if len(rows) > 1 else axes.m
    widths = dict.fromkeys((*batch, *rows[:-2]), 1) | {
        axes.m: size(axes.m),
        axes.n: min(how.task_columns, size(axes.n)),
    }
    blocks = {axes.n: how.columns, axes.m: how.rows} | {d: 1 for d in axes.around if size(d) > 1}
    assert isinstance(how.atom, MultiplyAtom)
    if not set(blocks) <= set(cut):
        return None
    return widths | {strip: how.strip}, blocks, Microkernel(how.atom, how.rows, how.columns)


def _contraction(
    program: Program, op: Op, axes: Axes, dims: tuple[list[Expr], list[Expr]], size: Size, machine: Machine
) -> Contraction:
    """The product as a contraction over rows and batch: sizes and bytes are its own, and how far apart rows of A lie;
    accesses are left out."""
    rows, batch = dims
    made = program.makers()

    def digits(dims: list[Expr]) -> tuple[Symbol, ...]:
        return tuple(index(f"d_{n}_{d}" if isinstance(d, Symbol) else f"d_{n}", size(d)) for n, d in enumerate(dims))

    def operand(value: Value) -> Operand:
        read = made.get(value)
        memory = read.operands[0].type if read is not None and read.name == "read" else None
        shape = [size(d) for d in value.type.dims]
        if isinstance(memory, MemoryType) and None not in memory.sizes:
            shape = [size(d) for d in memory.sizes if d is not None]
        return Operand("", value.type.dtype, (prod(shape),), (as_expr(0),))

    a, b = map(operand, axes.factors(op))
    lines, depth = digits(rows), digits([*axes.deep, axes.k])
    apart = rows_apart(program, op, axes, size) // element_bytes(a.dtype)
    a = replace(a, coordinates=(apart * lines[-1],))
    wide = types_of(op, axes.swapped, machine)[2]
    return Contraction(program.name, lines, digits([axes.n]), depth, a, b, a, 0.0, wide, (), digits(batch))
