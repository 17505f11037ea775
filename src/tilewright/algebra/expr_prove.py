"""Prove that an expression is never negative, when ranges alone do not tell.

Ranges know each symbol's numeric limits and nothing else. Here symbolic limits count too: with 0 <= q <= Q-1 and
0 <= p <= P-1, the expression P*Q - 1 - Q*p - q is never negative. The search is simple and always ends: it
replaces one factor after another (a symbol, quotient, remainder, min or max) by the limit that makes the expression
smallest, and adds facts that definitions imply. It may fail to show something true; it never shows something false.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tilewright.algebra.expr import Expr, FloorDiv, Max, Min, Mod, Product, Symbol, const


def is_nonneg(e: Expr, facts: Sequence[Expr] = ()) -> bool:
    """Return True if e >= 0 can be proved for all values of its symbols, given `facts`, expressions known to be >= 0.

    False means that no proof was found.

    >>> from tilewright.algebra.expr import extent, index
    >>> P, Q, H = extent("P"), extent("Q"), extent("H")
    >>> p, q = index("p", P), index("q", Q)
    >>> is_nonneg(P * Q - 1 - Q * p - q)
    True
    >>> is_nonneg(H - P), is_nonneg(H - P, facts=[H - 2 * P])
    (False, True)
    """
    if e.lo >= 0:
        return True
    if e.hi < 0:
        return False
    if facts:
        return not refuted(e, tuple(facts)) and _search(e, tuple(facts), 2)
    if not e.open:
        return False
    if e._nonneg is None:
        e._nonneg = not refuted(e) and _search(e, (), 2)
    return e._nonneg


def _search(e: Expr, facts: tuple[Expr, ...], depth: int) -> bool:
    """Return True if a proof of e >= 0 is found, with two kinds of steps.

    One step replaces a factor by its limit. The other subtracts a multiple of a known fact: if e - k*fact >= 0 for a k
    >= 1, then e >= 0. `facts` are expressions known to be >= 0; facts that follow from definitions of symbols are used
    too. At most `depth` facts are subtracted, one after another.
    """
    e = _eliminate(e, facts, depth, symbolic=True)
    if e.lo >= 0:
        return True
    if depth > 0:
        for fact in (*facts, *_definition_facts_of(e)):
            for weight in _cancelling_multiples(e, fact):
                rest = _rules.weighted_sum(0, ((e, 1), (fact, -weight)))
                if rest.lo >= 0 or (not refuted(rest, facts) and _search(rest, facts, depth - 1)):
                    return True
    return _eliminate(e, facts, depth, symbolic=False).lo >= 0


def _cancelling_multiples(e: Expr, fact: Expr) -> set[int]:
    """Return the integers k >= 1 for which e - k*fact loses a term of `e`, because k*fact has the same term.

    These are the multiples of `fact` that are worth subtracting in a proof of e >= 0.
    """
    coefficient_of = dict(_rules.linear(e)[1])
    return {
        coefficient_of[t] // c
        for t, c in _rules.linear(fact)[1]
        if t in coefficient_of and coefficient_of[t] % c == 0 and coefficient_of[t] // c > 0
    }


def _definition_facts_of(e: Expr) -> list[Expr]:
    """Return expressions that are always >= 0 because of the definitions of the symbols in `e`; []
    without definitions.
    """
    facts: list[Expr] = []
    for s in sorted(e.symbols, key=lambda s: s.key):
        if s.definition is not None:
            facts += definition_facts(s, s.definition)
    return facts


def definition_facts(s: Symbol, definition: Expr) -> list[Expr]:
    """Return expressions that are always >= 0 because the symbol `s` equals `definition`.

    - s == x // d + c: x - d*(s - c), and d*(s - c) + d - 1 - x.
    - s == min(a, b): a - s, and b - s.
    - s == max(a, b): s - a, and s - b.
    - Any other definition: definition - s, and s - definition.
    """
    for t, c in _rules.linear(definition)[1]:
        if c == 1 and type(t) is FloorDiv and t.right.lo >= 1:
            rest = _rules.add(definition, _rules.scale(t, -1))
            reached = _rules.multiply(t.right, s - rest)
            return [t.left - reached, reached + t.right - 1 - t.left]
    if type(definition) is Min:
        return [a - s for a in definition.args]
    if type(definition) is Max:
        return [s - a for a in definition.args]
    return [definition - s, s - definition]


def _eliminate(e: Expr, facts: tuple[Expr, ...], depth: int, *, symbolic: bool) -> Expr:
    """Return a lower bound of `e`: an expression that is never greater than `e`, with factors replaced by their limits.

    The sign of a factor's coefficient decides whether the lower or the upper limit makes `e` smallest; a factor whose
    coefficient has no proved sign stays. These proofs use `facts` (expressions known to be >= 0) and search depth
    `depth`. With `symbolic`, only factors with symbolic limits are replaced. Replacing stops as soon as the range shows
    that the bound is not negative.
    """
    tried: set[Expr] = set()
    while e.lo < 0:
        factor = _next_to_eliminate(e, tried, symbolic=symbolic)
        if factor is None:
            return e
        tried.add(factor)
        coefficient, rest = _coefficient(e, factor)
        if coefficient is None:
            continue
        if _is_nonneg_within(coefficient, facts, depth):
            limit = _lower(factor)
        elif _is_nonneg_within(_rules.scale(coefficient, -1), facts, depth):
            limit = _upper(factor)
        else:
            continue
        if limit is not None:
            e = _rules.add(rest, _rules.multiply(coefficient, limit))
    return e


def _is_nonneg_within(e: Expr, facts: tuple[Expr, ...], depth: int) -> bool:
    """Return True if e >= 0 is shown by the range of `e`, or by a proof.

    `facts` are expressions known to be >= 0. The proof may subtract fewer than `depth` facts, one after another; with
    depth 0 no proof is tried.
    """
    return e.lo >= 0 or (depth > 0 and e.open and not refuted(e, facts) and _search(e, facts, depth - 1))


def _next_to_eliminate(e: Expr, tried: set[Expr], *, symbolic: bool) -> Expr | None:
    """Return the factor of a term of `e` that is replaced by its limit next; None if there is none. Factors in `tried`
    are skipped.

    Preferred is a factor that no other candidate can bring back (see `_depends_on`). With `symbolic`, only factors with
    symbolic limits are candidates. Without `symbolic`, None is returned unless some term is a product.
    """
    _, terms = _rules.linear(e)
    if not symbolic and not any(type(t) is Product for t, _ in terms):
        return None  # ranges alone cannot be improved on
    candidates: list[Expr] = []
    for t, _ in terms:
        for f in _rules.factors_of(t):
            if f not in candidates and f not in tried and (not symbolic or _has_symbolic_limits(f)):
                candidates.append(f)
    candidates.sort(key=lambda a: a.key)
    for factor in candidates:
        if not any(other is not factor and _depends_on(other, factor) for other in candidates):
            return factor
    return candidates[0] if candidates else None


def _depends_on(other: Expr, factor: Expr) -> bool:
    """Return True if replacing the factor `other` by its limit may bring `factor` back into the expression.

    That is possible if `other` is a symbol whose limits or definition mention a symbol of `factor`, or if neither is a
    symbol and the two share a symbol.
    """
    if isinstance(other, Symbol):
        return bool(other.background & factor.symbols)
    return bool(other.symbols & factor.symbols) and not isinstance(factor, Symbol)


def _has_symbolic_limits(factor: Expr) -> bool:
    """Return True if a limit of `factor` may be an expression instead of a number.

    That is so for a symbol with a symbolic bound, and for a //, %, min or max whose range depends on such bounds.
    """
    if isinstance(factor, Symbol):
        return any(limit is not None and not limit.is_constant for limit in (factor.lower, factor.upper))
    return isinstance(factor, FloorDiv | Mod | Min | Max) and factor.open


def _coefficient(e: Expr, factor: Expr) -> tuple[Expr | None, Expr]:
    """Return (c, r) with e == c*factor + r, where no term of r contains `factor`. Return (None, e) if a term of `e`
    contains `factor` twice.
    """
    constant, terms = _rules.linear(e)
    with_atom: list[Expr] = []
    rest: dict[Expr, int] = {}
    for t, c in terms:
        factors = list(_rules.factors_of(t))
        if factor not in factors:
            rest[t] = c
            continue
        factors.remove(factor)
        if factor in factors:
            return None, e
        with_atom.append(_rules.scale(_rules.product_node(factors), c))
    return _rules.add_all(with_atom), _rules.total(constant, rest)


def _lower(factor: Expr) -> Expr | None:
    """Return an expression that is never greater than `factor` (a symbol, quotient, ...); None if no lower limit is
    known.
    """
    if isinstance(factor, Symbol) and factor.lower is not None and not factor.lower.is_constant:
        return factor.lower
    if isinstance(factor, FloorDiv) and factor.right.lo >= 1 and isinstance(factor.left, Symbol):
        return None if factor.left.lower is None else factor.left.lower // factor.right
    return None if factor.lo == -inf else const(int(factor.lo))


def _upper(factor: Expr) -> Expr | None:
    """Return an expression that is never less than `factor` (a symbol, remainder, ...); None if no upper limit is
    known.
    """
    if isinstance(factor, Symbol) and factor.upper is not None and not factor.upper.is_constant:
        return factor.upper
    if isinstance(factor, Mod) and factor.right.lo >= 1 and not factor.right.is_constant:
        return factor.right - 1
    if isinstance(factor, FloorDiv) and factor.right.lo >= 1 and isinstance(factor.left, Symbol):
        return None if factor.left.upper is None else factor.left.upper // factor.right
    if isinstance(factor, Min) and factor.hi == inf:
        return factor.args[0]
    return None if factor.hi == inf else const(int(factor.hi))


from tilewright.algebra import expr_rules as _rules  # noqa: E402
from tilewright.algebra.expr_sample import refuted  # noqa: E402
