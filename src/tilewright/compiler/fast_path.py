"""Whether a kernel's products run on the machine's multiplication atoms; where they could and do not, it is said."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from tilewright.errors import FastPathLost, NoAtoms
from tilewright.ir.core import Op, Program
from tilewright.ir.location import Location, author_location
from tilewright.ir.printer import op_text
from tilewright.machine import Machine
from tilewright.plan import microkernel


def report_loss(program: Program, lost: Mapping[Op, str], machine: Machine, *, required: bool) -> None:
    """Warns, at the author's line, of the first product that runs without atoms though the machine has some for its
    types; with `required`, every product without them is a `NoAtoms`.
    """
    for product, why in lost.items():
        atoms = atoms_for(product, machine)
        if required:
            there = f"{machine.name}'s {', '.join(atoms)}" if atoms else f"atoms: {machine.name} has none for its types"
            raise NoAtoms(f"{program.name}: require_atoms: this product does not run on {there}: {why}", product.loc)
        if atoms:
            _warn(
                f"{program.name}: this product runs as plain loops, not on {machine.name}'s {', '.join(atoms)}, and is "
                f"much slower: {why}; compile(..., require_atoms=True) makes this an error",
                product,
            )
            return


def atoms_for(product: Op, machine: Machine) -> list[str]:
    """The atoms that take a product's types, as they are or converted to the type of its sum."""
    return [
        atom.name
        for atom in microkernel.atoms_for(
            machine, *microkernel.types_of(product, swapped=False, machine=machine), microkernel.precision_of(product)
        )
    ]


def _warn(what: str, op: Op) -> None:
    """The warning belongs to the line in the kernel, wherever compile or the first call stands; of a program's text,
    to the line that has it compiled.
    """
    shown = f"{what}\n{op.loc.pointing() if op.loc else f'  {op_text(op)}'}"
    where = op.loc if isinstance(op.loc, Location) else author_location()
    if where is None:  # nobody's line: from a C program, say
        warnings.warn(shown, FastPathLost, stacklevel=2)
    else:
        warnings.warn_explicit(shown, FastPathLost, where.file, where.line)
