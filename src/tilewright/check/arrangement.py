"""Whether the registers of a product are an arrangement of its atom: what each group of threads multiplies, it holds.

A group is the threads of one atom. Its part of C is some atoms, each at an origin (row, column) of the matrix; which
ones, is free. It must hold A at the same rows and B at the same columns, over all of k.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.check.distribution import Placement
from tilewright.machine import MultiplyAtom, RegisterOperand

Origin = tuple[int, int]


def misarranged(atom: MultiplyAtom, held: Mapping[str, Placement]) -> str | None:
    """Why registers are no arrangement of an atom, in one sentence; None where they are.

    `held` are the placements of "c" and of those of "a" and "b" that lie in registers.
    """
    origins: dict[str, list[set[Origin]]] = {}
    for name, found in held.items():
        operand: Any = getattr(atom, name)
        if not isinstance(operand, RegisterOperand):
            return f"{atom.name} reads {name} from memory itself"
        mine = _origins(operand, found)
        if mine is None:
            return f"{name}, {found.layout}, is not made of whole operands of {atom.name}"
        origins[name] = mine
    if len({len(groups) for groups in origins.values()}) > 1:
        counts = ", ".join(f"{name} over {len(groups)}" for name, groups in origins.items())
        return f"the operands are spread over different numbers of groups of threads: {counts}"
    for group, sums in enumerate(origins["c"]):
        for name, along in (("a", 0), ("b", 1)):
            if name not in origins:
                continue
            deep = range(0, held[name].shape[1 - along], getattr(atom, name).columns if along == 0 else atom.b.rows)
            for origin in sums:
                for k in deep:
                    wanted = (origin[0], k) if along == 0 else (k, origin[1])
                    if wanted not in origins[name][group]:
                        return f"group {group} of threads sums at {origin} of c and does not hold {name} at {wanted}"
    return None


def _origins(operand: RegisterOperand, found: Placement) -> list[set[Origin]] | None:
    """Where each group's atoms begin; None where the registers are not whole atoms."""
    lanes, values = operand.lanes, operand.values
    if found.threads % lanes or found.values % values or len(found.shape) != 2:
        return None
    row, column = found.coordinates
    table = np.asarray(operand.layout(*np.indices((lanes, values))))
    shape = (found.threads // lanes, lanes, found.values // values, values)
    starts = []
    for at, wanted in ((row, table % operand.rows), (column, table // operand.rows)):
        moved = at.reshape(shape) - wanted[None, :, None, :]
        first = moved[:, :1, :, :1]
        if np.any(moved != first):
            return None
        starts.append(first[:, 0, :, 0])
    pairs = np.stack(starts, axis=-1)
    return [{(int(r), int(c)) for r, c in group} for group in pairs]
