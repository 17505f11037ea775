"""LLVM IR as text: scopes, integer expressions, addresses, formulas. What every target that goes through LLVM shares.

Index arithmetic is placed as far out as its symbols allow: an expression of outer loops' variables is written before
the inner loop, once. A pointer is a chain of additions, outer terms first, so that neighbours share it and differ by a
constant.
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
    """The LLVM type of an element; types that LLVM does not know travel as integers of their width."""
    found = _TYPES.get(dtype.name)
    if found is not None:
        return found
    if (dtype.is_float and dtype.bits <= 8) or dtype is dtypes.i4:
        return "i8"
    raise ProgramError(f"elements of {dtype} have no form in machine code here")


def vector(dtype: DType, lanes: int | None) -> str:
    """The LLVM type of a register; lanes None: a single number."""
    return element(dtype) if lanes is None else f"<{lanes} x {element(dtype)}>"


class Scope:
    """Code that runs under the same loops: what was computed there, and where further code may be put before inner."""

    def __init__(self, depth: int):
        self.depth = depth
        self.lines: list[Any] = []
        self.before_inner: list[Any] = self.lines
        self.known: dict[Any, str] = {}


Scale: TypeAlias = "Callable[[Writer, str, str, int | None, int], str | None]"
"""What writes p * 2^n: the names of both, how many lanes they have, how many bits an element has."""


class Writer:
    """Lines of a function, in nested scopes, with names for what was computed.

    `fused` says whether the machine multiplies and adds with one rounding: where it does not, LLVM would call a library
    for that. `nan_maximum` says whether it has an instruction for the larger of two numbers that keeps NaN,
    `rounds_bf16` one that rounds f32 to bf16. `scale` writes the instruction that multiplies a vector of floats by 2 to
    the power of another, with one rounding, where the machine has it for so many lanes of so many bits; else it gives
    None. `defined` are the names of functions and tables that the module holds already.
    """

    in_place: tuple[str, ...] = ()
    """Functions that are written where they are used, since calls are dear."""
    own: Callable[[str, list[str]], str | None] | None = None
    """Writes a function of one f32, by name, where the machine has something better than arithmetic."""

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
        """The innermost scope."""
        return self.scopes[-1]

    def name(self, prefix: str = "v") -> str:
        """A new name."""
        self.count += 1
        return f"%{prefix}{self.count}"

    def line(self, text: str) -> None:
        """A line here."""
        self.scope.lines.append("  " + text)

    def label(self, name: str) -> None:
        """A block begins."""
        self.scope.lines.append(f"{name}:")
        self.block = name

    def value(self, text: str) -> str:
        """A line that computes something, here."""
        found = self.name()
        self.line(f"{found} = {text}")
        return found

    def placed(self, depth: int, key: Any, text: str) -> str:
        """A line that computes something, as far out as `depth`; the same name for the same key."""
        scope = self.scopes[depth]
        found = scope.known.get(key)
        if found is None:
            found = scope.known[key] = self.name()
            target = scope.lines if scope is self.scope else scope.before_inner
            target.append(f"  {found} = {text}")
        return found

    def declare(self, text: str) -> None:
        """A function of LLVM's that is used."""
        self.declared[f"declare {text}"] = None

    def define(self, name: str, text: str, inner: Writer | None = None) -> None:
        """A function or a table of the module, beside this one; with what the function, written by `inner`, uses."""
        if inner is not None:
            self.defined |= inner.defined
            self.declared |= inner.declared
        self.defined.add(name)
        self.declared[text] = None

    def open(self) -> Scope:
        """A new scope; code of the ones around that is found to be needed goes before it."""
        outer = self.scope
        outer.before_inner = []
        outer.lines.append(outer.before_inner)
        inner = Scope(len(self.scopes))
        outer.lines.append(inner.lines)
        self.scopes.append(inner)
        return inner

    def close(self) -> None:
        """The scope ends."""
        self.scopes.pop()
        self.scope.before_inner = self.scope.lines

    def text(self) -> str:
        """All lines."""
        found: list[str] = []
        stack: list[Any] = [iter(self.scopes[0].lines)]
        while stack:
            item = next(stack[-1], None)
            if item is None:
                stack.pop()
            elif isinstance(item, str):
                found.append(item)
            else:
                stack.append(iter(item))
        return "\n".join(found)

    # -- integer expressions ----------------------------------------------------------------------------------

    def depth(self, e: Expr) -> int:
        """How far in an expression's symbols are."""
        return max((self._symbol(s)[1] for s in e.symbols), default=0)

    def _symbol(self, s: Symbol) -> tuple[str, int]:
        found = self.symbols.get(s)
        if found is None and s.definition is not None:
            found = self.symbols[s] = (self.integer(s.definition), self.depth(s.definition))
        if found is None:
            raise AssertionError(f"the symbol {s} has no value here")
        return found

    def integer(self, e: Expr) -> str:
        """The expression's value, an i64."""
        if isinstance(e, Const):
            return str(e.value)
        if isinstance(e, Symbol):
            return self._symbol(e)[0]
        depth = self.depth(e)
        found = self.scopes[depth].known.get(e)
        return found if found is not None else self._integer(e, depth)

    def _integer(self, e: Expr, depth: int) -> str:
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
        total = parts[0]
        for i, part in enumerate(parts[1:]):
            last = i == len(parts) - 2
            total = self.placed(depth, e if last else (e, i), pattern.format(total, part))
        return total

    def _sum(self, e: Sum, depth: int) -> str:
        """Outer terms first: partial sums are shared by what differs further in."""
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
        left, right = self.integer(e.left), self.integer(e.right)
        if isinstance(e, Exact):
            return self.placed(depth, e, f"sdiv exact i64 {left}, {right}")
        positive = e.left.lo >= 0 and e.right.lo > 0
        if positive:
            return self.placed(depth, e, f"{'udiv' if isinstance(e, FloorDiv) else 'urem'} i64 {left}, {right}")
        rest = self.placed(depth, (e, "rest"), f"srem i64 {left}, {right}")
        mixed = self.placed(depth, (e, "signs"), f"xor i64 {rest}, {right}")
        below = self.placed(depth, (e, "below"), f"icmp slt i64 {mixed}, 0")
        some = self.placed(depth, (e, "some"), f"icmp ne i64 {rest}, 0")
        off = self.placed(depth, (e, "off"), f"and i1 {below}, {some}")
        if isinstance(e, Mod):
            moved = self.placed(depth, (e, "moved"), f"add i64 {rest}, {right}")
            return self.placed(depth, e, f"select i1 {off}, i64 {moved}, i64 {rest}")
        quotient = self.placed(depth, (e, "quotient"), f"sdiv i64 {left}, {right}")
        one = self.placed(depth, (e, "one"), f"zext i1 {off} to i64")
        return self.placed(depth, e, f"sub i64 {quotient}, {one}")

    def condition(self, e: Expr) -> str:
        """The condition's value, an i1."""
        if isinstance(e, Const):
            return "true" if e.value else "false"
        depth = self.depth(e)
        key = (e, "i1")
        found = self.scopes[depth].known.get(key)
        if found is not None:
            return found
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
                word = "and" if isinstance(e, And) else "or"
                total = self.placed(depth, key if last else (e, "i1", i), f"{word} i1 {total}, {part}")
            return total
        return self.placed(depth, key, f"icmp ne i64 {self.integer(e)}, 0")

    # -- addresses --------------------------------------------------------------------------------------------

    def address(self, base: str, buffer: Value, offset: Expr, size: int) -> str:
        """The pointer to an element: outer terms first, the constant last."""
        constant, terms = linear(offset)
        whole = (buffer, tuple(terms))
        pointer = self.scope.known.get(whole) or self._pointer(base, buffer, terms, size)
        self.scope.known[whole] = pointer
        if constant:
            pointer = self.value(f"getelementptr i8, ptr {pointer}, i64 {constant * size}")
        return pointer

    def _pointer(self, base: str, buffer: Value, terms: Any, size: int) -> str:
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
        """One number in all lanes."""
        if text in ("0", "0.0", "zeroinitializer"):
            return "zeroinitializer"
        first = self.value(f"insertelement <{lanes} x {kind}> poison, {kind} {text}, i64 0")
        return self.value(
            f"shufflevector <{lanes} x {kind}> {first}, <{lanes} x {kind}> poison, <{lanes} x i32> zeroinitializer"
        )

    def lane_values(self, e: Expr, lane: Symbol, lanes: int) -> str:
        """The expression for every lane: a vector of i64."""
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
                word = "urem" if isinstance(e, Mod) else "sdiv" if isinstance(e, Exact) else "udiv"
                return self.value(f"{word} {kind} {parts[0]}, {parts[1]}")
            return self._lanes_floored(isinstance(e, Mod), kind, lanes, parts[0], parts[1])
        raise AssertionError(type(e))

    def _lanes_floored(self, rest_wanted: bool, kind: str, lanes: int, left: str, right: str) -> str:
        """Division towards minus infinity, lane by lane."""
        rest = self.value(f"srem {kind} {left}, {right}")
        mixed = self.value(f"xor {kind} {rest}, {right}")
        below = self.value(f"icmp slt {kind} {mixed}, zeroinitializer")
        some = self.value(f"icmp ne {kind} {rest}, zeroinitializer")
        off = self.value(f"and <{lanes} x i1> {below}, {some}")
        if rest_wanted:
            moved = self.value(f"add {kind} {rest}, {right}")
            return self.value(f"select <{lanes} x i1> {off}, {kind} {moved}, {kind} {rest}")
        quotient = self.value(f"sdiv {kind} {left}, {right}")
        one = self.value(f"zext <{lanes} x i1> {off} to {kind}")
        return self.value(f"sub {kind} {quotient}, {one}")

    def _folded(self, pattern: str, parts: Iterable[str]) -> str:
        total = ""
        for part in parts:
            total = part if not total else self.value(pattern.format(total, part))
        return total

    def _up_to_a_limit(self, e: Expr, lane: Symbol, lanes: int) -> str | None:
        """The lanes where e >= 0, if e is linear in the lane: those from a limit on, or up to one.

        The limit is one number for all lanes, worked out where its symbols are known; lanes are compared with it in 16
        bits, so that the mask of a vector costs one comparison.
        """
        constant, terms = linear(e)
        mine = [c for t, c in terms if t is lane]
        rest = [(t, c) for t, c in terms if t is not lane]
        if len(mine) != 1 or any(lane in t.symbols for t, _ in rest) or lanes >= 1 << 14:
            return None
        step = mine[0]
        other = weighted_sum(constant, rest)
        limit = -(other // step) if step > 0 else other // -step
        word = "sge" if step > 0 else "sle"
        if isinstance(limit, Const):
            holds = [i >= limit.value if step > 0 else i <= limit.value for i in range(lanes)]
            return "<" + ", ".join(f"i1 {str(h).lower()}" for h in holds) + ">"
        number = self.integer(minimum(maximum(limit, -1), lanes))
        depth = self.depth(limit)
        short = self.placed(depth, (limit, lanes, "short"), f"trunc i64 {number} to i16")
        first = self.placed(depth, (limit, lanes, "first"), f"insertelement <{lanes} x i16> poison, i16 {short}, i64 0")
        spread = self.placed(
            depth,
            (limit, lanes, "spread"),
            f"shufflevector <{lanes} x i16> {first}, <{lanes} x i16> poison, <{lanes} x i32> zeroinitializer",
        )
        numbers = "<" + ", ".join(f"i16 {i}" for i in range(lanes)) + ">"
        return self.placed(depth, (e, lane.name, lanes, "mask"), f"icmp {word} <{lanes} x i16> {numbers}, {spread}")

    def lane_conditions(self, e: Expr, lane: Symbol, lanes: int) -> str:
        """The condition for every lane: a vector of i1."""
        if lane not in e.symbols:
            return self.splat(self.condition(e), "i1", lanes)
        kind = f"<{lanes} x i64>"
        if isinstance(e, AtLeastZero):
            by_limit = self._up_to_a_limit(e.operand, lane, lanes)
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
    """A number of an element type, as LLVM writes it: floats by their bits, so that nothing is rounded twice."""
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
