"""The type in which a machine sums a product."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir import dtypes
from tilewright.ir.core import Op, Program
from tilewright.ir.dtypes import DType
from tilewright.machine import Machine


def summed_in(op: Op, machine: Machine | None) -> DType:
    """The type in which a product is summed: that of its accumulator, and f64 where a factor is.

    A product that asks for sums in f16 has them where the machine has atoms that sum so; elsewhere it is summed in f32
    and rounded once, which is within its meaning.
    """
    a, b, c = (v.type.dtype for v in op.operands)
    if op.attrs.get("accumulate") == dtypes.f16.name and machine is not None and _sums_in_f16(machine):
        return dtypes.f16
    wide: DType = dtypes.f64 if dtypes.f64 in (a, b) else c.accumulator
    return wide


def wider_sums(program: Program, machine: Machine) -> Iterator[str]:
    """What is to be said of products that ask for sums in f16 on a machine that has none."""
    if not _sums_in_f16(machine) and any(op.name == "mma" and "accumulate" in op.attrs for op in program.walk()):
        yield f"accumulate={dtypes.f16}: {machine.name} has no atom that sums so; sums are in f32, rounded once"


def _sums_in_f16(machine: Machine) -> bool:
    return any(x.a.dtype is x.b.dtype is x.c.dtype is dtypes.f16 for x in machine.multiply.values())
