"""How expressions are simplified when they are made: sums, products, min and max, conditions.

Each function returns the one canonical node for its arguments. Division has a file of its own
(`expr_divide`), and so have proofs (`expr_prove`).
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
    """Any expression as constant + sum of coefficient * term."""
    if type(e) is Sum:
        return e.constant, e.terms
    if type(e) is Const:
        return e.value, ()
    return 0, ((e, 1),)


def factors_of(e: Expr) -> tuple[Expr, ...]:
    """The factors of a term."""
    return e.factors if type(e) is Product else (e,)


# -- sums -------------------------------------------------------------------------------------------


def add(a: Expr, b: Expr) -> Expr:
    """A + b."""
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
    """A - b."""
    if type(b) is Const:
        return add(a, const(-b.value))
    return weighted_sum(0, ((a, 1), (b, -1)))


def add_all(parts: Iterable[Expr]) -> Expr:
    """The sum of all parts, made in one go."""
    return weighted_sum(0, [(part, 1) for part in parts])


def weighted_sum(constant: int, parts: Iterable[tuple[Expr, int]]) -> Expr:
    """constant + the sum of k * part, made in one go."""
    coefficients: dict[Expr, int] = {}
    for part, k in parts:
        more, terms = linear(part)
        constant += more * k
        for t, c in terms:
            coefficients[t] = coefficients.get(t, 0) + c * k
    return total(constant, coefficients)


def scale(a: Expr, k: int) -> Expr:
    """A * k for a number k."""
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
    """constant + the sum of coefficient * term, with quotients and remainders put together again."""
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
    return term[0].key


def sum_node(constant: int, terms: tuple[tuple[Expr, int], ...]) -> Expr:
    """The node of a sum whose terms are in order and simplified."""
    if not terms:
        return const(constant)
    if constant == 0 and len(terms) == 1 and terms[0][1] == 1:
        return terms[0][0]
    name = (constant, terms)
    found = _e._nodes.get(name)
    if found is not None:
        return found
    lo: Bound = constant
    hi: Bound = constant
    multiple = abs(constant)
    unsure = False
    stamp = [constant]
    for t, c in terms:
        if c > 0:
            lo += c * t.lo
            hi += c * t.hi
        else:
            lo += c * t.hi
            hi += c * t.lo
        multiple = gcd(multiple, c * t.multiple)
        unsure = unsure or t.open
        stamp += (t.key, c)
    node = Sum.__new__(Sum)
    node.constant, node.terms = constant, terms
    made: Expr = _e._intern(node, hash(tuple(stamp)), lo, hi, multiple, unsure, name)
    return made


def _join_digits(constant: int, terms: list[tuple[Expr, int]]) -> Expr | None:
    """Put a remainder and its quotient together: d*(x//d) + x%d is x, d*((x//d)%e) + x%d is x%(d*e)."""
    divisions = [(t, c, f) for t, c in terms for f in factors_of(t) if type(f) in _DIVISIONS]
    for t, c, f in divisions:
        if type(f) is Mod:
            quotient = floordiv(f.left, f.right)
            weight: Expr | None = None  # what the quotient's coefficient must be
            for u, d, g in divisions:
                whole = g is quotient
                if whole or (type(g) is Mod and g.left is quotient):
                    if weight is None:
                        weight = scale(multiply(_without(t, f), f.right), c)
                    if u is t or scale(_without(u, g), d) is not weight:
                        continue
                    joined = f.left if whole else modulo(f.left, multiply(f.right, g.parts[1]))
                    rest = {v: k for v, k in terms if v is not t and v is not u}
                    return add(total(constant, rest), scale(multiply(_without(t, f), joined), c))
    return None


def _without(t: Expr, factor: Expr) -> Expr:
    """The term with one of its factors taken out."""
    if t is factor:
        return _e.ONE
    left = list(factors_of(t))
    left.remove(factor)
    return product_node(left)


def _holds_exact_quotient(t: Expr) -> bool:
    if type(t) is Product:
        return any(_is_exact_quotient(f) for f in t.factors)
    return _is_exact_quotient(t)


def _is_exact_quotient(f: Expr) -> bool:
    """Whether f is x / n, or x // n where the number n is known to divide x."""
    if type(f) is FloorDiv:
        return type(f.right) is Const and f.left.multiple % f.right.value == 0
    return type(f) is Exact and type(f.right) is Const


def _restore_exact(t: Expr, c: int) -> Expr | None:
    """c*(x//n) as (c/n)*x, where n divides both c and x."""
    for f in factors_of(t):
        if _is_exact_quotient(f):
            left, right = f.parts
            n = int(right)
            if c % n == 0:
                return scale(multiply(_without(t, f), left), c // n)
    return None


# -- products ---------------------------------------------------------------------------------------


def multiply(a: Expr, b: Expr) -> Expr:
    """A * b, multiplied out: a product of sums becomes a sum of products."""
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
    factors = [*factors_of(t), *factors_of(u)]
    for f in factors:
        if type(f) is Exact and f.right in factors:  # (x / y) * y is x
            factors.remove(f)
            factors.remove(f.right)
            return multiply(product_node(factors), f.left)
    return product_node(factors)


def product_node(factors: list[Expr]) -> Expr:
    """The node of a product of factors that are neither sums, numbers nor products."""
    if not factors:
        return _e.ONE
    if len(factors) == 1:
        return factors[0]
    factors.sort(key=lambda f: f.key)
    ordered = tuple(factors)
    name = ("*", ordered)
    found = _e._nodes.get(name)
    if found is not None:
        return found
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
    made: Expr = _e._intern(node, key, lo, hi, multiple, any(f.open for f in ordered), name)
    return made


def _times(x: Bound, y: Bound) -> Bound:
    return 0 if x == 0 or y == 0 else x * y  # 0 * infinity is 0 here: the factor never is infinite


# -- min and max ------------------------------------------------------------------------------------


def minimum(*args: _e.ExprLike) -> Expr:
    """The smallest of the arguments.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 10)
    >>> minimum(i, 12) is i, minimum(i, i + 1) is i
    (True, True)
    """
    return _extremum(Min, [_e.as_expr(a) for a in args], lambda keep, drop: drop - keep)


def maximum(*args: _e.ExprLike) -> Expr:
    """The largest of the arguments.

    >>> from tilewright.algebra.expr import index
    >>> maximum(index("i", 10), -1)
    <i>
    """
    return _extremum(Max, [_e.as_expr(a) for a in args], lambda keep, drop: keep - drop)


def _extremum(kind: Any, given: list[Expr], surplus: Any) -> Expr:
    """`surplus(keep, drop) >= 0` says that `drop` is never needed beside `keep`."""
    if not given:
        raise ExpressionError(f"{kind.__name__.lower()} of nothing")
    flat: list[Expr] = []
    for a in given:
        for part in a.parts if type(a) is kind else (a,):
            if part not in flat:
                flat.append(part)
    kept: list[Expr] = []
    for i, candidate in enumerate(flat):
        rivals = kept + flat[i + 1 :]
        if not any(is_nonneg(surplus(rival, candidate)) for rival in rivals):
            kept.append(candidate)
    if len(kept) == 1:
        return kept[0]
    kept.sort(key=lambda a: a.key)
    args = tuple(kept)
    pick = min if kind is Min else max
    return _nary_node(kind, args, pick(a.lo for a in args), pick(a.hi for a in args), gcd_of(a.multiple for a in args))


def _nary_node(kind: Any, args: tuple[Expr, ...], lo: Bound, hi: Bound, multiple: int) -> Expr:
    name = (kind, args)
    found = _e._nodes.get(name)
    if found is not None:
        return found
    node = kind.__new__(kind)
    node.args = args
    key = hash((_TAGS[kind], *[a.key for a in args]))
    made: Expr = _e._intern(node, key, lo, hi, multiple, any(a.open for a in args), name)
    return made


# a number for each kind of node: keys must not depend on the process, as hashes of strings do
_TAGS: dict[Any, int] = {Product: 100, Min: 101, Max: 102, And: 103, Or: 104, AtLeastZero: 105, IsZero: 106, Xor: 107}


# -- conditions -------------------------------------------------------------------------------------


def at_least_zero(e: Expr) -> Expr:
    """The condition e >= 0, with common factors divided out; 1 or 0 where that can be shown."""
    if is_nonneg(e):
        return _e.TRUE
    if e.hi < 0 or (e.open and is_nonneg(-1 - e)):
        return _e.FALSE
    constant, terms = linear(e)
    common = gcd_of(c for _, c in terms)
    if common > 1:
        e = sum_node(constant // common, tuple((t, c // common) for t, c in terms))
    return _condition_node(AtLeastZero, e)


def is_zero(e: Expr) -> Expr:
    """The condition e == 0, in a form that e and -e share."""
    constant, terms = linear(e)
    if not terms:
        return _e.TRUE if constant == 0 else _e.FALSE
    if e.lo > 0 or e.hi < 0 or (e.open and (is_nonneg(e - 1) or is_nonneg(-1 - e))):
        return _e.FALSE
    common = gcd_of(c for _, c in terms)
    if constant % common != 0 or constant % gcd_of(c * t.multiple for t, c in terms) != 0:
        return _e.FALSE
    if terms[0][1] < 0:
        common = -common
    return _condition_node(IsZero, sum_node(constant // common, tuple((t, c // common) for t, c in terms)))


def _condition_node(kind: Any, operand: Expr) -> Expr:
    name = (kind, operand)
    found = _e._nodes.get(name)
    if found is not None:
        return found
    node = kind.__new__(kind)
    node.operand = operand
    made: Expr = _e._intern(node, hash((_TAGS[kind], operand.key)), 0, 1, 1, operand.open, name)
    return made


def eq(a: _e.ExprLike, b: _e.ExprLike) -> Expr:
    """The condition a == b (the operator == compares nodes, not values).

    >>> from tilewright.algebra.expr import index
    >>> eq(2 * index("i", 10), 5), eq(index("i", 10), 5)
    (<0>, <i == 5>)
    """
    return is_zero(add(_e.as_expr(a), scale(_e.as_expr(b), -1)))


def ne(a: _e.ExprLike, b: _e.ExprLike) -> Expr:
    """The condition a != b."""
    return negate(eq(a, b))


def negate(condition: Expr) -> Expr:
    """The condition that holds where this one does not."""
    if type(condition) is Const:
        return const(1 - condition.value)
    if type(condition) is AtLeastZero:
        return at_least_zero(-1 - condition.operand)
    if type(condition) is And:
        return any_of(*[negate(a) for a in condition.args])
    if type(condition) is Or:
        return all_of(*[negate(a) for a in condition.args])
    if type(condition) is IsZero:
        return any_of(at_least_zero(condition.operand - 1), at_least_zero(-1 - condition.operand))
    require_condition(condition)
    return is_zero(condition)


def require_condition(e: Expr) -> None:
    """Raises unless e is 0 or 1 everywhere."""
    if e.lo < 0 or e.hi > 1:
        raise ExpressionError(f"{e} is not a condition: it takes values from {e.lo} to {e.hi}")


def all_of(*conditions: Expr) -> Expr:
    """The condition that all of these hold.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 10)
    >>> print(all_of(i >= 2, i >= 4, i < 12))
    i >= 4
    """
    return _connective(And, conditions, _e.TRUE, _e.FALSE)


def conjuncts(conditions: Iterable[Expr]) -> tuple[Expr, ...]:
    """The conditions that are not always true, each once, the weaker of two alike left out.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 10)
    >>> conjuncts([i >= 0, i >= 2, i >= 4])
    (<i >= 4>,)
    """
    joined = all_of(*conditions)
    if type(joined) is Const:
        return () if joined.value else (joined,)
    return joined.args if type(joined) is And else (joined,)


def any_of(*conditions: Expr) -> Expr:
    """The condition that one of these holds.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 10)
    >>> any_of(i >= 2, i < 2)
    <1>
    """
    return _connective(Or, conditions, _e.FALSE, _e.TRUE)


def _connective(kind: Any, given: tuple[Expr, ...], neutral: Expr, absorbing: Expr) -> Expr:
    flat: list[Expr] = []
    for a in given:
        require_condition(a)
        for part in a.parts if type(a) is kind else (a,):
            if part is absorbing:
                return absorbing
            if part is not neutral and part not in flat:
                flat.append(part)
    if len(flat) > 1:
        flat = _strongest(flat, keep_smaller=kind is And)
        if _opposed(flat, kind):
            return absorbing
    if not flat:
        return neutral
    if len(flat) == 1:
        return flat[0]
    flat.sort(key=lambda a: a.key)
    return _nary_node(kind, tuple(flat), 0, 1, 1)


def _opposed(conditions: list[Expr], kind: Any) -> bool:
    """Whether e + c >= 0 and -e + d >= 0 are among them and exclude each other, or leave nothing out."""
    constants: dict[Any, int] = {}
    for a in conditions:
        if type(a) is AtLeastZero:
            constant, terms = linear(a.operand)
            other = constants.get(tuple([(t, -c) for t, c in terms]))
            if other is not None and (constant + other < 0 if kind is And else constant + other >= -1):
                return True
            constants[terms] = constant
    return False


def _strongest(conditions: list[Expr], *, keep_smaller: bool) -> list[Expr]:
    """Of conditions e + c >= 0 with the same e, keep one: the smallest c of all_of, the largest of any_of."""
    best: dict[Any, Expr] = {}
    for a in conditions:
        if type(a) is AtLeastZero:
            constant, terms = linear(a.operand)
            rival = best.get(terms)
            if rival is not None and (constant > linear(rival.parts[0])[0]) is keep_smaller:
                continue
            best[terms] = a
        else:
            best[a] = a
    return list(best.values())


# -- bits -------------------------------------------------------------------------------------------


def xor(a: Expr, b: Expr) -> Expr:
    """A ^ b, bit by bit."""
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
    found = _e._nodes.get(name)
    if found is not None:
        return found
    lo: Bound = -inf
    hi: Bound = inf
    ends = (a.lo, a.hi, b.lo, b.hi)
    if all(end not in (inf, -inf) for end in ends):
        reach = 1 << max(int(end).bit_length() for end in ends)
        lo, hi = (0 if a.lo >= 0 and b.lo >= 0 else -reach), reach - 1
    elif a.lo >= 0 and b.lo >= 0:
        lo = 0
    node = Xor.__new__(Xor)
    node.left, node.right = a, b
    made: Expr = _e._intern(node, hash((_TAGS[Xor], a.key, b.key)), lo, hi, 1, a.open or b.open, name)
    return made


from tilewright.algebra.expr_divide import close, exact_divide, floordiv, modulo  # noqa: E402
from tilewright.algebra.expr_prove import is_nonneg  # noqa: E402

__all__ = ["close", "exact_divide", "floordiv", "is_nonneg", "modulo"]
