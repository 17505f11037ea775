"""atan2: the angle of a point, in C99's quadrants.

t is the smaller magnitude over the larger one, at most 1. Below 1/2, atan t is a polynomial; above, it is a quarter of
pi plus the arctangent of (t - 1)/(t + 1), whose numerator is exact. Quadrants add multiples of a quarter of pi, each an
exact sum of two numbers. f32 is computed in f64.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.angles import HALF_PI
from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.lanes import Lanes, Number

_SHORT = 50
"""Bits of the leading part of a quarter of pi, whose product with 3 is exact."""
_QUARTER = Fraction(int(HALF_PI / 2 * 2**_SHORT), 2**_SHORT)
_REST = float(HALF_PI / 2 - _QUARTER)
_FAR = 2.0**1000
"""Magnitudes of at least this are scaled down, so that their sum is finite."""


def arctangent(m: Lanes, y: Number, x: Number) -> Number:
    """Emit atan2(y, x) for each lane, and return the result: the angle of the point (x, y), in radians from -pi to pi.

    The result is NaN if x or y is NaN. f32 numbers are computed in f64 and rounded. `m` emits the LLVM instructions.
    """
    if m.bits == 32:
        m64 = m.at(64)
        return m.narrowed(arctangent(m64, m.widened(y), m.widened(x)))
    height, width = m.magnitude(y), m.magnitude(x)
    steep = height > width
    less, more = m.select(steep, width, height), m.select(steep, height, width)
    less, more = _scaled_to_finite_sum(m, less, more)
    near = (less + less) >= more
    u = m.select(near, less - more, less) / m.select(near, less + more, more)
    z = u * u
    angle_in_octant = m.fused(u * z, m.polynomial(z, COEFFICIENTS["atan.f64"]), u)
    quarters = m.select(near, 1.0, m.constant(0.0))
    quarters = m.select(steep, 2.0 - quarters, quarters)
    x_sign = m.sign_bit(x)
    quarters = m.select(x_sign.equals(0), quarters, 4.0 - quarters)
    sign_flip = m.select(steep, Number(m, m.like(-m.sign, m.word), m.word), 0) ^ x_sign
    angle_in_octant = m.flip_sign(angle_in_octant, sign_flip)
    angle = quarters * float(_QUARTER) + m.fused(quarters, _REST, angle_in_octant)
    return m.select(x.unordered(y), x + y, m.flip_sign(angle, m.sign_bit(y)))


def _scaled_to_finite_sum(m: Lanes, less: Number, more: Number) -> tuple[Number, Number]:
    """Emit two magnitudes with the ratio of `less` to `more` and a finite sum; return (scaled `less`, scaled `more`).

    `less` must be at most `more`, and neither may be negative. If `more` is at least 2^1000, both are divided by
    2^1000. The results are (1, 1) if both are infinite, and (0, 1) if both are 0. `m` emits the LLVM instructions.
    """
    is_large = more >= _FAR
    small, large = m.select(is_large, less / _FAR, less), m.select(is_large, more / _FAR, more)
    both_infinite = less.equals(float("inf"))
    small, large = m.select(both_infinite, 1.0, small), m.select(both_infinite, 1.0, large)
    return small, m.select(large.equals(0.0), 1.0, large)
