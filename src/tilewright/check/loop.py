"""The checks of a loop program that need its machine: atoms against the registers they are given."""

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
    """Raises a ProgramError at the first thing that is wrong with a program whose parameters are bound, or open."""
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
    if machine is None:
        raise ProgramError(f"the program names no machine, so {op.attrs['atom']} has no meaning", op.loc)
    atom = machine.multiply_atom(op.attrs["atom"])
    for value, operand, name in zip(op.operands, (atom.c, atom.a, atom.b), "cab", strict=True):
        in_memory = name in op.attrs
        if in_memory == isinstance(operand, RegisterOperand):
            there = "memory, at a place for every element" if in_memory is False else "registers"
            raise ProgramError(f"{atom.name} reads {name} from {there}, not from {value.type}", op.loc)
        if value.type.dtype is not operand.dtype:
            raise ProgramError(f"{atom.name} takes {operand.dtype} as {name}, not {value.type.dtype}", op.loc)
        if not isinstance(operand, RegisterOperand):
            continue
        lanes = operand.lanes
        if isinstance(value.type, FragmentType):  # a wave's part, and for a factor so much of it as there is of k
            (mine, values) = numbers(value.type.shape, "atom")
            if lanes % mine or values % operand.values or (name == "c" and values != operand.values):
                raise ProgramError(
                    f"{atom.name} takes {operand.values} values a lane as {name}, over {lanes} lanes; {value.type} has "
                    f"{values} over {mine}",
                    op.loc,
                )
            continue
        size = prod(numbers(value.type.shape, "atom"))
        whole = lanes * operand.values
        if size not in (whole, operand.values if name == "a" else whole):
            raise ProgramError(f"{atom.name} takes {whole} elements as {name}, not the {size} of {value.type}", op.loc)
