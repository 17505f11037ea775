"""Copies and products that go on by themselves: which atoms are such, and what of a program they read and fill."""

from __future__ import annotations

from tilewright.check.places import Places
from tilewright.ir.core import Program, Value
from tilewright.ir.tensors import TensorType
from tilewright.machine import Machine


def box_copy(machine: Machine, by: str) -> bool:
    """Whether an atom copies whole boxes by itself."""
    atom = machine.copy_atom(by)
    return atom.asynchronous and atom.bytes_moved is None


def lane_copy(machine: Machine, by: str) -> bool:
    """Whether each lane starts copies of its own by an atom, which go on by themselves."""
    atom = machine.copy_atom(by)
    return atom.asynchronous and atom.bytes_moved is not None


def read_by_itself(program: Program, chain: Places, machine: Machine) -> set[Value]:
    """The shared memory that asynchronous copies and products read: as it is allocated."""
    found = set()

    def note(value: Value) -> None:
        root = chain.root(value)
        made = chain.made.get(root)
        if made is not None and made.name in ("acquire", "wait"):
            channel = chain.made[made.operands[0]]
            root = channel.operands[made.results.index(root)]
        found.add(chain.root(root))

    for op in program.walk():
        if op.name == "copy" and "by" in op.attrs and box_copy(machine, op.attrs["by"]):
            note(op.operands[0])
        elif op.name == "mma" and machine.multiply_atom(op.attrs["atom"]).asynchronous:
            for value in op.operands[1:]:
                if isinstance(value.type, TensorType):
                    note(value)
    return found


def filled_by_lanes(program: Program, chain: Places, machine: Machine) -> set[Value]:
    """The channels into whose stages lanes start copies."""
    found = set()
    for op in program.walk():
        if op.name == "copy" and "by" in op.attrs and lane_copy(machine, op.attrs["by"]):
            made = chain.made.get(chain.root(op.operands[1]))
            if made is not None and made.name == "acquire":
                found.add(made.operands[0])
    return found
