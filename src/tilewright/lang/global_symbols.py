"""The symbols that Wave kernels import by `*`: address spaces, thread and workgroup ids, scheduling knobs.

The knobs are accepted in `subs` and have no effect here.
"""

from tilewright.algebra.expr import Symbol, symbol
from tilewright.lang import sympy
from tilewright.lang.symbols import (
    DEVICE_DIM_0,
    DEVICE_DIM_1,
    DEVICE_DIM_2,
    GLOBAL_ADDRESS_SPACE,
    SHARED_ADDRESS_SPACE,
    THREAD_0,
    THREAD_1,
    THREAD_2,
    WORKGROUP_0,
    WORKGROUP_1,
    WORKGROUP_2,
    workgroup_symbol,
)

KNOBS = (
    *("READ_SHARED_DELAY", "WRITE_SHARED_DELAY", "READ_GLOBAL_DELAY", "WRITE_GLOBAL_DELAY", "MMA_DELAY"),
    *("VALU_DELAY", "SHUFFLE_DELAY", "GLOBAL_TO_SHARED_DELAY", "SHARED_MEMORY_UNITS", "GLOBAL_MEMORY_UNITS"),
    *("MMA_UNITS", "VALU_UNITS", "SHUFFLE_UNITS", "GLOBAL_TO_SHARED_UNITS"),
    *("MMA_LHS", "MMA_RHS", "MMA_ACC", "MMA_LHS_SCALE", "MMA_RHS_SCALE", "MMA_SCALE_FP4", "GPR_NUM"),
)
globals().update({name: symbol(name, 0) for name in KNOBS})


def GET_ITER_ARG(number: int) -> Symbol:  # noqa: N802 - Wave's name
    """Return the symbol that stands for loop-carried value number `number` in the condition of a while loop."""
    return symbol(f"GET_ITER_ARG_{number}")


def index_symbol(name: str) -> Symbol:
    """Return the symbol `name`, a nonnegative integer."""
    return symbol(name, 0)


def get_workgroup_symbol(number: int) -> Symbol:
    """Return the symbol for the workgroup's id (block index) along grid dimension `number`, from 0 to 4. Raise
    ProgramError for any other number.
    """
    return workgroup_symbol(number, "get_workgroup_symbol: number")


__all__ = [
    "DEVICE_DIM_0",
    "DEVICE_DIM_1",
    "DEVICE_DIM_2",
    "GET_ITER_ARG",
    "GLOBAL_ADDRESS_SPACE",
    "SHARED_ADDRESS_SPACE",
    "THREAD_0",
    "THREAD_1",
    "THREAD_2",
    "WORKGROUP_0",
    "WORKGROUP_1",
    "WORKGROUP_2",
    "get_workgroup_symbol",
    "index_symbol",
    "sympy",
]
__all__ += KNOBS
