"""Checks of a loop program against its machine: operands of atoms in the registers that the atoms read."""

from __future__ import annotations

from math import prod

from tilewright.check.symbolic import check_divisors
from tilewright.errors import ProgramError
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Op, Program
from tilewright.ir.loop_types import FragmentType
from tilewright.ir.tensors import numbers
from tilewright.ir.verifier import verify
from tilewright.machine import Machine, RegisterOperand


def check_loop(program: Program, machine: Machine | None) -> None:
    """Raise a ProgramError at the first error in `program`, a loop program.

    `machine` has the atoms that the `atom` operations of the program name; with None, each `atom` operation is an
    error. Divisors are checked if there are open parameters (sizes known only at the call).
    """
    verify(program)
    if open_parameters(program):
        check_divisors(program)
    for op in program.walk():
        if op.name == "atom":
            try:
                _check_atom(op, machine)
            except LookupError as fault:
                raise ProgramError(str(fault), op.loc) from None


def _check_atom(op: Op, machine: Machine | None) -> None:
    """Raise a ProgramError if an operand of the `atom` operation `op` (an MMA instruction) does not fit the atom that
    `op` names, or if `machine` is None. Raise a LookupError if `machine` has no atom of this name.

    An operand must be in registers or in memory, as the atom reads it, and have the atom's element type. A register
    operand must have as many elements as the atom reads; a fragment, as many as the lanes of one wave hold of the atom.
    There are two exceptions: fragments of A and B may have several atoms along K, and A may have the elements of one
    lane only.
    """
    if machine is None:
        raise ProgramError(f"the program names no machine, so {op.attrs['atom']} has no meaning", op.loc)
    atom = machine.multiply_atom(op.attrs["atom"])
    for value, operand, name in zip(op.operands, (atom.c, atom.a, atom.b), "cab", strict=True):
        in_memory = name in op.attrs
        if in_memory == isinstance(operand, RegisterOperand):
            expected = "memory, at a place for every element" if in_memory is False else "registers"
            raise ProgramError(f"{atom.name} reads {name} from {expected}, not from {value.type}", op.loc)
        if value.type.dtype is not operand.dtype:
            raise ProgramError(f"{atom.name} takes {operand.dtype} as {name}, not {value.type.dtype}", op.loc)
        if not isinstance(operand, RegisterOperand):
            continue
        lanes = operand.lanes
        if isinstance(
            value.type, FragmentType
        ):  # the wave's part of the atom's lanes; an operand may have several atoms along K
            (wave_lanes, values) = numbers(value.type.shape, "atom")
            if lanes % wave_lanes or values % operand.values or (name == "c" and values != operand.values):
                raise ProgramError(
                    f"{atom.name} takes {operand.values} values a lane as {name}, over {lanes} lanes; {value.type} has "
                    f"{values} over {wave_lanes}",
                    op.loc,
                )
            continue
        size = prod(numbers(value.type.shape, "atom"))
        atom_elements = lanes * operand.values
        if size not in (atom_elements, operand.values if name == "a" else atom_elements):
            raise ProgramError(
                f"{atom.name} takes {atom_elements} elements as {name}, not the {size} of {value.type}", op.loc
            )
