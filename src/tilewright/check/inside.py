"""Whether a coordinate lies within a tensor for every value of the open parameters, shown from ranges and facts.

A loop's limits, a branch's condition and the rounding of a quotient are facts: expressions that are never negative
where the coordinate is used. What is to be shown is reduced by multiples of facts until ranges tell the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd, isfinite

from tilewright.algebra.expr import And, AtLeastZero, Const, Expr, FloorDiv, IsZero, Max, Min, Mod, Product, Symbol
from tilewright.algebra.expr_prove import is_nonneg
from tilewright.algebra.expr_rules import linear, negate, weighted_sum
from tilewright.algebra.expr_use import Substitution

DEPTH = 4
"""Facts that one proof may use."""


def shown(e: Expr, facts: Iterable[Expr] = ()) -> bool:
    """Whether e >= 0 follows from the ranges of its symbols and from facts.

    >>> from tilewright.algebra.expr import index, symbol
    >>> rows = symbol("M", 1, 99)
    >>> block, i = index("block", rows // 9), index("i", 9)
    >>> shown(rows - 1 - (9 * block + i)), shown(rows - 2 - (9 * block + i))
    (True, False)
    >>> from tilewright.algebra.expr_rules import minimum
    >>> last = index("last", (rows + 8) // 9)
    >>> shown(minimum(9, rows - 9 * last) - 1)
    True
    >>> shown(9 * ((rows + 8) // 9) - 1 - (9 * (rows // 9) + i), facts=[rows % 9 - 1])
    True
    """
    known = [other for fact in facts for other in dict.fromkeys((fact, _in_quotients(fact)))]
    return any(_follows(each, known) for each in dict.fromkeys((e, _in_units(e, known), *_multiplied(e))))


def _multiplied(e: Expr) -> list[Expr]:
    """What is never negative exactly where e is not: r - x//d, where d is a product of sizes, as d*(r + 1) - 1 - x."""
    constant, terms = linear(e)
    found: list[Expr] = []
    for term, factor in terms:
        if factor == -1 and isinstance(term, FloorDiv) and not isinstance(term.right, Const) and term.right.lo >= 1:
            rest = weighted_sum(constant + 1, [(t, c) for t, c in terms if t is not term])
            found.append(term.right * rest - 1 - term.left)
    return found


def _follows(e: Expr, known: list[Expr]) -> bool:
    """Whether e >= 0 follows from what is known, from what its quotients leave out, and from its being an integer."""
    if _search(e, known, DEPTH):
        return True
    quotients = [node for node in e.walk() if isinstance(node, FloorDiv) and node.lo < 0 and node.right.lo >= 1]
    known += [node for node in quotients if _search(node.left, known, DEPTH)]
    if quotients and _search(e, known, DEPTH):
        return True
    # e >= 0 for an integer e where d*e + d - 1 >= 0: of that, what a quotient by d leaves out can be taken away
    divisors = {node.right.value for node in e.walk() if isinstance(node, FloorDiv) and isinstance(node.right, Const)}
    return any(_search(weighted_sum(d - 1, [(e, d)]), known, DEPTH) for d in sorted(divisors) if d > 1)


def _in_units(e: Expr, known: Iterable[Expr]) -> Expr:
    """What is never negative only where e is not: without symbols of one term alone, which are put where e is least,
    and by the greatest number that divides the other terms: 6*x - 1 - i is at least 6*x - 6 where i < 6, and that is
    not negative where x - 1 is not.
    """
    constant, terms = linear(e)
    others = [*known, *(t for t, _ in terms if not isinstance(t, Symbol))]
    met = {s for other in others for s in other.symbols}
    elsewhere = {s for each in (*met, *e.symbols) for s in each.background - {each}} | met
    kept: list[tuple[Expr, int]] = []
    for term, factor in terms:
        end = term.lo if factor > 0 else term.hi
        if isinstance(term, Symbol) and term not in elsewhere and isfinite(end) and not _has_open_ends(term):
            constant += factor * int(end)
        else:
            kept.append((term, factor))
    unit = gcd(*(factor for _, factor in kept))
    return e if unit == 0 else weighted_sum(constant // unit, [(t, factor // unit) for t, factor in kept])


def _has_open_ends(s: Symbol) -> bool:
    """Whether the limits of a symbol depend on others."""
    return any(end is not None and not end.is_constant for end in (s.lower, s.upper, s.definition))


def holds(condition: Expr) -> list[Expr]:
    """What is never negative where a condition holds.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 9)
    >>> holds((i >= 2) & (i < 5))
    [<i - 2>, <-i + 4>]
    >>> holds((i >= 2) * (i < 5))
    [<i - 2>, <-i + 4>]
    """
    if isinstance(condition, And | Product):
        return [fact for part in condition.parts for fact in holds(part)]
    if isinstance(condition, AtLeastZero):
        return [condition.operand]
    if isinstance(condition, IsZero):
        return [condition.operand, -condition.operand]
    return []


def fails(condition: Expr) -> list[Expr]:
    """What is never negative where a condition does not hold."""
    return holds(negate(condition))


def _in_quotients(e: Expr) -> Expr:
    """The expression with a remainder x%d as x - d*(x//d)."""
    constant, terms = linear(e)
    parts = [(t.left - t.right * (t.left // t.right) if isinstance(t, Mod) else t, c) for t, c in terms]
    return weighted_sum(constant, parts)


def _search(e: Expr, facts: list[Expr], depth: int) -> bool:
    if is_nonneg(e):
        return True
    if depth == 0:
        return False
    for fact in (*facts, *implied(e)):
        for weight in _weights(e, fact):
            if _search(weighted_sum(0, [(e, 1), (fact, -weight)]), facts, depth - 1):
                return True
    constant, terms = linear(e)
    for term, factor in terms:
        if isinstance(term, Min if factor > 0 else Max):  # it holds for the least, if for each of what that is of
            others = [(t, c) for t, c in terms if t is not term]
            parts = (weighted_sum(constant, [*others, (part, factor)]) for part in term.args)
            return all(_search(part, facts, depth - 1) for part in parts)
    return False


def _weights(e: Expr, fact: Expr) -> set[int]:
    """The positive multiples of a fact that cancel a term of e."""
    wanted = dict(linear(e)[1])
    return {wanted[t] // c for t, c in linear(fact)[1] if t in wanted and wanted[t] % c == 0 and wanted[t] // c > 0}


def implied(e: Expr) -> list[Expr]:
    """What the limits of e's symbols, and its quotients and remainders, say to be never negative."""
    found: list[Expr] = []
    for node in e.walk():
        if isinstance(node, Symbol):
            found += [u - node for u in _ends(node.upper, Min)] + [node - low for low in _ends(node.lower, Max)]
        elif isinstance(node, FloorDiv) and node.right.lo >= 1:
            rest = node.left - node.right * node
            found += [rest, node.right - 1 - rest, *_below_ends(node)]
        elif isinstance(node, Mod) and node.right.lo >= 1:
            found += [node, node.right - 1 - node]
        elif isinstance(node, Min):
            found += [part - node for part in node.args]
        elif isinstance(node, Max):
            found += [node - part for part in node.args]
    return [*found, *_nested(e)]


def _below_ends(node: FloorDiv) -> list[Expr]:
    """What a quotient is at most: that of the ends of what is divided."""
    found: list[Expr] = []
    for term, factor in linear(node.left)[1]:
        ends = term.args if isinstance(term, Min) else _ends(term.upper, Min) if isinstance(term, Symbol) else ()
        found += [(node.left + factor * (end - term)) // node.right - node for end in ends if factor > 0]
    return found


def _nested(e: Expr) -> list[Expr]:
    """What holds of two quotients of one number, one divisor dividing the other, x//32 is x//4//8; and of digits."""
    every = [node for node in e.walk() if isinstance(node, FloorDiv | Mod) and isinstance(node.right, Const)]
    quotients = [node for node in every if isinstance(node, FloorDiv)]
    found: list[Expr] = []
    for fine in quotients:
        for coarse in quotients:
            ratio, rest = divmod(int(coarse.right), int(fine.right)) if int(fine.right) > 0 else (0, 1)
            if fine.left is coarse.left and ratio > 1 and rest == 0:
                digit = fine - ratio * coarse
                found += [digit, ratio - 1 - digit]
    return [*found, *_digits([node for node in every if isinstance(node, Mod)])]


def _digits(remainders: list[Mod]) -> list[Expr]:
    """What holds of a remainder and of its higher digit: x%32 - 4*(x//4%8) is x%4."""
    found: list[Expr] = []
    for high in remainders:
        quotient = high.left
        if isinstance(quotient, FloorDiv) and isinstance(quotient.right, Const) and quotient.right.value > 0:
            step = quotient.right.value
            for whole in remainders:
                if whole.left is quotient.left and int(whole.right) == step * int(high.right):
                    low = whole - step * high
                    found += [low, step - 1 - low]
    return found


def _ends(limit: Expr | None, kind: type[Min] | type[Max]) -> list[Expr]:
    """A limit; where it is the least or the greatest of several, each of them."""
    if limit is None or limit.is_constant:
        return []
    for node, factor in linear(limit)[1]:
        if factor == 1 and isinstance(node, kind):
            images = [Substitution({}) for _ in node.args]
            for image, part in zip(images, node.args, strict=True):
                image.done |= {s: s for s in limit.symbols}
                image.done[node] = part
            return [end for image in images for end in _ends(image(limit), kind)]
    return [limit]
