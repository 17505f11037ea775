"""Index arithmetic on sizes that a caller passes in an array of i64."""

from __future__ import annotations

from typing import Any

from tilewright.algebra.expr import Const, Exact, FloorDiv, Symbol
from tilewright.algebra.expr_divide import exact_divide
from tilewright.algebra.expr_rules import maximum
from tilewright.codegen.text import Writer
from tilewright.ir.binding import allowed


class HostWriter(Writer):
    """Emits index arithmetic on sizes; a divisor of 0 counts as 1, since it belongs to a branch that is not taken."""

    def _divided(self, e: Any, depth: int) -> str:
        """Emit the quotient, exact quotient or remainder `e` of integer expressions; return the LLVM name of the i64.

        Overrides the base class: a divisor with the smallest value 0 is replaced by max(divisor, 1). It is 0 only if
        the result is not used. `depth` is the number of the scope (0: the outermost) to which instructions are hoisted.
        """
        if not isinstance(e.right, Const) and e.right.lo == 0:
            right = maximum(e.right, 1)
            if isinstance(e, Exact):
                return self.integer(exact_divide(e.left, right))
            return self.integer(e.left // right if isinstance(e, FloorDiv) else e.left % right)
        return super()._divided(e, depth)


def load_sizes(w: Writer, sizes: tuple[Symbol, ...], pointer: str = "%sizes") -> None:
    """Emit loads of `sizes` from the array of i64 at the LLVM pointer `pointer`, in order.

    Record the LLVM names of the loaded values in `w.symbols`.
    """
    for place, s in enumerate(sizes):
        slot = w.value(f"getelementptr i8, ptr {pointer}, i64 {8 * place}")
        w.symbols[s] = (w.value(f"load i64, ptr {slot}"), 0)


def outside_range(w: Writer, size: Symbol) -> str:
    """Emit a test for a value of `size` that is out of its range or not a multiple of its step from the start of the
    range.

    Return the LLVM name of the i1. `w.symbols` must have the value of `size`.
    """
    numbers, value = allowed(size), w.symbols[size][0]
    low = w.value(f"icmp slt i64 {value}, {numbers.start}")
    high = w.value(f"icmp sgt i64 {value}, {numbers[-1]}")
    wrong = w.value(f"or i1 {low}, {high}")
    if numbers.step != 1:
        rest = w.value(f"srem i64 {w.value(f'sub i64 {value}, {numbers.start}')}, {numbers.step}")
        wrong = w.value(f"or i1 {wrong}, {w.value(f'icmp ne i64 {rest}, 0')}")
    return wrong


def range_text(size: Symbol) -> str:
    """Return the error message that says which values `size` may have.

    >>> from tilewright.algebra.expr import symbol
    >>> range_text(symbol("M", 1, 100))
    'the size M must be from 1 to 100'
    """
    numbers = allowed(size)
    steps = f" in steps of {numbers.step}" if numbers.step != 1 else ""
    return f"the size {size.name} must be from {numbers.start} to {numbers[-1]}{steps}"
