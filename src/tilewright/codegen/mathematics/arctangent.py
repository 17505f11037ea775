"""atan2: the angle of a point, in C99's quadrants.

Of both magnitudes the smaller over the larger is t, at most 1. Below 1/2 its arctangent is a polynomial; above, it is a
quarter of pi and the arctangent of (t - 1)/(t + 1), of which the difference is exact. Quadrants only add multiples of a
quarter of pi, which are exact sums of two. f32 goes through f64.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.angles import HALF_PI
from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.lanes import Lanes, Number

_SHORT = 50
"""Bits of a quarter of pi that may be multiplied by 3 without rounding."""
_QUARTER = Fraction(int(HALF_PI / 2 * 2**_SHORT), 2**_SHORT)
_REST = float(HALF_PI / 2 - _QUARTER)
_FAR = 2.0**1000
"""Magnitudes from here on are divided first, so that their sum is a number."""


def arctangent(m: Lanes, y: Number, x: Number) -> Number:
    """The angle of (x, y), between -pi and pi."""
    if m.bits == 32:
        wide = m.at(64)
        return m.narrowed(arctangent(wide, m.widened(y), m.widened(x)))
    tall, wide_ = m.magnitude(y), m.magnitude(x)
    steep = tall > wide_
    less, more = m.select(steep, wide_, tall), m.select(steep, tall, wide_)
    less, more = _within(m, less, more)
    near = (less + less) >= more
    u = m.select(near, less - more, less) / m.select(near, less + more, more)
    z = u * u
    found = m.fused(u * z, m.polynomial(z, COEFFICIENTS["atan.f64"]), u)
    quarters = m.select(near, 1.0, m.constant(0.0))
    quarters = m.select(steep, 2.0 - quarters, quarters)
    left = m.sign_bit(x)
    quarters = m.select(left.equals(0), quarters, 4.0 - quarters)
    turned = m.select(steep, Number(m, m.like(-m.sign, m.word), m.word), 0) ^ left
    found = m.with_sign(found, turned)
    angle = quarters * float(_QUARTER) + m.fused(quarters, _REST, found)
    return m.select(x.unordered(y), x + y, m.with_sign(angle, m.sign_bit(y)))


def _within(m: Lanes, less: Number, more: Number) -> tuple[Number, Number]:
    """Two magnitudes of the same ratio whose sum is a number; equal ones where both are zero or infinite."""
    far = more >= _FAR
    small, large = m.select(far, less / _FAR, less), m.select(far, more / _FAR, more)
    alike = less.equals(float("inf"))
    small, large = m.select(alike, 1.0, small), m.select(alike, 1.0, large)
    return small, m.select(large.equals(0.0), 1.0, large)
