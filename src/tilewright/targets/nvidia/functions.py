"""Functions of one f32 by the machine's approximations, and what makes these exact enough.

exp2 has an instruction, good to two units in the last place; results below 2^-126 are 0. Without `ftz` the assembler
would scale small arguments up and results down: three more instructions each.

exp(x) is 2^h times 2^l, where h is x log2 e cut off towards zero and l what that lost. l is small: 2^l is 1 + l ln 2.
Cut off, l is above zero where results overflow, so infinity times it is infinity.

A quotient is a times 1/b, and what a step of remainders puts right: exact where it is a number of the type, and
otherwise the nearest but for one in some millions. All that depends on b alone is the same for many values of a row,
and then done once; numbers near the ends of the range are scaled first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tilewright.targets.gpu.emit import Emitter

LOG2_E = 1.4426950408889634
LOG2_E_HIGH = float(np.float32(LOG2_E))
BEYOND = 200.0
"""An argument whose exponential is 0 or infinite."""
LARGE, SCALE = 2.0**100, 2.0**64


def function(e: Emitter, name: str, values: list[str]) -> str | None:
    """The function of f32 in a few instructions; None where there is nothing better than arithmetic."""
    found = FUNCTIONS.get(name)
    return None if found is None else found(e, *values)


def _number(value: float) -> str:
    """A constant as LLVM writes it: the bits of the double that it is."""
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(np.float32(value))))[0]:016X}"


def _call(e: Emitter, name: str, *values: str) -> str:
    e.w.declare(f"float @llvm.{name}({', '.join(['float'] * len(values))})")
    return e.w.value(f"call float @llvm.{name}({', '.join(f'float {v}' for v in values)})")


def _exp2(e: Emitter, x: str) -> str:
    return _call(e, "nvvm.ex2.approx.ftz.f", x)


def _exp(e: Emitter, x: str) -> str:
    x = _call(e, "minimum.f32", _call(e, "maximum.f32", x, _number(-BEYOND)), _number(BEYOND))
    high = _call(e, "nvvm.mul.rz.f", x, _number(LOG2_E_HIGH))
    low = _call(e, "fma.f32", x, _number(LOG2_E_HIGH), e.w.value(f"fneg float {high}"))
    low = _call(e, "fma.f32", x, _number(LOG2_E - LOG2_E_HIGH), low)
    low = e.w.value(f"fmul float {low}, {_number(np.log(2))}")
    power = _exp2(e, high)
    return _call(e, "fma.f32", power, low, power)


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


FUNCTIONS: dict[str, Callable[..., str]] = {"exp2": _exp2, "exp": _exp, "div": _quotient}
