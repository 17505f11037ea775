"""Bind the plan of a grid program, whose workgroup tiles are constraints of the author and so part of its meaning.

A plan of a grid program only says how loops and MMAs run.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.limits import did_you_mean
from tilewright.plan.bind_axes import loop_tile_size
from tilewright.plan.bind_products import bind_products
from tilewright.plan.bound import BoundKernel
from tilewright.plan.general import blocks_of
from tilewright.plan.grids import Grid
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.microkernel import mma_statements
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Axis, Schedule


def bind_grid(kernel: KernelProgram, plan: Schedule) -> BoundKernel:
    """Check the plan of a grid program and return both as a BoundKernel, in which every MMA has a statement.

    In a grid program the author's constraints give the workgroup tiles; a plan states only loops and MMAs within them.
    `kernel` is the grid program. Raise an ArgumentError that quotes the first illegal statement of the plan.
    """
    program, machine = kernel.program, kernel.machine
    grid = Grid(program, kernel.sizes, machine, kernel.free, kernel.opened)
    axes, loops = _task_and_loop_axes(grid, plan)
    for op in grid.tiles:
        axis = loops.get(str(op.attrs["axis"]))
        if axis is not None:
            grid.tiles[op] = loop_tile_size(axis) or grid.size(op.attrs["axis"])
    loop_tile_of = {d: n for d in grid.dims if (n := loop_tile_size(axes[str(d)])) is not None}
    if loop_tile_of and not grid.sums():
        raise refused(next(iter(axes.values())), "only products of one loop, none of another's result, have blocks")
    products = bind_products(plan.products, program, machine, grid.products())
    blocks = blocks_of(products, grid.dims, grid.width, machine) if loop_tile_of else {}
    for d, n in loop_tile_of.items():
        if blocks.get(d) != n:
            block = blocks.get(d)
            raise refused(axes[str(d)], f"the product's block has {block}" if block else "no product has blocks of it")
    for d in blocks.keys() - loop_tile_of.keys():
        raise refused(axes[str(d)], f"accumulators in registers need a loop over {d} too: `loop {blocks[d]}`")
    return BoundKernel(kernel, replace(plan, products=mma_statements(products, program)))


def _task_and_loop_axes(grid: Grid, plan: Schedule) -> tuple[dict[str, Axis], dict[str, Axis]]:
    """Return ({dimension name: its task axis}, {dimension name: its loop axis}): the axes of a grid program's plan.

    In a grid program the author's constraints give the workgroup tiles; `grid` has these tiles. A task axis states the
    workgroup's tile, a loop axis the tile of a loop. Raise an ArgumentError for
    - an axis that is missing or unknown, or has a wrong extent,
    - a task tile or a `grid` order that differs from the constraints,
    - a loop tile that differs from the author's although the result depends on it,
    - a statement that such a plan cannot have (a placed value, a pipeline, `raster`, `loops`, `waves`, `overlap`).
    """
    names = {word: name for name, word in grid.words.items()}
    task_axes: dict[str, Axis] = {}
    loop_axes: dict[str, Axis] = {}
    for axis in plan.axes:
        if axis.name not in names:
            near = did_you_mean(axis.name, names)
            raise refused(axis, f"no constraint names {axis.name}; they name {', '.join(names)}{near}")
        name = names[axis.name]
        extent = next((n for s, n in grid.sizes.items() if s.name == name), axis.digits[0].extent)
        if [d.extent for d in axis.digits] != [max(1, extent)]:
            raise refused(axis, f"plans are for sizes: here {name} has {extent}")
        levels = [cut.level for cut in axis.splits]
        if name in grid.tasks and (name in task_axes) < (name not in grid.loops or levels[:1] == ["task"]):
            if levels not in (["task"], ["task", "loop"]) or axis.splits[0].size != grid.tasks[name]:
                raise refused(axis, f"its constraint says `task {grid.tasks[name]}`, then perhaps a loop")
            task_axes[name] = axis
        elif levels not in ([], ["loop"]):
            raise refused(axis, "its constraint is a loop's tile")
        else:
            _check_fixed_loop_tile(grid, name, axis)
            loop_axes[name] = axis
    for word, name in names.items():
        if (name in grid.tasks and name not in task_axes) or (name in grid.loops and name not in loop_axes):
            raise refused(plan.lines()[0], f"no line says `axis {word}`")
    if plan.grid != tuple(grid.words[name] for name in grid.tasks):
        grid_names = ", ".join(grid.words[name] for name in grid.tasks)
        raise refused(plan.line("grid"), f"workgroups are ordered by the constraints: `grid {grid_names}`")
    others = [plan.line(word) for word in ("raster", "loops", "waves", "overlap") if plan.line(word)]
    for statement in (*plan.values, *([plan.pipeline] if plan.pipeline else []), *others):
        raise refused(statement, "a grid program's plan has no such line")
    return task_axes, loop_axes


def _check_fixed_loop_tile(grid: Grid, name: str, axis: Axis) -> None:
    """Raise an ArgumentError if the plan's `axis` changes the tile of a loop whose result depends on its tile size.

    `name` is the dimension that the loop is over. The tile must stay the author's, which `grid` (the grid program) has.
    Any tile is legal for a loop whose tile size does not change the result.
    """
    is_free = any(str(op.attrs["axis"]) == name for op in grid.tiles)
    tile = grid.loops[name]
    if not is_free and (loop_tile_size(axis) or tile) != tile:
        raise refused(axis, f"its loop gives other results for other tiles: `loop {tile}`")
