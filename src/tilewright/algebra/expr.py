"""Integer expressions: the nodes, what they know about themselves, and Python's operators on them.

An expression is an integer function of symbols: sums, products, floor division, remainder, min, max,
conditions (0 or 1). Nodes are *interned*: two equal expressions are one object, compared by identity, so
`==`, hashing and sharing cost nothing however deep they are. They are simplified when they are made, by the
rules in `expr_rules`; there is no separate "simplify".

>>> k = index("k", 144)
>>> 16 * (k // 16) + k % 16 is k
True
>>> print((k // 48) % 3)
k//48
>>> k < 144
<1>

`//` and `%` are floor division and its remainder, for negative numbers too. `a / b` is exact division: the
author's word that b divides a, checked when it is evaluated. `math.floor(a / b)` and `math.ceil(a / b)` close
it without that promise.
"""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterator, Mapping
from math import gcd, inf
from sys import getrefcount
from typing import Any, TypeAlias

from tilewright.errors import ExpressionError
from tilewright.limits import INTEGER, NESTING, shown, written

Bound: TypeAlias = float
"""An int, or infinity: the numeric end of a range."""

# Every node, by its operator and operands. A weak dictionary would drop unused nodes at once, but creating nodes is the
# hot path here and weak references slow it down; instead, unused nodes are swept out whenever the table has grown.
_nodes: dict[Any, Expr] = {}
_SWEEP_EVERY = 1 << 16
_next_sweep = _SWEEP_EVERY


def _refcount_of_local() -> int:
    """Return the `sys.getrefcount` of an object that a single local variable refers to."""
    node = object()
    return getrefcount(node)


_LOCAL_REFCOUNT = _refcount_of_local()  # the count of an object that only a local variable refers to


def forget_unused() -> None:
    """Remove from the table of nodes, `_nodes`, every expression node that is referred to only by the table.

    Also set the table size at which the next call is due.
    """
    global _next_sweep
    keys = list(_nodes)  # operands come before the node, and are part of its key
    while keys:
        key = keys.pop()
        node = _nodes.get(key)
        if node is None or getrefcount(node) > _LOCAL_REFCOUNT + 1:  # the table's own reference is one
            continue
        _nodes.pop(key, None)
        if getrefcount(node) > _LOCAL_REFCOUNT:  # another thread looked it up just now
            _nodes.setdefault(key, node)
    _next_sweep = len(_nodes) + _SWEEP_EVERY


class Expr:
    """The base of all expressions. Made by operators and by the functions of this package, never directly.

    Every node knows, from its parts alone: `lo` and `hi`, a range that holds all its values; `multiple`, an
    int that divides all its values; `key`, a number that orders nodes the same way in every process; and
    `open`, whether its range depends on symbolic bounds, so that a proof may know more than the range.
    """

    __slots__ = ("_divided", "_nonneg", "_samples", "_symbols", "hi", "key", "lo", "multiple", "open")

    lo: Bound
    hi: Bound
    multiple: int
    key: int
    open: bool
    _symbols: frozenset[Symbol] | None
    _nonneg: bool | None
    _divided: bool | None
    _samples: tuple[int | None, ...] | None

    # -- structure ----------------------------------------------------------------------------------

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Return the direct operands of this node, in order. This default, for numbers and symbols, is (); other nodes
        override it.
        """
        return ()

    @property
    def symbols(self) -> frozenset[Symbol]:
        """Return the set of symbols that occur in the expression.

        Symbols that occur only in the limits or definition of another symbol are left out.
        """
        if self._symbols is None:
            symbols: set[Symbol] = set()
            for part in self.parts:
                symbols |= part.symbols
            self._symbols = frozenset(symbols)
        return self._symbols

    @property
    def divided(self) -> bool:
        """Return True if the expression contains a floor division or a remainder at any depth."""
        if self._divided is None:
            self._divided = isinstance(self, FloorDiv | Mod) or any(part.divided for part in self.parts)
        return self._divided

    def walk(self) -> Iterator[Expr]:
        """Yield each distinct node of the expression once, operands before the node that uses them, the node itself
        last.
        """
        visited: set[Expr] = set()
        stack: list[tuple[Expr, bool]] = [(self, False)]
        while stack:
            node, parts_done = stack.pop()
            if parts_done:
                yield node
            elif node not in visited:
                visited.add(node)
                stack.append((node, True))
                stack.extend((part, False) for part in node.parts)

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """Return the set of symbols that occur in the expression: `symbols`, by the name that sympy gives it."""
        return self.symbols

    def divisions(self, seen: set[Expr]) -> list[FloorDiv | Mod]:
        """Return the floor-division and remainder nodes of the expression, at any depth, that are not in the set
        `seen`.

        Every visited node that contains a division is added to `seen`. If several calls share one set, each node is
        returned only once.
        """
        divisions: list[FloorDiv | Mod] = []
        stack: list[Expr] = [self]
        while stack:
            node = stack.pop()
            if node.divided and node not in seen:
                seen.add(node)
                if isinstance(node, FloorDiv | Mod):
                    divisions.append(node)
                stack.extend(node.parts)
        return divisions

    @property
    def is_constant(self) -> bool:
        """Return True if the expression is a number. This default is False; `Const` overrides it."""
        return False

    def __index__(self) -> int:
        raise ExpressionError(f"{self} is not a number: its value depends on {_names(self.symbols)}")

    def __int__(self) -> int:
        return self.__index__()

    def __bool__(self) -> bool:
        raise ExpressionError(
            f"whether {self} holds depends on {_names(self.symbols)}; compare with `is` or evaluate it"
        )

    # -- arithmetic ---------------------------------------------------------------------------------

    def __add__(self, other: ExprLike) -> Expr:
        return _rules.add(self, as_expr(other))

    def __radd__(self, other: int) -> Expr:
        return _rules.add(as_expr(other), self)

    def __sub__(self, other: ExprLike) -> Expr:
        return _rules.subtract(self, as_expr(other))

    def __rsub__(self, other: int) -> Expr:
        return _rules.subtract(as_expr(other), self)

    def __neg__(self) -> Expr:
        return _rules.scale(self, -1)

    def __pos__(self) -> Expr:
        return self

    def __mul__(self, other: ExprLike) -> Expr:
        if type(other) is int:
            return _rules.scale(self, other)
        return _rules.multiply(self, as_expr(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: ExprLike) -> Expr:
        return _rules.floordiv(self, as_expr(other))

    def __rfloordiv__(self, other: int) -> Expr:
        return _rules.floordiv(as_expr(other), self)

    def __mod__(self, other: ExprLike) -> Expr:
        return _rules.modulo(self, as_expr(other))

    def __rmod__(self, other: int) -> Expr:
        return _rules.modulo(as_expr(other), self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return _rules.exact_divide(self, as_expr(other))

    def __rtruediv__(self, other: int) -> Expr:
        return _rules.exact_divide(as_expr(other), self)

    def __pow__(self, exponent: int) -> Expr:
        if type(exponent) is not int or exponent < 0:
            raise ExpressionError(f"({self}) ** {exponent!r}: the exponent must be an integer that is not negative")
        if NESTING.refuses(exponent):
            raise ExpressionError(f"({self}) ** {shown(exponent)}: the exponent is at most {NESTING.most}")
        result: Expr = ONE
        for _ in range(exponent):
            result = _rules.multiply(result, self)
        return result

    def __abs__(self) -> Expr:
        return _rules.maximum(self, -self)

    def __floor__(self) -> Expr:
        return _rules.close(self)

    def __ceil__(self) -> Expr:
        return _rules.scale(_rules.close(_rules.scale(self, -1)), -1)

    def __xor__(self, other: ExprLike) -> Expr:
        return _rules.xor(self, as_expr(other))

    __rxor__ = __xor__

    # -- conditions ---------------------------------------------------------------------------------

    def __lt__(self, other: ExprLike) -> Expr:
        return _rules.at_least_zero(_rules.weighted_sum(-1, ((as_expr(other), 1), (self, -1))))

    def __le__(self, other: ExprLike) -> Expr:
        return _rules.at_least_zero(as_expr(other) - self)

    def __gt__(self, other: ExprLike) -> Expr:
        return _rules.at_least_zero(_rules.weighted_sum(-1, ((self, 1), (as_expr(other), -1))))

    def __ge__(self, other: ExprLike) -> Expr:
        return _rules.at_least_zero(self - as_expr(other))

    def __and__(self, other: ExprLike) -> Expr:
        return _rules.all_of(self, as_expr(other))

    __rand__ = __and__

    def __or__(self, other: ExprLike) -> Expr:
        return _rules.any_of(self, as_expr(other))

    __ror__ = __or__

    def __invert__(self) -> Expr:
        return _rules.negate(self)

    # -- use ----------------------------------------------------------------------------------------

    def subs(self, values: Mapping[Any, ExprLike]) -> Expr:
        """Return the expression with symbols replaced, and simplified anew; `values` is {symbol or name: int or
        expression}.

        Raise OutOfRange for a number outside a symbol's range.
        """
        from tilewright.algebra.expr_use import substitute

        return substitute(self, values)

    def __call__(self, values: Mapping[Any, Any]) -> Any:
        """The value for these symbols (or names): see `evaluate`."""
        from tilewright.algebra.expr_use import evaluate

        return evaluate(self, values)

    # -- copies: equal expressions are one object, in this process and where one is read back -----------

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: Any) -> Expr:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        from tilewright.algebra.expr_pickle import expr_of, rows_of

        return expr_of, (rows_of(self),)

    def __str__(self) -> str:
        from tilewright.algebra.expr_text import expr_text

        return expr_text(self)

    def __repr__(self) -> str:
        return f"<{self}>"


ExprLike: TypeAlias = "Expr | int"


def _names(symbols: frozenset[Symbol]) -> str:
    """Return the sorted names of `symbols` as one text, separated by commas; "nothing" for an empty set."""
    return ", ".join(sorted(s.name for s in symbols)) or "nothing"


class Const(Expr):
    """An integer constant."""

    __slots__ = ("value",)
    value: int

    @property
    def is_constant(self) -> bool:
        """Return True: the node is a number."""
        return True

    def __index__(self) -> int:
        return self.value

    def __bool__(self) -> bool:
        return self.value != 0

    def __str__(self) -> str:
        return str(self.value)


class Symbol(Expr):
    """A named integer with known facts; made by `symbol`, `index` and `extent`.

    `lower` and `upper` (both inclusive) are expressions or None. `definition`, if there is one, is the expression that
    the symbol is equal to: proofs use it, printing does not.
    """

    __slots__ = ("definition", "lower", "name", "upper")
    name: str
    lower: Expr | None
    upper: Expr | None
    definition: Expr | None

    @property
    def symbols(self) -> frozenset[Symbol]:
        """Return the set that holds only this symbol."""
        return frozenset((self,))

    def __str__(self) -> str:
        return self.name

    @property
    def background(self) -> frozenset[Symbol]:
        """Return the symbols that occur in this symbol's limits (`lower`, `upper`) and in its `definition`; not the
        symbol itself.
        """
        symbols: set[Symbol] = set()
        for e in (self.lower, self.upper, self.definition):
            if e is not None:
                symbols |= e.symbols
        return frozenset(symbols)


class Sum(Expr):
    """constant + the sum of coefficient * term. Terms are neither sums nor numbers, and are ordered by key."""

    __slots__ = ("constant", "terms")
    constant: int
    terms: tuple[tuple[Expr, int], ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Return the terms of the sum, without their coefficients and without the constant."""
        return tuple(t for t, _ in self.terms)


class Product(Expr):
    """The product of two or more factors, none a sum, a number or a product, ordered by key."""

    __slots__ = ("factors",)
    factors: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Return the factors of the product, ordered by key."""
        return self.factors


class Binary(Expr):
    """The base of nodes with two operands, `left` and `right`."""

    __slots__ = ("left", "right")
    left: Expr
    right: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Return the two operands, (left, right)."""
        return (self.left, self.right)


class FloorDiv(Binary):
    """left // right, rounded towards minus infinity."""

    __slots__ = ()


class Mod(Binary):
    """left % right, with the sign of right."""

    __slots__ = ()


class Exact(Binary):
    """left / right, where the author promises that right divides left."""

    __slots__ = ()


class Xor(Binary):
    """left ^ right, bit by bit."""

    __slots__ = ()


class Nary(Expr):
    """The base of nodes with any number of operands, whose order does not matter."""

    __slots__ = ("args",)
    args: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Return the operands, in the order in which the node stores them."""
        return self.args


class Min(Nary):
    """The smallest of its operands."""

    __slots__ = ()


class Max(Nary):
    """The largest of its operands."""

    __slots__ = ()


class And(Nary):
    """1 if all operands (conditions) are 1, otherwise 0."""

    __slots__ = ()


class Or(Nary):
    """1 if at least one operand (a condition) is 1, otherwise 0."""

    __slots__ = ()


class AtLeastZero(Expr):
    """The condition operand >= 0: every <, <=, > and >= becomes one."""

    __slots__ = ("operand",)
    operand: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Return (operand,): the expression that is compared with 0."""
        return (self.operand,)


class IsZero(Expr):
    """The condition operand == 0."""

    __slots__ = ("operand",)
    operand: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        """Return (operand,): the expression that is compared with 0."""
        return (self.operand,)


# -- making nodes: each function first looks up an equal node --------------------------------------------


def _intern(node: Any, key: int, lo: Bound, hi: Bound, multiple: int, open_: bool, identity: Any) -> Any:
    """Fill in the facts of the new `node`, enter it in the table `_nodes`, and return it; if the table has an equal
    node, return that.

    Facts: `key` orders nodes, `lo` and `hi` are the numeric range, `multiple` divides all values, and `open_` says that
    the range depends on symbolic bounds. `identity` is the table's key: operator and operands. If the table has become
    large, nodes that nothing else refers to are removed.
    """
    node.key = key
    node.lo = lo
    node.hi = hi
    node.multiple = multiple
    node.open = open_
    node._symbols = None
    node._nonneg = None
    node._divided = None
    node._samples = None
    node = _nodes.setdefault(identity, node)  # atomic: another thread may have entered it meanwhile
    if len(_nodes) >= _next_sweep:
        forget_unused()
    return node


_small: dict[int, Const] = {}


def const(value: int) -> Const:
    """Return the expression node of the integer `value`; equal integers give the same node.

    Raise ExpressionError for an integer of more than 512 bits.
    """
    node = _small.get(value)
    if node is None:
        node = Const.__new__(Const)
        node.value = value
        node.key = value
        node.lo = node.hi = value
        node.multiple = abs(value)
        node.open = False
        node._symbols = frozenset()
        node._nonneg = value >= 0
        node._divided = False
        node._samples = None
        if -1024 <= value <= 4096:
            return _small.setdefault(value, node)
        if not -INTEGER.most <= value <= INTEGER.most:
            raise ExpressionError(f"{shown(value)}: {INTEGER.rule}")
        return _nodes.setdefault(value, node)  # type: ignore[return-value]
    return node


def as_expr(value: Any) -> Expr:
    """Return `value` as an expression: an integer (also numpy's) becomes a constant, an expression is returned
    unchanged.

    Raise ExpressionError for other types, bools included.
    """
    if isinstance(value, Expr):
        return value
    if type(value) is int:
        return const(value)
    rank = getattr(value, "ndim", 0)
    if hasattr(value, "__index__") and not isinstance(value, bool | type) and isinstance(rank, int) and not rank:
        return const(index_of(value))
    raise ExpressionError(f"{written(value, 80)} is neither an integer nor an expression")


def index_of(value: Any) -> int:
    """Return the integer that `value.__index__()` gives; raise ExpressionError if `value` has no such method or the
    call fails.
    """
    try:
        return operator.index(value)
    except (TypeError, ValueError, RuntimeError):  # frameworks raise different errors for traced tensors
        raise ExpressionError(f"{written(value, 80)} is neither an integer nor an expression") from None


ZERO = const(0)
ONE = const(1)
TRUE = ONE
FALSE = ZERO


def symbol(
    name: str,
    lo: ExprLike | None = None,
    hi: ExprLike | None = None,
    *,
    multiple_of: int = 1,
    definition: ExprLike | None = None,
) -> Symbol:
    """Return the symbol `name` with lo <= symbol <= hi (None: no limit), always a multiple of `multiple_of`.

    The limits may be expressions: they are facts that proofs use. A `definition` is the expression that the symbol is
    equal to. Equal arguments give the same object. Raise ExpressionError if the name is no identifier, if no integer
    lies within the limits, or if `multiple_of` is below 1.

    >>> W = symbol("W", 1)
    >>> Q = symbol("Q", 1, definition=(W - 3) // 2 + 1)      # the columns of a 3-wide filter with stride 2
    >>> q, s = index("q", Q), index("s", 3)
    >>> 2 * q + s < W
    <1>
    """
    if not isinstance(name, str):
        raise ExpressionError(f"a symbol's name must be an identifier; {name!r} is not")
    lower = None if lo is None else as_expr(lo)
    upper = None if hi is None else as_expr(hi)
    defined = None if definition is None else as_expr(definition)
    identity = ("symbol", name, lower, upper, multiple_of, defined)
    known = _nodes.get(identity)
    if known is not None:
        return known  # type: ignore[return-value]
    if not name.isidentifier():
        raise ExpressionError(f"a symbol's name must be an identifier; {name!r} is not")
    if multiple_of < 1:
        raise ExpressionError(f"symbol {name}: multiple_of={multiple_of} must be at least 1")
    low: Bound = -inf if lower is None else lower.lo
    high: Bound = inf if upper is None else upper.hi
    if defined is not None:
        low, high = max(low, defined.lo), min(high, defined.hi)
    if multiple_of > 1:
        low = -(-low // multiple_of) * multiple_of if low != -inf else low
        high = high // multiple_of * multiple_of if high != inf else high
    if low > high:
        integer = "integer" if multiple_of == 1 else f"multiple of {multiple_of}"
        raise ExpressionError(f"symbol {name}: no {integer} lies between {lo} and {hi}")
    node = Symbol.__new__(Symbol)
    node.name, node.lower, node.upper, node.definition = name, lower, upper, defined
    key_parts = [zlib.crc32(name.encode())] + [0 if e is None else e.key for e in (lower, upper, defined)]
    is_open = low == -inf or high == inf or defined is not None
    is_open = is_open or not all(e is None or e.is_constant for e in (lower, upper))
    key = hash((*key_parts, multiple_of))
    interned: Symbol = _intern(node, key, _int_bound(low), _int_bound(high), multiple_of, is_open, identity)
    return interned


def _int_bound(bound: Bound) -> Bound:
    """Return `bound`, the end of a numeric range, as an int; infinity is returned unchanged."""
    return bound if bound in (inf, -inf) else int(bound)


def index(name: str, extent: ExprLike) -> Symbol:
    """Return the symbol `name` that runs over 0, ..., extent - 1; raise ExpressionError if `extent` cannot be above 0.

    >>> i = index("i", 10)
    >>> i.lo, i.hi
    (0, 9)
    """
    return symbol(name, 0, as_expr(extent) - 1)


def extent(name: str, at_least: int = 1, *, multiple_of: int = 1, definition: ExprLike | None = None) -> Symbol:
    """Return the symbol `name` of a size, an integer >= `at_least` that is known only at run time.

    It is a multiple of `multiple_of`. A `definition` is the expression that computes the size from other sizes. Errors
    are those of `symbol`.

    >>> C = extent("C", multiple_of=32)
    >>> C % 32, 32 * (C // 32) is C
    (<0>, True)
    """
    return symbol(name, at_least, multiple_of=multiple_of, definition=definition)


def gcd_of(numbers: Iterator[int]) -> int:
    """Return the greatest common divisor of `numbers`; 0 if there are none."""
    result = 0
    for n in numbers:
        result = gcd(result, n)
        if result == 1:
            break
    return result


from tilewright.algebra import expr_rules as _rules  # noqa: E402 - the rules make nodes, the operators call the rules
