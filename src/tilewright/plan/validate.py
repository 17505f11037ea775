"""Whether a plan can be done: refused with the reason, before anything is compiled."""

from __future__ import annotations

from tilewright.errors import ArgumentError
from tilewright.machine import Machine, OpaqueOperand
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.plans import TilePlan, VectorPlan, halo_of, is_direct, plan_text

STAGES = ("direct", "halo", "panel")


def validate(plan: TilePlan | VectorPlan, c: Contraction, machine: Machine) -> None:
    """Raises an ArgumentError that says why a plan is impossible for a contraction on a machine."""
    try:
        atom = machine.multiply_atom(plan.atom)
    except LookupError as fault:
        raise ArgumentError(f"plan {plan_text(plan)}: {fault}") from None

    def need(holds: bool, why: str) -> None:
        if not holds:
            raise ArgumentError(f"plan {plan_text(plan)}: {why}")

    need(
        (atom.a.dtype, atom.b.dtype) == (c.a.dtype, c.b.dtype),
        f"{atom.name} does not multiply {c.a.dtype} by {c.b.dtype}",
    )
    need(atom.c.dtype is c.sum_dtype, f"{atom.name} adds up in {atom.c.dtype}, not in {c.sum_dtype}")
    need(plan.split >= 1, "split must be at least 1")
    tiles = isinstance(atom.c, OpaqueOperand)
    need(tiles == isinstance(plan, TilePlan), f"{atom.name} is for plans of {'tiles' if tiles else 'vectors'}")
    last = c.depth[-1]
    if isinstance(plan, TilePlan):
        need(plan.depth == atom.shape[2], f"depth must be that of {atom.name}, {atom.shape[2]}")
        need(plan.group == atom.shape[2] // 16, f"group must be that of {atom.name}, {atom.shape[2] // 16}")
        need(plan.stage in STAGES, f"stage is one of {', '.join(STAGES)}")
        need(plan.strip >= 1 and plan.steps >= 1, "strip and steps must be at least 1")
        need(
            plan.stage != "direct" or is_direct(c, plan.depth),
            f"rows cannot be read in place: they must lie at one stride, {last.name} side by side in whole steps of "
            f"{plan.depth}",
        )
        need(plan.stage != "halo" or halo_of(c) is not None, "rows do not slide over two dimensions by one")
        need(c.start == 0, "tiles start from zero only")
        return
    need(plan.lanes == atom.shape[1], f"lanes must be those of {atom.name}, {atom.shape[1]}")
    need(plan.group == atom.shape[2], f"group must be that of {atom.name}, {atom.shape[2]}")
    need(plan.rows >= 1 and plan.vectors >= 1 and plan.blocks >= 1, "rows, vectors and blocks must be at least 1")
    used = plan.rows * plan.vectors + plan.vectors + 1
    need(
        used <= machine.limits.registers + 1,
        f"{plan.rows} rows of {plan.vectors} vectors take {used} registers; there are {machine.limits.registers}",
    )
    step = plan.steps * plan.group
    need(step >= 1 and size(last) % step == 0, f"steps of {step} do not divide the {size(last)} of {last.name}")
