"""Writer of LLVM IR text that all LLVM targets share: lines, scopes, integer expressions, addresses.

Index arithmetic is hoisted as far out as its symbols allow: an expression of outer loops' variables is written once,
before the inner loop. A pointer is a chain of additions, terms of outer loops first, so that neighbouring elements
share the chain and differ by a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import numpy as np

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
from tilewright.algebra.expr_rules import linear, maximum, minimum, weighted_sum
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir.core import Value
from tilewright.ir.dtypes import DType

_TYPES = {
    "bool": "i8", "i8": "i8", "u8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "index": "i64",
    "f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double",
}  # fmt: skip


def element(dtype: DType) -> str:
    """Return the LLVM type that holds one element of type `dtype`: f32 gives "float".

    Floats of 8 bits or fewer, i4 and bool are held in an i8. Raise ProgramError if LLVM has no type for `dtype`.
    """
    llvm_type = _TYPES.get(dtype.name)
    if llvm_type is not None:
        return llvm_type
    if (dtype.is_float and dtype.bits <= 8) or dtype is dtypes.i4:
        return "i8"
    raise ProgramError(f"elements of {dtype} have no form in machine code here")


def vector(dtype: DType, lanes: int | None) -> str:
    """Return the LLVM type of a vector of `lanes` elements of type `dtype`, such as "<8 x float>".

    If `lanes` is None, return the type of a single element, such as "float".
    """
    return element(dtype) if lanes is None else f"<{lanes} x {element(dtype)}>"


class Scope:
    """The code inside a number of nested loops; `depth` is that number.

    `lines` are its lines and the lists of lines of inner scopes. `before_inner` is the list that is printed before the
    innermost open scope: hoisted code is appended to it. `known` maps keys of values to the LLVM names that hold them.
    """

    def __init__(self, depth: int):
        self.depth = depth
        self.lines: list[Any] = []
        self.before_inner: list[Any] = self.lines
        self.known: dict[Any, str] = {}


Scale: TypeAlias = "Callable[[Writer, str, str, int | None, int], str | None]"
"""Emits p * 2^n and returns its name; None: no instruction. Arguments: writer, p, n, lanes (None: one number), bits."""


class Writer:
    """Writes the lines of one LLVM function, in nested scopes, and remembers the names of values for reuse.

    `fused`: the machine has fused multiply-add; without it LLVM would call a library for `llvm.fma`. `nan_maximum`: it
    has a maximum and a minimum that propagate NaN. `rounds_bf16`: it has an instruction that rounds f32 to bf16.
    `scale` emits the instruction that computes p * 2^n with one rounding, if the machine has it for that many lanes and
    bits. `defined` are the names of functions and tables that the module has already.
    """

    instruction: Callable[[str, list[str]], str | None] | None = None
    """Emits a function of single f32 numbers, by name and operands, as an instruction; returns None without one."""

    def __init__(
        self,
        fused: bool = True,
        nan_maximum: bool = False,
        defined: Iterable[str] = (),
        rounds_bf16: bool = False,
        scale: Scale | None = None,
    ) -> None:
        self.fused, self.nan_maximum, self.rounds_bf16, self.scale = fused, nan_maximum, rounds_bf16, scale
        self.defined: set[str] = set(defined)
        self.scopes = [Scope(0)]
        self.count = 0
        self.block = "entry"
        self.symbols: dict[Symbol, tuple[str, int]] = {}
        self.declared: dict[str, None] = {}

    # -- lines --------------------------------------------------------------------------------------------

    @property
    def scope(self) -> Scope:
        """The innermost open scope: the code of the innermost loop that is being written."""
        return self.scopes[-1]

    def name(self, prefix: str = "v") -> str:
        """Return a new LLVM name that is not used yet, such as "%v7" for the prefix "v"."""
        self.count += 1
        return f"%{prefix}{self.count}"

    def line(self, text: str) -> None:
        """Append the line `text`, indented, to the innermost open scope."""
        self.scope.lines.append("  " + text)

    def label(self, name: str) -> None:
        """Append the label of the LLVM basic block `name` to the innermost open scope. Lines that follow belong to this
        block.
        """
        self.scope.lines.append(f"{name}:")
        self.block = name

    def value(self, text: str) -> str:
        """Append the LLVM instruction `text`, such as "add i64 %a, 1", to the innermost open scope.

        Return the new LLVM name of its result.
        """
        name = self.name()
        self.line(f"{name} = {text}")
        return name

    def placed(self, depth: int, key: Any, text: str) -> str:
        """Append the LLVM instruction `text` to the open scope number `depth` (0: the outermost); return the name of
        its result.

        If the scope has an instruction with this `key` already, append nothing and return the name of that result. In
        an outer scope, the instruction is hoisted: it comes before the loop that is being written.
        """
        scope = self.scopes[depth]
        name = scope.known.get(key)
        if name is None:
            name = scope.known[key] = self.name()
            lines = scope.lines if scope is self.scope else scope.before_inner
            lines.append(f"  {name} = {text}")
        return name

    def declare(self, text: str) -> None:
        """Declare an LLVM intrinsic in the module, once. `text` is its signature, such as "float
        @llvm.fabs.f32(float)".
        """
        self.declared[f"declare {text}"] = None

    def define(self, name: str, text: str, inner: Writer | None = None) -> None:
        """Add the definition of the function or table `name` to the module; `text` is its LLVM text.

        `inner` is the writer of the function's body. The declarations and definitions that the body needs are added
        first.
        """
        if inner is not None:
            self.defined |= inner.defined
            self.declared |= inner.declared
        self.defined.add(name)
        self.declared[text] = None

    def open(self) -> Scope:
        """Open a scope (the code of a loop's body) inside the innermost scope, and return it.

        Instructions that are hoisted from it to outer scopes are printed before it.
        """
        outer = self.scope
        outer.before_inner = []
        outer.lines.append(outer.before_inner)
        inner = Scope(len(self.scopes))
        outer.lines.append(inner.lines)
        self.scopes.append(inner)
        return inner

    def close(self) -> None:
        """Close the innermost scope. Lines that follow go to the scope around it."""
        self.scopes.pop()
        self.scope.before_inner = self.scope.lines

    def text(self) -> str:
        """Return all lines written so far as one text. Lines of an inner scope are in place among those of its outer
        scope.
        """
        lines: list[str] = []
        stack: list[Any] = [iter(self.scopes[0].lines)]
        while stack:
            item = next(stack[-1], None)
            if item is None:
                stack.pop()
            elif isinstance(item, str):
                lines.append(item)
            else:
                stack.append(iter(item))
        return "\n".join(lines)

    # -- integer expressions ----------------------------------------------------------------------------------

    def depth(self, e: Expr) -> int:
        """Return the number of the outermost scope in which all symbols of the expression `e` have values.

        The expression can be computed in this scope. It is 0 (outside all loops) if `e` has no symbols.
        """
        return max((self._symbol(s)[1] for s in e.symbols), default=0)

    def _symbol(self, s: Symbol) -> tuple[str, int]:
        """Return (LLVM name of the value of the symbol `s`, number of the scope that computes it).

        If `s` is defined by an expression and has no value yet, emit the expression's instructions and keep the name.
        Raise AssertionError if `s` has neither value nor definition.
        """
        value = self.symbols.get(s)
        if value is None and s.definition is not None:
            value = self.symbols[s] = (self.integer(s.definition), self.depth(s.definition))
        if value is None:
            raise AssertionError(f"the symbol {s} has no value here")
        return value

    def integer(self, e: Expr) -> str:
        """Return the LLVM operand, an i64, that holds the value of the integer expression `e`.

        Its instructions are emitted in the outermost scope that can compute them, unless this scope has them already.
        """
        if isinstance(e, Const):
            return str(e.value)
        if isinstance(e, Symbol):
            return self._symbol(e)[0]
        depth = self.depth(e)
        name = self.scopes[depth].known.get(e)
        return name if name is not None else self._integer(e, depth)

    def _integer(self, e: Expr, depth: int) -> str:
        """Emit the instructions of the integer expression `e`, which no scope has computed yet; return the LLVM name of
        the i64.

        `depth` is the number of the scope that they are hoisted to.
        """
        if isinstance(e, Sum):
            return self._sum(e, depth)
        if isinstance(e, AtLeastZero | IsZero | And | Or):
            return self.placed(depth, e, f"zext i1 {self.condition(e)} to i64")
        if isinstance(e, Product):
            return self._fold("mul i64 {}, {}", e, [self.integer(f) for f in e.factors], depth)
        if isinstance(e, Xor):
            return self._fold("xor i64 {}, {}", e, [self.integer(p) for p in e.parts], depth)
        if isinstance(e, Min | Max):
            name = "llvm.smin.i64" if isinstance(e, Min) else "llvm.smax.i64"
            self.declare(f"i64 @{name}(i64, i64)")
            return self._fold(f"call i64 @{name}(i64 {{}}, i64 {{}})", e, [self.integer(a) for a in e.args], depth)
        if isinstance(e, FloorDiv | Mod | Exact):
            return self._divided(e, depth)
        raise AssertionError(type(e))

    def _fold(self, pattern: str, e: Expr, parts: list[str], depth: int) -> str:
        """Emit the reduction of the LLVM operands `parts` by a binary instruction, left to right: [a, b, c] gives (a op
        b) op c.

        Return the LLVM name of the i64. `pattern` is the instruction with two `{}` for its operands. The instructions
        are hoisted to the scope number `depth`. The last result becomes the known value of the expression `e`.
        """
        total = parts[0]
        for i, part in enumerate(parts[1:]):
            last = i == len(parts) - 2
            total = self.placed(depth, e if last else (e, i), pattern.format(total, part))
        return total

    def _sum(self, e: Sum, depth: int) -> str:
        """Emit the instructions of the sum `e`, and return the LLVM name of the i64.

        Terms of outer loops are added first, so that their partial sums are hoisted and shared; the constant is added
        last. `depth` is the number of the scope in which all of `e` can be computed.
        """
        terms = sorted(e.terms, key=lambda t: (self.depth(t[0]), t[0].key))
        total = ""
        partial: Expr | None = None
        for t, c in terms:
            d = self.depth(t)
            part = self.integer(t)
            if c != 1:
                part = self.placed(d, (t, "times", c), f"mul i64 {part}, {c}")
            if not total:
                total, partial = part, weighted_sum(0, [(t, c)])
                continue
            assert partial is not None
            partial = weighted_sum(0, [(partial, 1), (t, c)])
            total = self.placed(self.depth(partial), partial, f"add i64 {total}, {part}")
        if e.constant:
            total = self.placed(depth, e, f"add i64 {total}, {e.constant}")
        return total

    def _divided(self, e: Any, depth: int) -> str:
        """Emit the instructions of `e`, a floor division, a modulo or an exact division; return the LLVM name of the
        i64.

        Floor division rounds to minus infinity; the modulo is its remainder. The operands of an exact division must
        leave no remainder. A dividend that cannot be negative and a positive divisor take one unsigned instruction.
        `depth` is the number of the scope that the instructions are hoisted to.
        """
        left, right = self.integer(e.left), self.integer(e.right)
        if isinstance(e, Exact):
            return self.placed(depth, e, f"sdiv exact i64 {left}, {right}")
        both_positive = e.left.lo >= 0 and e.right.lo > 0
        if both_positive:
            return self.placed(depth, e, f"{'udiv' if isinstance(e, FloorDiv) else 'urem'} i64 {left}, {right}")
        remainder = self.placed(depth, (e, "rest"), f"srem i64 {left}, {right}")
        signs = self.placed(depth, (e, "signs"), f"xor i64 {remainder}, {right}")
        signs_differ = self.placed(depth, (e, "below"), f"icmp slt i64 {signs}, 0")
        is_inexact = self.placed(depth, (e, "some"), f"icmp ne i64 {remainder}, 0")
        is_off_by_one = self.placed(depth, (e, "off"), f"and i1 {signs_differ}, {is_inexact}")
        if isinstance(e, Mod):
            shifted = self.placed(depth, (e, "moved"), f"add i64 {remainder}, {right}")
            return self.placed(depth, e, f"select i1 {is_off_by_one}, i64 {shifted}, i64 {remainder}")
        quotient = self.placed(depth, (e, "quotient"), f"sdiv i64 {left}, {right}")
        one = self.placed(depth, (e, "one"), f"zext i1 {is_off_by_one} to i64")
        return self.placed(depth, e, f"sub i64 {quotient}, {one}")

    def condition(self, e: Expr) -> str:
        """Return the LLVM operand, an i1, that is set if the value of the expression `e` is not 0.

        Its instructions are emitted in the outermost scope that can compute them, unless this scope has them already.
        """
        if isinstance(e, Const):
            return "true" if e.value else "false"
        depth = self.depth(e)
        key = (e, "i1")
        name = self.scopes[depth].known.get(key)
        if name is not None:
            return name
        if isinstance(e, AtLeastZero):
            constant, terms = linear(e.operand)
            if terms:
                return self.placed(depth, key, f"icmp sge i64 {self.integer(weighted_sum(0, terms))}, {-constant}")
        if isinstance(e, IsZero):
            return self.placed(depth, key, f"icmp eq i64 {self.integer(e.operand)}, 0")
        if isinstance(e, And | Or):
            parts = [self.condition(a) for a in e.args]
            total = parts[0]
            for i, part in enumerate(parts[1:]):
                last = i == len(parts) - 2
                instruction = "and" if isinstance(e, And) else "or"
                total = self.placed(depth, key if last else (e, "i1", i), f"{instruction} i1 {total}, {part}")
            return total
        return self.placed(depth, key, f"icmp ne i64 {self.integer(e)}, 0")

    # -- addresses --------------------------------------------------------------------------------------------

    def address(self, base: str, buffer: Value, offset: Expr, size: int) -> str:
        """Emit the address of the element at `offset` (in elements) of the tensor `buffer`; return the LLVM name of the
        pointer.

        `base` is the LLVM pointer to the tensor's first element, `size` the number of bytes of an element. Terms of
        outer loops are added first and the constant last, so that neighbouring elements share a pointer. Pointers that
        were computed before are reused.
        """
        constant, terms = linear(offset)
        key = (buffer, tuple(terms))
        pointer = self.scope.known.get(key) or self._pointer(base, buffer, terms, size)
        self.scope.known[key] = pointer
        if constant:
            pointer = self.value(f"getelementptr i8, ptr {pointer}, i64 {constant * size}")
        return pointer

    def _pointer(self, base: str, buffer: Value, terms: Any, size: int) -> str:
        """Emit the pointer `base` plus all terms of an offset into the tensor `buffer`, and return its LLVM name.

        `terms` is a sequence of (expression, coefficient), counted in elements of `size` bytes. Terms of outer loops
        are added first, so that their partial sums are hoisted and shared.
        """
        pointer = base
        partial: Expr | None = None
        for t, c in sorted(terms, key=lambda t: (self.depth(t[0]), t[0].key)):
            d = self.depth(t)
            part = self.integer(t)
            if c * size != 1:
                part = self.placed(d, (t, "times", c * size), f"mul i64 {part}, {c * size}")
            partial = weighted_sum(0, [(t, c), *([(partial, 1)] if partial is not None else [])])
            key = (buffer, partial, "pointer")
            pointer = self.placed(self.depth(partial), key, f"getelementptr i8, ptr {pointer}, i64 {part}")
        return pointer

    # -- vectors of integers ------------------------------------------------------------------------------------

    def splat(self, text: str, kind: str, lanes: int) -> str:
        """Emit a vector of `lanes` lanes that all hold the LLVM operand `text` of LLVM type `kind`; return its LLVM
        operand.

        Zeros emit nothing: they give "zeroinitializer".
        """
        if text in ("0", "0.0", "zeroinitializer"):
            return "zeroinitializer"
        first = self.value(f"insertelement <{lanes} x {kind}> poison, {kind} {text}, i64 0")
        return self.value(
            f"shufflevector <{lanes} x {kind}> {first}, <{lanes} x {kind}> poison, <{lanes} x i32> zeroinitializer"
        )

    def lane_values(self, e: Expr, lane: Symbol, lanes: int) -> str:
        """Emit the value of the integer expression `e` for each lane: in lane i, the symbol `lane` has the value i.

        Return the LLVM operand of the vector of `lanes` i64.
        """
        if lane not in e.symbols:
            return self.splat(self.integer(e), "i64", lanes)
        if e is lane:
            return "<" + ", ".join(f"i64 {i}" for i in range(lanes)) + ">"
        kind = f"<{lanes} x i64>"
        if isinstance(e, Sum):
            total = self.splat(str(e.constant), "i64", lanes)
            for t, c in e.terms:
                part = self.lane_values(t, lane, lanes)
                if c != 1:
                    part = self.value(f"mul {kind} {part}, {self.splat(str(c), 'i64', lanes)}")
                total = self.value(f"add {kind} {total}, {part}")
            return total
        parts = [self.lane_values(p, lane, lanes) for p in e.parts]
        if isinstance(e, AtLeastZero | IsZero | And | Or):
            return self.value(f"zext <{lanes} x i1> {self.lane_conditions(e, lane, lanes)} to {kind}")
        if isinstance(e, Min | Max):
            name = "smin" if isinstance(e, Min) else "smax"
            self.declare(f"{kind} @llvm.{name}.v{lanes}i64({kind}, {kind})")
            return self._folded(f"call {kind} @llvm.{name}.v{lanes}i64({kind} {{}}, {kind} {{}})", parts)
        if isinstance(e, Product | Xor):
            return self._folded(f"{'mul' if isinstance(e, Product) else 'xor'} {kind} {{}}, {{}}", parts)
        if isinstance(e, FloorDiv | Mod | Exact):
            if isinstance(e, Exact) or (e.left.lo >= 0 and e.right.lo > 0):
                instruction = "urem" if isinstance(e, Mod) else "sdiv" if isinstance(e, Exact) else "udiv"
                return self.value(f"{instruction} {kind} {parts[0]}, {parts[1]}")
            return self._lanes_floored(isinstance(e, Mod), kind, lanes, parts[0], parts[1])
        raise AssertionError(type(e))

    def _lanes_floored(self, is_mod: bool, kind: str, lanes: int, left: str, right: str) -> str:
        """Emit the quotient of two vectors of signed integers, rounded to minus infinity, or its remainder if `is_mod`.

        `left` and `right` are the LLVM operands of dividend and divisor, `lanes` the length of the vectors and `kind`
        their LLVM type. Return the LLVM name of the result.
        """
        remainder = self.value(f"srem {kind} {left}, {right}")
        signs = self.value(f"xor {kind} {remainder}, {right}")
        signs_differ = self.value(f"icmp slt {kind} {signs}, zeroinitializer")
        is_inexact = self.value(f"icmp ne {kind} {remainder}, zeroinitializer")
        is_off_by_one = self.value(f"and <{lanes} x i1> {signs_differ}, {is_inexact}")
        if is_mod:
            shifted = self.value(f"add {kind} {remainder}, {right}")
            return self.value(f"select <{lanes} x i1> {is_off_by_one}, {kind} {shifted}, {kind} {remainder}")
        quotient = self.value(f"sdiv {kind} {left}, {right}")
        one = self.value(f"zext <{lanes} x i1> {is_off_by_one} to {kind}")
        return self.value(f"sub {kind} {quotient}, {one}")

    def _folded(self, pattern: str, parts: Iterable[str]) -> str:
        """Emit the reduction of the LLVM operands `parts` by a binary instruction, from left to right; return the last
        result.

        `pattern` is the instruction with two `{}` for its operands. A single part is returned as it is; no part gives
        "".
        """
        total = ""
        for part in parts:
            total = part if not total else self.value(pattern.format(total, part))
        return total

    def _mask_by_limit(self, e: Expr, lane: Symbol, lanes: int) -> str | None:
        """Emit the mask of the lanes where e >= 0 by one comparison of lane numbers with a limit; None if that is
        impossible.

        In lane i, the symbol `lane` has the value i: 5 - lane >= 0 is lane <= 5. Return the LLVM operand of the vector
        of `lanes` i1. The limit is hoisted; if it is known, the mask is a constant. Return None, with nothing emitted,
        if `e` is not linear in `lane` or there are 2^14 lanes or more.
        """
        constant, terms = linear(e)
        lane_coefficients = [c for t, c in terms if t is lane]
        other_terms = [(t, c) for t, c in terms if t is not lane]
        if len(lane_coefficients) != 1 or any(lane in t.symbols for t, _ in other_terms) or lanes >= 1 << 14:
            return None
        step = lane_coefficients[0]
        uniform = weighted_sum(constant, other_terms)
        limit = -(uniform // step) if step > 0 else uniform // -step
        predicate = "sge" if step > 0 else "sle"
        if isinstance(limit, Const):
            holds = [i >= limit.value if step > 0 else i <= limit.value for i in range(lanes)]
            return "<" + ", ".join(f"i1 {str(h).lower()}" for h in holds) + ">"
        number = self.integer(minimum(maximum(limit, -1), lanes))
        depth = self.depth(limit)
        limit16 = self.placed(depth, (limit, lanes, "short"), f"trunc i64 {number} to i16")
        first = self.placed(
            depth, (limit, lanes, "first"), f"insertelement <{lanes} x i16> poison, i16 {limit16}, i64 0"
        )
        limits = self.placed(
            depth,
            (limit, lanes, "spread"),
            f"shufflevector <{lanes} x i16> {first}, <{lanes} x i16> poison, <{lanes} x i32> zeroinitializer",
        )
        numbers = "<" + ", ".join(f"i16 {i}" for i in range(lanes)) + ">"
        return self.placed(
            depth, (e, lane.name, lanes, "mask"), f"icmp {predicate} <{lanes} x i16> {numbers}, {limits}"
        )

    def lane_conditions(self, e: Expr, lane: Symbol, lanes: int) -> str:
        """Emit the condition `e` for each lane: in lane i, the symbol `lane` has the value i.

        Return the LLVM operand of the vector of `lanes` i1, set where the value of `e` is not 0.
        """
        if lane not in e.symbols:
            return self.splat(self.condition(e), "i1", lanes)
        kind = f"<{lanes} x i64>"
        if isinstance(e, AtLeastZero):
            by_limit = self._mask_by_limit(e.operand, lane, lanes)
            if by_limit is not None:
                return by_limit
            return self.value(f"icmp sge {kind} {self.lane_values(e.operand, lane, lanes)}, zeroinitializer")
        if isinstance(e, IsZero):
            return self.value(f"icmp eq {kind} {self.lane_values(e.operand, lane, lanes)}, zeroinitializer")
        if isinstance(e, And | Or):
            parts = [self.lane_conditions(a, lane, lanes) for a in e.args]
            return self._folded(f"{'and' if isinstance(e, And) else 'or'} <{lanes} x i1> {{}}, {{}}", parts)
        return self.value(f"icmp ne {kind} {self.lane_values(e, lane, lanes)}, zeroinitializer")


def literal(value: float, dtype: DType) -> str:
    """Return the LLVM constant of the number `value` as an element of type `dtype`.

    A float is rounded once to `dtype` and written by its bits. For integer types, the number is truncated to an
    integer.

    >>> literal(0.5, dtypes.f16), literal(2.7, dtypes.i32)
    ('0xH3800', '2')
    """
    import struct

    if not dtype.is_float:
        return str(int(value) & 15 if dtype is dtypes.i4 else int(value))
    if dtype.bits <= 8:
        return str(np.asarray(value).astype(dtype.numpy).view(np.uint8).item())
    if dtype is dtypes.f64:
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    exact = float(dtype.numpy.type(value))
    if dtype is dtypes.bf16:
        return f"0xR{struct.unpack('<I', struct.pack('<f', exact))[0] >> 16:04X}"
    if dtype is dtypes.f16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', exact))[0]:04X}"
    return f"0x{struct.unpack('<Q', struct.pack('<d', exact))[0]:016X}"
