"""The checks of a loop program that need its machine: atoms against the registers they are given."""

from __future__ import annotations

from tilewright.check.symbolic import check_divisors
from tilewright.errors import ProgramError
from tilewright.ir.binding import open_parameters
from tilewright.ir.core import Op, Program
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
        if not isinstance(operand, RegisterOperand):
            raise ProgramError(f"{atom.name} reads {name} from memory, which no loop program says yet", op.loc)
        if value.type.dtype is not operand.dtype:
            raise ProgramError(f"{atom.name} takes {operand.dtype} as {name}, not {value.type.dtype}", op.loc)
        size = 1
        for n in numbers(value.type.shape, "atom"):
            size *= n
        whole = operand.lanes * operand.values
        if size not in (whole, operand.values if name == "a" else whole):
            raise ProgramError(f"{atom.name} takes {whole} elements as {name}, not the {size} of {value.type}", op.loc)
