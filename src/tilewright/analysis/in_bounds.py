"""Proofs that a coordinate is in bounds for every value of the open parameters, from ranges and facts.

Facts are expressions that are known to be >= 0 where the coordinate is used: loop limits, branch conditions, the
rounding of quotients. A goal e >= 0 is reduced by multiples of facts until the ranges of its symbols decide it.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import gcd, isfinite

from tilewright.algebra.expr import And, AtLeastZero, Const, Expr, FloorDiv, IsZero, Max, Min, Mod, Product, Symbol
from tilewright.algebra.expr_prove import is_nonneg
from tilewright.algebra.expr_rules import linear, negate, weighted_sum
from tilewright.algebra.expr_use import Substitution

DEPTH = 4
"""The most facts that one proof may use."""


def is_proved(e: Expr, facts: Iterable[Expr] = ()) -> bool:
    """Return True if e >= 0 can be proved from the ranges of its symbols and from `facts`, expressions known to be >=
    0.

    False means that no proof was found.

    >>> from tilewright.algebra.expr import index, symbol
    >>> rows = symbol("M", 1, 99)
    >>> block, i = index("block", rows // 9), index("i", 9)
    >>> is_proved(rows - 1 - (9 * block + i)), is_proved(rows - 2 - (9 * block + i))
    (True, False)
    >>> from tilewright.algebra.expr_rules import minimum
    >>> last = index("last", (rows + 8) // 9)
    >>> is_proved(minimum(9, rows - 9 * last) - 1)
    True
    >>> is_proved(9 * ((rows + 8) // 9) - 1 - (9 * (rows // 9) + i), facts=[rows % 9 - 1])
    True
    """
    known = [form for fact in facts for form in dict.fromkeys((fact, _mod_to_quotient(fact)))]
    return any(
        _follows(candidate, known)
        for candidate in dict.fromkeys((e, _divided_by_common_factor(e, known), *_without_quotient(e)))
    )


def _without_quotient(e: Expr) -> list[Expr]:
    """Return expressions that are >= 0 exactly if e >= 0, each with a quotient of `e` by a symbol removed.

    For e = r - x//d with a symbol d >= 1, the expression is d*(r + 1) - 1 - x. There is one for each such quotient; []
    if there is none.
    """
    constant, terms = linear(e)
    equivalents: list[Expr] = []
    for term, coefficient in terms:
        if (
            coefficient == -1
            and isinstance(term, FloorDiv)
            and not isinstance(term.right, Const)
            and term.right.lo >= 1
        ):
            others = weighted_sum(constant + 1, [(t, c) for t, c in terms if t is not term])
            equivalents.append(term.right * others - 1 - term.left)
    return equivalents


def _follows(e: Expr, known: list[Expr]) -> bool:
    """Return True if e >= 0 can be proved from the `known` facts (expressions >= 0), or from e being an integer.

    The rounding of the quotients in `e` is used too. Quotients that are proved to be >= 0 on the way are appended to
    the list `known`.
    """
    if _search(e, known, DEPTH):
        return True
    quotients = [node for node in e.walk() if isinstance(node, FloorDiv) and node.lo < 0 and node.right.lo >= 1]
    known += [node for node in quotients if _search(node.left, known, DEPTH)]
    if quotients and _search(e, known, DEPTH):
        return True
    # e >= 0 for an integer e where d*e + d - 1 >= 0: of that, what a quotient by d leaves out can be taken away
    divisors = {node.right.value for node in e.walk() if isinstance(node, FloorDiv) and isinstance(node.right, Const)}
    return any(_search(weighted_sum(d - 1, [(e, d)]), known, DEPTH) for d in sorted(divisors) if d > 1)


def _divided_by_common_factor(e: Expr, known: Iterable[Expr]) -> Expr:
    """Return a simpler expression d such that d >= 0 implies e >= 0. Return `e` itself if d would be a constant.

    Symbols that occur in one term of `e` only, and in no `known` fact, take the value at which `e` is least. Then the
    gcd of the other coefficients is divided out: 6*x - 1 - i with i < 6 gives x - 1.
    """
    constant, terms = linear(e)
    others = [*known, *(t for t, _ in terms if not isinstance(t, Symbol))]
    fact_symbols = {s for expression in others for s in expression.symbols}
    shared_symbols = {s for symbol in (*fact_symbols, *e.symbols) for s in symbol.background - {symbol}} | fact_symbols
    remaining: list[tuple[Expr, int]] = []
    for term, coefficient in terms:
        bound = term.lo if coefficient > 0 else term.hi
        if isinstance(term, Symbol) and term not in shared_symbols and isfinite(bound) and not _has_open_ends(term):
            constant += coefficient * int(bound)
        else:
            remaining.append((term, coefficient))
    unit = gcd(*(coefficient for _, coefficient in remaining))
    return (
        e if unit == 0 else weighted_sum(constant // unit, [(t, coefficient // unit) for t, coefficient in remaining])
    )


def _has_open_ends(s: Symbol) -> bool:
    """Return True if a limit or the definition of the symbol `s` depends on other symbols."""
    return any(limit is not None and not limit.is_constant for limit in (s.lower, s.upper, s.definition))


def facts_if_true(condition: Expr) -> list[Expr]:
    """Return expressions that are >= 0 wherever `condition` is true; [] if the condition gives none.

    A conjunction gives those of all its operands. Conditions other than comparisons by `>=`, `<` and `==` give none.

    >>> from tilewright.algebra.expr import index
    >>> i = index("i", 9)
    >>> facts_if_true((i >= 2) & (i < 5))
    [<i - 2>, <-i + 4>]
    >>> facts_if_true((i >= 2) * (i < 5))
    [<i - 2>, <-i + 4>]
    """
    if isinstance(condition, And | Product):
        return [fact for part in condition.parts for fact in facts_if_true(part)]
    if isinstance(condition, AtLeastZero):
        return [condition.operand]
    if isinstance(condition, IsZero):
        return [condition.operand, -condition.operand]
    return []


def facts_if_false(condition: Expr) -> list[Expr]:
    """Return expressions that are >= 0 wherever `condition` is false: [i - 5] for i < 5; [] if the condition gives
    none.
    """
    return facts_if_true(negate(condition))


def _mod_to_quotient(e: Expr) -> Expr:
    """Return `e` with each remainder x%d that is a term of it replaced by x - d*(x//d).

    Remainders inside other expressions stay.
    """
    constant, terms = linear(e)
    parts = [
        (term.left - term.right * (term.left // term.right) if isinstance(term, Mod) else term, coefficient)
        for term, coefficient in terms
    ]
    return weighted_sum(constant, parts)


def _search(e: Expr, facts: list[Expr], depth: int) -> bool:
    """Return True if e >= 0 can be proved by subtracting multiples of at most `depth` facts (expressions >= 0) from
    `e`.

    The facts are those in `facts`, and those that follow from the symbols and quotients in `e`. If `e` has a minimum as
    a term (or a maximum with a negative coefficient), e >= 0 is proved for each of its arguments.
    """
    if is_nonneg(e):
        return True
    if depth == 0:
        return False
    for fact in (*facts, *implied(e)):
        for weight in _weights(e, fact):
            if _search(weighted_sum(0, [(e, 1), (fact, -weight)]), facts, depth - 1):
                return True
    constant, terms = linear(e)
    for term, coefficient in terms:
        if isinstance(term, Min if coefficient > 0 else Max):  # it holds for the least, if for each of what that is of
            others = [
                (other_term, other_coefficient) for other_term, other_coefficient in terms if other_term is not term
            ]
            goals = (weighted_sum(constant, [*others, (argument, coefficient)]) for argument in term.args)
            return all(_search(argument, facts, depth - 1) for argument in goals)
    return False


def _weights(e: Expr, fact: Expr) -> set[int]:
    """Return the positive integers w for which e - w*fact loses a term of `e`: for e = 6*x + y and fact =
    2*x - 1, {3}.
    """
    coefficient_in_e = dict(linear(e)[1])
    return {
        coefficient_in_e[term] // coefficient
        for term, coefficient in linear(fact)[1]
        if term in coefficient_in_e
        and coefficient_in_e[term] % coefficient == 0
        and coefficient_in_e[term] // coefficient > 0
    }


def implied(e: Expr) -> list[Expr]:
    """Return expressions that are >= 0 because of the symbols and operators in `e`, as facts for a proof.

    They follow from the limits of symbols, and from the meaning of quotients, remainders, minima and maxima: x//4 gives
    x - 4*(x//4), and a symbol with the upper limit M - 1 gives M - 1 minus the symbol.
    """
    facts: list[Expr] = []
    for node in e.walk():
        if isinstance(node, Symbol):
            facts += [upper - node for upper in _limit_cases(node.upper, Min)] + [
                node - lower for lower in _limit_cases(node.lower, Max)
            ]
        elif isinstance(node, FloorDiv) and node.right.lo >= 1:
            remainder = node.left - node.right * node
            facts += [remainder, node.right - 1 - remainder, *_quotient_bounds(node)]
        elif isinstance(node, Mod) and node.right.lo >= 1:
            facts += [node, node.right - 1 - node]
        elif isinstance(node, Min):
            facts += [argument - node for argument in node.args]
        elif isinstance(node, Max):
            facts += [node - argument for argument in node.args]
    return [*facts, *_nested_quotients(e)]


def _quotient_bounds(node: FloorDiv) -> list[Expr]:
    """Return expressions that are >= 0 because a larger dividend gives a quotient that is no smaller.

    For the quotient `node`, (a + t)//d, and each upper limit T of the term t, the expression is (a + T)//d - (a +
    t)//d. Only terms with a positive coefficient count.
    """
    facts: list[Expr] = []
    for term, coefficient in linear(node.left)[1]:
        limits = (
            term.args if isinstance(term, Min) else _limit_cases(term.upper, Min) if isinstance(term, Symbol) else ()
        )
        facts += [
            (node.left + coefficient * (limit - term)) // node.right - node for limit in limits if coefficient > 0
        ]
    return facts


def _nested_quotients(e: Expr) -> list[Expr]:
    """Return expressions that are >= 0 because `e` has two quotients of the same dividend, such as x//4 and x//32.

    If one divisor is a multiple of the other, x//32 is (x//4)//8: so x//4 - 8*(x//32) is at least 0 and at most 7,
    which gives two expressions. Remainders of x and of its higher digits (mixed-radix parts) give such expressions too.
    Return [] if there are none.
    """
    divisions = [node for node in e.walk() if isinstance(node, FloorDiv | Mod) and isinstance(node.right, Const)]
    quotients = [node for node in divisions if isinstance(node, FloorDiv)]
    facts: list[Expr] = []
    for fine in quotients:
        for coarse in quotients:
            ratio, remainder = divmod(int(coarse.right), int(fine.right)) if int(fine.right) > 0 else (0, 1)
            if fine.left is coarse.left and ratio > 1 and remainder == 0:
                digit = fine - ratio * coarse
                facts += [digit, ratio - 1 - digit]
    return [*facts, *_digit_facts([node for node in divisions if isinstance(node, Mod)])]


def _digit_facts(remainders: list[Mod]) -> list[Expr]:
    """Return expressions that are >= 0 because of two `remainders`, one of x and one of a higher digit of x.

    A digit is a mixed-radix part: x%32 - 4*(x//4%8) is x%4, so it is at least 0 and at most 3, which gives two
    expressions.
    """
    facts: list[Expr] = []
    for high in remainders:
        quotient = high.left
        if isinstance(quotient, FloorDiv) and isinstance(quotient.right, Const) and quotient.right.value > 0:
            step = quotient.right.value
            for remainder in remainders:
                if remainder.left is quotient.left and int(remainder.right) == step * int(high.right):
                    low = remainder - step * high
                    facts += [low, step - 1 - low]
    return facts


def _limit_cases(limit: Expr | None, kind: type[Min] | type[Max]) -> list[Expr]:
    """Return a symbol's limit as a list of expressions; a limit with a minimum or maximum gives one expression per
    argument.

    `kind` is Min for upper limits and Max for lower ones: upper limit 2 + min(a, b) -> [2 + a, 2 + b]. Return [] if the
    limit is constant or None.
    """
    if limit is None or limit.is_constant:
        return []
    for node, factor in linear(limit)[1]:
        if factor == 1 and isinstance(node, kind):
            images = [Substitution({}) for _ in node.args]
            for image, argument in zip(images, node.args, strict=True):
                image.done |= {s: s for s in limit.symbols}
                image.done[node] = argument
            return [branch for image in images for branch in _limit_cases(image(limit), kind)]
    return [limit]
