"""Whether a kernel's products run on the machine's multiplication atoms; where they could and do not, it is said."""

from __future__ import annotations

import warnings

from tilewright.errors import FastPathLost, NoAtoms
from tilewright.interpret.grid import is_grid
from tilewright.ir.core import Op, Program
from tilewright.ir.location import Location, author_location
from tilewright.ir.printer import op_text
from tilewright.machine import Machine
from tilewright.plan.contraction import why_never

GRID = "it is a grid program: its workgroups are part of its meaning"


def why_never_fast(program: Program) -> str | None:
    """Why no sizes give a program's products atoms; None where there are no products, or where sizes decide."""
    if not any(op.name == "mma" for op in program.walk()):
        return None
    return GRID if is_grid(program) else why_never(program)


def report_loss(program: Program, why: str, machine: Machine, *, required: bool) -> None:
    """Warns, at the author's line, of the first product that runs without atoms though the machine has some for its
    types; with `required`, every product without them is a `NoAtoms`.
    """
    for product in (op for op in program.walk() if op.name == "mma"):
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
    a, b, c = (value.type.dtype for value in product.operands)
    wide = c.accumulator
    taken = {(a, b), (wide, wide)} if max(a.bits, b.bits) <= wide.bits else {(a, b)}
    return [
        atom.name
        for atom in machine.multiply.values()
        if (atom.a.dtype, atom.b.dtype) in taken and atom.c.dtype is wide
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
