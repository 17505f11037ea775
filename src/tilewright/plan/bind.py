"""Binding: the lines of a plan become the parameters that the lowering of one kernel reads. Nothing is searched.

Each line is checked against the program (dimensions, loops, MMAs) and the machine (atoms, registers, waves). A line
that cannot be done is refused with the rule that it breaks.

| line of the plan          | parameter of the lowering                                                       |
|---------------------------|---------------------------------------------------------------------------------|
| `axis M = (M 512): task 64` | width of a task, in the order of `grid`                                        |
| `axis K = (K 512): loop 64` | tile of a loop; with a pipeline, the K step of an MMA                          |
| `mma by ATOM, tile 64x64`  | atom, accumulator tile, orientation; groups of waves follow from the pipeline |
| `producer ...`, `overlap ...` | pipeline                                                                    |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op
from tilewright.machine import Machine
from tilewright.plan.bind_axes import axes_of, loop_tile_size, task_widths, tile_of_loop
from tilewright.plan.bind_pipeline import bind_pipeline
from tilewright.plan.bind_products import bind_products, check_orientation
from tilewright.plan.general import Cuts
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.legality import check_loop_tile
from tilewright.plan.microkernel import Microkernel, axes_in, products_of
from tilewright.plan.model import Size
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Axis, Schedule
from tilewright.plan.term_boxes import Terms, max_unrolled_steps


def bind(kernel: KernelProgram, plan: Schedule, simt: Terms | None = None) -> Cuts:
    """Return Cuts, the parameters for the lowering of a kernel (tiles, microkernels, waves), as a plan states them.

    Raise an error that quotes the first statement of the plan that is illegal for this kernel. `simt` (Terms: a product
    that lanes compute without MMA atoms) is None if the kernel has no such product; if it names dimensions, the grid
    may split these instead of the kernel's.
    """
    if plan.atom is not None:
        raise refused(f"atom {plan.atom}", "only a single contraction on a CPU has this line; others say `mma by ATOM`")
    axes = axes_of(kernel, plan)
    parallel = simt.dims if simt is not None and simt.dims else kernel.parallel
    widths = task_widths(kernel, plan, axes, parallel)
    if plan.pipeline is not None:
        return bind_pipeline(kernel, plan, axes, widths)
    return _bind_without_pipeline(kernel, plan, axes, widths, parallel, simt)


def _bind_without_pipeline(
    kernel: KernelProgram,
    plan: Schedule,
    axes: Mapping[Expr, Axis],
    widths: dict[Expr, int],
    parallel: tuple[Expr, ...],
    simt: Terms | None,
) -> Cuts:
    """Return Cuts, the parameters for the lowering, of a plan without warp specialisation: all waves run the same code.

    `axes` maps each dimension to the plan's axis (how it is split), `widths` maps each dimension of the grid to the
    extent of a task (one workgroup's tile), and `parallel` are the dimensions that the grid may split. `simt` (Terms: a
    product that lanes compute without MMA atoms) may be None. Raise an error that quotes the first illegal statement.
    """
    machine = kernel.machine
    _refuse_foreign_statements(plan)
    loops = {op: axes[d] for op, d in kernel.loops.items() if d in axes and d not in parallel}
    tiles = {op: tile_of_loop(kernel, op, axis) for op, axis in loops.items()}
    loop_tile_of = {kernel.loops[op]: tile for op, tile in tiles.items()}
    for d, axis in axes.items():
        loop = loop_tile_size(axis)
        if loop is not None and d not in loop_tile_of and d not in parallel and loop < kernel.size(d):
            raise refused(axis, f"no loop iterates over {axis.name}: it is whole")

    def width(d: Expr) -> int:
        """Return the extent of `d` that is computed at a time, in elements.

        It is the extent of a task (one workgroup's tile) if the grid splits `d`; else the loop tile if a loop is over
        `d`; else the whole extent of `d`.
        """
        return widths.get(d) or loop_tile_of.get(d) or kernel.size(d)

    by_loops: dict[Op, Microkernel | None] = dict.fromkeys(kernel.products.values())
    default_products = by_loops if simt else products_of(kernel.program, machine, width, kernel.size, kernel.opened)
    products = bind_products(plan.products, kernel.program, machine, default_products)
    blocks = _task_loop_tiles(axes, products, parallel, width)
    _check_loop_tiles(kernel, plan, axes, products, blocks, width)
    padded = {d: blocks[d] for d in (list(blocks)[:1] if kernel.opened else ())}  # one code for all pieces
    waves = _waves_per_task(plan, products, machine, simt)
    free_tiles = {op: n for op, n in tiles.items() if op in kernel.free}
    cuts = Cuts(
        widths,
        blocks,
        free_tiles,
        products,
        extended=padded,
        schedule=plan.order,
        packed=bool(kernel.opened),
        waves=waves,
    )
    if simt is None:
        return cuts
    (tile,) = free_tiles.values()
    simt = replace(simt, tile=tile)
    return replace(cuts, terms=max_unrolled_steps(simt, widths, waves, machine), lane_box=simt.box)


def _refuse_foreign_statements(plan: Schedule) -> None:
    """Raise an error if `plan`, which has no pipeline, has a statement that only other kinds of plans can have.

    These are, in the order of the checks: `overlap`, a raster group above 1, a statement that places a value (such as
    an operand to be packed), `loops`, and an MMA statement that says `transposed`. The error quotes the first such
    statement.
    """
    if plan.overlap != "none":
        raise refused(plan.line("overlap"), "nothing overlaps without a line `producer`")
    if plan.raster > 1:
        raise refused(plan.line("raster"), "only a plan with `producer` has a raster")
    for line in (*plan.values, *([plan.line("loops")] if plan.loops else [])):
        raise refused(line, "only halo tiles, copies made first and contractions on a CPU have this line")
    for product in plan.products:
        check_orientation(product)


def _waves_per_task(
    plan: Schedule, products: Mapping[Op, Microkernel | None], machine: Machine, simt: Terms | None
) -> int:
    """Return the number of waves (warps) that compute one task, from the plan's statement `waves`; 1 if it has none.

    A task is one workgroup's tile. Raise an error for more waves than a workgroup can have, and for more than 1 wave on
    a CPU. Raise an error too for more than 1 wave if an MMA has an atom, because atoms then decide the number of waves.
    `products` maps each MMA to its microkernel, or to None if it has no atom; such an MMA allows several waves only
    with `simt` (Terms: a product that lanes compute without MMA atoms).
    """
    atom_decides = any(microkernel is not None for microkernel in products.values()) or (
        bool(products) and simt is None
    )
    if plan.waves > 1 and (atom_decides or machine.lanes is None):
        raise refused(plan.line("waves"), "the atoms, or the machine, say how many waves compute a task")
    if not 1 <= plan.waves <= machine.waves:
        raise refused(plan.line("waves"), f"a workgroup has 1 to {machine.waves}")
    return plan.waves


def _task_loop_tiles(
    axes: Mapping[Expr, Axis],
    products: Mapping[Op, Microkernel | None],
    parallel: tuple[Expr, ...],
    width: Size,
) -> dict[Expr, int]:
    """Return the loops that a task runs over its own tile: {dimension: loop tile in elements}, outermost loop first.

    A task is one workgroup's tile. The loops are over those of `parallel` (dimensions that the grid may split) for
    which the plan's axis in `axes` states a loop tile. If all MMAs have the same M and N, the order is N, M, other
    dimensions of the accumulators, then the rest; otherwise it is the order of `axes`. `products` maps each MMA to its
    microkernel. `width(d)` evaluates a task's extent along a dimension d.
    """
    loop_tile_of = {d: n for d, axis in axes.items() if d in parallel and (n := loop_tile_size(axis)) is not None}
    every = [axes_in(op, width) for op in products]
    orders = [[x.n, x.m, *x.around] for x in every if not isinstance(x, str)]
    if not orders or len(orders) < len(every) or any(order != orders[0] for order in orders):
        return loop_tile_of
    order = orders[0]
    return dict(sorted(loop_tile_of.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def _check_loop_tiles(
    kernel: KernelProgram,
    plan: Schedule,
    axes: Mapping[Expr, Axis],
    products: Mapping[Op, Microkernel | None],
    blocks: Mapping[Expr, int],
    width: Size,
) -> None:
    """Raise an error if a loop tile of the plan is longer than the dimension that it splits.

    The dimension counts rounded up to whole accumulator tiles, or along K to whole atoms. On a GPU also raise an error
    for a loop tile along M or N that differs from the accumulator tile. `axes` maps each dimension to the plan's axis,
    `products` maps each MMA to its microkernel, and `blocks` maps dimensions that the grid may split to their loop
    tiles. `width(d)` evaluates a task's extent (one workgroup's tile) along a dimension d.
    """
    units = dict.fromkeys(axes, 1)
    lines = {line.name: line for line in plan.products}
    for name, op in kernel.products.items():
        microkernel, product_axes = products.get(op), axes_in(op, width)
        if microkernel is None or isinstance(product_axes, str):
            continue
        units |= {
            product_axes.k: microkernel.slab or microkernel.atom.shape[2],
            product_axes.m: microkernel.rows,
            product_axes.n: microkernel.columns,
        }
        for d, tile in ((product_axes.m, microkernel.rows), (product_axes.n, microkernel.columns)):
            if kernel.machine.lanes is not None and blocks.get(d, tile) != tile:
                raise refused((axes[d], *([lines[name]] if name in lines else [])), f"the block has {tile} of {d}")
    for d, axis in axes.items():
        if (loop := loop_tile_size(axis)) is not None:
            check_loop_tile(axis, loop, max(kernel.size(d), blocks.get(d, 1)), units[d])
