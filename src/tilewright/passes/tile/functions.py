"""Functions of floating-point numbers that have no instruction and no library function, from those that have."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

from tilewright.ir.dtypes import DType, f64
from tilewright.ir.formula import Formula

# erf(x) = x P(x*x) / Q(x*x) for |x| < 4; beyond, it is 1 to the last bit of f32
_P = (
    *(-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05),
    *(-7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02),
)
_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03, -1.42647390514189e-02)


def _polynomial(z: Formula, coefficients: tuple[float, ...]) -> Formula:
    return reduce(
        lambda total, c: Formula("add", (Formula("mul", (total, z)), Formula.number(c))),
        coefficients[1:],
        Formula.number(coefficients[0]),
    )


def _erf(kind: DType, x: Formula) -> Formula:
    if kind is f64:
        return _erf_f64(x)
    inside = Formula("maximum", (Formula("minimum", (x, Formula.number(4.0))), Formula.number(-4.0)))
    z = Formula("mul", (inside, inside))
    return Formula("div", (Formula("mul", (inside, _polynomial(z, _P))), _polynomial(z, _Q)))


def _erf_f64(x: Formula) -> Formula:
    """By the sum 2/sqrt(pi) exp(-x*x) (x + 2 x^3/3 + 4 x^5/15 + ...), whose terms all have one sign."""
    inside = Formula("maximum", (Formula("minimum", (x, Formula.number(6.0))), Formula.number(-6.0)))
    z = Formula("mul", (Formula("mul", (inside, inside)), Formula.number(2.0)))
    total: Formula = Formula.number(1.0)
    for n in range(301, 1, -2):
        step = Formula("mul", (total, Formula("mul", (z, Formula.number(1.0 / n)))))
        total = Formula("add", (step, Formula.number(1.0)))
    scale = Formula("exp", (Formula("mul", (z, Formula.number(-0.5))),))
    factor = Formula("mul", (Formula("mul", (inside, scale)), Formula.number(1.1283791670955126)))
    return Formula("mul", (factor, total))


def _mod(kind: DType, a: Formula, b: Formula) -> Formula:
    """The remainder of floor division: that of truncated division, moved where its sign is not the divisor's."""
    rest, zero = Formula("remf", (a, b)), Formula.number(0.0)
    crossed = Formula("lt", (Formula("mul", (rest, b)), zero))
    return Formula("select", (crossed, Formula("add", (rest, b)), rest))


FUNCTIONS: dict[str, Callable[..., Formula]] = {"erf": _erf, "mod": _mod}
MISSING = frozenset(("cbrt", "atan2"))
