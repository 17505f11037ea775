"""The plan of a grid program, bound: its constraints are part of its meaning; a plan says how loops and MMAs go."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.algebra.expr import Expr, Symbol
from tilewright.ir.core import Op, Program
from tilewright.limits import did_you_mean
from tilewright.machine import Machine
from tilewright.plan.bind_axes import loop_of
from tilewright.plan.bind_products import taken
from tilewright.plan.general import Cuts, blocks_of
from tilewright.plan.grids import Grid
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Axis, Schedule


def bind_grid(
    program: Program,
    sizes: Mapping[Symbol, int],
    machine: Machine,
    free: Collection[Op],
    opened: Collection[Expr],
    plan: Schedule,
) -> Cuts:
    """The parameters that a plan gives for a grid program."""
    grid = Grid(program, sizes, machine, free, opened)
    axes, loops = _axes(grid, plan)
    for op in grid.tiles:
        axis = loops.get(str(op.attrs["axis"]))
        if axis is not None:
            grid.tiles[op] = loop_of(axis) or grid.size(op.attrs["axis"])
    pieces = {d: n for d in grid.dims if (n := loop_of(axes[str(d)])) is not None}
    alone = grid.alone()
    if pieces and alone is None:
        raise refused(next(iter(axes.values())), "only the sums of one product stay in registers over a loop")
    products = taken(plan.products, program, machine, grid.products())
    blocks = blocks_of(products, grid.dims, grid.width) if pieces else {}
    for d, n in pieces.items():
        if blocks.get(d) != n:
            there = blocks.get(d)
            raise refused(axes[str(d)], f"the product's block has {there}" if there else "no product has blocks of it")
    for d in blocks.keys() - pieces.keys():
        raise refused(axes[str(d)], f"sums that stay in registers have a loop over {d} too: `loop {blocks[d]}`")
    return Cuts(blocks=blocks, products=products, tiles=grid.tiles)


def _axes(grid: Grid, plan: Schedule) -> tuple[dict[str, Axis], dict[str, Axis]]:
    """(the axes of workgroups, those of loops), by dimension; workgroup tiles are the constraints'."""
    names = {word: name for name, word in grid.words.items()}
    axes: dict[str, Axis] = {}
    loops: dict[str, Axis] = {}
    for axis in plan.axes:
        if axis.name not in names:
            near = did_you_mean(axis.name, names)
            raise refused(axis, f"no constraint names {axis.name}; they name {', '.join(names)}{near}")
        name = names[axis.name]
        extent = next((n for s, n in grid.sizes.items() if s.name == name), axis.digits[0].extent)
        if [d.extent for d in axis.digits] != [max(1, extent)]:
            raise refused(axis, f"plans are for sizes: here {name} has {extent}")
        levels = [cut.level for cut in axis.splits]
        if name in grid.tasks and (name in axes) < (name not in grid.loops or levels[:1] == ["task"]):
            if levels not in (["task"], ["task", "loop"]) or axis.splits[0].size != grid.tasks[name]:
                raise refused(axis, f"its constraint says `task {grid.tasks[name]}`, then perhaps a loop")
            axes[name] = axis
        elif levels not in ([], ["loop"]):
            raise refused(axis, "its constraint is a loop's tile")
        else:
            _check_loop(grid, name, axis)
            loops[name] = axis
    for word, name in names.items():
        if (name in grid.tasks and name not in axes) or (name in grid.loops and name not in loops):
            raise refused(plan.lines()[0], f"no line says `axis {word}`")
    if plan.grid != tuple(grid.words[name] for name in grid.tasks):
        there = ", ".join(grid.words[name] for name in grid.tasks)
        raise refused(plan.line("grid"), f"workgroups are ordered by the constraints: `grid {there}`")
    for line in (*plan.values, *([plan.pipeline] if plan.pipeline else [])):
        raise refused(line, "a grid program's plan has no such line")
    return axes, loops


def _check_loop(grid: Grid, name: str, axis: Axis) -> None:
    """Refuses another tile of a loop that gives other results for other tiles."""
    is_free = any(str(op.attrs["axis"]) == name for op in grid.tiles)
    tile = grid.loops[name]
    if not is_free and (loop_of(axis) or tile) != tile:
        raise refused(axis, f"its loop gives other results for other tiles: `loop {tile}`")
