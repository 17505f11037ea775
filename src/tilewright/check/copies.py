"""Copies against their atoms: each copy that names one is put to it as two views, for all rounds and sizes at once.

An atom without a rule on views answers for the first round of all loops, in numbers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.algebra import Access, index
from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import evaluate
from tilewright.check.distribution import placement
from tilewright.check.places import Places
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Program, Value, walk_block
from tilewright.ir.printer import op_text
from tilewright.ir.tensors import RegisterType, numbers
from tilewright.machine import (
    Condition,
    CopyAtom,
    CopyRequest,
    Machine,
    MemoryView,
    Place,
    Refusal,
    RegisterView,
    ViewRequest,
)

Array = np.ndarray[Any, np.dtype[Any]]


def check_atom(op: Op, atom: CopyAtom, machine: Machine, places: Places, open_names: set[str]) -> list[Condition]:
    """Raises where the atom cannot do the copy; the conditions on open sizes that remain."""
    request = view_request(op, machine, places)
    if request is None:
        return []
    if atom.on_views is None:
        _check_first_round(op, atom, request, machine)
        return []
    answer = atom.conditions(request)
    if isinstance(answer, Refusal):
        raise ProgramError(f"copy: {answer}", op.loc)
    left = []
    for condition in answer:
        if isinstance(condition.that, Const) and (condition.that.value or condition.of_array):
            continue
        if isinstance(condition.that, Const) or not {s.name for s in condition.that.symbols} <= open_names:
            raise ProgramError(f"copy: {atom.name}: {condition.reason}", op.loc)
        left.append(replace(condition, reason=f"`{op_text(op)}`: {atom.name}: {condition.reason}"))
    return left


def view_request(op: Op, machine: Machine, places: Places) -> ViewRequest | None:
    """The copy as two views; None for a view of registers of which lanes hold more or less."""
    source, target = op.operands
    if not all(isinstance(e, Const) and e.value > 0 for e in source.type.shape):
        return None  # sizes that are open, or nothing to move
    box = numbers(source.type.shape, "copy")
    axes = tuple(index(f"box{d}", extent) for d, extent in enumerate(box))
    sides = [_side(value, axes, machine, places) for value in (source, target)]
    if sides[0] is None or sides[1] is None:
        return None
    return ViewRequest(axes, source.type.dtype, sides[0], sides[1], op.attrs.get("otherwise", 0))


def _side(value: Value, axes: tuple[Symbol, ...], machine: Machine, places: Places) -> MemoryView | RegisterView | None:
    if isinstance(value.type, RegisterType):
        elements = places.registers(value, machine)
        return None if elements is None else RegisterView(f"%{value.name}", elements)
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


def _check_first_round(op: Op, atom: CopyAtom, request: ViewRequest, machine: Machine) -> None:
    """Asks an atom that answers only for numbers about the first round of all loops."""
    if any(isinstance(v.type, RegisterType) and v.type.distribution is None for v in op.operands):
        return  # a view of registers has no layout of its own
    source, target = (
        Place("register", placement(value.type, machine).layout)
        if isinstance(side, RegisterView)
        else Place(side.space, _in_numbers(side, request.axes), side.alignment)
        for value, side in zip(op.operands, (request.source, request.target), strict=True)
    )
    answer = atom.answer(CopyRequest(request.box, request.dtype, source, target))
    if isinstance(answer, Refusal):
        raise ProgramError(f"copy: {answer}", op.loc)


def _in_numbers(view: MemoryView, axes: tuple[Symbol, ...]) -> Access:
    """The access in which all that varies outside the box has its least value."""

    def number(e: Expr) -> int:
        return int(evaluate(e, {s: s.lo for s in e.symbols}))

    outside = {s for c in view.coordinates for s in c.symbols} - set(axes)
    fixed = view.substituted({s: s.lo for s in outside})
    shape, strides = tuple(map(number, view.shape)), tuple(map(number, view.strides))
    return replace(Access.of(fixed.coordinates, axes, shape, strides), swizzle=view.swizzle)
