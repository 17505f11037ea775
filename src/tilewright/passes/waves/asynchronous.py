"""Asynchronous copies and MMAs: which atoms are asynchronous, and the shared memory that they read and fill."""

from __future__ import annotations

from tilewright.check.places import Places
from tilewright.ir.core import Program, Value
from tilewright.ir.tensors import TensorType
from tilewright.machine import Machine


def box_copy(machine: Machine, by: str) -> bool:
    """True if an atom copies whole boxes asynchronously (a bulk copy)."""
    atom = machine.copy_atom(by)
    return atom.asynchronous and atom.bytes_moved is None


def lane_copy(machine: Machine, by: str) -> bool:
    """True if each lane starts asynchronous copies of its own by an atom."""
    atom = machine.copy_atom(by)
    return atom.asynchronous and atom.bytes_moved is not None


def read_by_itself(program: Program, chain: Places, machine: Machine) -> set[Value]:
    """Return the shared allocations that asynchronous copies and MMAs read."""
    roots = set()

    def note(value: Value) -> None:
        root = chain.root(value)
        maker = chain.made.get(root)
        if maker is not None and maker.name in ("acquire", "wait"):
            channel = chain.made[maker.operands[0]]
            root = channel.operands[maker.results.index(root)]
        roots.add(chain.root(root))

    for op in program.walk():
        if op.name == "copy" and "by" in op.attrs and box_copy(machine, op.attrs["by"]):
            note(op.operands[0])
        elif op.name == "mma" and machine.multiply_atom(op.attrs["atom"]).asynchronous:
            for value in op.operands[1:]:
                if isinstance(value.type, TensorType):
                    note(value)
    return roots


def filled_by_lanes(program: Program, chain: Places, machine: Machine) -> set[Value]:
    """Return the channels whose stages are filled by asynchronous copies that lanes start."""
    channels = set()
    for op in program.walk():
        if op.name == "copy" and "by" in op.attrs and lane_copy(machine, op.attrs["by"]):
            maker = chain.made.get(chain.root(op.operands[1]))
            if maker is not None and maker.name == "acquire":
                channels.add(maker.operands[0])
    return channels
