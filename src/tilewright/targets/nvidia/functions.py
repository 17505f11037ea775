"""Functions of one f32 by the machine's approximations, and what makes these exact enough.

exp2 has an instruction, good to two units in the last place; results below 2^-126 are 0. Without `ftz` the assembler
would scale small arguments up and results down: three more instructions each.

exp(x) is 2^n times 2^f, where n is the integer below x log2 e, kept between -126 and 126, and f what is left; beyond
these, f is what makes the result 0 or infinite. n is found by adding a number whose last bit counts ones, so that its
bits, moved up, are 2^n.

erf is an odd polynomial near 0, and 1 - 2^-Q(|x|) elsewhere, where Q stands for -log2 erfc, a smooth function. Where
its error counts beside 1 (`absolute`), the second form does from 0 on.

tanh is 1 - 2/(1 + 2^(2x log2 e)), off by 2^-21 at most: as good as it must be beside 1. Beside itself it is where x is
not small, and there two terms of its series are.

Where a result is only rounded to 16 bits (`coarse`), exp is a power of two of a rounded argument, off by 2^-24 of that,
and the sigmoid the machine's inverse of 1 + 2^-x.

A quotient is a times 1/b, and what a step of remainders puts right: exact where it is a number of the type, and
otherwise the nearest but for one in some millions. All that depends on b alone is the same for many values of a row,
and then done once; numbers near the ends of the range are scaled first.
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
"""A number of f32 whose last bit is one."""
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
"""erf a = a (1 + P(a^2)) below that: 2^-27.26."""
ERFC = (
    1.6281214952468872,
    0.9170820116996765,
    0.15194714069366455,
    -0.03307856246829033,
    0.004655431490391493,
    -0.00031080309418030083,
)
"""-log2 erfc a = a P(a) from there to 4: 2^-28.21 of 1."""
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
"""The same from 0 on: 2^-25.89 of 1; it grows beyond 4."""
TANH_SMALL = 0.0625
"""x - x^3/3 is tanh x below that: 2^-18.9."""


def function(e: Emitter, name: str, values: list[str], accuracy: Accuracy) -> str | None:
    """The function of f32 in a few instructions; None where there is nothing better than arithmetic."""
    found = {"coarse": COARSE, "absolute": ABSOLUTE}.get(accuracy, FUNCTIONS).get(name) or FUNCTIONS.get(name)
    return None if found is None else found(e, *values)


def _number(value: float) -> str:
    """A constant as LLVM writes it: the bits of the double that it is."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(np.float32(value))))[0]:016X}"


def _call(e: Emitter, name: str, *values: str) -> str:
    e.w.declare(f"float @llvm.{name}({', '.join(['float'] * len(values))})")
    return e.w.value(f"call float @llvm.{name}({', '.join(f'float {v}' for v in values)})")


def _exp2(e: Emitter, x: str) -> str:
    return _call(e, "nvvm.ex2.approx.ftz.f", x)


def _rounded(e: Emitter, name: str, *values: str) -> str:
    """A fused product and sum, rounded as the instruction's name says."""
    places = ", ".join(f"${i}" for i in range(1, len(values) + 1))
    marks = ",".join(["=f", *["f"] * len(values)])
    return e.w.value(f'call float asm "{name} $0, {places};", "{marks}"({", ".join(f"float {v}" for v in values)})')


def _exp(e: Emitter, x: str) -> str:
    w, most = e.w, 126.0
    share = _rounded(e, "fma.rn.sat.f32", x, _number(LOG2_E / (2 * most)), _number(0.5))
    counted = _rounded(e, "fma.rm.f32", share, _number(2 * most), _number(COUNTS + 1))
    whole = w.value(f"fsub float {counted}, {_number(COUNTS + 1 + most)}")
    rest = _call(e, "fma.f32", x, _number(LOG2_E_HIGH), w.value(f"fneg float {whole}"))
    rest = _call(e, "fma.f32", x, _number(LOG2_E - LOG2_E_HIGH), rest)
    bits = w.value(f"shl i32 {w.value(f'bitcast float {counted} to i32')}, 23")
    return w.value(f"fmul float {_exp2(e, rest)}, {w.value(f'bitcast i32 {bits} to float')}")


def _coarse_exp(e: Emitter, x: str) -> str:
    return _exp2(e, e.w.value(f"fmul float {x}, {_number(LOG2_E)}"))


def _coarse_sigmoid(e: Emitter, x: str) -> str:
    down = _exp2(e, e.w.value(f"fmul float {x}, {_number(-LOG2_E)}"))
    return _call(e, "nvvm.rcp.approx.ftz.f", e.w.value(f"fadd float {down}, {_number(1)}"))


def _polynomial(e: Emitter, x: str, coefficients: tuple[float, ...]) -> str:
    *others, found = map(_number, coefficients)
    for c in reversed(others):
        found = _call(e, "fma.f32", found, x, c)
    return found


def _near_one(e: Emitter, size: str, x: str, coefficients: tuple[float, ...]) -> str:
    """1 - 2^-(a P(a)), with the sign of x."""
    w = e.w
    exponent = w.value(f"fmul float {w.value(f'fneg float {size}')}, {_polynomial(e, size, coefficients)}")
    found = w.value(f"fsub float {_number(1)}, {_exp2(e, exponent)}")
    return _call(e, "copysign.f32", found, x)


def _erf(e: Emitter, x: str) -> str:
    w = e.w
    size = _call(e, "fabs.f32", x)
    small = _call(e, "fma.f32", x, _polynomial(e, w.value(f"fmul float {x}, {x}"), ERF), x)
    large = _near_one(e, _call(e, "minnum.f32", size, _number(4)), x, ERFC)
    beyond = w.value(f"fcmp oge float {size}, {_number(ERF_SMALL)}")  # what is no number is small, and stays none
    return w.value(f"select i1 {beyond}, float {large}, float {small}")


def _absolute_erf(e: Emitter, x: str) -> str:
    return _near_one(e, _call(e, "fabs.f32", x), x, ERFC_ALL)


def _absolute_tanh(e: Emitter, x: str) -> str:
    w = e.w
    power = _exp2(e, w.value(f"fmul float {x}, {_number(2 * LOG2_E)}"))
    part = _call(e, "nvvm.rcp.approx.ftz.f", w.value(f"fadd float {power}, {_number(1)}"))
    return _call(e, "fma.f32", part, _number(-2), _number(1))


def _coarse_tanh(e: Emitter, x: str) -> str:
    w = e.w
    third = w.value(f"fmul float {w.value(f'fmul float {x}, {x}')}, {_number(-1 / 3)}")
    near = w.value(f"fcmp olt float {_call(e, 'fabs.f32', x)}, {_number(TANH_SMALL)}")
    return w.value(f"select i1 {near}, float {_call(e, 'fma.f32', x, third, x)}, float {_absolute_tanh(e, x)}")


def _quotient(e: Emitter, a: str, b: str) -> str:
    w = e.w
    size = _call(e, "fabs.f32", b)
    above, below = (
        w.value(f"fcmp {word} float {size}, {_number(n)}") for word, n in (("ogt", LARGE), ("olt", 1 / LARGE))
    )
    up = w.value(f"select i1 {below}, float {_number(SCALE)}, float {_number(1)}")
    scale = w.value(f"select i1 {above}, float {_number(1 / SCALE)}, float {up}")
    b = w.value(f"fmul float {b}, {scale}")
    negated, first = w.value(f"fneg float {b}"), _call(e, "nvvm.rcp.approx.ftz.f", b)
    zero = w.value(f"fcmp oeq float {b}, {_number(0)}")
    endless = w.value(f"fcmp oeq float {size}, {_number(np.inf)}")
    special = w.value(f"or i1 {zero}, {endless}")  # 1/b is no number that could be made better
    near = _call(e, "fma.f32", first, _call(e, "fma.f32", negated, first, _number(1)), first)
    inverse = w.value(f"select i1 {special}, float {first}, float {near}")
    a = w.value(f"fmul float {a}, {scale}")
    found = w.value(f"fmul float {a}, {inverse}")
    rest = _call(e, "fma.f32", negated, found, a)
    better = _call(e, "fma.f32", rest, inverse, found)
    endless = w.value(f"fcmp oeq float {_call(e, 'fabs.f32', found)}, {_number(np.inf)}")
    done = w.value(f"or i1 {special}, {endless}")
    return w.value(f"select i1 {done}, float {found}, float {better}")


FUNCTIONS: dict[str, Callable[..., str]] = {"exp2": _exp2, "exp": _exp, "erf": _erf, "div": _quotient}
COARSE: dict[str, Callable[..., str]] = {"exp": _coarse_exp, "sigmoid": _coarse_sigmoid, "tanh": _coarse_tanh}
ABSOLUTE: dict[str, Callable[..., str]] = {"erf": _absolute_erf, "tanh": _absolute_tanh}
