"""Multiplication atoms: single instructions that multiply two small matrices and add the product to a third."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import LayoutError
from tilewright.machine.operands import MemoryOperand, RegisterOperand

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class MultiplyAtom:
    """A multiplication atom: C (m x n) += A (m x k) * B (k x n).

    `features` are CPU or GPU features that the atom needs. `completes` names what makes an asynchronous result visible.
    `cycles` are those between two independent atoms, `load_cycles` those between two loads of an operand. If A is one
    element (or one group of k elements) for all lanes, `picks` of them lie in one register and the instruction selects
    one by its number; with `picks` 1, the load broadcasts it. It may select from the first `picks_from` registers only
    (0: from all). `rounds_to` names the precision to which operands are truncated first, such as tf32, if it is below
    their type's; a program must ask for it.
    """

    name: str
    a: RegisterOperand | MemoryOperand
    b: RegisterOperand | MemoryOperand
    c: RegisterOperand
    features: tuple[str, ...] = ()
    completes: str | None = None
    cycles: float = 1.0
    load_cycles: float = 0
    picks: int = 1
    picks_from: int = 0
    rounds_to: str | None = None
    shape: tuple[int, int, int] = field(init=False)

    def __post_init__(self) -> None:
        m, n, k = self.c.rows, self.c.columns, self.a.columns
        if (self.a.rows, self.b.rows, self.b.columns) != (m, k, n):
            raise LayoutError(
                f"{self.name}: A is {self.a.rows}x{k}, B {self.b.rows}x{self.b.columns}, C {m}x{n}: they do not fit"
            )
        object.__setattr__(self, "shape", (m, n, k))

    @property
    def asynchronous(self) -> bool:
        """Return True if the instruction is asynchronous: the program must wait before C is visible."""
        return self.completes is not None

    @cached_property
    def forms(self) -> tuple[tuple[bool, int] | None, tuple[bool, int] | None]:
        """Return (form of A, form of B): along which dimension each operand is contiguous in memory.

        A form is (is contiguous along K, stride in elements of the other dimension). An operand that is contiguous
        along M or N has (False, stride of K). The form is None for an operand in registers, or one that is contiguous
        along neither dimension.
        """
        return _form(self.a, 0, 1), _form(self.b, 1, 0)

    @cached_property
    def slab(self) -> int | None:
        """Return the leading dimension of the operands in memory: the stride, in elements, of the dimension that is not
        contiguous.

        If A is in registers, it is that of B. Return None if B is in registers, if A and B have different ones, or if
        an operand is contiguous along neither dimension.
        """
        forms = [f for f, x in zip(self.forms, (self.a, self.b), strict=True) if isinstance(x, MemoryOperand)]
        lengths = {None if form is None else form[1] for form in forms}
        return lengths.pop() if len(lengths) == 1 and isinstance(self.b, MemoryOperand) else None

    def rounded(self, operand: Array) -> Array:
        """Return the matrix `operand` with its elements rounded as the instruction rounds them.

        An atom whose `rounds_to` is "tf32" truncates f32 elements to tf32. For other atoms the matrix is returned
        unchanged.
        """
        if self.rounds_to != "tf32":
            return operand
        return (np.ascontiguousarray(operand, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    def run(self, a: Array, b: Array, c: Array) -> Array:
        """Execute the atom: return C + A * B as the registers of C, an array indexed [lane, value]; `c` is not changed.

        `a`, `b` and `c` hold the matrices as their operands' layouts say: registers indexed [lane, value], or flat
        memory. A and B are rounded first as the instruction rounds them. The sum is computed in float64 (int64 for
        integers) and rounded once to C's type; integers wrap.
        """
        wide = np.float64 if self.c.dtype.is_float else np.int64
        product = self.rounded(self.a.load(a)).astype(wide) @ self.rounded(self.b.load(b)).astype(wide)
        total = self.c.load(c).astype(wide) + product
        return self.c.store(total.astype(self.c.dtype.numpy))


def _form(operand: RegisterOperand | MemoryOperand, rows: int, k: int) -> tuple[bool, int] | None:
    """Return (is `operand` contiguous along K, stride in elements of its other dimension).

    `rows` and `k` are the indices (0 or 1) of the operand's M or N dimension and of its K dimension. If the operand is
    contiguous along M or N, return (False, stride of K). Return None for an operand in registers, or one that is
    contiguous along neither dimension.
    """
    if not isinstance(operand, MemoryOperand):
        return None
    if operand.steps[k] == 1:
        return True, operand.steps[rows]
    return (False, operand.steps[k]) if operand.steps[rows] == 1 else None
