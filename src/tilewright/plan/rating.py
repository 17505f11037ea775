"""The predicted time of a kernel whose plan is bound: by the model of its pipeline, of lanes, or of plain waves."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.algebra.expr import Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program
from tilewright.machine import Machine
from tilewright.plan.chain_costs import chain_cycles
from tilewright.plan.chains import chained_products
from tilewright.plan.general import Cuts
from tilewright.plan.lane_boxes import cost_by_terms
from tilewright.plan.microkernel import axes_in
from tilewright.plan.model import Size, cores
from tilewright.plan.pipelined import why_no_pipeline
from tilewright.plan.predicting import predicted
from tilewright.plan.rings import bound_by_memory, ring_cycles, ring_work
from tilewright.plan.terms import product_by_terms


def kernel_cycles(
    program: Program,
    sizes: Mapping[Symbol, int],
    size: Size,
    free: Collection[Op],
    cuts: Cuts,
    machine: Machine,
) -> tuple[float, float]:
    """(cycles that a kernel should take, those that moving its arguments takes)."""
    if cuts.roles is not None:
        return _pipelined(program, sizes, size, free, cuts, machine)
    looped = {op.attrs["axis"]: tile for op, tile in cuts.tiles.items()}
    products = {} if cuts.terms is not None else cuts.products
    cycles, bound = predicted(program, sizes, size, machine, cuts.widths, products, cuts.waves, looped)
    if cuts.terms is None or cuts.lane_box:
        return cycles, bound
    product = product_by_terms(program, free, size, Substitution(dict(sizes)), machine)
    if isinstance(product, str):
        return cycles, bound
    return cost_by_terms(product.terms, cuts.widths, cuts.waves, size, machine, bound * cores(machine)).cycles, bound


def _pipelined(
    program: Program,
    sizes: Mapping[Symbol, int],
    size: Size,
    free: Collection[Op],
    cuts: Cuts,
    machine: Machine,
) -> tuple[float, float]:
    """The same of a kernel with producer and consumer waves."""
    roles, bound = cuts.roles, bound_by_memory(program, size, machine)
    assert roles is not None
    products = {op: how for op, how in cuts.products.items() if how is not None}
    (op, how), *others = products.items()
    if not others and not why_no_pipeline(program, size, free) and not how.at_once:
        axes = axes_in(op, size)
        assert not isinstance(axes, str)
        work = ring_work(program, machine, size, op, how.oriented(axes), (how.atom,), roles.producer[0] > 1)
        if not isinstance(work, str):
            return max(ring_cycles(machine, work, how, roles), bound + machine.limits.launch_cycles), bound
    chain = chained_products(program, sizes, size, machine, free)
    return (0.0 if isinstance(chain, str) else max(chain_cycles(chain, products, roles, cuts.overlap), bound)), bound
