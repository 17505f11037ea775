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
    """The operations with these meanings; values that they define, and numbers that they read, are new ones."""
    return _Clone(low, dict(meanings)).ops(ops)


class _Clone:
    def __init__(self, low: LoopLowering, meanings: dict[Symbol, Expr]):
        self.low, self.meanings = low, meanings
        self.images = Substitution(meanings)
        self.values: dict[Value, Value] = {}

    def ops(self, ops: list[Op]) -> list[Op]:
        """The operations, those left out that never happen."""
        found: list[Op] = []
        for op in ops:
            found += self.op(op)
        return found

    def op(self, op: Op) -> list[Op]:
        """What an operation becomes: nothing, itself, or what stands in a branch that is known to be taken."""
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
        """The value that stands for another here."""
        return self.values.get(value, value)

    def attributes(self, op: Op) -> dict[str, Any] | None:
        """The attributes with these meanings; None for a loop that never runs."""
        found: dict[str, Any] = {}
        for name, value in op.attrs.items():
            kind = op.spec.attrs[name].rstrip("?")
            if kind == "fetched":
                fresh = symbol(self.low.fresh(value.name.rpartition("_")[0]), value.lower, value.upper)
                self.meanings[value] = fresh
                self.images = Substitution(self.meanings)
                found[name] = fresh
            elif kind == "ranges":
                found[name] = self._ranges(value)
                if any(_empty(r) for r in found[name]):
                    return None
            elif kind == "axes":
                found[name] = value
            else:
                found[name] = kind_of(kind).mapped(value, self.images)
        return found

    def _ranges(self, ranges: Any) -> Any:
        from tilewright.ir.attrs import Range

        made = []
        for r in ranges:
            new = Range.of(
                self.low.fresh(r.symbol.name.rpartition("_")[0]), self.images(r.lo), self.images(r.hi), r.step
            )
            self.meanings[r.symbol] = new.symbol
            self.images = Substitution(self.meanings)
            made.append(new)
        return tuple(made)


def _empty(loop: Any) -> bool:
    return isinstance(loop.lo, Const) and isinstance(loop.hi, Const) and loop.hi.value <= loop.lo.value
