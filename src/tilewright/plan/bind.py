"""Binding: a plan is checked against the program and the machine, and becomes a `BoundKernel`. Nothing is searched.

A statement that breaks a rule is refused by an error that quotes it. An MMA without a statement gets the statement of
the fastest microkernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilewright.ir.core import Op
from tilewright.plan.bind_axes import axes_of, check_tasks, loop_tile_size
from tilewright.plan.bind_pipeline import check_pipelined
from tilewright.plan.bind_products import bind_products, check_orientation
from tilewright.plan.bind_tile_tasks import bind_tile_task
from tilewright.plan.bound import BoundKernel
from tilewright.plan.kernel import KernelProgram
from tilewright.plan.legality import check_loop_tile
from tilewright.plan.microkernel import Microkernel, axes_in, best_microkernels, mma_statements
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import Schedule
from tilewright.plan.tile_tasks import states_tile_task


def bind(kernel: KernelProgram, plan: Schedule) -> BoundKernel:
    """Check `plan` against `kernel` and return both as a BoundKernel, in which every MMA has a statement.

    An MMA's statement gives its atom (MMA instruction) and accumulator tile. If the plan has no pipeline, missing
    statements are added; with a pipeline, a missing one is illegal. Raise an ArgumentError that quotes the first
    statement of the plan that is illegal for this kernel. A statement `atom` is always illegal, as it belongs to
    another type of plan: that of a single contraction on a CPU.
    """
    if plan.atom is not None:
        raise refused(f"atom {plan.atom}", "only a single contraction on a CPU has this line; others say `mma by ATOM`")
    axes = axes_of(kernel, plan)
    check_tasks(kernel, plan, axes, kernel.parallel)
    bound = BoundKernel(kernel, plan)
    if plan.pipeline is not None:
        check_pipelined(bound)
        return bound
    return _bind_without_pipeline(bound)


def _bind_without_pipeline(bound: BoundKernel) -> BoundKernel:
    """Check a plan without a pipeline (without producer waves) and return it as a BoundKernel with all MMA statements.

    `bound` has the kernel and its plan. An MMA without a statement gets one: the atom and accumulator tile of the
    fastest microkernel, or scalar loops in a SIMT product (lanes multiply, without an atom). Raise an ArgumentError
    that quotes the first illegal statement, such as a loop tile of a dimension that no loop is over.
    """
    kernel, plan, axes = bound.kernel, bound.plan, bound.axes
    if states_tile_task(plan):
        return bind_tile_task(bound)
    _refuse_foreign_statements(plan)
    for d, axis in axes.items():
        loop = loop_tile_size(axis)
        if loop is not None and d not in bound.loop_tiles and d not in kernel.parallel and loop < kernel.size(d):
            raise refused(axis, f"no loop iterates over {axis.name}: it is whole")
    by_loops: dict[Op, Microkernel | None] = dict.fromkeys(kernel.products.values())
    defaults = (
        best_microkernels(kernel.program, kernel.machine, bound.width, kernel.size, kernel.opened)
        if kernel.simt is None
        else by_loops
    )
    products = bind_products(plan.products, kernel.program, kernel.machine, defaults)
    bound = BoundKernel(kernel, replace(plan, products=mma_statements(products, kernel.program)))
    _check_loop_tiles(bound, plan)
    _check_waves(plan, products, kernel)
    return bound


def _refuse_foreign_statements(plan: Schedule) -> None:
    """Raise an ArgumentError if `plan`, which has no pipeline, has a statement that only other types of plans may have.

    These statements are illegal here: `overlap`; a raster group above 1; a statement that places a value (for example,
    an operand to be packed); `loops`; and an MMA statement that says `transposed`. They are checked in this order, and
    the error quotes the first one.
    """
    if plan.overlap != "none":
        raise refused(plan.line("overlap"), "nothing overlaps without a line `producer`")
    if plan.raster > 1:
        raise refused(plan.line("raster"), "only a plan with `producer` has a raster")
    for line in (*plan.values, *([plan.line("loops")] if plan.loops else [])):
        raise refused(line, "only halo tiles, copies made first and contractions on a CPU have this line")
    for product in plan.products:
        check_orientation(product)


def _check_waves(plan: Schedule, products: Mapping[Op, Microkernel | None], kernel: KernelProgram) -> None:
    """Raise an ArgumentError if the plan's number of waves (warps) that compute one task is illegal.

    A task is one workgroup's tile. The number must be from 1 to the largest that a workgroup can have. More than 1 wave
    is illegal on a CPU, and if an MMA has an atom, as atoms decide the number of waves. An MMA without an atom allows
    several waves only in a SIMT product (`kernel.simt`). `products` maps each MMA to its microkernel, or to None if it
    has no atom.
    """
    machine = kernel.machine
    atom_decides = any(microkernel is not None for microkernel in products.values()) or (
        bool(products) and kernel.simt is None
    )
    if plan.waves > 1 and (atom_decides or machine.lanes is None):
        raise refused(plan.line("waves"), "the atoms, or the machine, say how many waves compute a task")
    if not 1 <= plan.waves <= machine.waves:
        raise refused(plan.line("waves"), f"a workgroup has 1 to {machine.waves}")


def _check_loop_tiles(bound: BoundKernel, plan: Schedule) -> None:
    """Raise an ArgumentError if a loop tile of the plan is longer than the dimension that it splits.

    Before the comparison, the dimension's extent is rounded up to whole accumulator tiles (M, N) or whole atoms (K). On
    a GPU, raise an ArgumentError too if a loop tile along M or N differs from the accumulator tile. `bound` has the
    plan with a statement for every MMA; `plan` is the plan as it was given, whose MMA statements errors quote.
    """
    kernel, axes, blocks = bound.kernel, bound.axes, bound.blocks
    units = dict.fromkeys(axes, 1)
    lines = {line.name: line for line in plan.products}
    for name, op in kernel.products.items():
        microkernel, product_axes = bound.products.get(op), axes_in(op, bound.width)
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
