"""The reports on a kernel's plan: products without the machine's multiplication atoms, a time far above its roofline.

Each is a warning at the author's line, or an error if `compile` was asked to require the property.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from tilewright.compiler.required import Required
from tilewright.errors import FastPathLost, NoAtoms, SlowPlan, SlowPlanWarning
from tilewright.ir.core import Op, Program
from tilewright.ir.location import Location, author_location
from tilewright.ir.printer import op_text
from tilewright.machine import Machine
from tilewright.passes.bound_plan import Realised
from tilewright.plan import microkernel


def report_plan(program: Program, realised: Realised, machine: Machine, required: Required, warned: Required) -> bool:
    """Report what a plan lacks; return True if there was a warning.

    A `required` property that is lacking is a `NoAtoms` or a `SlowPlan` error. The first property of `warned` that is
    lacking is a warning.
    """
    lost = _report_loss(program, realised.lowered.lost, machine, required, warns=Required.ATOMS in warned)
    warns = Required.FAST in warned and not lost  # a product without atoms is why it is slow
    return _report_time(program, realised, required, warns=warns) or lost


def _report_loss(
    program: Program, lost: Mapping[Op, str], machine: Machine, required: Required, *, warns: bool
) -> bool:
    """Report the first product that runs without atoms though the machine has some for its types.

    If atoms are required, every product without them is an error.
    """
    for product, why in lost.items():
        atoms = atoms_for(product, machine)
        if Required.ATOMS in required:
            there = f"{machine.name}'s {', '.join(atoms)}" if atoms else f"atoms: {machine.name} has none for its types"
            raise NoAtoms(f"{program.name}: require_atoms: this product does not run on {there}: {why}", product.loc)
        if atoms and warns:
            _warn(
                f"{program.name}: this product runs as plain loops, not on {machine.name}'s {', '.join(atoms)}, and is "
                f"much slower: {why}; compile(..., require_atoms=True) makes this an error",
                FastPathLost,
                product,
            )
            return True
    return False


def _report_time(program: Program, realised: Realised, required: Required, *, warns: bool) -> bool:
    """Report a plan that is predicted far above its roofline, at the operation that its cause names."""
    slow = realised.choice.slow if warns or Required.FAST in required else None
    if slow is None:
        return False
    op = slow.cause.op
    if Required.FAST in required:
        raise SlowPlan(f"{program.name}: require_fast: {slow}", None if op is None else op.loc)
    what = "this kernel" if op is None else f"the kernel of this {op.name}"
    _warn(f"{program.name}: {what} is {slow}; compile(..., require_fast=True) makes this an error", SlowPlanWarning, op)
    return True


def atoms_for(product: Op, machine: Machine) -> list[str]:
    """The atoms that take a product's types, as they are or converted to the type of its sum."""
    return [
        atom.name
        for atom in microkernel.atoms_for(
            machine, *microkernel.types_of(product, swapped=False, machine=machine), microkernel.precision_of(product)
        )
    ]


def _warn(what: str, category: type[Warning], op: Op | None) -> None:
    """Warn at the operation's line in the kernel, wherever compile or the first call stands.

    An operation of a program's text, and a kernel as a whole, belong to the line that has it compiled.
    """
    shown = what if op is None else f"{what}\n{op.loc.pointing() if op.loc else f'  {op_text(op)}'}"
    where = op.loc if op is not None and isinstance(op.loc, Location) else author_location()
    if where is None:  # nobody's line: from a C program, say
        warnings.warn(shown, category, stacklevel=2)
    else:
        warnings.warn_explicit(shown, category, where.file, where.line)
