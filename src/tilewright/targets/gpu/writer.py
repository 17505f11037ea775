"""LLVM text for one lane: integer expressions, in 32 bits if their limits allow it, and structured control flow.

A computed value is reused where it dominates: within its block and the blocks inside it. Registers that change are
stack slots, which LLVM's first pass turns into values.
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
    """The LLVM lines of a kernel, as one lane executes them."""

    def __init__(self) -> None:
        super().__init__(fused=True, nan_maximum=True, rounds_bf16=True)
        self.slots: list[str] = []
        self.layers: list[dict[Any, str]] = [{}]
        self.names: dict[Symbol, str] = {}

    # -- lines ----------------------------------------------------------------------------------------------

    def placed(self, depth: int, key: Any, text: str) -> str:
        """Emit the instruction `text`, and return the name of its result. If a result with the same `key` is visible
        here, return its name and emit nothing. `depth` is ignored: other writers use it to hoist instructions out of
        loops.
        """
        return self.once(key, text)

    def once(self, key: Any, text: str) -> str:
        """Emit the instruction `text`, and return the name of its result. If a result with the same `key` is visible
        here (its block dominates this one), return its name and emit nothing.
        """
        name = self._known(key)
        if name is None:
            name = self.layers[-1][key] = self.value(text)
        return name

    def _known(self, key: Any) -> str | None:
        """Return the name of the LLVM value that was emitted for `key` and is visible here; None if there is none."""
        return next((layer[key] for layer in reversed(self.layers) if key in layer), None)

    def slot(self, kind: str) -> str:
        """Emit a stack slot for a variable of the LLVM type `kind` at the start of the kernel, and return the name of
        its pointer.
        """
        name = self.name("slot")
        self.slots.append(f"  {name} = alloca {kind}")
        return name

    def struct_type(self, kinds: Sequence[str]) -> str:
        """Declare the LLVM struct type with fields of the types `kinds`, and return its name. It is the result type of
        instructions with several results, such as MMAs.

        >>> w = LaneWriter()
        >>> w.struct_type(["float"] * 3 + ["i32"]), list(w.declared)
        ('%of.3_float.1_i32', ['%of.3_float.1_i32 = type {float, float, float, i32}'])
        """
        name = ".".join(["%of", *(f"{len(list(same))}_{kind}" for kind, same in groupby(kinds))])
        self.declared[f"{name} = type {{{', '.join(kinds)}}}"] = None
        return name

    def assembly(self, text: str, constraints: str = "", operands: tuple[str, ...] = (), result: str = "void") -> str:
        """Emit the inline assembly `text`, and return its result, an LLVM value of the type `result` ("" if this is
        void). `constraints` are LLVM's constraints of inline assembly, without the memory clobber, which is added.
        `operands` are LLVM values with their types, such as "i32 %x".
        """
        flat = text.replace("\n", "\\0A")
        marks = ",".join(filter(None, (constraints, "~{memory}")))
        call = f'call {result} asm sideeffect "{flat}", "{marks}"({", ".join(operands)})'
        if result == "void":
            self.line(call)
            return ""
        return self.value(call)

    # -- control ----------------------------------------------------------------------------------------------

    def fresh_label(self, word: str) -> str:
        """Return a new name for an LLVM block, which begins with `word`."""
        return self.name(word)[1:]

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Return a context manager for code that may not be executed, such as a branch. Values that are emitted within
        it are not reused after it.
        """
        self.layers.append({})
        try:
            yield
        finally:
            self.layers.pop()

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Return a context manager that emits a branch. Code that is emitted within it runs only if `condition`, an i1,
        is true.
        """
        then, after = self.fresh_label("then"), self.fresh_label("after")
        self.line(f"br i1 {condition}, label %{then}, label %{after}")
        self.label(then)
        with self.nested():
            yield
        self.line(f"br label %{after}")
        self.label(after)

    def either(self, condition: str, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Emit a branch on `condition`, an i1. `first()` emits the code for true, and `second()` the code for false."""
        then, other, after = (self.fresh_label(word) for word in ("then", "else", "after"))
        self.line(f"br i1 {condition}, label %{then}, label %{other}")
        for name, body in ((then, first), (other, second)):
            self.label(name)
            with self.nested():
                body()
            self.line(f"br label %{after}")
        self.label(after)

    @contextmanager
    def loop(self, first: str, last: str, step: str) -> Iterator[str]:
        """Return a context manager that emits a loop. Code that is emitted within it is the body. It yields the loop's
        counter, an i32 that runs from `first` to below `last` with the step `step` (LLVM values).
        """
        slot = self.slot("i32")
        self.line(f"store i32 {first}, ptr {slot}")
        head, body, after = (self.fresh_label(word) for word in ("head", "body", "after"))
        self.line(f"br label %{head}")
        self.label(head)
        number = self.value(f"load i32, ptr {slot}")
        continues = self.value(f"icmp slt i32 {number}, {last}")
        self.line(f"br i1 {continues}, label %{body}, label %{after}")
        self.label(body)
        with self.nested():
            yield number
            following = self.value(f"add i32 {number}, {step}")
            self.line(f"store i32 {following}, ptr {slot}")
        self.line(f"br label %{head}")
        self.label(after)

    @contextmanager
    def while_loop(self, more: Callable[[], str]) -> Iterator[None]:
        """Return a context manager that emits a loop. Code that is emitted within it is the body. `more()` emits the
        condition of the loop and returns it, an i1. The condition is tested before each iteration.
        """
        head, body, after = (self.fresh_label(word) for word in ("head", "body", "after"))
        self.line(f"br label %{head}")
        self.label(head)
        with self.nested():
            self.line(f"br i1 {more()}, label %{body}, label %{after}")
            self.label(body)
            yield
        self.line(f"br label %{head}")
        self.label(after)

    # -- integer expressions ------------------------------------------------------------------------------------

    def fits_32_bits(self, e: Expr) -> bool:
        """True if the values of the expression `e`, and of all its subexpressions, provably fit in signed 32 bits."""
        return all(part.lo >= LEAST and part.hi <= MOST for part in e.walk())

    def number(self, e: Expr) -> str:
        """Emit the integer expression `e`, and return its value as an i32. It is computed in 64 bits and truncated
        unless it fits in 32 bits (see `fits_32_bits`).
        """
        if self.fits_32_bits(e):
            return self._integer32(e)
        wide = self._written(e, 64)
        return wide if isinstance(e, Const) else self.once((e, "narrowed"), f"trunc i64 {wide} to i32")

    def integer(self, e: Expr) -> str:
        """Emit the integer expression `e`, and return its value as an i64. It is computed in 32 bits and sign-extended
        if it fits in 32 bits (see `fits_32_bits`).
        """
        if isinstance(e, Const):
            return str(e.value)
        if self.fits_32_bits(e):
            return self.once((e, "widened"), f"sext i32 {self._integer32(e)} to i64")
        return self._written(e, 64)

    def _integer32(self, e: Expr) -> str:
        """Emit the integer expression `e` in 32-bit arithmetic, and return its value, an i32."""
        return self._written(e, 32)

    def _written(self, e: Expr, bits: int) -> str:
        """Emit the integer expression `e` in arithmetic of `bits` bits (32 or 64), and return its LLVM value. If a
        value of `e` with this width is visible here, return it and emit nothing.
        """
        if isinstance(e, Const):
            return str(e.value)
        known = self._known((e, bits))
        if known is not None:
            return known
        text = self._compose(e, bits)
        self.layers[-1][e, bits] = text
        return text

    def _compose(self, e: Expr, bits: int) -> str:
        """Emit the integer expression `e` in arithmetic of `bits` bits (32 or 64), and return its LLVM value. Operands
        that are visible here are reused. Raise AssertionError if a symbol has no value here.
        """
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
        """Emit an instruction with two operands over all LLVM values in `parts`, from left to right, and return the
        last result. `pattern` is the text of the instruction with {} for each operand.
        """
        total = parts[0]
        for part in parts[1:]:
            total = self.value(pattern.format(total, part))
        return total

    def _floored(self, rest_wanted: bool, kind: str, left: str, right: str) -> str:
        """Emit the floor division `left` / `right`, or its remainder if `rest_wanted`, and return the LLVM value.
        `left` and `right` are LLVM integers of the type `kind` of any sign.
        """
        rest = self.value(f"srem {kind} {left}, {right}")
        sign_bits = self.value(f"xor {kind} {rest}, {right}")
        signs_differ = self.value(f"icmp slt {kind} {sign_bits}, 0")
        is_inexact = self.value(f"icmp ne {kind} {rest}, 0")
        rounds_down = self.value(f"and i1 {signs_differ}, {is_inexact}")
        if rest_wanted:
            corrected = self.value(f"add {kind} {rest}, {right}")
            return self.value(f"select i1 {rounds_down}, {kind} {corrected}, {kind} {rest}")
        quotient = self.value(f"sdiv {kind} {left}, {right}")
        one = self.value(f"zext i1 {rounds_down} to {kind}")
        return self.value(f"sub {kind} {quotient}, {one}")

    def condition(self, e: Expr) -> str:
        """Emit the condition `e`, and return its LLVM value, an i1. The result is "true" or "false" if `e` is constant.
        If a value of `e` is visible here, return it and emit nothing.

        `e` is a comparison, an And or an Or. Any other expression is true if it is not 0.
        """
        if isinstance(e, Const):
            return "true" if e.value else "false"
        known = self._known((e, 1))
        if known is not None:
            return known
        if isinstance(e, AtLeastZero | IsZero):
            kind = "i32" if self.fits_32_bits(e.operand) else "i64"
            constant = e.operand.constant if isinstance(e.operand, Sum) else 0
            inner = self._written(e.operand - constant, int(kind[1:]))  # the same for neighbours
            text = self.value(f"icmp {'sge' if isinstance(e, AtLeastZero) else 'eq'} {kind} {inner}, {-constant}")
        elif isinstance(e, And | Or):
            word = "and" if isinstance(e, And) else "or"
            text = self._chain(f"{word} i1 {{}}, {{}}", [self.condition(a) for a in e.args])
        else:
            text = self.value(f"icmp ne i32 {self.number(e)}, 0")
        self.layers[-1][e, 1] = text
        return text
