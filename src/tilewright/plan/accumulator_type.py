"""The accumulator type of an MMA on a machine."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir import dtypes
from tilewright.ir.core import Op, Program
from tilewright.ir.dtypes import DType
from tilewright.machine import Machine


def accumulator_type(op: Op, machine: Machine | None) -> DType:
    """Return the type of the accumulator in which a machine computes the mma `op`.

    The first case that applies decides:

    - f16 if `op` asks for it, and the machine has an atom whose operands and accumulator are f16;
    - f64 if A or B is f64;
    - the type of C if C has 64 bits;
    - f32 for floats, i32 for integers.

    If `machine` is None, no atom is assumed, so that the first case does not apply.
    """
    a, b, c = (v.type.dtype for v in op.operands)
    if op.attrs.get("accumulate") == dtypes.f16.name and machine is not None and _has_f16_accumulator(machine):
        return dtypes.f16
    dtype: DType = dtypes.f64 if dtypes.f64 in (a, b) else c.accumulator
    return dtype


def f16_accumulator_note(program: Program, machine: Machine) -> Iterator[str]:
    """Yield a note for `explain` if the program asks for f16 accumulators and the machine has no atom with f16 ones.

    The note says that it accumulates in f32. Nothing is yielded otherwise.
    """
    if not _has_f16_accumulator(machine) and any(
        op.name == "mma" and "accumulate" in op.attrs for op in program.walk()
    ):
        yield f"accumulate={dtypes.f16}: {machine.name} has no such atom; it accumulates in f32 and rounds once"


def _has_f16_accumulator(machine: Machine) -> bool:
    """True if the machine has an MMA atom whose operands and accumulator are all f16."""
    return any(x.a.dtype is x.b.dtype is x.c.dtype is dtypes.f16 for x in machine.multiply.values())
