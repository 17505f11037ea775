"""log, log2, log10 and log1p.

x is 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), so that log x has no cancellation near x = 1: there k is 0.
With s = f/(2 + f), log(1 + f) = log((1 + s)/(1 - s)) = f - (h - s (h + z Q(z))), h = f^2/2, z = s^2: all rounded terms
are small compared with f.
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
"""Bits of the leading part of 1/log(base), whose product with a float of half as many bits is exact."""


def split(m: Lanes, x: Number) -> tuple[Number, Number]:
    """Emit the split of a positive number x = 2^k (1 + f), with 1 + f between sqrt(1/2) and sqrt(2); return (k, f) as
    floats.

    x may be subnormal. `m` emits the LLVM instructions.
    """
    tiny = x < 2.0 ** (1 - m.bias)
    word = m.bits_of(m.select(tiny, x * 2.0**m.fraction, x)) - _SQRT_HALF[m.bits]
    k = m.of_integer(word.signed_shift(m.fraction)) if m.bits == 32 else _exponent(m, word)
    k = m.select(tiny, k - float(m.fraction), k)
    return k, m.of_bits((word & ((1 << m.fraction) - 1)) + _SQRT_HALF[m.bits]) - 1.0


def _exponent(m: Lanes, word: Number) -> Number:
    """Emit the conversion of the exponent field of `word`, as a signed number, to a float, and return the float.

    `word` has the bits of an f64 minus the bits of sqrt(1/2). The float is put together from bits, since few machines
    convert 64-bit integers in vectors. `m` emits the LLVM instructions.
    """
    middle = 1 << (63 - m.fraction)
    biased = (word ^ -m.sign) >> m.fraction
    base = 2.0**m.fraction
    return m.of_bits(biased | ((m.bias + m.fraction) << m.fraction)) - (base + middle)


def with_special_values(m: Lanes, x: Number, result: Number) -> Number:
    """Emit the replacement of `result`, a logarithm of x, where x is special; return the result.

    It is `result` if x is finite and positive, -inf if x is 0, inf if x is inf, and NaN if x is negative or NaN. `m`
    emits the LLVM instructions.
    """
    result = m.select(x < float("inf"), result, x)  # NaN, too
    result = m.select(x > 0.0, result, x + float("nan"))
    return m.select(x.equals(0.0), -float("inf"), result)


def _terms_of_log(m: Lanes, f: Number) -> tuple[Number, Number]:
    """Emit two terms of log(1 + f), and return (h, t): log(1 + f) = f - (h - t), with h = f^2/2 and t smaller than h.

    t is s (h + z Q(z)) with s = f/(2 + f), z = s^2 and a polynomial Q. `m` emits the LLVM instructions.
    """
    half = f * f * 0.5
    s = f / (f + 2.0)
    z = s * s
    return half, s * m.fused(z, m.polynomial(z, COEFFICIENTS[f"log.{m.name}"]), half)


def log(m: Lanes, x: Number) -> Number:
    """Emit the natural logarithm of x for each lane, and return the result: -inf if x is 0, NaN if x is negative.

    `m` emits the LLVM instructions.
    """
    k, f = split(m, x)
    half, rest = _terms_of_log(m, f)
    hi, lo = _split_constant(LN_2, _SHORT[m.bits])
    return with_special_values(m, x, m.fused(k, hi, f - (half - m.fused(k, lo, rest))))


def log1p(m: Lanes, x: Number) -> Number:
    """Emit log(1 + x) for each lane, and return the result, accurate to the last bits also near 0.

    It is -inf if x is -1, and NaN below. 1 + x is split into 2^k (1 + f). If k is 0, f is x itself. Otherwise the
    rounding error of 1 + x, divided by 1 + x, is added to the smallest term of the logarithm. Very small x are returned
    unchanged. `m` emits the LLVM instructions.
    """
    one_plus_x, lost = m.difference_of(x, m.constant(-1.0))
    k, f = split(m, one_plus_x)
    k_is_zero = k.equals(0.0)
    f = m.select(k_is_zero, x, f)
    half, rest = _terms_of_log(m, f)
    hi, lo = _split_constant(LN_2, _SHORT[m.bits])
    least = m.fused(k, lo, rest) + m.select(k_is_zero, 0.0, lost / one_plus_x)
    result = with_special_values(m, one_plus_x, m.fused(k, hi, f - (half - least)))
    return m.select(m.magnitude(x) < 2.0 ** -(m.fraction + 2), x, result)  # keeps the sign of 0 and subnormal numbers


def log2(m: Lanes, x: Number) -> Number:
    """Emit the logarithm of x to base 2 for each lane, and return the result, exact if x is a power of two.

    It is -inf if x is 0, and NaN if x is negative. `m` emits the LLVM instructions.
    """
    return _to_base(m, x, LN_2)


def log10(m: Lanes, x: Number) -> Number:
    """Emit the logarithm of x to base 10 for each lane, and return the result: -inf if x is 0, NaN if x is negative.

    `m` emits the LLVM instructions.
    """
    return _to_base(m, x, LN_10)


def _split_constant(value: Fraction, bits: int) -> tuple[float, float]:
    """Return the number `value` as a sum of two floats (hi, lo): hi has the first `bits` bits of the fraction.

    lo is the remainder, rounded to a float.

    >>> _split_constant(Fraction(13, 16), 2)
    (0.75, 0.0625)
    """
    hi = Fraction(int(value * 2**bits), 2**bits)
    return float(hi), float(value - hi)


def _to_base(m: Lanes, x: Number, ln_base: Fraction) -> Number:
    """Emit the logarithm of x for each lane, to the base with the natural logarithm `ln_base`, and return the result.

    It is -inf if x is 0, and NaN if x is negative. x is 2^k (1 + f), and log(1 + f) is f - h plus smaller terms, h =
    f^2/2. f - h is cut to half of its bits, so that its product with the leading part of 1/log(base) is exact. `m`
    emits the LLVM instructions.
    """
    k, f = split(m, x)
    half, rest = _terms_of_log(m, f)
    upper, lower = _split_constant(1 / ln_base, _HALF[m.bits])
    unit, unit_rest = _split_constant(LN_2 / ln_base, _SHORT[m.bits])
    hi = m.of_bits(m.bits_of(f - half) & -(1 << (m.fraction // 2 + 1)))
    lo = (f - hi) - half + rest
    total, lost = m.sum_of(k * unit, hi * upper)
    least = (lo + hi) * lower + lo * upper
    if unit_rest:
        least = m.fused(k, unit_rest, least)
    return with_special_values(m, x, least + lost + total)
