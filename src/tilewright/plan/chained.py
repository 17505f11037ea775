"""Programs whose values between products stay in registers: products with the same rows, each accumulator an operand of
another, or reduced along its rows.

Lanes hold an accumulator as its atom gives it, while maps and reductions along rows change it, until it is operand A of
the next product.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op, Program, TileType, Value
from tilewright.plan.boxes import cut_dims
from tilewright.plan.computed import GIVEN, SIMPLE
from tilewright.plan.fixed import tiles_of
from tilewright.plan.microkernel import Axes, axes_in, names_of
from tilewright.plan.model import Size
from tilewright.plan.pipelined import why_no_overrun


def chained_axes(
    program: Program, sizes: Mapping[Symbol, int], size: Size, free: Collection[Op]
) -> dict[Op, Axes] | str:
    """The axes of every product, which have the same M; or why values between them do not stay in registers.

    `free` are the loops that give the same for every tile size.
    """
    if not names_of(program):
        return "it has no product"
    if why := why_no_overrun(program):
        return why
    dims, looped = chained_task_dims(program, size), loop_tiles(program, sizes, free)
    if isinstance(looped, str):
        return looped

    def width(d: Expr) -> int:
        return looped.get(d) or (1 if d in dims and d not in tiled else size(d))

    tiled: set[Expr] = {d for op in names_of(program).values() for d in op.operands[2].type.dims[-1:]}
    makers = program.makers()
    axes: dict[Op, Axes] = {}
    for op in names_of(program).values():
        rows = _row_dims(op)
        tiled |= set(([d for d in rows if d in dims] or rows)[-1:])  # a task has one of the other rows
        each = axes_in(op, width)
        if isinstance(each, str):
            return each
        if each.m not in dims:
            return "tasks cannot cut the rows of its sums"
        if any(width(d) > 1 for d in each.around):
            return "its sums have more dimensions than rows and columns"
        a, b = each.factors(op)
        if any(width(d) > 1 for d in each.deep) and not is_read(a, makers):
            return "a factor that is computed is summed over more than one dimension"
        if not is_read(b, makers):
            return "a factor B is computed"
        axes[op] = each
    (row, *others) = {x.m for x in axes.values()}
    if others:
        return "its products have rows of different dimensions"
    if _has_wide_value(program, row, dims, size):
        return "a value between its products has more than rows and columns"
    return axes


def chained_task_dims(program: Program, size: Size) -> tuple[Expr, ...]:
    """The dimensions that tasks cut; among these stand rows of size 1, since a task has them all the same."""
    every = [_row_dims(op) for op in names_of(program).values()]
    single = {rows[-1] for rows in every if rows and all(size(d) == 1 for d in rows)}
    return cut_dims(program, lambda d: 2 if d in single else size(d))


def loop_tiles(program: Program, sizes: Mapping[Symbol, int], free: Collection[Op]) -> dict[Expr, int] | str:
    """The tile of every loop but K loops of products; or why one has none."""
    _, tilings = tiles_of(program, sizes)
    tiles: dict[Expr, int] = {}
    for op in program.walk():
        if op.name == "iterate" and not (op in free and adds_products(op)):
            tile = tilings.get(str(op.attrs["axis"]))
            if op.attrs.get("start") or tile is None:
                return "a loop of it has no tile size that is a number"
            tiles[op.attrs["axis"]] = tile
    return tiles


def adds_products(loop: Op) -> bool:
    """True if a loop's body only multiplies what it reads, or computes from that, so that it carries an accumulator."""
    (body,) = loop.blocks
    sums = {x.result for x in body.ops if x.name == "mma"}
    used = {v for x in body.ops if x.name != "yield" for v in x.operands}
    return sums.isdisjoint(used) and all(x.name in (*SIMPLE, *GIVEN, "read", "mma", "yield") for x in body.ops)


def is_read(value: Value, makers: Mapping[Value, Op]) -> bool:
    """True if a value is read from memory, at positions that do not depend on data."""
    op = makers.get(value)
    return op is not None and op.name == "read" and not op.attrs.get("lookups")


def _row_dims(op: Op) -> list[Expr]:
    """The dimensions of a product that its first operand alone has."""
    a, b, _ = (v.type.dims for v in op.operands)
    return [d for d in a if d not in b]


def _has_wide_value(program: Program, row: Expr, dims: Collection[Expr], size: Size) -> bool:
    """True if a computed value has two dimensions of more than one element beside rows and those that tasks cut."""
    for value in (v for op in program.walk() if op.name not in ("read", "fill", "scalar") for v in op.results):
        if isinstance(value.type, TileType):
            others = [d for d in value.type.dims if d is not row and d not in dims]
            if sum(size(d) > 1 for d in others) > 1:
                return True
    return False
