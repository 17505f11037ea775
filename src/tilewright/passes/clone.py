"""Operations of the loop level written out again, with other meanings for their symbols.

A body that is unrolled is lowered once and then copied, round by round: what a round's numbers settle is settled here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.algebra.expr import Const, Expr, Symbol, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.attrs import kind_of
from tilewright.ir.core import Block, Op, Value
from tilewright.passes.loop_lowering import LoopLowering


def cloned(low: LoopLowering, ops: list[Op], meanings: Mapping[Symbol, Expr]) -> list[Op]:
    """Return clones of `ops` with symbols replaced by `meanings`; results and numbers that they read are new values."""
    return _Clone(low, dict(meanings)).ops(ops)


class _Clone:
    """Clones loop operations with symbols replaced; results are new values."""

    def __init__(self, low: LoopLowering, meanings: dict[Symbol, Expr]):
        self.low, self.meanings = low, meanings
        self.images = Substitution(meanings)
        self.values: dict[Value, Value] = {}

    def ops(self, ops: list[Op]) -> list[Op]:
        """Return clones of `ops`, without those that never run."""
        clones: list[Op] = []
        for op in ops:
            clones += self.op(op)
        return clones

    def op(self, op: Op) -> list[Op]:
        """Return what an operation becomes: nothing, a clone, or clones of the branch that is known to be taken."""
        if op.name == "if":
            when = self.images(op.attrs["when"])
            if isinstance(when, Const):
                chosen = op.blocks[:1] if when.value else op.blocks[1:]
                return [new for block in chosen for new in self.ops(block.ops)]
        attrs = self.attributes(op)
        if attrs is None:
            return []
        if op.name in ("load", "store", "atomic") and isinstance(attrs.get("when"), Const):
            happens = bool(attrs.pop("when").value)
            number = attrs.pop("otherwise", 0)
            if not happens:
                if op.name != "load":
                    return []
                fill = self.low.emitted("fill", (self.value(op.operands[0]),), value=number)
                return [fill]
        self.low.another()
        new = Op(op.spec, tuple(self.value(v) for v in op.operands), attrs)
        new.results = tuple(Value(r.type, r.name and self.low.fresh(r.name)) for r in op.results)
        self.values |= zip(op.results, new.results, strict=True)
        new.blocks = tuple(Block((), self.ops(b.ops)) for b in op.blocks)
        return [new]

    def value(self, value: Value) -> Value:
        """Return the clone of a value that a cloned operation defines; any other value as it is."""
        return self.values.get(value, value)

    def attributes(self, op: Op) -> dict[str, Any] | None:
        """Return the attributes with symbols replaced; None for a loop that never runs."""
        attributes: dict[str, Any] = {}
        for name, value in op.attrs.items():
            kind = op.spec.attrs[name].rstrip("?")
            if kind == "fetched":
                fresh = symbol(self.low.fresh(value.name.rpartition("_")[0]), value.lower, value.upper)
                self.meanings[value] = fresh
                self.images = Substitution(self.meanings)
                attributes[name] = fresh
            elif kind == "ranges":
                attributes[name] = self._ranges(value)
                if any(_empty(r) for r in attributes[name]):
                    return None
            elif kind == "axes":
                attributes[name] = value
            else:
                attributes[name] = kind_of(kind).mapped(value, self.images)
        return attributes

    def _ranges(self, ranges: Any) -> Any:
        """Return loop ranges with fresh symbols, and with limits in which symbols are replaced."""
        from tilewright.ir.attrs import Range

        renamed = []
        for r in ranges:
            new = Range.of(
                self.low.fresh(r.symbol.name.rpartition("_")[0]), self.images(r.lo), self.images(r.hi), r.step
            )
            self.meanings[r.symbol] = new.symbol
            self.images = Substitution(self.meanings)
            renamed.append(new)
        return tuple(renamed)


def _empty(loop: Any) -> bool:
    """True if a loop has constant limits and no iterations."""
    return isinstance(loop.lo, Const) and isinstance(loop.hi, Const) and loop.hi.value <= loop.lo.value
