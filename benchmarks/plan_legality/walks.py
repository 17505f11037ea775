"""Rules of time: the order in which tasks are taken, what overlaps, and when a kernel begins."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from plan_legality.reading import Broken, Reading
from tilewright.machine import OpaqueOperand


def schedule(r: Reading) -> Iterator[Broken]:
    """Tasks of two axes are grouped where roles walk them, for the cache that cores share; kernels without products are
    walked in reverse. Any worker may take tasks strided, contiguous or one by one."""
    plan = r.plan
    line = plan.line("raster") or plan.line("grid") or "grid"
    if not r.on_gpu and plan.raster != 1:
        yield Broken("schedule", line, "workers of a CPU take tasks in order")
    if plan.raster < 1:
        yield Broken("schedule", line, "a group has one task at least")
    if plan.raster > 1 and (plan.pipeline is None or len(plan.grid) < 2):
        yield Broken("schedule", line, "tasks of two axes are grouped, where roles walk them")
    if plan.order == "dynamic" and plan.pipeline is not None and r.products:
        rows = next((n for n in plan.grid if r.main(r.products[0][1].rows) in r.dims[n]), None)
        around, left = plan.grid[: plan.grid.index(rows)] if rows is not None else (), plan.raster
        for name in reversed(around):
            left //= gcd(left, plan.axis(name).tasks)
        if left > 1 and rows is not None:
            yield Broken("schedule", line, "dynamic tasks are grouped along the axes before rows")
    if plan.order == "reversed" and (plan.pipeline is not None or r.shapes.products):
        yield Broken("schedule", line, "only kernels without products are walked in reverse")


def overlap(r: Reading) -> Iterator[Broken]:
    """`defer` is for sums in tile registers, `ahead` and `turns` for the products of a loop that carries them, `turns`
    for two groups of waves."""
    how, line = r.plan.overlap, f"overlap {r.plan.overlap}"
    if how == "delayed store":
        tiles = r.plan.atom in r.machine.multiply and isinstance(r.machine.multiply[r.plan.atom or ""].c, OpaqueOperand)
        if not tiles:
            yield Broken("overlap", line, "sums that are stored as they are have nothing to defer")
    elif how in ("mma ahead", "ordered"):
        if r.plan.pipeline is None or len(r.products) < 2 or not r.shapes.stated_loops:
            yield Broken("overlap", line, "a loop has several products, the one of which uses the other's")
        elif how == "ordered" and r.groups < 2:
            yield Broken("overlap", line, "two groups of waves take turns")


def launch(r: Reading) -> Iterator[Broken]:
    """A kernel begins while the one before it ends only where the machine has such launches."""
    if r.plan.early and not r.machine.launches:
        yield Broken("launch", "launch early", f"{r.machine.name} has one way to launch")
