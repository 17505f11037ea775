"""MMAs: one loop operation for each atom of the accumulator, over all of k."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.algebra.expr import Expr, Symbol
from tilewright.errors import ProgramError
from tilewright.ir.core import Op, Value
from tilewright.ir.loop_types import FragmentType
from tilewright.machine import MultiplyAtom
from tilewright.passes.places import PlacedMemory
from tilewright.passes.waves import moving
from tilewright.passes.waves.held import Held, along
from tilewright.passes.waves.rings import Stage
from tilewright.passes.waves.turns import after_product, before_product
from tilewright.passes.waves.waves import Waves


def mma(low: Waves, op: Op) -> None:
    """Lower `mma`; asynchronous atoms are noted as under way."""
    if op.attrs.get("skip"):
        raise ProgramError(
            "mma skip: copy the factors with `else 0` first; waves of many lanes do not leave out factors"
        )
    atom = low.target.multiply_atom(op.attrs["atom"])
    c, a, b = (low.handles[v] for v in op.operands)
    depth = int(a.shape[1])
    rings = {f.root.ring for f in (a, b) if not isinstance(f, Held) and isinstance(f.root, Stage)}
    written: list[tuple[tuple[Value, ...], dict[str, Any]]] = []
    for piece in c.pieces:
        if not piece.whole or len(piece.columns) != atom.c.values:
            raise ProgramError(f"mma: the sum is to be allocated `as {atom.name}.c`")
        attrs: dict[str, Any] = {}
        operands = [piece.fragment]
        for factor, which, along_ in ((a, "a", 0), (b, "b", 1)):
            value, more = _factor(low, atom, factor, which, _first(low, atom, piece.coordinates[along_]), depth)
            operands.append(value)
            attrs |= more
        written.append((tuple(operands), attrs))
    begun = [low.flying.begins(values[0]) for values, _ in written]
    factors = {v for values, _ in written for v in values[1:] if isinstance(v.type, FragmentType)}
    low.flying.touch(read=factors)
    if not atom.asynchronous:
        low.flying.touch(written=[values[0] for values, _ in written])
    before_product(low, op)
    for (values, attrs), fresh in zip(written, begun, strict=True):
        if fresh:
            attrs["fresh"] = True
        low.emit("atom", values, atom=atom.name, **attrs)
    after_product(low, op)
    if atom.asynchronous:
        low.between_lanes.waited = False  # an instruction of all lanes at once
        groups = [((values[0],), tuple(v for v in values[1:] if v in factors)) for values, _ in written]
        low.flying.start(groups, rings)


def _first(low: Waves, atom: MultiplyAtom, table: Any) -> Any:
    """Return the first row or column of each wave's atom; it is the same for waves that share an atom."""
    together = atom.c.lanes // low.lanes
    return table.reshape(low.group.waves // together, -1).min(axis=1).repeat(together)


def _factor(
    low: Waves, atom: MultiplyAtom, factor: Any, which: str, first: Any, depth: int
) -> tuple[Value, dict[str, Any]]:
    """Return (operand, attributes) of A or B: a fragment, or shared memory with the offset of each element."""
    if isinstance(factor, Held):
        for piece in factor.pieces:
            if (_first(low, atom, piece.coordinates[0 if which == "a" else 1]) == first).all():
                return (piece.fragment if piece.whole else moving.values_of(low, piece)), {}
        raise ProgramError(f"mma: no lane holds the factor {which} where it sums; allocate it `as {atom.name}.{which}`")
    start = along(np.asarray(first), low.group.wave)
    if start is None:
        raise ProgramError("mma: where a wave's rows begin is no sum of digits of its number")
    extent = atom.shape[0] if which == "a" else atom.shape[1]
    i, k = low.axis("i" if which == "a" else "j", extent), low.axis("k", depth)
    at: tuple[Expr, Expr] = (start + i, k) if which == "a" else (k, start + i)
    where = factor.at(at)
    if where.conditions:
        raise ProgramError("mma: a factor may lie outside its tensor; copy it with `else 0` first")
    axes: tuple[Symbol, Symbol] = (i, k) if which == "a" else (k, i)
    root: PlacedMemory = factor.root
    return root.buffer, {which: axes, f"{which}_at": (where.offset,)}
