"""Index arithmetic of sizes, which a caller tells."""

from __future__ import annotations

from typing import Any

from tilewright.algebra.expr import Const, FloorDiv, Symbol
from tilewright.algebra.expr_rules import maximum
from tilewright.codegen.text import Writer


class HostWriter(Writer):
    """Index arithmetic of sizes. A divisor of 0 counts as 1: it belongs to a branch that is not taken."""

    def _divided(self, e: Any, depth: int) -> str:
        if not isinstance(e.right, Const) and e.right.lo == 0:
            right = maximum(e.right, 1)
            return self.integer(e.left // right if isinstance(e, FloorDiv) else e.left % right)
        return super()._divided(e, depth)


def load_sizes(w: Writer, sizes: tuple[Symbol, ...], pointer: str = "%sizes") -> None:
    """Reads the sizes that a caller tells."""
    for place, s in enumerate(sizes):
        slot = w.value(f"getelementptr i8, ptr {pointer}, i64 {8 * place}")
        w.symbols[s] = (w.value(f"load i64, ptr {slot}"), 0)
