"""log, log2, log10 and log1p.

x is 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), so that log x has no cancellation near x = 1: there k is 0.
With s = f/(2 + f), log(1 + f) = log((1 + s)/(1 - s)) = f - (h - s (h + z Q(z))), h = f^2/2, z = s^2: what is rounded is
small beside f.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.exponential import LN_2
from tilewright.codegen.mathematics.lanes import Lanes, Number

_SQRT_HALF = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}
_SHORT = {32: 15, 64: 42}
LN_10 = Fraction("2.302585092994045684017991454684364207601101488628772976033327900967572609677352480236")
_HALF = {32: 11, 64: 20}
"""Bits that may be multiplied by half of a number's bits without rounding."""


def split(m: Lanes, x: Number) -> tuple[Number, Number]:
    """k and f of a positive number, subnormal ones too; k as a float."""
    tiny = x < 2.0 ** (1 - m.bias)
    word = m.bits_of(m.select(tiny, x * 2.0**m.fraction, x)) - _SQRT_HALF[m.bits]
    k = m.of_integer(word.signed_shift(m.fraction)) if m.bits == 32 else _exponent(m, word)
    k = m.select(tiny, k - float(m.fraction), k)
    return k, m.of_bits((word & ((1 << m.fraction) - 1)) + _SQRT_HALF[m.bits]) - 1.0


def _exponent(m: Lanes, word: Number) -> Number:
    """The upper bits, signed, as a float: by its own bits, as few machines convert 64-bit integers in vectors."""
    middle = 1 << (63 - m.fraction)
    biased = (word ^ -m.sign) >> m.fraction
    base = 2.0**m.fraction
    return m.of_bits(biased | ((m.bias + m.fraction) << m.fraction)) - (base + middle)


def special(m: Lanes, x: Number, found: Number) -> Number:
    """The logarithm where there is one; -inf of zero, none of negative numbers, inf of inf."""
    found = m.select(x < float("inf"), found, x)  # also what is no number
    found = m.select(x > 0.0, found, x + float("nan"))
    return m.select(x.equals(0.0), -float("inf"), found)


def _parts(m: Lanes, f: Number) -> tuple[Number, Number]:
    """h and s (h + z Q(z))."""
    half = f * f * 0.5
    s = f / (f + 2.0)
    z = s * s
    return half, s * m.fused(z, m.polynomial(z, COEFFICIENTS[f"log.{m.name}"]), half)


def log(m: Lanes, x: Number) -> Number:
    """The natural logarithm."""
    k, f = split(m, x)
    half, rest = _parts(m, f)
    hi, lo = _cut(LN_2, _SHORT[m.bits])
    return special(m, x, m.fused(k, hi, f - (half - m.fused(k, lo, rest))))


def log1p(m: Lanes, x: Number) -> Number:
    """log(1 + x), with its own precision near 0.

    If k is 0, f is x itself; else the rounding error of 1 + x, divided by 1 + x, is added to the smallest term.
    """
    above, lost = m.difference_of(x, m.constant(-1.0))
    k, f = split(m, above)
    plain = k.equals(0.0)
    f = m.select(plain, x, f)
    half, rest = _parts(m, f)
    hi, lo = _cut(LN_2, _SHORT[m.bits])
    least = m.fused(k, lo, rest) + m.select(plain, 0.0, lost / above)
    result = special(m, above, m.fused(k, hi, f - (half - least)))
    return m.select(m.magnitude(x) < 2.0 ** -(m.fraction + 2), x, result)  # with the sign of 0, and subnormal numbers


def log2(m: Lanes, x: Number) -> Number:
    """The logarithm to base 2; exact for powers of two."""
    return _to_base(m, x, LN_2)


def log10(m: Lanes, x: Number) -> Number:
    """The logarithm to base 10."""
    return _to_base(m, x, LN_10)


def _cut(value: Fraction, bits: int) -> tuple[float, float]:
    """A number to so many bits after the point, and the rest."""
    hi = Fraction(int(value * 2**bits), 2**bits)
    return float(hi), float(value - hi)


def _to_base(m: Lanes, x: Number, ln_base: Fraction) -> Number:
    """f - h is cut to half of its bits, so that its product with the upper half of 1/log(base) is exact."""
    k, f = split(m, x)
    half, rest = _parts(m, f)
    upper, lower = _cut(1 / ln_base, _HALF[m.bits])
    unit, unit_rest = _cut(LN_2 / ln_base, _SHORT[m.bits])
    hi = m.of_bits(m.bits_of(f - half) & -(1 << (m.fraction // 2 + 1)))
    lo = (f - hi) - half + rest
    total, lost = m.sum_of(k * unit, hi * upper)
    least = (lo + hi) * lower + lo * upper
    if unit_rest:
        least = m.fused(k, unit_rest, least)
    return special(m, x, least + lost + total)
