"""LLVM text for one lane: integer expressions in 32 bits where their limits allow, structured control flow.

What was worked out once is used again where it dominates: within the block that it stands in and blocks inside that.
Registers that change are stack slots; LLVM's first pass makes values of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from tilewright.algebra.expr import (
    And,
    AtLeastZero,
    Const,
    Exact,
    Expr,
    FloorDiv,
    IsZero,
    Max,
    Min,
    Mod,
    Or,
    Product,
    Sum,
    Symbol,
    Xor,
)
from tilewright.codegen.text import Writer

LEAST, MOST = -(1 << 31), (1 << 31) - 1


class LaneWriter(Writer):
    """The lines of a kernel, as one lane executes them."""

    in_place = ("erf", "sigmoid")

    def __init__(self) -> None:
        super().__init__(fused=True, nan_maximum=True, rounds_bf16=True)
        self.slots: list[str] = []
        self.layers: list[dict[Any, str]] = [{}]
        self.names: dict[Symbol, str] = {}

    # -- lines ----------------------------------------------------------------------------------------------

    def placed(self, depth: int, key: Any, text: str) -> str:
        """A line that computes something, here; the same name where the first one dominates."""
        return self.once(key, text)

    def once(self, key: Any, text: str) -> str:
        """A line that computes something, unless it has been written where this one can see it."""
        found = self._known(key)
        if found is None:
            found = self.layers[-1][key] = self.value(text)
        return found

    def _known(self, key: Any) -> str | None:
        return next((layer[key] for layer in reversed(self.layers) if key in layer), None)

    def slot(self, kind: str) -> str:
        """A place for a value that changes."""
        found = self.name("slot")
        self.slots.append(f"  {found} = alloca {kind}")
        return found

    def together(self, kinds: Sequence[str]) -> str:
        """The type of several values that one instruction gives; named, since products give a hundred and more.

        >>> w = LaneWriter()
        >>> w.together(["float"] * 3 + ["i32"]), list(w.declared)
        ('%of.3_float.1_i32', ['%of.3_float.1_i32 = type {float, float, float, i32}'])
        """
        name = ".".join(["%of", *(f"{len(list(same))}_{kind}" for kind, same in groupby(kinds))])
        self.declared[f"{name} = type {{{', '.join(kinds)}}}"] = None
        return name

    def assembly(self, text: str, constraints: str = "", operands: tuple[str, ...] = (), result: str = "void") -> str:
        """Instructions that LLVM has no name for; `operands` are written with their types."""
        flat = text.replace("\n", "\\0A")
        marks = ",".join(filter(None, (constraints, "~{memory}")))
        call = f'call {result} asm sideeffect "{flat}", "{marks}"({", ".join(operands)})'
        if result == "void":
            self.line(call)
            return ""
        return self.value(call)

    # -- control ----------------------------------------------------------------------------------------------

    def fresh_label(self, word: str) -> str:
        """A name for a block."""
        return self.name(word)[1:]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What is worked out within is not known afterwards."""
        self.layers.append({})
        try:
            yield
        finally:
            self.layers.pop()

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is written within happens under a condition, an i1."""
        then, after = self.fresh_label("then"), self.fresh_label("after")
        self.line(f"br i1 {condition}, label %{then}, label %{after}")
        self.label(then)
        with self.inside():
            yield
        self.line(f"br label %{after}")
        self.label(after)

    def either(self, condition: str, first: Callable[[], None], second: Callable[[], None]) -> None:
        """One of two."""
        then, other, after = (self.fresh_label(word) for word in ("then", "else", "after"))
        self.line(f"br i1 {condition}, label %{then}, label %{other}")
        for name, body in ((then, first), (other, second)):
            self.label(name)
            with self.inside():
                body()
            self.line(f"br label %{after}")
        self.label(after)

    @contextmanager
    def loop(self, first: str, last: str, step: str) -> Iterator[str]:
        """Rounds from a number on, as long as it is below another; gives the round's number, an i32."""
        slot = self.slot("i32")
        self.line(f"store i32 {first}, ptr {slot}")
        head, body, after = (self.fresh_label(word) for word in ("head", "body", "after"))
        self.line(f"br label %{head}")
        self.label(head)
        number = self.value(f"load i32, ptr {slot}")
        more = self.value(f"icmp slt i32 {number}, {last}")
        self.line(f"br i1 {more}, label %{body}, label %{after}")
        self.label(body)
        with self.inside():
            yield number
            following = self.value(f"add i32 {number}, {step}")
            self.line(f"store i32 {following}, ptr {slot}")
        self.line(f"br label %{head}")
        self.label(after)

    @contextmanager
    def rounds(self, more: Callable[[], str]) -> Iterator[None]:
        """Rounds as long as a condition, an i1, holds before each."""
        head, body, after = (self.fresh_label(word) for word in ("head", "body", "after"))
        self.line(f"br label %{head}")
        self.label(head)
        with self.inside():
            self.line(f"br i1 {more()}, label %{body}, label %{after}")
            self.label(body)
            yield
        self.line(f"br label %{head}")
        self.label(after)

    # -- integer expressions ------------------------------------------------------------------------------------

    def narrow(self, e: Expr) -> bool:
        """Whether an expression, and all it is made of, is shown to fit in 32 bits."""
        return all(part.lo >= LEAST and part.hi <= MOST for part in e.walk())

    def number(self, e: Expr) -> str:
        """The expression's value, an i32."""
        if self.narrow(e):
            return self._integer32(e)
        wide = self._written(e, 64)
        return wide if isinstance(e, Const) else self.once((e, "narrowed"), f"trunc i64 {wide} to i32")

    def integer(self, e: Expr) -> str:
        """The expression's value, an i64."""
        if isinstance(e, Const):
            return str(e.value)
        if self.narrow(e):
            return self.once((e, "widened"), f"sext i32 {self._integer32(e)} to i64")
        return self._written(e, 64)

    def _integer32(self, e: Expr) -> str:
        return self._written(e, 32)

    def _written(self, e: Expr, bits: int) -> str:
        if isinstance(e, Const):
            return str(e.value)
        known = self._known((e, bits))
        if known is not None:
            return known
        found = self._compose(e, bits)
        self.layers[-1][e, bits] = found
        return found

    def _compose(self, e: Expr, bits: int) -> str:
        kind = f"i{bits}"
        if isinstance(e, Symbol):
            if e in self.names:
                text = self.names[e]
                return text if bits == 32 or not text.startswith("%") else self.value(f"sext i32 {text} to i64")
            if e.definition is None:
                raise AssertionError(f"the symbol {e} has no value here")
            return self._written(e.definition, bits)
        if isinstance(e, Sum):
            total = ""
            for term, times in e.terms:
                part = self._written(term, bits)
                if times != 1:
                    part = self.once((term, "times", times, bits), f"mul {kind} {part}, {times}")
                total = self.value(f"add {kind} {total}, {part}") if total else part
            return self.value(f"add {kind} {total}, {e.constant}") if e.constant else total
        if isinstance(e, AtLeastZero | IsZero | And | Or):
            return self.value(f"zext i1 {self.condition(e)} to {kind}")
        parts = [self._written(p, bits) for p in e.parts]
        if isinstance(e, Product | Xor):
            return self._chain(f"{'mul' if isinstance(e, Product) else 'xor'} {kind} {{}}, {{}}", parts)
        if isinstance(e, Min | Max):
            name = f"llvm.{'smin' if isinstance(e, Min) else 'smax'}.{kind}"
            self.declare(f"{kind} @{name}({kind}, {kind})")
            return self._chain(f"call {kind} @{name}({kind} {{}}, {kind} {{}})", parts)
        if isinstance(e, Exact):
            return self.value(f"sdiv exact {kind} {parts[0]}, {parts[1]}")
        assert isinstance(e, FloorDiv | Mod)
        if e.left.lo >= 0 and e.right.lo > 0:
            return self.value(f"{'urem' if isinstance(e, Mod) else 'udiv'} {kind} {parts[0]}, {parts[1]}")
        return self._floored(isinstance(e, Mod), kind, parts[0], parts[1])

    def _chain(self, pattern: str, parts: list[str]) -> str:
        total = parts[0]
        for part in parts[1:]:
            total = self.value(pattern.format(total, part))
        return total

    def _floored(self, rest_wanted: bool, kind: str, left: str, right: str) -> str:
        rest = self.value(f"srem {kind} {left}, {right}")
        mixed = self.value(f"xor {kind} {rest}, {right}")
        below = self.value(f"icmp slt {kind} {mixed}, 0")
        some = self.value(f"icmp ne {kind} {rest}, 0")
        off = self.value(f"and i1 {below}, {some}")
        if rest_wanted:
            moved = self.value(f"add {kind} {rest}, {right}")
            return self.value(f"select i1 {off}, {kind} {moved}, {kind} {rest}")
        quotient = self.value(f"sdiv {kind} {left}, {right}")
        one = self.value(f"zext i1 {off} to {kind}")
        return self.value(f"sub {kind} {quotient}, {one}")

    def condition(self, e: Expr) -> str:
        """The condition's value, an i1."""
        if isinstance(e, Const):
            return "true" if e.value else "false"
        known = self._known((e, 1))
        if known is not None:
            return known
        if isinstance(e, AtLeastZero | IsZero):
            kind = "i32" if self.narrow(e.operand) else "i64"
            constant = e.operand.constant if isinstance(e.operand, Sum) else 0
            inner = self._written(e.operand - constant, int(kind[1:]))  # the same for neighbours
            found = self.value(f"icmp {'sge' if isinstance(e, AtLeastZero) else 'eq'} {kind} {inner}, {-constant}")
        elif isinstance(e, And | Or):
            word = "and" if isinstance(e, And) else "or"
            found = self._chain(f"{word} i1 {{}}, {{}}", [self.condition(a) for a in e.args])
        else:
            found = self.value(f"icmp ne i32 {self.number(e)}, 0")
        self.layers[-1][e, 1] = found
        return found
