"""Showing that an expression is never negative, when ranges alone do not tell.

Ranges know each symbol's numeric limits and nothing else. Here symbolic limits count too: with 0 <= q <= Q-1 and
0 <= p <= P-1, the expression P*Q - 1 - Q*p - q is never negative. The search is simple and always ends: it
replaces one symbol after another by the limit that makes the expression smallest, and adds facts that
definitions imply. It may fail to show something true; it never shows something false.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from tilewright.algebra.expr import Expr, FloorDiv, Max, Min, Mod, Product, Symbol, const


def is_nonneg(e: Expr, facts: Sequence[Expr] = ()) -> bool:
    """Whether e >= 0 can be shown, given further expressions that are known to be >= 0.

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
    e = _eliminate(e, facts, depth, symbolic=True)
    if e.lo >= 0:
        return True
    if depth > 0:
        for fact in (*facts, *_implied(e)):
            for weight in _weights(e, fact):
                rest = _rules.weighted_sum(0, ((e, 1), (fact, -weight)))
                if rest.lo >= 0 or (not refuted(rest, facts) and _search(rest, facts, depth - 1)):
                    return True
    return _eliminate(e, facts, depth, symbolic=False).lo >= 0


def _weights(e: Expr, fact: Expr) -> set[int]:
    """The positive multiples of a fact that cancel a term of e."""
    wanted = dict(_rules.linear(e)[1])
    return {
        wanted[t] // c for t, c in _rules.linear(fact)[1] if t in wanted and wanted[t] % c == 0 and wanted[t] // c > 0
    }


def _implied(e: Expr) -> list[Expr]:
    """What the definitions of the symbols in e imply to be >= 0."""
    found: list[Expr] = []
    for s in sorted(e.symbols, key=lambda s: s.key):
        if s.definition is not None:
            found += definition_facts(s, s.definition)
    return found


def definition_facts(s: Symbol, definition: Expr) -> list[Expr]:
    """The inequalities that s == definition implies, without division.

    For s == x // d + c these are d*(s - c) <= x and x <= d*(s - c) + d - 1.
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
    """Replaces atoms by the limit that makes e smallest, as long as a coefficient's sign is known."""
    tried: set[Expr] = set()
    while e.lo < 0:
        atom = _next_atom(e, tried, symbolic=symbolic)
        if atom is None:
            return e
        tried.add(atom)
        coefficient, rest = _coefficient(e, atom)
        if coefficient is None:
            continue
        if _sign_known(coefficient, facts, depth):
            limit = _lower(atom)
        elif _sign_known(_rules.scale(coefficient, -1), facts, depth):
            limit = _upper(atom)
        else:
            continue
        if limit is not None:
            e = _rules.add(rest, _rules.multiply(coefficient, limit))
    return e


def _sign_known(e: Expr, facts: tuple[Expr, ...], depth: int) -> bool:
    return e.lo >= 0 or (depth > 0 and e.open and not refuted(e, facts) and _search(e, facts, depth - 1))


def _next_atom(e: Expr, tried: set[Expr], *, symbolic: bool) -> Expr | None:
    """An atom of e to replace: one that no other atom's limits mention, so that it cannot come back."""
    _, terms = _rules.linear(e)
    if not symbolic and not any(type(t) is Product for t, _ in terms):
        return None  # ranges have said all there is to say
    atoms: list[Expr] = []
    for t, _ in terms:
        for f in _rules.factors_of(t):
            if f not in atoms and f not in tried and (not symbolic or _has_symbolic_limits(f)):
                atoms.append(f)
    atoms.sort(key=lambda a: a.key)
    for atom in atoms:
        if not any(other is not atom and _mentions(other, atom) for other in atoms):
            return atom
    return atoms[0] if atoms else None


def _mentions(other: Expr, atom: Expr) -> bool:
    if isinstance(other, Symbol):
        return bool(other.background & atom.symbols)
    return bool(other.symbols & atom.symbols) and not isinstance(atom, Symbol)


def _has_symbolic_limits(atom: Expr) -> bool:
    if isinstance(atom, Symbol):
        return any(limit is not None and not limit.is_constant for limit in (atom.lower, atom.upper))
    return isinstance(atom, FloorDiv | Mod | Min | Max) and atom.open


def _coefficient(e: Expr, atom: Expr) -> tuple[Expr | None, Expr]:
    """(c, r) with e == c*atom + r where atom occurs in neither; c is None if it occurs otherwise."""
    constant, terms = _rules.linear(e)
    with_atom: list[Expr] = []
    rest: dict[Expr, int] = {}
    for t, c in terms:
        factors = list(_rules.factors_of(t))
        if atom not in factors:
            rest[t] = c
            continue
        factors.remove(atom)
        if atom in factors:
            return None, e
        with_atom.append(_rules.scale(_rules.product_node(factors), c))
    return _rules.add_all(with_atom), _rules.total(constant, rest)


def _lower(atom: Expr) -> Expr | None:
    """An expression that is never above the atom."""
    if isinstance(atom, Symbol) and atom.lower is not None and not atom.lower.is_constant:
        return atom.lower
    if isinstance(atom, FloorDiv) and atom.right.lo >= 1 and isinstance(atom.left, Symbol):
        return None if atom.left.lower is None else atom.left.lower // atom.right
    return None if atom.lo == -inf else const(int(atom.lo))


def _upper(atom: Expr) -> Expr | None:
    """An expression that is never below the atom."""
    if isinstance(atom, Symbol) and atom.upper is not None and not atom.upper.is_constant:
        return atom.upper
    if isinstance(atom, Mod) and atom.right.lo >= 1 and not atom.right.is_constant:
        return atom.right - 1
    if isinstance(atom, FloorDiv) and atom.right.lo >= 1 and isinstance(atom.left, Symbol):
        return None if atom.left.upper is None else atom.left.upper // atom.right
    if isinstance(atom, Min) and atom.hi == inf:
        return atom.args[0]
    return None if atom.hi == inf else const(int(atom.hi))


from tilewright.algebra import expr_rules as _rules  # noqa: E402
from tilewright.algebra.expr_sample import refuted  # noqa: E402
