"""Reports on a kernel's plan: contractions that do not use the machine's multiplication atoms, and slow plans.

Each is a warning at the author's line, or an error if `compile` was asked to require the property.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from tilewright.compiler.required import Required
from tilewright.driver.bound_plan import Realised
from tilewright.errors import FastPathLost, NoAtoms, SlowPlan, SlowPlanWarning
from tilewright.ir.core import Op, Program
from tilewright.ir.location import Location, author_location
from tilewright.ir.printer import op_text
from tilewright.machine import Machine
from tilewright.plan import microkernel


def report_plan(program: Program, realised: Realised, machine: Machine, required: Required, warned: Required) -> bool:
    """Report contractions without atoms and a slow plan in `realised`, the result of the passes for `program`.

    If the plan lacks a property in `required`, raise NoAtoms or SlowPlan. Otherwise warn (FastPathLost or
    SlowPlanWarning) of the first property in `warned` that it lacks: atoms come before speed. Return True if there was
    a warning.
    """
    has_warned = _report_missing_atoms(
        program, realised.lowered.fallback_mmas, machine, required, warns=Required.ATOMS in warned
    )
    warns = Required.FAST in warned and not has_warned  # missing atoms already explain the slowness
    return _report_slow_plan(program, realised, required, warns=warns) or has_warned


def _report_missing_atoms(
    program: Program, fallback_mmas: Mapping[Op, str], machine: Machine, required: Required, *, warns: bool
) -> bool:
    """Give a FastPathLost warning for the first contraction in `fallback_mmas` for which the machine has atoms.

    `fallback_mmas` is {contraction that runs without atoms: reason}. Return True if there was a warning. If `warns` is
    False, there is none. If `required` has ATOMS, raise NoAtoms for the first contraction in `fallback_mmas`, whether
    the machine has atoms for it or not.
    """
    for product, reason in fallback_mmas.items():
        atoms = atoms_for(product, machine)
        if Required.ATOMS in required:
            missing = (
                f"{machine.name}'s {', '.join(atoms)}" if atoms else f"atoms: {machine.name} has none for its types"
            )
            raise NoAtoms(
                f"{program.name}: require_atoms: this product does not run on {missing}: {reason}", product.loc
            )
        if atoms and warns:
            _warn(
                f"{program.name}: this product runs as plain loops, not on {machine.name}'s {', '.join(atoms)}, and is "
                f"much slower: {reason}; compile(..., require_atoms=True) makes this an error",
                FastPathLost,
                product,
            )
            return True
    return False


def _report_slow_plan(program: Program, realised: Realised, required: Required, *, warns: bool) -> bool:
    """Give a SlowPlanWarning if the plan is predicted far above its roofline, at the line of the operation that causes
    it.

    Return True if there was a warning. If `warns` is False, there is none. If `required` has FAST, raise SlowPlan
    instead.
    """
    slow = realised.choice.slow if warns or Required.FAST in required else None
    if slow is None:
        return False
    op = slow.cause.op
    if Required.FAST in required:
        raise SlowPlan(f"{program.name}: require_fast: {slow}", None if op is None else op.loc)
    subject = "this kernel" if op is None else f"the kernel of this {op.name}"
    _warn(
        f"{program.name}: {subject} is {slow}; compile(..., require_fast=True) makes this an error", SlowPlanWarning, op
    )
    return True


def atoms_for(product: Op, machine: Machine) -> list[str]:
    """Return the names of the multiplication atoms that the machine has for the types and precision of `product`.

    These are the atoms for exactly the types of the operands and of the accumulator. If there are none, they are the
    atoms for operands of the accumulator's type, provided that this type holds the operands losslessly.
    """
    return [
        atom.name
        for atom in microkernel.atoms_for(
            machine, *microkernel.types_of(product, swapped=False, machine=machine), microkernel.precision_of(product)
        )
    ]


def _warn(what: str, category: type[Warning], op: Op | None) -> None:
    """Give a warning of the class `category` with the text `what`, at the source line of `op` in the author's kernel.

    If `op` is None (the kernel as a whole) or comes from a program's text, warn at the Python line that compiles it.
    """
    shown = what if op is None else f"{what}\n{op.loc.pointing() if op.loc else f'  {op_text(op)}'}"
    where = op.loc if op is not None and isinstance(op.loc, Location) else author_location()
    if where is None:  # no Python line, for example in a C program
        warnings.warn(shown, category, stacklevel=2)
    else:
        warnings.warn_explicit(shown, category, where.file, where.line)
