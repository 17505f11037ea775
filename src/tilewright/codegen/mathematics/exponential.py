"""exp, exp2 and expm1, and what they give: tanh and the sigmoid.

x is n + r in units of log 2, n the nearest integer; 2^n is made from the exponent's bits in two factors, each of them a
normal number, so that the last multiplication alone rounds: overflow and subnormal results come out of it.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.lanes import Lanes, Number

LOG2_E = 1.4426950408889634
LN_2 = Fraction(0x162E42FEFA39EF35793C7673007E5ED5E81E69, 1 << 149)
"""log 2 to 149 bits."""
_SHORT = {32: 15, 64: 42}
"""Bits that may be multiplied by n without rounding."""
_ARGUMENTS = {32: (-104.0, 89.0), 64: (-746.0, 710.0)}
"""Beyond these, exp is 0 and infinite."""
_EXPONENTS = {32: (-151.0, 129.0), 64: (-1076.0, 1025.0)}
_LEAST = {32: -30.0, 64: -50.0}
"""Below these, expm1 rounds to -1."""
TANH_SMALL = 0.625


def nearest(m: Lanes, x: Number, scale: float = 1.0) -> tuple[Number, Number]:
    """The integer n next to x*scale, as a float, and a word whose lowest bits hold n + 2*bias."""
    rounder = m.rounder + 2 * m.bias
    moved = x + rounder if scale == 1.0 else m.fused(x, scale, rounder)
    return moved - rounder, m.bits_of(moved)


def scaled(m: Lanes, p: Number, n: Number, word: Number) -> Number:
    """p * 2^n, n and its word from `nearest`."""
    found = None if m.w.scale is None else m.w.scale(m.w, p.text, n.text, m.lanes, m.bits)
    if found is not None:
        return m.number(found)
    half = word >> 1
    return p * m.of_bits(half << m.fraction) * m.of_bits((word - half) << m.fraction)


def exp(m: Lanes, x: Number) -> Number:
    """e to the power of x."""
    found = m.own("exp", x)
    if found is not None:
        return found
    return _power_of_e(m, m.clamped(x, *_ARGUMENTS[m.bits]), 1.0)


def half_exp(m: Lanes, x: Number) -> Number:
    """Half of e^x, which is a number for some x where e^x is none."""
    least, most = _ARGUMENTS[m.bits]
    return _power_of_e(m, m.clamped(x, least, most + 1.0), 0.5)


def _power_of_e(m: Lanes, x: Number, factor: float) -> Number:
    """e^x times a power of two that stands before the last scaling."""
    hi, lo = _parts_of_ln_2(m)
    n, word = nearest(m, x, LOG2_E)
    r = m.fused(n, -lo, m.fused(n, -hi, x))
    q = COEFFICIENTS[f"exp.{m.name}"]
    if m.w.fused:
        found = m.polynomial(r, (1.0, 1.0, *q))
    else:  # where products are rounded, r must not be part of one: a third of a unit
        found = r * r * m.polynomial(r, q) + r + 1.0
    return scaled(m, found if factor == 1.0 else found * factor, n, word)


def _parts_of_ln_2(m: Lanes) -> tuple[float, float]:
    """log 2 to so few bits that its product with n is exact, and the rest."""
    hi = Fraction(int(LN_2 * 2 ** _SHORT[m.bits]), 2 ** _SHORT[m.bits])
    return float(hi), float(LN_2 - hi)


def expm1(m: Lanes, x: Number) -> Number:
    """e^x - 1, with its own precision near 0.

    With x = n log 2 + r it is 2^n - 1 + 2^n r + 2^n (e^r - 1 - r). The rounding error of r joins the last term, the
    smallest: beside 2 r + 1 for r < 0 it would be a unit. Half of everything is added up, since 2^n may be infinite
    where the result is a number.
    """
    hi, lo = _parts_of_ln_2(m)
    limited = m.clamped(x, _LEAST[m.bits], _ARGUMENTS[m.bits][1])
    n, word = nearest(m, limited, LOG2_E)
    r, lost = m.difference_of(m.fused(n, -hi, limited), n * lo)
    rest = m.fused(r * r, m.polynomial(r, COEFFICIENTS[f"exp.{m.name}"]), lost)
    half = m.of_bits((word - (m.bias + 1)) << m.fraction)
    result = m.fused(half, rest, m.fused(half, r, half - 0.5)) * 2.0
    return m.select(m.magnitude(x) < 2.0 ** -(m.fraction + 2), x, result)  # with the sign of 0, and subnormal numbers


def exp2(m: Lanes, x: Number) -> Number:
    """2 to the power of x; exact for integers."""
    x = m.clamped(x, *_EXPONENTS[m.bits])
    n, word = nearest(m, x)
    return scaled(m, m.polynomial(x - n, (1.0, *COEFFICIENTS[f"exp2.{m.name}"])), n, word)


def tanh(m: Lanes, x: Number) -> Number:
    """The hyperbolic tangent: a polynomial near zero, elsewhere 1 - 2/(e^2a + 1)."""
    a = m.magnitude(x)
    z = a * a
    small = m.fused(a * z, m.polynomial(z, COEFFICIENTS[f"tanh.{m.name}"]), a)
    large = 1.0 - 2.0 / (exp(m, a + a) + 1.0)
    return m.with_sign(m.select(a < TANH_SMALL, small, large), m.sign_bit(x))


def sigmoid(m: Lanes, x: Number) -> Number:
    """1/(1 + e^-x), by e = e^-|x|, which does not overflow where the result is still a number.

    What 1 + e and the quotient lose is put right in a step: they would be a unit together.
    """
    e = exp(m, m.of_bits(m.bits_of(x) | -m.sign))
    below = x < 0.0
    under, lost = m.sum_of(1.0, e)
    over = m.select(below, e, 1.0)
    found = over / under
    product, more = m.product_of(found, under)
    rest = ((over - product) - more) - found * lost
    return m.fused(rest, m.select(below, 1.0 - found, found), found)
