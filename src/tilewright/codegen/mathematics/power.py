"""pow: 2^(y log2 |x|), the sign and the special values of C99.

The product must be right to about 2^-26 in f32, 2^-55 in f64, while it may be as large as 150 and 1075. f32 goes
through f64; f64 takes log2 |x| as a sum of two, to about 2^-70.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.exponential import LN_2, nearest, scaled
from tilewright.codegen.mathematics.lanes import Lanes, Number
from tilewright.codegen.mathematics.logarithm import split

Pair = tuple[Number, Number]
_INFINITE = float("inf")
_FAR_Y = 2.0**64
"""Any number but 1 to a power beyond this is zero or infinite."""


def power(m: Lanes, x: Number, y: Number) -> Number:
    """x to the power of y."""
    a = m.magnitude(x)
    found = _power_by_f64(m, a, y) if m.bits == 32 else _power_by_pairs(m, a, y)
    zero, endless = a.equals(0.0), a.equals(_INFINITE)
    falls = (y < 0.0) ^ zero  # the result is zero where the argument is zero or infinite
    found = m.select(zero | endless, m.select(falls, 0.0, m.constant(_INFINITE)), found)
    whole, even = _is_whole(m, y), _is_whole(m, y * 0.5)
    odd = whole & even.inverted()
    found = m.with_sign(found, m.select(odd, m.sign_bit(x), 0))
    refused = (x < 0.0) & whole.inverted() & endless.inverted()
    found = m.select(refused, x * float("nan"), found)
    found = m.select(x.unordered(y), x + y, found)
    lone = a.equals(1.0) & m.magnitude(y).equals(_INFINITE)
    return m.select(y.equals(0.0) | x.equals(1.0) | lone, 1.0, found)


def _is_whole(m: Lanes, y: Number) -> Number:
    """Whether y is an integer; infinities count as (even) ones."""
    a, base = m.magnitude(y), 2.0**m.fraction
    return (a >= base) | ((a + base) - base).equals(a)


def _power_by_f64(m: Lanes, a: Number, y: Number) -> Number:
    wide = m.at(64)
    k, f = split(wide, m.widened(a))
    s = f / (f + 2.0)
    logarithm = wide.fused(s, wide.polynomial(s * s, COEFFICIENTS["log2.short"]), k)
    product = wide.clamped(m.widened(y) * logarithm, -200.0, 200.0)
    n, word = nearest(wide, product)
    return m.narrowed(scaled(wide, wide.polynomial(product - n, (1.0, *COEFFICIENTS["exp2.short"])), n, word))


def _power_by_pairs(m: Lanes, a: Number, y: Number) -> Number:
    hi, lo = _log2(m, a)
    y = m.clamped(y, -_FAR_Y, _FAR_Y)
    product, lost = m.product_of(y, hi)
    lost = m.fused(y, lo, lost)
    near = m.magnitude(product) < 1100.0
    lost = m.select(near, lost, 0.0)
    product = m.clamped(product, -1100.0, 1100.0)
    n, word = nearest(m, product)
    r, rest = m.sum_of(product - n, lost)
    q = m.polynomial(r, COEFFICIENTS["exp2.f64"])
    return scaled(m, m.fused(r, q, rest * float(LN_2)) + 1.0, n, word)


def _pair(value: Fraction) -> tuple[float, float]:
    most = float(value)
    return most, float(value - Fraction(most))


def _times(m: Lanes, a: Pair, b: Pair) -> Pair:
    product, lost = m.product_of(a[0], b[0])
    return product, m.fused(a[0], b[1], m.fused(a[1], b[0], lost))


def _plus(m: Lanes, constant: Fraction, b: Pair) -> Pair:
    """The sum, for a constant that is larger than the pair."""
    most, least = _pair(constant)
    total, lost = m.sum_of(most, b[0])
    return total, lost + (b[1] + least)


def _log2(m: Lanes, a: Number) -> Pair:
    """k + 2/log 2 (s + s (z/3 + z^2/5 + z^3 Q(z))): the first terms as pairs."""
    k, f = split(m, a)
    below, under = m.sum_of(2.0, f)
    s_hi = f / below
    product, lost = m.product_of(s_hi, below)
    s = s_hi, (((f - product) - lost) - s_hi * under) / below
    square, lost = m.product_of(s_hi, s_hi)
    z = square, m.fused(s_hi + s_hi, s[1], lost)
    t = _plus(m, Fraction(1, 5), (square * m.polynomial(square, COEFFICIENTS["log.long"]), m.constant(0.0)))
    u = _times(m, z, _plus(m, Fraction(1, 3), _times(m, z, t)))
    more = _times(m, s, u)
    total, lost = m.sum_of(s[0], more[0])
    scale = _pair(2 / LN_2)
    natural = total, lost + (more[1] + s[1])
    found = _times(m, natural, (m.constant(scale[0]), m.constant(scale[1])))
    total, lost = m.sum_of(k, found[0])
    return m.sum_of(total, lost + found[1])
