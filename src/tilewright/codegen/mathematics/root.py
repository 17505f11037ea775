"""The cube root: a first guess from the exponent's bits, two of Halley's steps, and one that puts the rounding right.

A third of a float's code is nearly the code of its cube root: the exponent is divided, the fraction nearly linear.
Each step of Halley's takes the error to its third power. The last one begins with a number whose square is exact, so
that only a quotient and a sum are rounded: 0.67 units. f32 goes through f64.
"""

from __future__ import annotations

from tilewright.codegen.mathematics.lanes import Lanes, Number

_BELOW = 0.0331
"""What a third of the bias must lack so that the first guess is as much too large as too small: by a 32nd."""
_UP = 54
"""Subnormal numbers are multiplied by two to this power, their roots divided by a third of it."""


def cbrt(m: Lanes, x: Number) -> Number:
    """The number whose third power is x."""
    if m.bits == 32:
        return m.narrowed(cbrt(m.at(64), m.widened(x)))
    whole = m.magnitude(x)
    tiny = whole < 2.0 ** (1 - m.bias)
    a = m.select(tiny, whole * 2.0**_UP, whole)
    guess = int((m.bias * 2 / 3 - _BELOW) * 2**m.fraction)
    t = m.of_bits(_third(m, m.bits_of(a)) + guess)
    for _ in range(2):
        ratio = t * t * (t / a)
        t = t * ((ratio + 2.0) / (ratio + ratio + 1.0))
    t = m.of_bits(m.bits_of(t) & -(1 << (m.fraction // 2 + 1)))
    other = a / (t * t)
    t = m.fused(t, (other - t) / (t + t + other), t)
    found = m.with_sign(m.select(tiny, t * 2.0 ** -(_UP // 3), t), m.sign_bit(x))
    plain = (whole > 0.0) & (whole < float("inf"))
    return m.select(plain, found, x + x)


def _third(m: Lanes, word: Number) -> Number:
    """A third of a positive integer, less a few: 1/4 + 1/16 + 1/64 + ..."""
    found = (word >> 2) + (word >> 4)
    shift = 4
    while shift < m.bits:
        found = found + (found >> shift)
        shift *= 2
    return found
