"""Multiplication atoms: single instructions that add the product of two small matrices to a third."""

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
    """C (m x n) += A (m x k) * B (k x n).

    `features` are what the machine must offer; `completes` says what makes an asynchronous result visible; `cycles` lie
    between two such products that do not depend on each other, `load_cycles` between two loads of a factor. Where A is
    one element (or group of k) in all lanes, `picks` of them lie in one register and the instruction picks one by its
    number; 1: it is repeated in all lanes by its load. It may pick from the first `picks_from` registers only (0: from
    all). `rounds` names the precision to which factors are cut first,
    where that is less than their type's: a program asks for it.
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
    rounds: str | None = None
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
        """Whether something must be waited for before C is visible."""
        return self.completes is not None

    @cached_property
    def forms(self) -> tuple[tuple[bool, int] | None, tuple[bool, int] | None]:
        """(whether a row goes along K, how many it has) of A and of B, where it reads them from memory."""
        return _form(self.a, 0, 1), _form(self.b, 1, 0)

    @cached_property
    def slab(self) -> int | None:
        """How many elements a row has where it reads its factors from memory, or B with A in registers."""
        read = [f for f, x in zip(self.forms, (self.a, self.b), strict=True) if isinstance(x, MemoryOperand)]
        found = {None if form is None else form[1] for form in read}
        return found.pop() if len(found) == 1 and isinstance(self.b, MemoryOperand) else None

    def taken(self, factor: Array) -> Array:
        """A factor's numbers as the instruction takes them: of f32 that it rounds to tf32 it cuts what is too much."""
        if self.rounds != "tf32":
            return factor
        return (np.ascontiguousarray(factor, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    def run(self, a: Array, b: Array, c: Array) -> Array:
        """What the instruction leaves in C's registers: the operands are taken apart and put together by layout.

        Products are summed in C's type; integers wrap.
        """
        wide = np.float64 if self.c.dtype.is_float else np.int64
        product = self.taken(self.a.load(a)).astype(wide) @ self.taken(self.b.load(b)).astype(wide)
        total = self.c.load(c).astype(wide) + product
        return self.c.store(total.astype(self.c.dtype.numpy))


def _form(operand: RegisterOperand | MemoryOperand, rows: int, deep: int) -> tuple[bool, int] | None:
    """(whether a row goes along K, how many it has) of an operand in memory, whose dimensions these are."""
    if not isinstance(operand, MemoryOperand):
        return None
    if operand.steps[deep] == 1:
        return True, operand.steps[rows]
    return (False, operand.steps[deep]) if operand.steps[rows] == 1 else None
