"""Copies against their atoms: each copy that names one is put to it as two views, for all rounds and sizes at once."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tilewright.algebra import index
from tilewright.algebra.expr import Const, Symbol
from tilewright.check.places import Places
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Program, Value, walk_block
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import RegisterType, numbers
from tilewright.machine import Condition, CopyAtom, CopyRefusal, Machine, MemoryView, RegisterView, ViewRequest


@dataclass(frozen=True)
class Answer:
    """What the atom of a copy says: its instructions do it, wherever the conditions on open sizes hold."""

    atom: CopyAtom
    conditions: tuple[Condition, ...] = ()


def answer(op: Op, machine: Machine, places: Places, open_names: Collection[str]) -> Answer:
    """The answer of the atom that a copy names; raises where it refuses, at the copy's line.

    The check of a block program asks, and so does its lowering: what one refuses, the other does not do.
    """
    atom = machine.copy_atom(op.attrs["by"])
    request = view_request(op, machine, places)
    if request is None:
        return Answer(atom)
    found = atom.conditions(request)
    if isinstance(found, CopyRefusal):
        raise ProgramError(f"copy: {found}", op.loc)
    left = []
    for condition in found:
        if isinstance(condition.that, Const) and condition.that.value:
            continue
        if isinstance(condition.that, Const) or not {s.name for s in condition.that.symbols} <= set(open_names):
            raise ProgramError(f"copy: {atom.name}: {condition.reason}", op.loc)
        left.append(replace(condition, reason=f"`{op_text(op)}`: {atom.name}: {condition.reason}"))
    return Answer(atom, tuple(left))


def view_request(op: Op, machine: Machine, places: Places) -> ViewRequest | None:
    """The copy as two views; None where there is nothing to move."""
    source, target = op.operands
    box = numbers(source.type.shape, f"copy by {op.attrs['by']}")
    if 0 in box:
        return None
    axes = tuple(index(f"box{d}", extent) for d, extent in enumerate(box))
    read, written = (_side(value, axes, machine, places) for value in (source, target))
    return ViewRequest(axes, source.type.dtype, read, written, op.attrs.get("otherwise", 0))


def _side(value: Value, axes: tuple[Symbol, ...], machine: Machine, places: Places) -> MemoryView | RegisterView:
    if isinstance(value.type, RegisterType):
        elements = places.registers(value, machine)
        if elements is None:
            raise ProgramError(f"copy: some lanes hold more of %{value.name} than others: no instruction moves it")
        return RegisterView(f"%{value.name}", elements)
    return places.view(value, axes, machine)


def never_runs(program: Program) -> set[Op]:
    """The operations in loops that have no rounds."""
    return {
        inner
        for op in program.walk()
        if any((r.hi - r.lo).hi <= 0 for r in op.attrs.get("ranges", ()))
        for block in op.blocks
        for inner in walk_block(block)
    }
