"""The products of a plan without a pipeline, bound: atoms take the operands, and registers hold their blocks."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.core import Op, Program
from tilewright.machine import Machine, OpaqueOperand
from tilewright.plan import vectors
from tilewright.plan.microkernel import (
    Microkernel,
    atoms_for,
    axes_in,
    names_of,
    precision_of,
    registers_of,
    types_of,
)
from tilewright.plan.refusals import refused
from tilewright.plan.schedule import ProductUnit


def taken(
    given: tuple[ProductUnit, ...], program: Program, machine: Machine, chosen: Mapping[Op, Microkernel | None]
) -> dict[Op, Microkernel | None]:
    """The products as a given plan says them; those it does not mention as they were chosen."""
    found, names = dict(chosen), names_of(program)
    for each in given:
        if each.name not in names:
            raise refused(each, f"there is no product {each.name}; there are {', '.join(names) or 'none'}")
        found[names[each.name]] = None if each.atom is None else _given(each, names[each.name], machine)
    return found


def _given(each: ProductUnit, op: Op, machine: Machine) -> Microkernel:
    try:
        atom = machine.multiply_atom(each.atom or "")
    except LookupError as fault:
        raise refused(each, str(fault)) from None
    axes = axes_in(op, lambda d: 1)
    if isinstance(axes, str):
        raise refused(each, f"{axes}; it runs by loops")
    fitting = atoms_for(machine, *types_of(op, axes.swapped, machine), precision_of(op))
    if atom not in fitting:
        kinds = " by ".join(map(str, types_of(op, axes.swapped, machine)[:2]))
        names = ", ".join(x.name for x in fitting) or "none"
        raise refused(each, f"its factors are {kinds}, and {machine.name}'s atoms for them {names}")
    if each.transposed:
        raise refused(each, "only products of a pipeline are transposed")
    how, (m, n, _) = Microkernel(atom, each.rows, each.columns), atom.shape
    if each.rows % m or each.columns % n:
        raise refused(each, f"blocks are whole atoms of {m}x{n}")
    used, there = registers_of(how, machine)
    if used > there:
        raise refused(each, f"a block and both factors take {used} registers of {there}")
    if (
        not isinstance(atom.c, OpaqueOperand)
        and m == 1
        and not vectors.fits(each.rows, each.columns // n, atom, machine)
    ):
        raise refused(each, f"{atom.name} picks rows from too few registers")
    return how
