"""Shared memory that a block program needs, with the scratch memory that the lowering to loops adds."""

from __future__ import annotations

from math import prod

from tilewright.check.block import past_shared_memory
from tilewright.ir.core import Op, Program
from tilewright.ir.tensors import RegisterType, TensorType
from tilewright.lower.gpu.lower import lower_waves, shared_excess_bytes
from tilewright.machine import Machine

WITHOUT_SCRATCH = ("mma", "fill", "copy", "map", "view", "alloc")
"""Operations on register tensors that need no scratch memory."""


def shared_overflow(program: Program, machine: Machine, *, roles: bool) -> str:
    """Return a text that says why a block program needs more shared memory than a workgroup of `machine` has; "" if the
    program fits. Scratch memory of operations counts only if `roles`: the program is then split into roles of waves.
    """
    if overflow := past_shared_memory(program, machine):
        return overflow.what
    return _scratch_overflow(program, machine) if roles else ""


def _scratch_overflow(program: Program, machine: Machine) -> str:
    """Return a text with the number of bytes of shared memory that a block program needs with scratch memory of
    operations; "" if they fit, or if the machine has no limit.

    A program is lowered to find out only if it may not fit: its allocations and the upper bound of its scratch memory
    are too large together.
    """
    limit = machine.spaces["shared"].bytes
    if limit is None or _allocated(program) + _most_scratch(program) <= limit:
        return ""
    excess = shared_excess_bytes(lower_waves(program, machine), machine)
    return f"shared memory: {limit + excess} bytes are needed with scratch memory" if excess > 0 else ""


def _allocated(program: Program) -> int:
    """Return the number of bytes of all tensors in memory that a block program allocates."""
    kinds = (op.attrs["type"] for op in program.walk() if op.name == "alloc")
    return sum(kind.cosize() * kind.dtype.numpy.itemsize for kind in kinds if isinstance(kind, TensorType))


def _most_scratch(program: Program) -> int:
    """Return an upper bound of the scratch memory of a block program, in bytes. It is the sum, over all operations that
    may need scratch memory, of the bytes of the operation's largest register tensor: operations do not reuse scratch
    memory.
    """
    return sum(max(_register_bytes(op), default=0) for op in program.walk() if op.name not in WITHOUT_SCRATCH)


def _register_bytes(op: Op) -> list[int]:
    """Return a list with the number of bytes of each operand of `op` that is a register tensor."""
    kinds = (value.type for value in op.operands)
    return [
        prod(int(e) for e in kind.shape) * kind.dtype.numpy.itemsize for kind in kinds if isinstance(kind, RegisterType)
    ]
