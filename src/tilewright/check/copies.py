"""Check of copies against their atoms: each copy is described to its atom as two views, for all iterations and
sizes.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from tilewright.algebra import index
from tilewright.algebra.expr import Const, Symbol
from tilewright.analysis.views import Places
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Program, Value, walk_block
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import RegisterType, numbers
from tilewright.machine import Condition, CopyAtom, CopyRefusal, Machine, MemoryView, RegisterView, ViewRequest


@dataclass(frozen=True)
class Answer:
    """The result of a copy atom that accepts a copy: `conditions` are those on open sizes under which it is valid."""

    atom: CopyAtom
    conditions: tuple[Condition, ...] = ()


def answer(op: Op, machine: Machine, places: Places, open_names: Collection[str]) -> Answer:
    """Ask the copy atom that the `copy` operation `op` names whether it supports the copy. Return an Answer: the atom,
    and the conditions on open parameters (sizes known only at the call) under which the atom supports the copy.

    Raise a ProgramError if the atom refuses the copy, or if a condition is false or depends on anything but the
    parameters `open_names`. A copy of no elements is always supported. `places` finds the tensor that a view is a part
    of. The check of a block program and its lowering both call this function, so that they agree.
    """
    atom = machine.copy_atom(op.attrs["by"])
    request = view_request(op, machine, places)
    if request is None:
        return Answer(atom)
    conditions = atom.conditions(request)
    if isinstance(conditions, CopyRefusal):
        raise ProgramError(f"copy: {conditions}", op.loc)
    remaining = []
    for condition in conditions:
        if isinstance(condition.that, Const) and condition.that.value:
            continue
        if isinstance(condition.that, Const) or not {s.name for s in condition.that.symbols} <= set(open_names):
            raise ProgramError(f"copy: {atom.name}: {condition.reason}", op.loc)
        remaining.append(replace(condition, reason=f"`{op_text(op)}`: {atom.name}: {condition.reason}"))
    return Answer(atom, tuple(remaining))


def view_request(op: Op, machine: Machine, places: Places) -> ViewRequest | None:
    """Return the ViewRequest that describes the `copy` operation `op` to its atom: the view that is read and the view
    that is written, over the same axes, one for each dimension. Return None if the copy has no elements.

    `places` finds the tensor that a view is a part of. Raise a ProgramError if an extent is not constant.
    """
    source, target = op.operands
    extents = numbers(source.type.shape, f"copy by {op.attrs['by']}")
    if 0 in extents:
        return None
    axes = tuple(index(f"box{d}", extent) for d, extent in enumerate(extents))
    read_view, written_view = (_operand_view(value, axes, machine, places) for value in (source, target))
    return ViewRequest(axes, source.type.dtype, read_view, written_view, op.attrs.get("otherwise", 0))


def _operand_view(
    value: Value, axes: tuple[Symbol, ...], machine: Machine, places: Places
) -> MemoryView | RegisterView:
    """Return `value`, the source or target of a copy, as the copy atom needs it: a RegisterView (which lane holds which
    element) if it is in registers, otherwise a MemoryView over `axes`, one index for each dimension.

    Raise a ProgramError if some lanes hold more elements of a register tensor than others. `places` finds the tensor
    that a view is a part of.
    """
    if isinstance(value.type, RegisterType):
        elements = places.registers(value, machine)
        if elements is None:
            raise ProgramError(f"copy: some lanes hold more of %{value.name} than others: no instruction moves it")
        return RegisterView(f"%{value.name}", elements)
    return places.view(value, axes, machine)


def never_runs(program: Program) -> set[Op]:
    """Return all operations, nested ones too, inside loops of `program` that have no iterations, whatever the values of
    open parameters (sizes known only at the call).
    """
    return {
        nested
        for op in program.walk()
        if any((r.hi - r.lo).hi <= 0 for r in op.attrs.get("ranges", ()))
        for block in op.blocks
        for nested in walk_block(block)
    }
