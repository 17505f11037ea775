"""Multiplication atoms of vector registers: A is 1 x k and the same in all lanes, B is k x lanes."""

from __future__ import annotations

from tilewright.algebra import Layout
from tilewright.ir.dtypes import DType
from tilewright.machine import MultiplyAtom, RegisterOperand


def vector_atom(
    name: str,
    lanes: int,
    depth: int,
    types: tuple[DType, DType, DType],
    features: tuple[str, ...] = (),
    cycles: float = 0.5,
    picks: int = 1,
    picks_from: int = 0,
) -> MultiplyAtom:
    """Return the multiplication atom `name` of vector registers: each of the `lanes` lanes of the accumulator adds the
    products of `depth` neighbours along k. All lanes have the same values of A.

    `types` are the element types of A, B and C. `features` are the CPU features that the atom needs, and `cycles` is
    its cost. `picks` is the number of values of A in one register, of which the instruction selects one by its number.
    `picks_from` is the number of registers that may hold these values (0: all registers).

    >>> from tilewright.ir.dtypes import f32
    >>> vector_atom("vector.f32", 4, 1, (f32, f32, f32)).shape
    (1, 4, 1)
    """
    a, b, c = types
    return MultiplyAtom(
        name,
        RegisterOperand(1, depth, a, Layout((lanes, depth), (0, 1))),
        RegisterOperand(depth, lanes, b, Layout((lanes, depth), (depth, 1))),
        RegisterOperand(1, lanes, c, Layout((lanes, 1), (1, 0))),
        features,
        cycles=cycles,
        load_cycles=0.5,
        picks=picks,
        picks_from=picks_from,
    )
