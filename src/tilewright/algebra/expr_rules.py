"""How expressions are simplified when they are made: sums, products, min and max, xor.

Each function returns the one canonical node for its arguments. Division (`expr_divide`), conditions
(`expr_conditions`) and proofs (`expr_prove`) have files of their own. Private helpers call a term `t` and its
integer coefficient `c`: a sum is constant + c * t + ...
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd, inf
from typing import Any

from tilewright.algebra import expr as _e
from tilewright.algebra.expr import (
    And,
    AtLeastZero,
    Bound,
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
    Xor,
    const,
    gcd_of,
)
from tilewright.errors import ExpressionError


def linear(e: Expr) -> tuple[int, tuple[tuple[Expr, int], ...]]:
    """Return (constant, terms) with e == constant + coefficient * term + ...; `terms` holds pairs (term, integer
    coefficient).

    `2*i + 3` -> (3, ((i, 2),)). An expression that is neither a sum nor a number is one term with coefficient 1.
    """
    if type(e) is Sum:
        return e.constant, e.terms
    if type(e) is Const:
        return e.value, ()
    return 0, ((e, 1),)


def factors_of(e: Expr) -> tuple[Expr, ...]:
    """Return the factors of the product `e`; (e,) for any other node."""
    return e.factors if type(e) is Product else (e,)


# -- sums -------------------------------------------------------------------------------------------


def add(a: Expr, b: Expr) -> Expr:
    """Return the simplified expression a + b."""
    if type(a) is Const and type(b) is Const:
        return const(a.value + b.value)
    constant, terms = linear(a)
    more, others = linear(b)
    if not others:
        return sum_node(constant + more, terms) if more else a
    if not terms:
        return sum_node(constant + more, others) if constant else b
    coefficients = dict(terms)
    for t, c in others:
        coefficients[t] = coefficients.get(t, 0) + c
    return total(constant + more, coefficients)


def subtract(a: Expr, b: Expr) -> Expr:
    """Return the simplified expression a - b."""
    if type(b) is Const:
        return add(a, const(-b.value))
    return weighted_sum(0, ((a, 1), (b, -1)))


def add_all(parts: Iterable[Expr]) -> Expr:
    """Return the simplified sum of all expressions in `parts`."""
    return weighted_sum(0, [(part, 1) for part in parts])


def weighted_sum(constant: int, parts: Iterable[tuple[Expr, int]]) -> Expr:
    """Return the simplified expression constant + part * k + ..., over the pairs (part, k) in `parts`; k is an int."""
    coefficients: dict[Expr, int] = {}
    for part, k in parts:
        more, terms = linear(part)
        constant += more * k
        for t, c in terms:
            coefficients[t] = coefficients.get(t, 0) + c * k
    return total(constant, coefficients)


def scale(a: Expr, k: int) -> Expr:
    """Return the simplified expression a * k for an integer `k`."""
    if k == 1:
        return a
    if k == 0:
        return _e.ZERO
    constant, terms = linear(a)
    if not terms:
        return const(constant * k)
    scaled = tuple([(t, c * k) for t, c in terms])
    if any(type(t) in _HOLDS_EXACT and _holds_exact_quotient(t) for t, _ in scaled):
        return total(constant * k, dict(scaled))
    return sum_node(constant * k, scaled)


def total(constant: int, coefficients: dict[Expr, int]) -> Expr:
    """Return the simplified sum constant + coefficient * term + ...; `coefficients` is {term: integer coefficient}.

    The terms must be neither sums nor numbers. d*(x//d) + x%d becomes x, and c*(x//n) becomes (c//n)*x if n divides c
    and x.
    """
    terms = [(t, c) for t, c in coefficients.items() if c]
    divided = [t for t, _ in terms if type(t) in _DIVISIBLE]
    if len(divided) > 1:
        joined = _join_digits(constant, terms)
        if joined is not None:
            return joined
    for t, c in terms if divided else ():
        if _holds_exact_quotient(t):
            restored = _restore_exact(t, c)
            if restored is not None:
                rest = {u: d for u, d in terms if u is not t}
                return add(total(constant, rest), restored)
    terms.sort(key=_by_key)
    return sum_node(constant, tuple(terms))


_DIVISIONS = (FloorDiv, Mod)
_DIVISIBLE = (FloorDiv, Mod, Exact, Product)
_HOLDS_EXACT = (FloorDiv, Exact, Product)


def _by_key(term: tuple[Expr, int]) -> int:
    """Return the sort key of `term`, a pair (term, coefficient): the `key` of the term."""
    return term[0].key


def sum_node(constant: int, terms: tuple[tuple[Expr, int], ...]) -> Expr:
    """Return the `Sum` node of constant + coefficient * term + ..., for (term, coefficient) pairs ordered by the terms'
    keys.

    The terms must be simplified already. Without terms the constant is returned, and a single term with coefficient 1
    and no constant is returned as it is.
    """
    if not terms:
        return const(constant)
    if constant == 0 and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    name = (constant, terms)
    known = _e._nodes.get(name)
    if known is not None:
        return known
    lo: Bound = constant
    hi: Bound = constant
    multiple = abs(constant)
    is_open = False
    key_parts = [constant]
    for t, c in terms:
        if c > 0:
            lo += c * t.lo
            hi += c * t.hi
        else:
            lo += c * t.hi
            hi += c * t.lo
        multiple = gcd(multiple, c * t.multiple)
        is_open = is_open or t.open
        key_parts += (t.key, c)
    node = Sum.__new__(Sum)
    node.constant, node.terms = constant, terms
    interned: Expr = _e._intern(node, hash(tuple(key_parts)), lo, hi, multiple, is_open, name)
    return interned


def _join_digits(constant: int, terms: list[tuple[Expr, int]]) -> Expr | None:
    """Return the sum with a quotient and a remainder of the same dividend combined to one term; None if no two terms
    combine.

    d*(x//d) + x%d becomes x, and d*((x//d)%e) + x%d becomes x%(d*e). The sum is `constant` + coefficient * term + ...,
    with (term, coefficient) pairs in `terms`.
    """
    divisions = [(t, c, f) for t, c in terms for f in factors_of(t) if type(f) in _DIVISIONS]
    for t, c, f in divisions:
        if type(f) is Mod:
            quotient = floordiv(f.left, f.right)
            weight: Expr | None = None  # the coefficient that the quotient must have
            for u, d, g in divisions:
                is_quotient = g is quotient
                if is_quotient or (type(g) is Mod and g.left is quotient):
                    if weight is None:
                        weight = scale(multiply(_without(t, f), f.right), c)
                    if u is t or scale(_without(u, g), d) is not weight:
                        continue
                    joined = f.left if is_quotient else modulo(f.left, multiply(f.right, g.parts[1]))
                    rest = {v: k for v, k in terms if v is not t and v is not u}
                    return add(total(constant, rest), scale(multiply(_without(t, f), joined), c))
    return None


def _without(t: Expr, factor: Expr) -> Expr:
    """Return the product `t` with one occurrence of `factor`, which it must contain, removed."""
    if t is factor:
        return _e.ONE
    left = list(factors_of(t))
    left.remove(factor)
    return product_node(left)


def _holds_exact_quotient(t: Expr) -> bool:
    """Return True if the term `t`, or a factor of it, is x / n for a number n, or x // n where n is
    known to divide x.
    """
    if type(t) is Product:
        return any(_is_exact_quotient(f) for f in t.factors)
    return _is_exact_quotient(t)


def _is_exact_quotient(f: Expr) -> bool:
    """Return True if `f` is x / n for a number n, or x // n where n is known to divide x."""
    if type(f) is FloorDiv:
        return type(f.right) is Const and f.left.multiple % f.right.value == 0
    return type(f) is Exact and type(f.right) is Const


def _restore_exact(t: Expr, c: int) -> Expr | None:
    """Return c * t without a division: (c/n)*x for c*(x//n) or c*(x/n), if n divides both the integer `c` and x.
    Otherwise return None.

    The quotient may be one of several factors of the term `t`.
    """
    for f in factors_of(t):
        if _is_exact_quotient(f):
            left, right = f.parts
            n = int(right)
            if c % n == 0:
                return scale(multiply(_without(t, f), left), c // n)
    return None


# -- products ---------------------------------------------------------------------------------------


def multiply(a: Expr, b: Expr) -> Expr:
    """Return the simplified expression a * b, multiplied out: a product of sums becomes a sum of products."""
    if type(a) is Const:
        return scale(b, a.value)
    if type(b) is Const:
        return scale(a, b.value)
    constant_a, terms_a = linear(a)
    constant_b, terms_b = linear(b)
    constant = constant_a * constant_b
    coefficients: dict[Expr, int] = {}
    if constant_b:
        for t, c in terms_a:
            coefficients[t] = coefficients.get(t, 0) + c * constant_b
    if constant_a:
        for t, c in terms_b:
            coefficients[t] = coefficients.get(t, 0) + c * constant_a
    for t, c in terms_a:
        for u, d in terms_b:
            more, terms = linear(_multiply_terms(t, u))
            constant += more * c * d
            for v, k in terms:
                coefficients[v] = coefficients.get(v, 0) + k * c * d
    return total(constant, coefficients)


def _multiply_terms(t: Expr, u: Expr) -> Expr:
    """Return the product of the terms `t` and `u`, neither of them a sum or a number; (x / y) * y gives x."""
    factors = [*factors_of(t), *factors_of(u)]
    for f in factors:
        if type(f) is Exact and f.right in factors:  # (x / y) * y is x
            factors.remove(f)
            factors.remove(f.right)
            return multiply(product_node(factors), f.left)
    return product_node(factors)


def product_node(factors: list[Expr]) -> Expr:
    """Return the `Product` node of `factors`, none of them a sum, a number or a product. The list is sorted in place.

    Without factors the result is 1; a single factor is returned as it is.
    """
    if not factors:
        return _e.ONE
    if len(factors) == 1:
        return factors[0]
    factors.sort(key=lambda f: f.key)
    ordered = tuple(factors)
    name = ("*", ordered)
    known = _e._nodes.get(name)
    if known is not None:
        return known
    lo, hi = ordered[0].lo, ordered[0].hi
    multiple = ordered[0].multiple
    for f in ordered[1:]:
        ends = [_times(x, y) for x in (lo, hi) for y in (f.lo, f.hi)]
        lo, hi = min(ends), max(ends)
        multiple *= f.multiple
    if len(ordered) == 2 and ordered[0] is ordered[1]:
        lo = max(lo, 0)  # a square
    node = Product.__new__(Product)
    node.factors = ordered
    key = hash((_TAGS[Product], *[f.key for f in ordered]))
    interned: Expr = _e._intern(node, key, lo, hi, multiple, any(f.open for f in ordered), name)
    return interned


def _times(x: Bound, y: Bound) -> Bound:
    """Return x * y, where x and y are ends of two ranges and may be infinite; 0 * infinity is 0."""
    return 0 if x == 0 or y == 0 else x * y  # 0 * infinity is 0: values are finite, only their limits are not


# -- min and max ------------------------------------------------------------------------------------


def minimum(*args: _e.ExprLike) -> Expr:
    """Return the simplified expression for the smallest of the arguments, which are ints or expressions.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 10)
    >>> minimum(i, 12) is i, minimum(i, i + 1) is i
    (True, True)
    """
    return _extremum(Min, [_e.as_expr(a) for a in args], lambda keep, drop: drop - keep)


def maximum(*args: _e.ExprLike) -> Expr:
    """Return the simplified expression for the largest of the arguments, which are ints or expressions.

    >>> from tilewright.algebra.expr import index
    >>> maximum(index("i", 10), -1)
    <i>
    """
    return _extremum(Max, [_e.as_expr(a) for a in args], lambda keep, drop: keep - drop)


def _extremum(kind: Any, operands: list[Expr], slack: Any) -> Expr:
    """Return the min or max of `operands`, without redundant operands; `kind` is the node class Min or Max.

    An operand `drop` is redundant beside another operand, `keep`, if the expression slack(keep, drop) is provably >= 0.
    For a max, slack(keep, drop) is keep - drop. Raise ExpressionError without operands.
    """
    if not operands:
        raise ExpressionError(f"{kind.__name__.lower()} of nothing")
    flat: list[Expr] = []
    for a in operands:
        for part in a.parts if type(a) is kind else (a,):
            if part not in flat:
                flat.append(part)
    needed: list[Expr] = []
    for i, candidate in enumerate(flat):
        rivals = needed + flat[i + 1 :]
        if not any(is_nonneg(slack(rival, candidate)) for rival in rivals):
            needed.append(candidate)
    if len(needed) == 1:
        return needed[0]
    needed.sort(key=lambda a: a.key)
    return extreme_node(kind, tuple(needed))


def extreme_node(kind: Any, args: tuple[Expr, ...]) -> Expr:
    """Return the node min(args) or max(args), for the class `kind` Min or Max. `args` must be simplified and sorted by
    key.
    """
    pick = min if kind is Min else max
    return nary_node(kind, args, pick(a.lo for a in args), pick(a.hi for a in args), gcd_of(a.multiple for a in args))


def nary_node(kind: Any, args: tuple[Expr, ...], lo: Bound, hi: Bound, multiple: int) -> Expr:
    """Return the node of class `kind` (Min, Max, And or Or) with the operands `args`, which must be simplified and
    sorted by key.

    `lo` and `hi` are the numeric range of the result, and `multiple` divides all its values. An equal node that exists
    already is returned.
    """
    name = (kind, args)
    known = _e._nodes.get(name)
    if known is not None:
        return known
    node = kind.__new__(kind)
    node.args = args
    key = hash((_TAGS[kind], *[a.key for a in args]))
    interned: Expr = _e._intern(node, key, lo, hi, multiple, any(a.open for a in args), name)
    return interned


def tag_of(kind: Any) -> int:
    """Return an integer that identifies the node class `kind` in every process; it is hashed into the keys of nodes."""
    return _TAGS[kind]


# keys of nodes must not depend on the process, as hashes of strings do
_TAGS: dict[Any, int] = {Product: 100, Min: 101, Max: 102, And: 103, Or: 104, AtLeastZero: 105, IsZero: 106, Xor: 107}


# -- bits -------------------------------------------------------------------------------------------


def xor(a: Expr, b: Expr) -> Expr:
    """Return the simplified expression a ^ b (bitwise exclusive or)."""
    if type(a) is Const and type(b) is Const:
        return const(a.value ^ b.value)
    if a is b:
        return _e.ZERO
    if a is _e.ZERO:
        return b
    if b is _e.ZERO:
        return a
    if a.key > b.key:
        a, b = b, a
    name = (Xor, a, b)
    known = _e._nodes.get(name)
    if known is not None:
        return known
    lo: Bound = -inf
    hi: Bound = inf
    ends = (a.lo, a.hi, b.lo, b.hi)
    if all(end not in (inf, -inf) for end in ends):
        magnitude = 1 << max(int(end).bit_length() for end in ends)
        lo, hi = (0 if a.lo >= 0 and b.lo >= 0 else -magnitude), magnitude - 1
    elif a.lo >= 0 and b.lo >= 0:
        lo = 0
    node = Xor.__new__(Xor)
    node.left, node.right = a, b
    interned: Expr = _e._intern(node, hash((_TAGS[Xor], a.key, b.key)), lo, hi, 1, a.open or b.open, name)
    return interned


from tilewright.algebra.expr_conditions import (  # noqa: E402
    all_of,
    any_of,
    at_least_zero,
    conjuncts,
    eq,
    is_zero,
    ne,
    negate,
)
from tilewright.algebra.expr_divide import close, exact_divide, floordiv, modulo  # noqa: E402
from tilewright.algebra.expr_prove import is_nonneg  # noqa: E402

# the operators of `expr` reach all rules through this module
__all__ = [
    "add",
    "add_all",
    "all_of",
    "any_of",
    "at_least_zero",
    "close",
    "conjuncts",
    "eq",
    "exact_divide",
    "factors_of",
    "floordiv",
    "is_nonneg",
    "is_zero",
    "linear",
    "maximum",
    "minimum",
    "modulo",
    "multiply",
    "nary_node",
    "ne",
    "negate",
    "product_node",
    "scale",
    "subtract",
    "sum_node",
    "tag_of",
    "total",
    "weighted_sum",
    "xor",
]
