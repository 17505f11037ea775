"""pow: 2^(y log2 |x|), with the sign and the special values of C99.

The error of y log2 |x| must stay below about 2^-26 in f32 and 2^-55 in f64, although it may be as large as 150 and
1075. f32 is computed in f64; f64 takes log2 |x| as a pair, a sum of two floats, accurate to about 2^-70.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.exponential import LN_2, nearest, times_power_of_two
from tilewright.codegen.mathematics.lanes import Lanes, Number
from tilewright.codegen.mathematics.logarithm import split

Pair = tuple[Number, Number]
"""A number as the sum of two floats, the second small compared with the first."""
_INFINITE = float("inf")
_FAR_Y = 2.0**64
"""Any number but 1 to a power of at least this magnitude is zero or infinite."""


def power(m: Lanes, x: Number, y: Number) -> Number:
    """Emit x^y for each lane, with the special values of C99's `pow`, and return the result.

    For instance, x^0 is 1, and a finite negative x to a power that is no integer is NaN. `m` emits the LLVM
    instructions.
    """
    a = m.magnitude(x)
    result = _power_by_f64(m, a, y) if m.bits == 32 else _power_by_pairs(m, a, y)
    zero, infinite = a.equals(0.0), a.equals(_INFINITE)
    is_zero = (y < 0.0) ^ zero  # the result for a zero or infinite x
    result = m.select(zero | infinite, m.select(is_zero, 0.0, m.constant(_INFINITE)), result)
    is_integer, half_is_integer = _is_integer(m, y), _is_integer(m, y * 0.5)
    odd = is_integer & half_is_integer.inverted()
    result = m.flip_sign(result, m.select(odd, m.sign_bit(x), 0))
    is_nan = (x < 0.0) & is_integer.inverted() & infinite.inverted()
    result = m.select(is_nan, x * float("nan"), result)
    result = m.select(x.unordered(y), x + y, result)
    one_to_infinity = a.equals(1.0) & m.magnitude(y).equals(_INFINITE)
    return m.select(y.equals(0.0) | x.equals(1.0) | one_to_infinity, 1.0, result)


def _is_integer(m: Lanes, y: Number) -> Number:
    """Emit the test whether the float y is an integer, and return the i1 of each lane. Infinities count as integers.

    `m` emits the LLVM instructions.
    """
    a, base = m.magnitude(y), 2.0**m.fraction
    return (a >= base) | ((a + base) - base).equals(a)


def _power_by_f64(m: Lanes, a: Number, y: Number) -> Number:
    """Emit a^y of f32 numbers, computed in f64 and rounded, and return the f32.

    The result is right only if a is positive and finite. `m` emits the LLVM instructions.
    """
    m64 = m.at(64)
    k, f = split(m64, m.widened(a))
    s = f / (f + 2.0)
    logarithm = m64.fused(s, m64.polynomial(s * s, COEFFICIENTS["log2.short"]), k)
    product = m64.clamped(m.widened(y) * logarithm, -200.0, 200.0)
    n, word = nearest(m64, product)
    return m.narrowed(times_power_of_two(m64, m64.polynomial(product - n, (1.0, *COEFFICIENTS["exp2.short"])), n, word))


def _power_by_pairs(m: Lanes, a: Number, y: Number) -> Number:
    """Emit a^y of f64 numbers, and return the result. For precision, the logarithm of a is a sum of two floats.

    The result is right only if a is positive and finite. `m` emits the LLVM instructions.
    """
    hi, lo = _log2(m, a)
    y = m.clamped(y, -_FAR_Y, _FAR_Y)
    product, lost = m.product_of(y, hi)
    lost = m.fused(y, lo, lost)
    in_range = m.magnitude(product) < 1100.0
    lost = m.select(in_range, lost, 0.0)
    product = m.clamped(product, -1100.0, 1100.0)
    n, word = nearest(m, product)
    r, r_lost = m.sum_of(product - n, lost)
    q = m.polynomial(r, COEFFICIENTS["exp2.f64"])
    return times_power_of_two(m, m.fused(r, q, r_lost * float(LN_2)) + 1.0, n, word)


def _pair(value: Fraction) -> tuple[float, float]:
    """Return `value` as a sum of two floats: (`value` rounded to a float, the remainder rounded to a float)."""
    most = float(value)
    return most, float(value - Fraction(most))


def _times(m: Lanes, a: Pair, b: Pair) -> Pair:
    """Emit the product of two pairs, and return it as a pair.

    A pair is a number as the sum of two floats, (leading, small). `m` emits the LLVM instructions.
    """
    product, lost = m.product_of(a[0], b[0])
    return product, m.fused(a[0], b[1], m.fused(a[1], b[0], lost))


def _plus(m: Lanes, constant: Fraction, b: Pair) -> Pair:
    """Emit the sum of a constant and the pair `b`, and return it as a pair.

    A pair is a number as the sum of two floats, (leading, small). `b` must be smaller than the constant. `m` emits the
    LLVM instructions.
    """
    most, least = _pair(constant)
    total, lost = m.sum_of(most, b[0])
    return total, lost + (b[1] + least)


def _log2(m: Lanes, a: Number) -> Pair:
    """Emit the logarithm of a to base 2, and return it as a sum of two floats, (leading, small).

    a must be a positive finite f64; it may be subnormal. With a = 2^k (1 + f), s = f/(2 + f) and z = s^2, the logarithm
    is k + 2/log 2 (s + s (z/3 + z^2/5 + z^3 Q(z))) with a polynomial Q. The first terms are computed as sums of two
    floats. `m` emits the LLVM instructions.
    """
    k, f = split(m, a)
    denominator, denominator_lost = m.sum_of(2.0, f)
    s_hi = f / denominator
    product, lost = m.product_of(s_hi, denominator)
    s = s_hi, (((f - product) - lost) - s_hi * denominator_lost) / denominator
    square, lost = m.product_of(s_hi, s_hi)
    z = square, m.fused(s_hi + s_hi, s[1], lost)
    t = _plus(m, Fraction(1, 5), (square * m.polynomial(square, COEFFICIENTS["log.long"]), m.constant(0.0)))
    u = _times(m, z, _plus(m, Fraction(1, 3), _times(m, z, t)))
    tail = _times(m, s, u)
    total, lost = m.sum_of(s[0], tail[0])
    scale = _pair(2 / LN_2)
    natural = total, lost + (tail[1] + s[1])
    log2_of_f = _times(m, natural, (m.constant(scale[0]), m.constant(scale[1])))
    total, lost = m.sum_of(k, log2_of_f[0])
    return m.sum_of(total, lost + log2_of_f[1])
