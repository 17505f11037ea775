"""Bind the MMAs of a plan without a pipeline: check their atoms against operands, their tiles against registers."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.core import Op, Program
from tilewright.machine import Machine, OpaqueOperand
from tilewright.plan import vectors
from tilewright.plan.microkernel import (
    Microkernel,
    atoms_for,
    axes_in,
    mmas_by_name,
    precision_of,
    registers_of,
    types_of,
)
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import ProductUnit


def bind_products(
    statements: tuple[ProductUnit, ...], program: Program, machine: Machine, defaults: Mapping[Op, Microkernel | None]
) -> dict[Op, Microkernel | None]:
    """Return {mma: Microkernel (atom and accumulator tile), or None for scalar loops}, for every MMA of the program.

    `statements` are the plan's MMA statements; each is checked. `defaults` has an entry for every MMA; an MMA without a
    statement keeps it. Raise an ArgumentError that quotes an illegal statement.
    """
    microkernels, names = dict(defaults), mmas_by_name(program)
    for statement in statements:
        if statement.name not in names:
            raise refused(statement, f"there is no product {statement.name}; there are {', '.join(names) or 'none'}")
        microkernels[names[statement.name]] = (
            None if statement.atom is None else _bind_statement(statement, names[statement.name], machine)
        )
    return microkernels


def check_orientation(statement: ProductUnit) -> None:
    """Raise an ArgumentError, which quotes an MMA's `statement`, if it says `transposed`.

    Only a plan with a pipeline may have a transposed MMA; this check is for plans without one.
    """
    if statement.transposed:
        raise refused(statement, "only products of a pipeline are transposed, and no line `producer` says one")


def _bind_statement(statement: ProductUnit, op: Op, machine: Machine) -> Microkernel:
    """Return the Microkernel (atom, accumulator tile) that a plan's MMA `statement` gives for the mma `op`.

    Raise an ArgumentError, which quotes the statement, in these cases:

    - the machine lacks the atom, or `op` has no accumulator tile;
    - the atom does not take the operands' types;
    - the statement says `transposed`;
    - the tile is not whole atoms, or has more rows than the atom allows;
    - accumulators and operands do not fit the registers.
    """
    try:
        atom = machine.multiply_atom(statement.atom or "")
    except LookupError as fault:
        raise refused(statement, str(fault)) from None
    axes = axes_in(op, lambda d: 1)
    if isinstance(axes, str):
        raise refused(statement, f"{axes}; it runs by loops")
    fitting = atoms_for(machine, *types_of(op, axes.swapped, machine), precision_of(op), any_rows=True)
    if atom not in fitting:
        kinds = " by ".join(map(str, types_of(op, axes.swapped, machine)[:2]))
        names = ", ".join(x.name for x in fitting) or "none"
        raise refused(statement, f"its operands are {kinds}, and {machine.name}'s atoms for them {names}")
    check_orientation(statement)
    microkernel, (m, n, _) = Microkernel(atom, statement.rows, statement.columns), atom.shape
    if statement.rows % m or statement.columns % n:
        raise refused(statement, f"blocks are whole atoms of {m}x{n}")
    needed, available = registers_of(microkernel, machine)
    if needed > available:
        raise refused(statement, f"an accumulator tile and both operands take {needed} registers of {available}")
    if (
        not isinstance(atom.c, OpaqueOperand)
        and m == 1
        and not vectors.fits(statement.rows, statement.columns // n, atom, machine)
    ):
        raise refused(statement, f"{atom.name} picks rows from too few registers")
    return microkernel
