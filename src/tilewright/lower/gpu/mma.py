"""MMAs: one loop operation for each atom of the accumulator, over all of K."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol
from tilewright.analysis.flat_memory import PlacedMemory
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.loop_types import FragmentType
from tilewright.lower.gpu import copies
from tilewright.lower.gpu.ordered_mmas import after_mma, before_mma
from tilewright.lower.gpu.register_tensors import RegisterTensor, as_expression
from tilewright.lower.gpu.rings import Stage
from tilewright.lower.gpu.wave_lowering import WaveLowering
from tilewright.machine import MultiplyAtom


def mma(low: WaveLowering, op: Op) -> None:
    """Lower `mma` on a GPU: emit one atom operation, over all of K, for each fragment of the accumulator. Asynchronous
    MMAs are recorded as in flight. Raise a ProgramError for the attribute `skip`, if the accumulator is not laid out
    for the atom, or if an operand does not suit the atom (see `_mma_operand`).
    """
    if op.attrs.get("skip"):
        raise ProgramError("mma skip: copy the operands with `else 0` first; waves of many lanes cannot skip elements")
    atom = low.target.multiply_atom(op.attrs["atom"])
    c, a, b = (low.handles[v] for v in op.operands)
    k = int(a.shape[1])
    rings = {f.root.ring for f in (a, b) if not isinstance(f, RegisterTensor) and isinstance(f.root, Stage)}
    atoms: list[tuple[tuple[Value, ...], dict[str, Any]]] = []
    for piece in c.pieces:
        if not piece.whole or len(piece.columns) != atom.c.values:
            raise ProgramError(f"mma: allocate the accumulator `as {atom.name}.c`")
        attrs: dict[str, Any] = {}
        operands = [piece.fragment]
        for operand, side, dim in ((a, "a", 0), (b, "b", 1)):
            value, operand_attrs = _mma_operand(
                low, atom, operand, side, _first_of_atom(low, atom, piece.coordinates[dim]), k
            )
            operands.append(value)
            attrs |= operand_attrs
        atoms.append((tuple(operands), attrs))
    starts_from_zero = [low.mmas_in_flight.take_zero(values[0]) for values, _ in atoms]
    register_operands = {v for values, _ in atoms for v in values[1:] if isinstance(v.type, FragmentType)}
    low.mmas_in_flight.wait_for_registers(read=register_operands)
    if not atom.asynchronous:
        low.mmas_in_flight.wait_for_registers(written=[values[0] for values, _ in atoms])
    before_mma(low, op)
    for (values, attrs), from_zero in zip(atoms, starts_from_zero, strict=True):
        if from_zero:
            attrs["fresh"] = True
        low.emit("atom", values, atom=atom.name, **attrs)
    after_mma(low, op)
    if atom.asynchronous:
        low.between_lanes.waited = False  # an MMA is an instruction of all lanes at once
        groups = [((values[0],), tuple(v for v in values[1:] if v in register_operands)) for values, _ in atoms]
        low.mmas_in_flight.start(groups, rings)


def _first_of_atom(low: WaveLowering, atom: MultiplyAtom, rows_or_columns: Any) -> Any:
    """Return an array with the first row (or column) of the MMA that each wave does. Waves that do one MMA together
    have the same number. `rows_or_columns` is the table, over [thread, value], of the rows (or columns) of one
    accumulator fragment.
    """
    waves_per_atom = atom.c.lanes // low.lanes
    return rows_or_columns.reshape(low.group.waves // waves_per_atom, -1).min(axis=1).repeat(waves_per_atom)


def _mma_operand(
    low: WaveLowering, atom: MultiplyAtom, handle: Any, side: str, first: Any, depth: int
) -> tuple[Value, dict[str, Any]]:
    """Return (operand, attributes) of the tensor `handle` as A or B (`side` is "a" or "b") of one atom operation. For a
    register tensor, these are a fragment and {}; for shared memory, the buffer and {`side`: axes, "`side`_at": offset
    of an element}. `first` is each wave's first row of A or column of B; `depth` is K.

    Raise a ProgramError if lanes lack the elements, if an element may be out of bounds, or if `first` is no expression
    of the wave's number.
    """
    if isinstance(handle, RegisterTensor):
        for piece in handle.pieces:
            if (_first_of_atom(low, atom, piece.coordinates[0 if side == "a" else 1]) == first).all():
                return (piece.fragment if piece.whole else copies.values_of(low, piece)), {}
        raise ProgramError(f"mma: lanes lack elements of operand {side}; allocate it `as {atom.name}.{side}`")
    start = as_expression(np.asarray(first), low.group.wave)
    if start is None:
        raise ProgramError("mma: the first row of a wave is no sum of digits of the wave's number")
    extent = atom.shape[0] if side == "a" else atom.shape[1]
    i, k = low.axis("i" if side == "a" else "j", extent), low.axis("k", depth)
    at: tuple[Expr, Expr] = (start + i, k) if side == "a" else (k, start + i)
    where = handle.at(at)
    if where.conditions:
        raise ProgramError(f"mma: elements of operand {side} may be out of bounds; copy it with `else 0` first")
    axes: tuple[Symbol, Symbol] = (i, k) if side == "a" else (k, i)
    root: PlacedMemory = handle.root
    return root.buffer, {side: axes, f"{side}_at": (where.offset,)}
