"""Address arithmetic of reads: divisions that an address needs, and elements that one load fetches."""

from __future__ import annotations

from math import gcd, prod

from tilewright.algebra.expr import Const, as_expr
from tilewright.ir.core import MemoryType, Op
from tilewright.machine import Machine
from tilewright.plan.model import Size, element_bytes


def needs_division(op: Op, size: Size) -> bool:
    """True if the address of the read `op`, or its bounds check, is computed with an integer division or remainder.

    A read with a bounds check needs one if any coordinate divides. A read without one needs it only if its flat offset
    still divides after simplification; the flat offset is the sum of coordinate times stride. False if `op` has no
    explicit coordinates. `size(d)` evaluates the extent of a dimension d.
    """
    if "otherwise" in op.attrs:
        return any(e.divisions(set()) for e in op.attrs.get("at", ()))
    shape = [size(d) for d in op.operands[0].type.dims]
    offsets = (e * prod(shape[n + 1 :]) for n, e in enumerate(op.attrs.get("at", ())))
    return bool(sum(offsets, start=as_expr(0)).divisions(set()))


def elements_per_load(op: Op, size: Size, machine: Machine) -> int:
    """Return the number of contiguous elements that one vector load of a lane can fetch for the read `op`; at least 1.

    It is the greatest common divisor of three kinds of numbers: the elements in the machine's widest vector load; the
    extent of the innermost memory dimension; and every number by which a coordinate of `op` is divided. With 8 elements
    a load, extent 28 and i//4 it is 4. It is 1 if a coordinate is divided by an expression that is not constant. `op`
    must have explicit coordinates. `size(d)` evaluates the extent of a dimension d.
    """
    memory: MemoryType = op.operands[0].type
    elements_per_word = max(1, machine.lane_access.vector_bytes // element_bytes(memory.dtype))
    divisors = [node.parts[1] for e in op.attrs["at"] for node in e.divisions(set())]
    if not all(isinstance(n, Const) for n in divisors):
        return 1
    return gcd(elements_per_word, size(memory.dims[-1]), *(n.value for n in divisors if isinstance(n, Const)))
