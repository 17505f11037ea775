"""sinh and cosh: h - 1/(4h) and h + 1/(4h), where h is half of e^|x|; sinh is a polynomial below 1.

f32 is computed in f64.
"""

from __future__ import annotations

from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.exponential import half_exp
from tilewright.codegen.mathematics.lanes import Lanes, Number

SINH_SMALL = 1.0


def sinh(m: Lanes, x: Number) -> Number:
    """Emit the hyperbolic sine of x for each lane, and return the result. f32 numbers are computed in f64 and rounded.

    `m` emits the LLVM instructions.
    """
    if m.bits == 32:
        return m.narrowed(sinh(m.at(64), m.widened(x)))
    a = m.magnitude(x)
    z, half = a * a, half_exp(m, a)
    small = m.fused(a * z, m.polynomial(z, COEFFICIENTS["sinh.f64"]), a)
    return m.flip_sign(m.select(a < SINH_SMALL, small, half - 0.25 / half), m.sign_bit(x))


def cosh(m: Lanes, x: Number) -> Number:
    """Emit the hyperbolic cosine of x for each lane, and return the result. f32 numbers are computed in f64 and
    rounded.

    `m` emits the LLVM instructions.
    """
    if m.bits == 32:
        return m.narrowed(cosh(m.at(64), m.widened(x)))
    half = half_exp(m, m.magnitude(x))
    return half + 0.25 / half
