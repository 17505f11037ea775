"""Symbols of kernels, and the symbols that name address spaces, workgroups, threads and devices."""

from __future__ import annotations

from enum import Enum

from tilewright.algebra.expr import Symbol, symbol
from tilewright.algebra.inttuple import is_int
from tilewright.errors import ProgramError
from tilewright.ir.location import author_location
from tilewright.ir.tile import GRID_RANK


class _Symbols:
    """`sym.M` is the symbol M: an integer that is never negative; equal names are the same symbol."""

    def __getattr__(self, name: str) -> Symbol:
        if name.startswith("__"):
            raise AttributeError(name)
        return symbol(name, 0)

    def __repr__(self) -> str:
        return "sym"

    def __reduce__(self) -> str:
        return "sym"  # by name: there is one


sym = _Symbols()


class AddressSpace(Enum):
    """The memory that holds a tensor. For kernel arguments it is a hint that the tile level ignores."""

    REGISTER = 0
    SHARED_MEMORY = 1
    GLOBAL_MEMORY = 2


GLOBAL_ADDRESS_SPACE = symbol("GLOBAL_ADDRESS_SPACE", 0)
SHARED_ADDRESS_SPACE = symbol("SHARED_ADDRESS_SPACE", 0)

WORKGROUPS = tuple(symbol(f"WORKGROUP_{i}", 0) for i in range(GRID_RANK))
WORKGROUP_0, WORKGROUP_1, WORKGROUP_2, WORKGROUP_3, WORKGROUP_4 = WORKGROUPS
THREAD_0, THREAD_1, THREAD_2 = THREADS = tuple(symbol(f"THREAD_{i}", 0) for i in range(3))
DEVICE_DIM_0, DEVICE_DIM_1, DEVICE_DIM_2 = DEVICES = tuple(symbol(f"DEVICE_DIM_{i}", 0) for i in range(3))


def workgroup_symbol(number: int, what: str) -> Symbol:
    """Return the symbol for the workgroup's id (block index) along grid dimension `number`.

    Raise ProgramError unless `number` is an integer from 0 to 4; `what` names the argument in the message.
    """
    if not is_int(number) or not 0 <= number < GRID_RANK:
        raise ProgramError(f"{what}={number!r}: a grid has dimensions 0 to {GRID_RANK - 1}", author_location())
    return WORKGROUPS[number]
