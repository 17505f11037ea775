"""The cube root: a first guess from the exponent's bits, two Halley iterations, and a third one with little rounding.

A third of a float's bits, as an integer, is nearly the bits of its cube root: the exponent is divided by 3, the
fraction is nearly linear. Each Halley iteration cubes the relative error. The last one starts from a number whose
square is exact, so that only a quotient and a sum are rounded: 0.67 ulp. f32 is computed in f64.
"""

from __future__ import annotations

from tilewright.codegen.mathematics.lanes import Lanes, Number

_BELOW = 0.0331
"""Subtracted from 2/3 of the bias in the first guess, so that its relative error is at most 1/32 in both directions."""
_UP = 54
"""Subnormal numbers are multiplied by 2^_UP, their roots by 2^(-_UP / 3)."""


def cbrt(m: Lanes, x: Number) -> Number:
    """Emit the cube root of x, with the sign of x, for each lane, and return the result.

    f32 numbers are computed in f64 and rounded. `m` emits the LLVM instructions.
    """
    if m.bits == 32:
        return m.narrowed(cbrt(m.at(64), m.widened(x)))
    magnitude = m.magnitude(x)
    tiny = magnitude < 2.0 ** (1 - m.bias)
    a = m.select(tiny, magnitude * 2.0**_UP, magnitude)
    offset = int((m.bias * 2 / 3 - _BELOW) * 2**m.fraction)
    t = m.of_bits(_third(m, m.bits_of(a)) + offset)
    for _ in range(2):
        ratio = t * t * (t / a)
        t = t * ((ratio + 2.0) / (ratio + ratio + 1.0))
    t = m.of_bits(m.bits_of(t) & -(1 << (m.fraction // 2 + 1)))
    quotient = a / (t * t)
    t = m.fused(t, (quotient - t) / (t + t + quotient), t)
    result = m.flip_sign(m.select(tiny, t * 2.0 ** -(_UP // 3), t), m.sign_bit(x))
    is_ordinary = (magnitude > 0.0) & (magnitude < float("inf"))
    return m.select(is_ordinary, result, x + x)


def _third(m: Lanes, word: Number) -> Number:
    """Emit about a third of `word`, a positive integer in each lane, and return it.

    It is word/4 + word/16 + word/64 + ..., a few units too small. `m.bits` is the number of bits of `word`.
    """
    total = (word >> 2) + (word >> 4)
    shift = 4
    while shift < m.bits:
        total = total + (total >> shift)
        shift *= 2
    return total
