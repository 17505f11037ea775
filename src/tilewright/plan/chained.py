"""Chains of MMAs whose intermediate values stay in registers, such as attention.

All MMAs have the same M dimension. Each accumulator is operand A of another MMA, or is reduced along its rows. Lanes
hold an accumulator in its atom's fragment layout while elementwise operations and row reductions change it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op, Program, TileType, Value
from tilewright.plan.boxes import cut_dims
from tilewright.plan.computed import GIVEN, SIMPLE
from tilewright.plan.fixed import tiles_of
from tilewright.plan.microkernel import Axes, axes_in, mmas_by_name
from tilewright.plan.model import Size
from tilewright.plan.pipelined import why_no_overrun


def chained_axes(
    program: Program, sizes: Mapping[Symbol, int], size: Size, free: Collection[Op]
) -> dict[Op, Axes] | str:
    """Return {mma: Axes (its M, N, K)} of a chain of MMAs, such as attention; or text: why the program is no chain.

    In a chain all MMAs have the same M, and use results of other MMAs from registers. `free` are the loops whose tile
    size does not change the result. `sizes` maps size symbols to numbers, and `size(d)` evaluates the extent of a
    dimension d.
    """
    if not mmas_by_name(program):
        return "it has no product"
    if why := why_no_overrun(program):
        return why
    dims, loop_tile_of = chained_task_dims(program, size), loop_tiles(program, sizes, free)
    if isinstance(loop_tile_of, str):
        return loop_tile_of

    def width(d: Expr) -> int:
        """Return the number of elements of the dimension `d` that a task (one workgroup's tile) computes at a time.

        It is the loop tile if a loop is over `d`; else 1 if the grid splits `d` and `d` is no M or N; else all of `d`.
        """
        return loop_tile_of.get(d) or (1 if d in dims and d not in tiled else size(d))

    tiled: set[Expr] = {d for op in mmas_by_name(program).values() for d in op.operands[2].type.dims[-1:]}
    makers = program.makers()
    axes: dict[Op, Axes] = {}
    for op in mmas_by_name(program).values():
        rows = _row_dims(op)
        tiled |= set(([d for d in rows if d in dims] or rows)[-1:])  # a task has one of the other rows
        product_axes = axes_in(op, width)
        if isinstance(product_axes, str):
            return product_axes
        if product_axes.m not in dims:
            return "the grid cannot split the rows of its accumulator"
        if any(width(d) > 1 for d in product_axes.around):
            return "its accumulator has more dimensions than rows and columns"
        a, b = product_axes.operands(op)
        if any(width(d) > 1 for d in product_axes.deep) and not is_read(a, makers):
            return "an operand that is computed is reduced over more than one dimension"
        if not is_read(b, makers):
            return "operand B is computed"
        axes[op] = product_axes
    (shared_m, *others) = {x.m for x in axes.values()}
    if others:
        return "its products have rows of different dimensions"
    if _has_wide_value(program, shared_m, dims, size):
        return "a value between its products has more than rows and columns"
    return axes


def chained_task_dims(program: Program, size: Size) -> tuple[Expr, ...]:
    """Return the dimensions that the grid of a chain of MMAs may split; M is among them even if its extent is 1.

    In a chain, MMAs use results of other MMAs from registers, as in attention. `size(d)` evaluates the extent of a
    dimension d.
    """
    row_dims = [_row_dims(op) for op in mmas_by_name(program).values()]
    unit_rows = {rows[-1] for rows in row_dims if rows and all(size(d) == 1 for d in rows)}
    return cut_dims(program, lambda d: 2 if d in unit_rows else size(d))


def loop_tiles(program: Program, sizes: Mapping[Symbol, int], free: Collection[Op]) -> dict[Expr, int] | str:
    """Return {dimension: tile size in elements} of the loops that are no K loops; or text: why a loop has no tile size.

    A loop is a K loop if it only adds MMAs and is in `free` (its tile size does not change the result). Tile sizes are
    those of the author's constraints; a loop without one, or a while loop, gives the text. `sizes` maps size symbols to
    numbers.
    """
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
    """True if a loop only adds up MMAs, as a K loop does: nothing in its body uses an MMA's result.

    `loop` is the loop operation. Its body may have reads, constants, elementwise operations and MMAs only.
    """
    (body,) = loop.blocks
    sums = {x.result for x in body.ops if x.name == "mma"}
    used = {v for x in body.ops if x.name != "yield" for v in x.operands}
    return sums.isdisjoint(used) and all(x.name in (*SIMPLE, *GIVEN, "read", "mma", "yield") for x in body.ops)


def is_read(value: Value, makers: Mapping[Value, Op]) -> bool:
    """True if a value is directly the result of a read of memory, at coordinates that do not depend on data.

    `makers` maps a value to the operation that computes it.
    """
    op = makers.get(value)
    return op is not None and op.name == "read" and not op.attrs.get("lookups")


def _row_dims(op: Op) -> list[Expr]:
    """Return the M dimensions of the mma `op`, outermost first: those of its first operand that its second lacks."""
    a, b, _ = (v.type.dims for v in op.operands)
    return [d for d in a if d not in b]


def _has_wide_value(program: Program, m: Expr, grid_dims: Collection[Expr], size: Size) -> bool:
    """True if a computed value has two or more dimensions besides M in a task, so that it is no matrix.

    A task is one workgroup's tile. `m` is the dimension M. Dimensions in `grid_dims` (those that the grid splits) and
    dimensions of one element do not count. Reads and constants are no computed values. `size(d)` evaluates the extent
    of a dimension d.
    """
    for value in (v for op in program.walk() if op.name not in ("read", "fill", "scalar") for v in op.results):
        if isinstance(value.type, TileType):
            others = [d for d in value.type.dims if d is not m and d not in grid_dims]
            if sum(size(d) > 1 for d in others) > 1:
                return True
    return False
