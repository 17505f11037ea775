"""Asynchronous copies and MMAs: which atoms are asynchronous, and the shared memory that they read and fill."""

from __future__ import annotations

from tilewright.analysis.views import Places
from tilewright.ir.core import Program, Value
from tilewright.ir.tensors import TensorType
from tilewright.machine import Machine


def is_bulk_copy(machine: Machine, atom_name: str) -> bool:
    """True if the machine's copy atom named `atom_name` is a bulk copy: one asynchronous instruction copies a whole box
    of elements.
    """
    atom = machine.copy_atom(atom_name)
    return atom.asynchronous and atom.bytes_moved is None


def is_lane_copy(machine: Machine, atom_name: str) -> bool:
    """True if the machine's copy atom named `atom_name` is asynchronous, and each lane copies a few bytes by one
    instruction.
    """
    atom = machine.copy_atom(atom_name)
    return atom.asynchronous and atom.bytes_moved is not None


def read_asynchronously(program: Program, chain: Places, machine: Machine) -> set[Value]:
    """Return the allocations and arguments from which bulk copies and asynchronous MMAs of the program read. Views
    count as the tensor below them, which `chain` finds. A stage of a channel counts as the allocation that holds all
    stages.
    """
    roots = set()

    def note(value: Value) -> None:
        """Add the tensor below `value` to the result; for a stage of a channel, the allocation of all its stages."""
        root = chain.root(value)
        maker = chain.makers.get(root)
        if maker is not None and maker.name in ("acquire", "wait"):
            channel = chain.makers[maker.operands[0]]
            root = channel.operands[maker.results.index(root)]
        roots.add(chain.root(root))

    for op in program.walk():
        if op.name == "copy" and "by" in op.attrs and is_bulk_copy(machine, op.attrs["by"]):
            note(op.operands[0])
        elif op.name == "mma" and machine.multiply_atom(op.attrs["atom"]).asynchronous:
            for value in op.operands[1:]:
                if isinstance(value.type, TensorType):
                    note(value)
    return roots


def lane_filled_channels(program: Program, chain: Places, machine: Machine) -> set[Value]:
    """Return the channels with stages into which the program has asynchronous copies by single lanes (see
    `is_lane_copy`). `chain` finds the stage below a view.
    """
    channels = set()
    for op in program.walk():
        if op.name == "copy" and "by" in op.attrs and is_lane_copy(machine, op.attrs["by"]):
            maker = chain.makers.get(chain.root(op.operands[1]))
            if maker is not None and maker.name == "acquire":
                channels.add(maker.operands[0])
    return channels
