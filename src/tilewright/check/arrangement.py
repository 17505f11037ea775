"""Check whether the registers of an MMA are a valid arrangement of its atom: each group holds the operands it
multiplies.

A group is the threads of one atom. Its part of C is a set of atoms, each with an origin (row, column) in the matrix;
any set is allowed. The group must hold A at the same rows and B at the same columns, over all of K.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.analysis.distribution import Placement
from tilewright.machine import MultiplyAtom, RegisterOperand

Origin = tuple[int, int]


def why_misarranged(atom: MultiplyAtom, held: Mapping[str, Placement]) -> str | None:
    """Return the reason, as text, why the register operands `held` of an MMA do not fit the MMA `atom`; None if they
    fit.

    `held` is {operand name: placement (which thread holds which element)}. It must have "c", and has "a" and "b" if
    they are in registers. The operands fit under three conditions. The atom reads each operand from registers. Each
    operand consists of whole operands of the atom, distributed over equally many groups of threads; a group executes
    one atom. Each group holds, for all of K, the rows of A and the columns of B that belong to its rows and columns of
    C.
    """
    origins: dict[str, list[set[Origin]]] = {}
    for name, placement in held.items():
        operand: Any = getattr(atom, name)
        if not isinstance(operand, RegisterOperand):
            return f"{atom.name} reads {name} from memory itself"
        group_origins = _origins(operand, placement)
        if group_origins is None:
            return f"{name}, {placement.layout}, is not made of whole operands of {atom.name}"
        origins[name] = group_origins
    if len({len(per_group) for per_group in origins.values()}) > 1:
        counts = ", ".join(f"{name} over {len(per_group)}" for name, per_group in origins.items())
        return f"the operands are spread over different numbers of groups of threads: {counts}"
    for group, c_origins in enumerate(origins["c"]):
        for name, matched_axis in (("a", 0), ("b", 1)):
            if name not in origins:
                continue
            k_range = range(
                0, held[name].shape[1 - matched_axis], getattr(atom, name).columns if matched_axis == 0 else atom.b.rows
            )
            for origin in c_origins:
                for k in k_range:
                    needed = (origin[0], k) if matched_axis == 0 else (k, origin[1])
                    if needed not in origins[name][group]:
                        return f"group {group} of threads sums at {origin} of c and does not hold {name} at {needed}"
    return None


def _origins(operand: RegisterOperand, distribution: Placement) -> list[set[Origin]] | None:
    """Return a list with one set for each group of threads (the lanes of one atom): the (first row, first column) of
    each atom operand that the group holds in the matrix.

    `operand` is operand A, B or C as the atom describes it; `distribution` is the placement of the matrix (which thread
    holds which element). Return None if the tensor is no matrix, or if a group does not hold whole atom operands.
    """
    lanes, values = operand.lanes, operand.values
    if distribution.threads % lanes or distribution.values % values or len(distribution.shape) != 2:
        return None
    row, column = distribution.coordinates
    table = np.asarray(operand.layout(*np.indices((lanes, values))))
    shape = (distribution.threads // lanes, lanes, distribution.values // values, values)
    starts = []
    for indices, atom_indices in ((row, table % operand.rows), (column, table // operand.rows)):
        origins = indices.reshape(shape) - atom_indices[None, :, None, :]
        first = origins[:, :1, :, :1]
        if np.any(origins != first):
            return None
        starts.append(first[:, 0, :, 0])
    pairs = np.stack(starts, axis=-1)
    return [{(int(r), int(c)) for r, c in group} for group in pairs]
