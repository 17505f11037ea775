"""How floor division, remainder and exact division are simplified.

With d > 0, the rules are, each exact for all integers:

    (d*q + r) // d   =  q + r // d                        (d*q + r) % d  =  r % d
    r // d = 0 and r % d = r                               where 0 <= r < d
    (g*h + l) // (g*e)  =  h // e                          where 0 <= l < g
    (g*h + l) %  (g*e)  =  g*(h % e) + l                   where 0 <= l < g
    (x // c) // d    =  x // (c*d)                         c > 0
    (x % (c*d)) // d =  (x // d) % c                       (x % (c*d)) % d = x % d

d may be a number or an expression that is known to be positive; the range conditions are decided by ranges
where these are numbers, by proof where they are symbolic.
"""

from __future__ import annotations

from math import gcd, inf
from typing import Any

from tilewright.algebra import expr as _e
from tilewright.algebra.expr import Bound, Const, Exact, Expr, FloorDiv, Mod, Sum, const, gcd_of
from tilewright.errors import DivisionByZero, ExpressionError

# Caches: quotients and remainders of digits are requested again and again. Emptied when full, which limits how many
# expressions they keep alive.
_quotients: dict[tuple[Expr, Expr], Expr] = {}
_remainders: dict[tuple[Expr, Expr], Expr] = {}
_CACHE_LIMIT = 1 << 14


def floordiv(a: Expr, d: Expr) -> Expr:
    """Return the simplified expression a // d, rounded towards minus infinity.

    Results are cached. Raise DivisionByZero if `d` is the number 0.
    """
    cached = _quotients.get((a, d))
    return _cache_result(_quotients, a, d, _floordiv(a, d)) if cached is None else cached


def modulo(a: Expr, d: Expr) -> Expr:
    """Return the simplified expression a % d, with the sign of d.

    Results are cached. Raise DivisionByZero if `d` is the number 0.
    """
    cached = _remainders.get((a, d))
    return _cache_result(_remainders, a, d, _modulo(a, d)) if cached is None else cached


def _cache_result(cache: dict[tuple[Expr, Expr], Expr], a: Expr, d: Expr, result: Expr) -> Expr:
    """Store `result` in the dictionary `cache` under the key (a, d), and return it; a full cache is emptied first."""
    if len(cache) >= _CACHE_LIMIT:
        cache.clear()
    cache[a, d] = result
    return result


def _floordiv(a: Expr, d: Expr) -> Expr:
    """Return the simplified expression a // d without looking into the cache."""
    if type(d) is Const:
        return _div_number(a, d.value)
    if a is d:
        return _e.ONE
    if a is _e.ZERO:
        return a
    if d.hi < 0:
        return floordiv(_rules.scale(a, -1), _rules.scale(d, -1))
    if not _is_positive(d):
        return division_node(FloorDiv, a, d)
    return _div_symbolic(a, d)


def _modulo(a: Expr, d: Expr) -> Expr:
    """Return the simplified expression a % d without looking into the cache."""
    if type(d) is Const:
        return _mod_number(a, d.value)
    if a is d or a is _e.ZERO:
        return _e.ZERO
    if d.hi < 0:
        return _rules.scale(modulo(_rules.scale(a, -1), _rules.scale(d, -1)), -1)
    if not _is_positive(d):
        return division_node(Mod, a, d)
    return _mod_symbolic(a, d)


def _is_positive(e: Expr) -> bool:
    """Return True if e >= 1 can be shown for all values of its symbols."""
    return e.lo >= 1 or (e.open and _rules.is_nonneg(e - 1))


# -- by a number ------------------------------------------------------------------------------------


def _div_number(a: Expr, n: int) -> Expr:
    """Return the simplified expression a // n for an integer `n`, also a negative one; raise
    DivisionByZero for n = 0.
    """
    if n <= 0:
        if n == 0:
            raise DivisionByZero(f"({a}) // 0")
        return _div_number(_rules.scale(a, -1), -n)
    if n == 1:
        return a
    if type(a) is Const:
        return const(a.value // n)
    lo = a.lo
    if lo != -inf and a.hi != inf and lo // n == a.hi // n:
        return const(int(lo // n))
    if type(a) is Sum:
        return _div_sum(a, n)
    if type(a) is FloorDiv and _is_positive(a.right):
        return floordiv(a.left, _rules.scale(a.right, n))
    if type(a) is Mod and _is_positive(a.right):
        outer = quotient_of(a.right, const(n))
        if outer is not None:
            return modulo(_div_number(a.left, n), outer)
    return _e.ZERO if _is_in_range(a, const(n)) else division_node(FloorDiv, a, const(n))


def _div_sum(a: Sum, n: int) -> Expr:
    """Return the simplified quotient a // n of a sum by an integer n >= 2.

    Terms that n divides are taken out: (n*q + r) // n becomes q + r // n.
    """
    quotient_terms: list[tuple[Expr, int]] = []
    rest_terms: dict[Expr, int] = {}
    for t, c in a.terms:
        if c % n == 0:
            quotient_terms.append((t, c // n))
        elif c * t.multiple % n == 0:  # n is known to divide c*t
            g = gcd(c, n)
            quotient_terms.append((_div_number(t, n // g), c // g))
        else:
            rest_terms[t] = c
    constant_quotient, constant_rest = divmod(a.constant, n)
    if quotient_terms or constant_quotient:
        return _rules.weighted_sum(
            constant_quotient, [*quotient_terms, (_div_number(_rules.total(constant_rest, rest_terms), n), 1)]
        )
    low_part = _low_part(a, n)
    if low_part is not None:
        g, high, _ = low_part
        return _div_number(high, n // g)
    return _e.ZERO if _is_in_range(a, const(n)) else division_node(FloorDiv, a, const(n))


def _mod_number(a: Expr, n: int) -> Expr:
    """Return the simplified expression a % n, with the sign of the integer `n`; raise DivisionByZero for n = 0."""
    if n <= 0:
        if n == 0:
            raise DivisionByZero(f"({a}) % 0")
        return _rules.scale(_mod_number(_rules.scale(a, -1), -n), -1)
    if n == 1 or a.multiple % n == 0:
        return _e.ZERO
    if type(a) is Const:
        return const(a.value % n)
    lo = a.lo
    if lo != -inf and a.hi != inf and lo // n == a.hi // n:
        return _rules.add(a, const(-int(lo // n) * n))
    if type(a) is Sum:
        return _mod_sum(a, n)
    if type(a) is Mod and _is_positive(a.right) and quotient_of(a.right, const(n)) is not None:
        return _mod_number(a.left, n)
    return a if _is_in_range(a, const(n)) else division_node(Mod, a, const(n))


def _mod_sum(a: Sum, n: int) -> Expr:
    """Return the simplified remainder a % n of a sum by an integer n >= 2; terms that n divides are dropped."""
    kept_terms = tuple([term for term in a.terms if term[1] * term[0].multiple % n != 0])
    constant = a.constant % n
    if len(kept_terms) < len(a.terms) or constant != a.constant:
        return _mod_number(_rules.sum_node(constant, kept_terms), n)
    low_part = _low_part(a, n)
    if low_part is not None:
        g, high, low = low_part
        return _rules.add(_rules.scale(_mod_number(high, n // g), g), low)
    return a if _is_in_range(a, const(n)) else division_node(Mod, a, const(n))


def _low_part(a: Sum, n: int) -> tuple[int, Expr, Expr] | None:
    """Return (g, h, l) with a == g*h + l, where g > 1 divides n and 0 <= l < g; None if no such split is known.

    Terms with large coefficients go into h, the others into l. With 0 <= j < 8 and n = 32, `8*i + j` gives (8, i, j).
    """
    terms = sorted(a.terms, key=_size_of_coefficient, reverse=True)
    common = [n]  # gcd of n and of the first k coefficients
    for _, c in terms:
        common.append(gcd(common[-1], c))
    if common[1] == 1:
        return None
    # the smallest and the largest value of the terms from k on
    lows: list[Bound] = [0]
    highs: list[Bound] = [0]
    for t, c in reversed(terms):
        least, greatest = (t.lo, t.hi) if c > 0 else (t.hi, t.lo)
        lows.append(lows[-1] + c * least)
        highs.append(highs[-1] + c * greatest)
    for k in range(len(terms), 0, -1):
        g = common[k]
        low, high = lows[len(terms) - k], highs[len(terms) - k]
        if g <= 1 or low == -inf or high == inf:
            continue
        shift = (int(low) + a.constant) // g
        if high + a.constant - shift * g < g:
            upper = _rules.total(shift, {t: c // g for t, c in terms[:k]})
            return g, upper, _rules.total(a.constant - shift * g, dict(terms[k:]))
    return None


def _size_of_coefficient(term: tuple[Expr, int]) -> int:
    """Return the absolute value of the coefficient of `term`, a pair (term, coefficient), as a sort key."""
    return abs(term[1])


# -- by a positive expression -------------------------------------------------------------------------


def _div_symbolic(a: Expr, d: Expr) -> Expr:
    """Return the simplified expression a // d for an expression `d` that is known to be positive."""
    if type(a) is FloorDiv and _is_positive(a.right):
        return floordiv(a.left, _rules.multiply(a.right, d))
    if type(a) is Mod and _is_positive(a.right):
        outer = quotient_of(a.right, d)
        if outer is not None:
            return modulo(floordiv(a.left, d), outer)
    whole, rest = _divide_terms(a, d)
    if whole is not _e.ZERO:
        return _rules.add(whole, floordiv(rest, d))
    if _is_in_range(rest, d):
        return _e.ZERO
    if rest.hi < 0 and _rules.is_nonneg(_rules.add(rest, d)):
        return const(-1)
    low_part = _symbolic_low_part(rest, d)
    if low_part is not None:
        _, high, _, outer = low_part
        return floordiv(high, outer)
    return division_node(FloorDiv, rest, d)


def _mod_symbolic(a: Expr, d: Expr) -> Expr:
    """Return the simplified expression a % d for an expression `d` that is known to be positive."""
    if type(a) is Mod and _is_positive(a.right) and quotient_of(a.right, d) is not None:
        return modulo(a.left, d)
    whole, rest = _divide_terms(a, d)
    if whole is not _e.ZERO:
        return modulo(rest, d)
    if _is_in_range(rest, d):
        return rest
    if rest.hi < 0 and _rules.is_nonneg(_rules.add(rest, d)):
        return _rules.add(rest, d)
    low_part = _symbolic_low_part(rest, d)
    if low_part is not None:
        g, high, low, outer = low_part
        return _rules.add(_rules.multiply(g, modulo(high, outer)), low)
    return division_node(Mod, rest, d)


def _is_in_range(r: Expr, d: Expr) -> bool:
    """Return True if 0 <= r < d can be shown for all values of the symbols."""
    if r.lo >= 0 and r.hi < d.lo:
        return True
    return (r.open or d.open) and bool(_rules.is_nonneg(r)) and bool(_rules.is_nonneg(d - r - 1))


def _symbolic_low_part(a: Expr, d: Expr) -> tuple[Expr, Expr, Expr, Expr] | None:
    """Return (g, h, l, e) with a == g*h + l, d == g*e and 0 <= l < g; None if no such split is known.

    g is a common factor of the divisor `d` and of some terms of `a`. For a = 8*Q*p + q with 0 <= q < 8*Q, and d =
    8*Q*P, the result is (8*Q, p, q, P).
    """
    constant, terms = _rules.linear(a)
    for g in _common_factors(terms, d):
        outer = quotient_of(d, g)
        high: list[Expr] = []
        low: list[Expr] = [const(constant)]
        for t, c in terms:
            term = _rules.scale(t, c)
            quotient = quotient_of(term, g)
            if quotient is None:
                low.append(term)
            else:
                high.append(quotient)
        rest = _rules.add_all(low)
        if outer is not None and high and _is_in_range(rest, g):
            return g, _rules.add_all(high), rest, outer
    return None


def _common_factors(terms: tuple[tuple[Expr, int], ...], d: Expr) -> list[Expr]:
    """Return a list of factors that `d` shares with terms of a sum: for each term, the product of all shared factors.

    `terms` are the sum's (term, coefficient) pairs. Repetitions, 1 and `d` itself are left out. The list is empty if
    `d` is a sum of several terms.
    """
    constant, d_terms = _rules.linear(d)
    if constant != 0 or len(d_terms) != 1:
        return []
    (d_term, d_coefficient) = d_terms[0]
    candidates: list[Expr] = []
    for t, c in terms:
        unmatched = list(_rules.factors_of(t))
        shared = []
        for f in _rules.factors_of(d_term):
            if f in unmatched:
                unmatched.remove(f)
                shared.append(f)
        g = _rules.scale(_rules.product_node(shared), gcd(c, d_coefficient))
        if g is not _e.ONE and g not in candidates and g is not d:
            candidates.append(g)
    return candidates


def _divide_terms(a: Expr, d: Expr) -> tuple[Expr, Expr]:
    """Return (q, r) with a == d*q + r, where q is the sum of the quotients of all terms of `a` that `d` divides.

    If `d` is a sum of several terms, q and r come from a long division. If no term of `a` is divisible, return (0, a).
    """
    constant, d_terms = _rules.linear(d)
    if constant != 0 or len(d_terms) > 1:
        return _divide_polynomial(a, d)
    constant, terms = _rules.linear(a)
    whole: list[Expr] = []
    rest: dict[Expr, int] = {}
    for t, c in terms:
        quotient = _term_quotient(t, c, *d_terms[0])
        if quotient is None:
            rest[t] = c
        else:
            whole.append(quotient)
    if not whole:
        return _e.ZERO, a
    return _rules.add_all(whole), _rules.total(constant, rest)


def _divide_polynomial(a: Expr, d: Expr) -> tuple[Expr, Expr]:
    """Return (q, r) with a == d*q + r by long division of polynomials, with the leading term of `d`, a sum of several
    terms.

    At most eight steps are made. If r would have no fewer terms than `a`, return (0, a).
    """
    _, d_terms = _rules.linear(d)
    lead, lead_coefficient = max(d_terms, key=lambda term: (len(_rules.factors_of(term[0])), term[0].key))
    whole: Expr = _e.ZERO
    rest = a
    for _ in range(8):
        _, terms = _rules.linear(rest)
        for t, c in terms:
            step = _term_quotient(t, c, lead, lead_coefficient)
            if step is not None:
                whole = _rules.add(whole, step)
                rest = _rules.add(rest, _rules.scale(_rules.multiply(step, d), -1))
                break
        else:
            break
    if len(_rules.linear(rest)[1]) < len(_rules.linear(a)[1]):
        return whole, rest
    return _e.ZERO, a


def _term_quotient(t: Expr, c: int, d: Expr, d_coefficient: int) -> Expr | None:
    """Return the quotient (c*t) / (d_coefficient*d) as an expression if the division is exact, else None.

    `t` and `d` are terms, `c` and `d_coefficient` their integer coefficients. The division counts as exact if every
    factor of `d` is a factor of `t`, and `d_coefficient` divides `c`.
    """
    if c % d_coefficient != 0:
        return None
    unmatched = list(_rules.factors_of(t))
    for f in _rules.factors_of(d):
        if f not in unmatched:
            return None
        unmatched.remove(f)
    return _rules.scale(_rules.product_node(unmatched), c // d_coefficient)


def quotient_of(a: Expr, d: Expr) -> Expr | None:
    """Return the expression a / d if `d` is known to divide `a`, as a polynomial or as a number; otherwise, and for d =
    0, None.

    >>> from tilewright.algebra.expr import extent
    >>> P, Q = extent("P"), extent("Q")
    >>> quotient_of(6 * P * Q, 2 * Q), quotient_of(P, Q)
    (<3*P>, None)
    """
    if type(d) is Const:
        n = d.value
        if n == 0 or a.multiple % n != 0:
            return None
        return _div_number(a, n)
    if a is d:
        return _e.ONE
    whole, rest = _divide_terms(a, d)
    return whole if rest is _e.ZERO else None


# -- exact division -----------------------------------------------------------------------------------


def exact_divide(a: Expr, d: Expr) -> Expr:
    """Return the expression a / d, where the author promises that `d` divides `a`.

    If no simpler quotient is known, the result is an `Exact` node; the promise is checked when the node is evaluated.
    Raise ExpressionError for two numbers that do not divide, DivisionByZero for d = 0.
    """
    if d is _e.ZERO:
        raise DivisionByZero(f"({a}) / 0")
    quotient = quotient_of(a, d)
    if quotient is not None:
        return quotient
    if type(a) is Const and type(d) is Const:
        raise ExpressionError(f"{a} / {d} is not an integer; write // to round down")
    if type(a) is Exact:
        return exact_divide(a.left, _rules.multiply(a.right, d))
    if type(d) is Const:
        if d.value < 0:
            return exact_divide(_rules.scale(a, -1), const(-d.value))
        constant, terms = _rules.linear(a)
        common = gcd(gcd(constant, d.value), gcd_of(c for _, c in terms))
        if common > 1:
            reduced = _rules.total(constant // common, {t: c // common for t, c in terms})
            return exact_divide(reduced, const(d.value // common))
    return division_node(Exact, a, d)


def close(e: Expr) -> Expr:
    """Return `e` rounded down, where every exact division a / b in it is taken as a fraction: M / 32 becomes M // 32.

    >>> from math import ceil, floor
    >>> from tilewright.algebra.expr import extent
    >>> M = extent("M")
    >>> print(floor(M / 32 + 1), "and", ceil(M / 32))
    M//32 + 1 and -((-M)//32)
    """
    return floordiv(*_fraction(e))


def _fraction(e: Expr) -> tuple[Expr, Expr]:
    """Return (numerator, denominator) of `e`, in which every exact division `/` is taken as a fraction: M/32 + 1 -> (M
    + 32, 32).
    """
    if type(e) is Exact:
        n1, d1 = _fraction(e.left)
        n2, d2 = _fraction(e.right)
        return _rules.multiply(n1, d2), _rules.multiply(d1, n2)
    constant, terms = _rules.linear(e)
    numerator: Expr = const(constant)
    denominator: Expr = _e.ONE
    for t, c in terms:
        n: Expr = const(c)
        d: Expr = _e.ONE
        for f in _rules.factors_of(t):
            fn, fd = _fraction(f) if type(f) is Exact else (f, _e.ONE)
            n, d = _rules.multiply(n, fn), _rules.multiply(d, fd)
        if d is denominator:
            numerator = _rules.add(numerator, n)
        else:
            numerator = _rules.add(_rules.multiply(numerator, d), _rules.multiply(n, denominator))
            denominator = _rules.multiply(denominator, d)
    return numerator, denominator


# -- nodes ------------------------------------------------------------------------------------------

_TAGS: dict[Any, int] = {FloorDiv: 201, Mod: 202, Exact: 203}


def division_node(kind: Any, a: Expr, d: Expr) -> Expr:
    """Return the expression node of a // d, a % d or a / d, for the class `kind` FloorDiv, Mod or Exact, unsimplified.

    Its range and the number that divides all its values are derived from the operands. An equal node that exists
    already is returned.
    """
    identity = (kind, a, d)
    known = _e._nodes.get(identity)
    if known is not None:
        return known
    lo, hi = _mod_range(a, d) if kind is Mod else _div_range(a, d)
    node = kind.__new__(kind)
    node.left, node.right = a, d
    multiple = gcd(a.multiple, d.multiple) if kind is Mod else 1
    if kind is not Mod and type(d) is Const and a.multiple % d.value == 0:
        multiple = a.multiple // abs(d.value)
    interned: Expr = _e._intern(node, hash((_TAGS[kind], a.key, d.key)), lo, hi, multiple, a.open or d.open, identity)
    return interned


def _div_range(a: Expr, d: Expr) -> tuple[Bound, Bound]:
    """Return (low, high) with low <= a // d <= high, from the numeric ranges of both operands; it holds for a / d too.

    If `d` is at least 1, these are the tightest limits. Otherwise they are -m and m, where m is the largest absolute
    value of `a`.
    """
    if d.lo >= 1:
        ends = [_quotient_of_ends(x, y) for x in (a.lo, a.hi) for y in (d.lo, d.hi)]
        return min(ends), max(ends)
    reach = max(abs(a.lo), abs(a.hi))
    return -reach, reach


def _quotient_of_ends(x: Bound, y: Bound) -> Bound:
    """Return x // y, where x and y are ends of two ranges and may be infinite; y must be at least 1."""
    if x in (inf, -inf):
        return x
    if y == inf:
        return 0 if x >= 0 else -1
    return x // y


def _mod_range(a: Expr, d: Expr) -> tuple[Bound, Bound]:
    """Return (low, high) with low <= a % d <= high, from the numeric ranges of both operands.

    If `d` is at least 1, low is 0, and high is the largest value of `d` minus 1, or the largest value of `a` if that is
    less and `a` is never negative. Otherwise the limits are -(m - 1) and m - 1, where m is the largest absolute value
    of `d`.
    """
    if d.lo >= 1:
        return 0, min(d.hi - 1, a.hi) if a.lo >= 0 else d.hi - 1
    reach = max(abs(d.lo), abs(d.hi)) - 1
    return -reach, reach


from tilewright.algebra import expr_rules as _rules  # noqa: E402
