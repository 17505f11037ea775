"""erf: an odd polynomial for |x| < 1, above it 1 - e^-Q, where the polynomial Q approximates -log erfc."""

from __future__ import annotations

from tilewright.codegen.mathematics.coefficients import COEFFICIENTS
from tilewright.codegen.mathematics.exponential import exp
from tilewright.codegen.mathematics.lanes import Lanes, Number

_ONE = {32: 4.0, 64: 6.0}
"""Arguments from which on erf rounds to 1, by bits."""


def erf(m: Lanes, x: Number) -> Number:
    """Emit the error function erf(x) for each lane and return the result; `m` emits the LLVM instructions."""
    a = m.magnitude(x)
    small = m.fused(a, m.polynomial(a * a, COEFFICIENTS[f"erf.{m.name}"]), a)
    u = m.select(a > _ONE[m.bits], _ONE[m.bits], a) - 1.0
    large = 1.0 - exp(m, -m.polynomial(u, COEFFICIENTS[f"erfc.{m.name}"]))
    return m.flip_sign(m.select(a < 1.0, small, large), m.sign_bit(x))
