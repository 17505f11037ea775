"""Functions of one f32 by the machine's approximations, and what makes these exact enough.

exp2 has an instruction, good to two units in the last place; results below 2^-126 are 0. Without `ftz` the assembler
would scale small arguments up and results down: three more instructions each.

exp(x) is 2^n times 2^f, where n is the integer below x log2 e, kept between -126 and 126, and f what is left; beyond
these, f is what makes the result 0 or infinite. n is found by adding a number whose last bit counts ones, so that its
bits, moved up, are 2^n.

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
COUNTS = 1.5 * 2**23
"""A number of f32 whose last bit is one."""
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
