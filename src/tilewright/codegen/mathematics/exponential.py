"""exp, exp2 and expm1, and the functions computed from exp: tanh and sigmoid.

x is n + r in units of log 2, n the nearest integer. 2^n is the product of two powers of two, each a normal number made
from exponent bits, so that only the last multiplication rounds: it gives overflow and subnormal results, too.
"""

from __future__ import annotations

from fractions import Fraction

from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.lanes import Lanes, Number

LOG2_E = 1.4426950408889634
LN_2 = Fraction(0x162E42FEFA39EF35793C7673007E5ED5E81E69, 1 << 149)
"""log 2 to 149 bits."""
_SHORT = {32: 15, 64: 42}
"""Bits of the leading part of log 2, whose product with n is exact; by bits of the type."""
_ARGUMENTS = {32: (-104.0, 89.0), 64: (-746.0, 710.0)}
"""Arguments below and above which exp is 0 and infinite; by bits of the type."""
_EXPONENTS = {32: (-151.0, 129.0), 64: (-1076.0, 1025.0)}
_LEAST = {32: -30.0, 64: -50.0}
"""Arguments below which expm1 rounds to -1; by bits of the type."""
TANH_SMALL = 0.625
_SIGMOID_IS_EXP, _TINY = -42.0, 2.0**-64
"""The argument below which the sigmoid is rounded to e^x, and a number below that sigmoid."""


def nearest(m: Lanes, x: Number, scale: float = 1.0) -> tuple[Number, Number]:
    """Emit the integer n nearest to x*scale, for each lane; return (n as a float, n in the lowest bits of an integer).

    The lowest bits of the integer are n + 2*bias, with the exponent bias of the float type. `times_power_of_two` takes
    both results. `m` emits the LLVM instructions.
    """
    rounder = m.rounder + 2 * m.bias
    moved = x + rounder if scale == 1.0 else m.fused(x, scale, rounder)
    return moved - rounder, m.bits_of(moved)


def times_power_of_two(m: Lanes, p: Number, n: Number, word: Number) -> Number:
    """Emit p * 2^n for each lane, and return the result, which is rounded once. It may be infinite or subnormal.

    `n` and `word` must be the two results of `nearest`: n as a float, and in the lowest bits of an integer. `m` emits
    the LLVM instructions.
    """
    by_instruction = None if m.w.scale is None else m.w.scale(m.w, p.text, n.text, m.lanes, m.bits)
    if by_instruction is not None:
        return m.number(by_instruction)
    half = word >> 1
    return p * m.of_bits(half << m.fraction) * m.of_bits((word - half) << m.fraction)


def exp(m: Lanes, x: Number) -> Number:
    """Emit e^x for each lane, and return the result. The machine's instruction is used if it has one.

    `m` emits the LLVM instructions.
    """
    by_instruction = m.by_instruction("exp", x)
    if by_instruction is not None:
        return by_instruction
    return _power_of_e(m, m.clamped(x, *_ARGUMENTS[m.bits]), 1.0)


def exp_of_negative(m: Lanes, x: Number) -> Number:
    """Emit e^x for each lane, where x <= 0 or NaN, and return the result. `m` emits the LLVM instructions."""
    by_instruction = m.by_instruction("exp", x)
    if by_instruction is not None:
        return by_instruction
    least, _ = _ARGUMENTS[m.bits]
    return _power_of_e(m, m.select(x < least, least, x), 1.0)


def half_exp(m: Lanes, x: Number) -> Number:
    """Emit e^x / 2 for each lane, and return the result. It is finite for some x for which e^x overflows.

    `m` emits the LLVM instructions.
    """
    least, most = _ARGUMENTS[m.bits]
    return _power_of_e(m, m.clamped(x, least, most + 1.0), 0.5)


def _power_of_e(m: Lanes, x: Number, factor: float) -> Number:
    """Emit factor * e^x for each lane, and return the result. It overflows only if the product itself does.

    `factor` must be a power of two. x must be limited already to a range somewhat larger than that of e^x without
    overflow. `m` emits the LLVM instructions.
    """
    hi, lo = _parts_of_ln_2(m)
    n, word = nearest(m, x, LOG2_E)
    r = m.fused(n, -lo, m.fused(n, -hi, x))
    q = COEFFICIENTS[f"exp.{m.name}"]
    if m.w.fused:
        power = m.polynomial(r, (1.0, 1.0, *q))
    else:  # products are rounded here, and a rounded one must not contain r: saves 1/3 ulp
        power = r * r * m.polynomial(r, q) + r + 1.0
    return times_power_of_two(m, power if factor == 1.0 else power * factor, n, word)


def _parts_of_ln_2(m: Lanes) -> tuple[float, float]:
    """Return log 2 as (leading float, remainder), for the float type of the emitter `m`.

    The leading float has so few bits that its product with the exponent n of any e^x = 2^n e^r is exact.
    """
    hi = Fraction(int(LN_2 * 2 ** _SHORT[m.bits]), 2 ** _SHORT[m.bits])
    return float(hi), float(LN_2 - hi)


def expm1(m: Lanes, x: Number) -> Number:
    """Emit e^x - 1 for each lane, and return the result, accurate to the last bits also near 0.

    With x = n log 2 + r, the result is 2^n - 1 + 2^n r + 2^n (e^r - 1 - r). The rounding error of r is added to the
    last term, the smallest. All terms are halved before the sum and the sum is doubled, since 2^n may overflow where
    the result does not. Very small x are returned unchanged. `m` emits the LLVM instructions.
    """
    hi, lo = _parts_of_ln_2(m)
    limited = m.clamped(x, _LEAST[m.bits], _ARGUMENTS[m.bits][1])
    n, word = nearest(m, limited, LOG2_E)
    r, lost = m.difference_of(m.fused(n, -hi, limited), n * lo)
    tail = m.fused(r * r, m.polynomial(r, COEFFICIENTS[f"exp.{m.name}"]), lost)
    half = m.of_bits((word - (m.bias + 1)) << m.fraction)
    result = m.fused(half, tail, m.fused(half, r, half - 0.5)) * 2.0
    return m.select(m.magnitude(x) < 2.0 ** -(m.fraction + 2), x, result)  # keeps the sign of 0 and subnormal numbers


def exp2(m: Lanes, x: Number) -> Number:
    """Emit 2^x for each lane and return the result, exact if x is an integer. `m` emits the LLVM instructions."""
    x = m.clamped(x, *_EXPONENTS[m.bits])
    n, word = nearest(m, x)
    return times_power_of_two(m, m.polynomial(x - n, (1.0, *COEFFICIENTS[f"exp2.{m.name}"])), n, word)


def tanh(m: Lanes, x: Number) -> Number:
    """Emit the hyperbolic tangent of x for each lane, and return the result.

    It is a polynomial for |x| < 0.625, and 1 - 2/(e^(2|x|) + 1) with the sign of x elsewhere. `m` emits the LLVM
    instructions.
    """
    a = m.magnitude(x)
    z = a * a
    small = m.fused(a * z, m.polynomial(z, COEFFICIENTS[f"tanh.{m.name}"]), a)
    large = 1.0 - 2.0 / (exp(m, a + a) + 1.0)
    return m.flip_sign(m.select(a < TANH_SMALL, small, large), m.sign_bit(x))


def sigmoid(m: Lanes, x: Number) -> Number:
    """Emit the sigmoid of x, 1/(1 + e^-x), for each lane, and return the result.

    It is computed from e = e^-|x|, which never overflows: 1/(1 + e), or e/(1 + e) for negative x. A first quotient is
    corrected by its remainder, in which 1 + e is not rounded. If e is tiny, the sigmoid of negative x is e itself:
    many CPUs are slow at arithmetic with subnormal numbers.
    """
    power = exp_of_negative(m, m.of_bits(m.bits_of(x) | -m.sign))
    e = m.select(power < _TINY, _TINY, power)
    numerator = m.select(x < 0.0, e, 1.0)
    reciprocal = _reciprocal_of_1_plus(m, e)
    quotient = numerator * reciprocal
    if m.w.fused:
        remainder = m.fused(-quotient, e, numerator - quotient)
    else:
        product, lost = m.product_of(quotient, e)
        remainder = ((numerator - quotient) - product) - lost
    return m.select(x < _SIGMOID_IS_EXP, power, m.fused(remainder, reciprocal, quotient))


def _reciprocal_of_1_plus(m: Lanes, e: Number) -> Number:
    """Emit 1/(1 + e) for each lane, where 0 <= e <= 1, with a relative error of at most 2^-14, and return the result.
    `m` emits the LLVM instructions.

    In f32 it is a polynomial: on most CPUs, a division takes longer than its six instructions.
    """
    return m.polynomial(e, COEFFICIENTS["reciprocal.f32"]) if m.bits == 32 else 1.0 / (1.0 + e)
