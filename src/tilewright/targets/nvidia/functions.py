"""Functions of f32 by NVIDIA's approximate instructions, with corrections that make them accurate enough.

exp2 is one instruction, accurate to two units in the last place; results below 2^-126 are 0. Without `ftz` the
assembler would scale small arguments up and results down: three more instructions each.

exp(x) is 2^n times 2^f, where n is the integer below x log2 e, clamped to [-126, 126], and f the remainder; beyond the
clamp, f makes the result 0 or infinite. n is computed by adding a number whose last bit stands for 1, so that its bits,
shifted, are 2^n.

erf is an odd polynomial near 0, and 1 - 2^-Q(|x|) elsewhere, where Q is -log2 erfc, a smooth function. If only the
absolute error matters (`absolute`), the second form is used from 0 on.

tanh is 1 - 2/(1 + 2^(2x log2 e)), with an absolute error of at most 2^-21. Its relative error is as small unless x is
small; there two terms of the series are used.

If a result is rounded to 16 bits (`coarse`), exp is exp2 of a rounded product, whose relative error is 2^-24, and the
sigmoid is the approximate reciprocal of 1 + 2^(-x log2 e).

A quotient is a times 1/b, corrected by one remainder step: exact if the quotient is representable, and otherwise
correctly rounded in all but one of some million cases. The steps that depend on b alone are shared by all values of a
row with the same b. Numbers near the ends of the range are scaled first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from tilewright.targets.gpu.dialect import Accuracy

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

LOG2_E = 1.4426950408889634
LOG2_E_HIGH = float(np.float32(LOG2_E))
COUNTS = 1.5 * 2**23
"""A number of f32 whose last bit stands for 1."""
LARGE, SCALE = 2.0**100, 2.0**64


ERF_SMALL = 0.84375
ERF = (
    0.12837916612625122,
    -0.37612593173980713,
    0.11282911896705627,
    -0.02680953592061997,
    0.0050618816167116165,
    -0.000637496414128691,
)
"""Coefficients of P: erf a = a (1 + P(a^2)) below ERF_SMALL, to 2^-27.26."""
ERFC = (
    1.6281214952468872,
    0.9170820116996765,
    0.15194714069366455,
    -0.03307856246829033,
    0.004655431490391493,
    -0.00031080309418030083,
)
"""Coefficients of P: -log2 erfc a = a P(a) from ERF_SMALL to 4, with an absolute error of 2^-28.21."""
ERFC_ALL = (
    1.6279085874557495,
    0.918416440486908,
    0.14848147332668304,
    -0.0282534621655941,
    0.0007744273752905428,
    0.0014895566273480654,
    -0.00044554437045007944,
    4.53635620942805e-05,
)
"""Coefficients of P: -log2 erfc a = a P(a) from 0 on, with an absolute error of 2^-25.89; a P(a) grows beyond 4."""
TANH_SMALL = 0.0625
"""Below this, x - x^3/3 is tanh x, to 2^-18.9."""


def function(e: Emitter, name: str, values: list[str], accuracy: Accuracy) -> str | None:
    """Emit the f32 function `name`, such as "exp", of the LLVM values `values` with approximate instructions, and
    return the result. It is at least as accurate as `accuracy` requires. Emit nothing and return None if there is no
    special code for this function.
    """
    emit_function = {"coarse": COARSE, "absolute": ABSOLUTE}.get(accuracy, FUNCTIONS).get(name) or FUNCTIONS.get(name)
    return None if emit_function is None else emit_function(e, *values)


def _constant(value: float) -> str:
    """Return `value`, rounded to f32, as an LLVM float constant. LLVM writes floats as the hexadecimal bits of a
    double.

    >>> _constant(1.0)
    '0x3FF0000000000000'
    """
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(np.float32(value))))[0]:016X}"


def _call(e: Emitter, name: str, *values: str) -> str:
    """Emit a call of the LLVM intrinsic `name` (without "llvm.") with the float values `values`, and return its result,
    a float.
    """
    e.w.declare(f"float @llvm.{name}({', '.join(['float'] * len(values))})")
    return e.w.value(f"call float @llvm.{name}({', '.join(f'float {v}' for v in values)})")


def _exp2(e: Emitter, x: str) -> str:
    """Emit the approximate 2^x (ex2.approx.ftz), and return the LLVM value."""
    return _call(e, "nvvm.ex2.approx.ftz.f", x)


def _rounded_operation(e: Emitter, name: str, *values: str) -> str:
    """Emit the PTX instruction `name`, such as "fma.rm.f32", with the float values `values`, and return its result, a
    float.
    """
    slots = ", ".join(f"${i}" for i in range(1, len(values) + 1))
    marks = ",".join(["=f", *["f"] * len(values)])
    return e.w.value(f'call float asm "{name} $0, {slots};", "{marks}"({", ".join(f"float {v}" for v in values)})')


def _exp(e: Emitter, x: str) -> str:
    """Emit exp(x) with an error of at most 2 units in the last place, and return the LLVM value."""
    w, limit = e.w, 126.0
    scaled = _rounded_operation(e, "fma.rn.sat.f32", x, _constant(LOG2_E / (2 * limit)), _constant(0.5))
    shifted = _rounded_operation(e, "fma.rm.f32", scaled, _constant(2 * limit), _constant(COUNTS + 1))
    integer_part = w.value(f"fsub float {shifted}, {_constant(COUNTS + 1 + limit)}")
    fraction = _call(e, "fma.f32", x, _constant(LOG2_E_HIGH), w.value(f"fneg float {integer_part}"))
    fraction = _call(e, "fma.f32", x, _constant(LOG2_E - LOG2_E_HIGH), fraction)
    bits = w.value(f"shl i32 {w.value(f'bitcast float {shifted} to i32')}, 23")
    return w.value(f"fmul float {_exp2(e, fraction)}, {w.value(f'bitcast i32 {bits} to float')}")


def _coarse_exp(e: Emitter, x: str) -> str:
    """Emit exp(x) as a multiplication and the approximate 2^x, and return the LLVM value."""
    return _exp2(e, e.w.value(f"fmul float {x}, {_constant(LOG2_E)}"))


def _coarse_sigmoid(e: Emitter, x: str) -> str:
    """Emit sigmoid(x) as the approximate reciprocal of 1 + 2^(-x log2 e), and return the LLVM value."""
    power = _exp2(e, e.w.value(f"fmul float {x}, {_constant(-LOG2_E)}"))
    return _call(e, "nvvm.rcp.approx.ftz.f", e.w.value(f"fadd float {power}, {_constant(1)}"))


def _polynomial(e: Emitter, x: str, coefficients: tuple[float, ...]) -> str:
    """Emit the polynomial of x with these `coefficients`, that of x^0 first, and return the LLVM value."""
    *others, value = map(_constant, coefficients)
    for c in reversed(others):
        value = _call(e, "fma.f32", value, x, c)
    return value


def _near_one(e: Emitter, size: str, x: str, coefficients: tuple[float, ...]) -> str:
    """Emit 1 - 2^-(a P(a)) with the sign of x, where a = |x|, and return the LLVM value. `size` is the LLVM value of a.
    `coefficients` are those of the polynomial P, that of a^0 first.
    """
    w = e.w
    exponent = w.value(f"fmul float {w.value(f'fneg float {size}')}, {_polynomial(e, size, coefficients)}")
    magnitude = w.value(f"fsub float {_constant(1)}, {_exp2(e, exponent)}")
    return _call(e, "copysign.f32", magnitude, x)


def _erf(e: Emitter, x: str) -> str:
    """Emit erf(x) with the accuracy of f32, and return the LLVM value: a polynomial if |x| < ERF_SMALL, else 1 -
    2^-Q(|x|) with the sign of x.
    """
    w = e.w
    size = _call(e, "fabs.f32", x)
    small = _call(e, "fma.f32", x, _polynomial(e, w.value(f"fmul float {x}, {x}"), ERF), x)
    large = _near_one(e, _call(e, "minnum.f32", size, _constant(4)), x, ERFC)
    is_large = w.value(f"fcmp oge float {size}, {_constant(ERF_SMALL)}")  # NaN takes the polynomial, and stays NaN
    return w.value(f"select i1 {is_large}, float {large}, float {small}")


def _absolute_erf(e: Emitter, x: str) -> str:
    """Emit erf(x) with an absolute error of about 2^-25, and return the LLVM value."""
    return _near_one(e, _call(e, "fabs.f32", x), x, ERFC_ALL)


def _absolute_tanh(e: Emitter, x: str) -> str:
    """Emit tanh(x) with an absolute error of at most 2^-21, and return the LLVM value."""
    w = e.w
    power = _exp2(e, w.value(f"fmul float {x}, {_constant(2 * LOG2_E)}"))
    reciprocal = _call(e, "nvvm.rcp.approx.ftz.f", w.value(f"fadd float {power}, {_constant(1)}"))
    return _call(e, "fma.f32", reciprocal, _constant(-2), _constant(1))


def _coarse_tanh(e: Emitter, x: str) -> str:
    """Emit tanh(x) with a relative error that is small enough for results of 16 bits, and return the LLVM value."""
    w = e.w
    third = w.value(f"fmul float {w.value(f'fmul float {x}, {x}')}, {_constant(-1 / 3)}")
    is_small = w.value(f"fcmp olt float {_call(e, 'fabs.f32', x)}, {_constant(TANH_SMALL)}")
    return w.value(f"select i1 {is_small}, float {_call(e, 'fma.f32', x, third, x)}, float {_absolute_tanh(e, x)}")


def _quotient(e: Emitter, a: str, b: str) -> str:
    """Emit a / b, correctly rounded in nearly all cases, and return the LLVM value. The code is right also if b is
    zero, infinite, very large or very small.
    """
    w = e.w
    size = _call(e, "fabs.f32", b)
    above, below = (
        w.value(f"fcmp {word} float {size}, {_constant(n)}") for word, n in (("ogt", LARGE), ("olt", 1 / LARGE))
    )
    up = w.value(f"select i1 {below}, float {_constant(SCALE)}, float {_constant(1)}")
    scale = w.value(f"select i1 {above}, float {_constant(1 / SCALE)}, float {up}")
    b = w.value(f"fmul float {b}, {scale}")
    negated, reciprocal = w.value(f"fneg float {b}"), _call(e, "nvvm.rcp.approx.ftz.f", b)
    is_zero = w.value(f"fcmp oeq float {b}, {_constant(0)}")
    is_infinite = w.value(f"fcmp oeq float {size}, {_constant(np.inf)}")
    special = w.value(f"or i1 {is_zero}, {is_infinite}")  # 1/b cannot be refined
    refined = _call(e, "fma.f32", reciprocal, _call(e, "fma.f32", negated, reciprocal, _constant(1)), reciprocal)
    inverse = w.value(f"select i1 {special}, float {reciprocal}, float {refined}")
    a = w.value(f"fmul float {a}, {scale}")
    estimate = w.value(f"fmul float {a}, {inverse}")
    remainder = _call(e, "fma.f32", negated, estimate, a)
    corrected = _call(e, "fma.f32", remainder, inverse, estimate)
    is_infinite = w.value(f"fcmp oeq float {_call(e, 'fabs.f32', estimate)}, {_constant(np.inf)}")
    keeps_estimate = w.value(f"or i1 {special}, {is_infinite}")
    return w.value(f"select i1 {keeps_estimate}, float {estimate}, float {corrected}")


FUNCTIONS: dict[str, Callable[..., str]] = {"exp2": _exp2, "exp": _exp, "erf": _erf, "div": _quotient}
COARSE: dict[str, Callable[..., str]] = {"exp": _coarse_exp, "sigmoid": _coarse_sigmoid, "tanh": _coarse_tanh}
ABSOLUTE: dict[str, Callable[..., str]] = {"erf": _absolute_erf, "tanh": _absolute_tanh}
