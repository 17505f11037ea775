"""Random expressions beside a plain Python meaning, for the tests of the expression engine."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.algebra.expr import Expr, Symbol, as_expr, extent, index, symbol
from tilewright.algebra.expr_conditions import all_of, any_of, eq, ne, negate
from tilewright.algebra.expr_rules import maximum, minimum

Values = dict[str, int]


@dataclass
class Pair:
    """An expression and what it must mean."""

    expr: Expr
    meaning: Callable[[Values], int]


def concrete_symbols() -> list[Symbol]:
    """Symbols with numeric ranges: of either sign, single values, with divisors."""
    return [
        index("a", 7),
        index("b", 16),
        symbol("c", -5, 6),
        symbol("d", 1, 9),
        symbol("e", 0, 48, multiple_of=4),
        symbol("f", 3, 3),
        symbol("g", -12, -2),
    ]


def symbolic_symbols() -> list[Symbol]:
    """Sizes known only at run time, and indices below them."""
    p, q = extent("P"), extent("Q")
    c = extent("C", multiple_of=4)
    w = extent("W", 3)
    half = extent("U", definition=(w - 3) // 2 + 1)
    return [p, q, c, w, half, index("i", p), index("j", q), index("m", p * q), index("k", 3 * c), index("u", half)]


def random_values(rng: random.Random, symbols: list[Symbol]) -> Values:
    """Values that respect every range, limit, divisor and definition."""
    values: Values = {}
    for s in symbols:
        if s.definition is not None:
            values[s.name] = s.definition(values)
            continue
        lo = -8 if s.lower is None else s.lower(values)
        hi = lo + 11 if s.upper is None else s.upper(values)
        step = s.multiple
        choices = range(-(-lo // step) * step, hi + 1, step)
        values[s.name] = rng.choice([choices[0], choices[-1], rng.choice(choices)])
    return values


class Generator:
    """Draws random pairs, deeper with a larger budget."""

    def __init__(self, rng: random.Random, symbols: list[Symbol]):
        self.rng = rng
        self.symbols = symbols

    def leaf(self) -> Pair:
        if self.rng.random() < 0.25:
            value = self.rng.choice([-3, -1, 0, 1, 2, 3, 4, 6, 8, 12, 16])
            return Pair(as_expr(value), lambda v: value)
        s = self.rng.choice(self.symbols)
        return Pair(s, lambda v: v[s.name])

    def divisor(self) -> Pair:
        positive = [s for s in self.symbols if s.lo >= 1]
        if positive and self.rng.random() < 0.4:
            s = self.rng.choice(positive)
            n = self.rng.choice([1, 1, 2, 3])
            return Pair(n * s, lambda v: n * v[s.name])
        value = self.rng.choice([-4, -1, 1, 2, 3, 4, 6, 7, 8, 12, 16])
        return Pair(as_expr(value), lambda v: value)

    def number(self, budget: int) -> Pair:
        if budget <= 0:
            return self.leaf()
        kind = self.rng.choice("++++---****////%%%%nxsb^")
        x = self.number(budget - 1)
        if kind in "/%":
            y = self.divisor()
            if kind == "/":
                return Pair(x.expr // y.expr, lambda v: x.meaning(v) // y.meaning(v))
            return Pair(x.expr % y.expr, lambda v: x.meaning(v) % y.meaning(v))
        if kind == "s":
            n = self.rng.choice([-16, -4, -2, 2, 3, 4, 8, 12, 16])
            return Pair(n * x.expr, lambda v: n * x.meaning(v))
        y = self.number(budget - self.rng.choice([1, 1, 2]))
        if kind == "b":
            condition = self.condition(budget - 1)
            return Pair(condition.expr * x.expr, lambda v: condition.meaning(v) * x.meaning(v))
        build: dict[str, tuple[Any, Any]] = {
            "+": (lambda a, b: a + b, lambda a, b: a + b),
            "-": (lambda a, b: a - b, lambda a, b: a - b),
            "*": (lambda a, b: a * b, lambda a, b: a * b),
            "n": (minimum, min),
            "x": (maximum, max),
            "^": (lambda a, b: a ^ b, lambda a, b: a ^ b),
        }
        ours, python = build[kind]
        return Pair(ours(x.expr, y.expr), lambda v: python(x.meaning(v), y.meaning(v)))

    def condition(self, budget: int) -> Pair:
        x, y = self.number(budget - 1), self.number(budget - 1)
        kind = self.rng.choice(["<", "<=", ">", ">=", "==", "!=", "and", "or", "not"])
        compare: dict[str, tuple[Any, Any]] = {
            "<": (lambda a, b: a < b, lambda a, b: a < b),
            "<=": (lambda a, b: a <= b, lambda a, b: a <= b),
            ">": (lambda a, b: a > b, lambda a, b: a > b),
            ">=": (lambda a, b: a >= b, lambda a, b: a >= b),
            "==": (eq, lambda a, b: a == b),
            "!=": (ne, lambda a, b: a != b),
        }
        if kind in compare:
            ours, python = compare[kind]
            return Pair(ours(x.expr, y.expr), lambda v: int(python(x.meaning(v), y.meaning(v))))
        if budget > 1:
            left, right = self.condition(budget - 1), self.condition(budget - 1)
        else:
            left = Pair(x.expr >= 0, lambda v: int(x.meaning(v) >= 0))
            right = Pair(y.expr < 2, lambda v: int(y.meaning(v) < 2))
        if kind == "and":
            return Pair(all_of(left.expr, right.expr), lambda v: left.meaning(v) & right.meaning(v))
        if kind == "or":
            return Pair(any_of(left.expr, right.expr), lambda v: left.meaning(v) | right.meaning(v))
        return Pair(negate(left.expr), lambda v: 1 - left.meaning(v))
