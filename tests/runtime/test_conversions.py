"""Conversions of 16-bit floats for CPUs without instructions for them: every half, and many floats around every tie."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tilewright.targets.cpu import conversions
from tilewright.targets.cpu.load import load_text

Array = np.ndarray[Any, np.dtype[Any]]
BF16 = np.dtype(ml_dtypes.bfloat16)
TYPES = {
    "__truncsfbf2": ("float", "bfloat"),
    "__truncdfbf2": ("double", "bfloat"),
    "__truncsfhf2": ("float", "half"),
    "__truncdfhf2": ("double", "half"),
    "__extendhfsf2": ("half", "float"),
}


def looped(name: str, source: str, target: str) -> str:
    """A function that calls a conversion for each element of an array."""
    return f"""declare {target} @{name}({source})
define void @all{name}(ptr %p, ptr %q, i64 %n) {{
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%j, %loop]
  %a = getelementptr {source}, ptr %p, i64 %i
  %x = load {source}, ptr %a
  %y = call {target} @{name}({source} %x)
  %b = getelementptr {target}, ptr %q, i64 %i
  store {target} %y, ptr %b
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, %n
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""


@pytest.fixture(scope="module")
def code() -> Any:
    return load_text("".join(looped(name, *TYPES[name]) for name in conversions.NAMES))


def converted(code: Any, name: str, x: Array, form: Any) -> Array:
    y = np.zeros(x.shape, form)
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    kind(code.address(f"all{name}"))(x.ctypes.data, y.ctypes.data, x.size)
    return y


def floats() -> Array:
    """Bits of every sign, exponent and top of a mantissa, with what follows at, below and above a tie."""
    tops = np.arange(1 << 20, dtype=np.uint32) << 12
    rest = np.random.default_rng(0).choice(np.array([0, 1, 0x7FF, 0x800, 0x801, 0xFFF], np.uint32), tops.size)
    return (tops | rest).view(np.float32)


def same(found: Array, wanted: Array) -> bool:
    nan = np.isnan(wanted.astype(np.float32))
    bits = f"u{found.dtype.itemsize}"
    return bool((found.view(bits) == wanted.view(bits))[~nan].all() and np.isnan(found[nan].astype(np.float32)).all())


def test_every_half_as_a_float(code: Any) -> None:
    half = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):  # some CPUs raise this where a signalling NaN becomes a quiet one
        wanted = half.astype(np.float32)
    assert same(converted(code, "__extendhfsf2", half, np.float32), wanted)


@pytest.mark.parametrize(("name", "form"), [("__truncsfbf2", BF16), ("__truncsfhf2", np.dtype(np.float16))])
def test_floats_to_sixteen_bits(code: Any, name: str, form: Any) -> None:
    x = floats()
    with np.errstate(over="ignore", invalid="ignore"):
        assert same(converted(code, name, x, form), x.astype(form))


def doubles() -> Array:
    """Floats, and doubles so little beside them that a first rounding to float would hide the difference."""
    with np.errstate(invalid="ignore"):
        beside = np.random.default_rng(1).choice([1, 1 + 2.0**-40, 1 - 2.0**-40], 1 << 20)
        return floats().astype(np.float64) * beside


def test_doubles_to_halves_round_once(code: Any) -> None:
    x = doubles()
    with np.errstate(over="ignore", invalid="ignore"):
        assert same(converted(code, "__truncdfhf2", x, np.float16), x.astype(np.float16))


def test_doubles_to_bf16_round_once(code: Any) -> None:
    x = doubles()
    x = x[np.isfinite(x) & (np.abs(x) < 3e38)]
    found = converted(code, "__truncdfbf2", x, BF16)
    error = np.abs(found.astype(np.float64) - x)
    for step in (-1, 1):  # neither neighbour is nearer, and of two as near the even one is taken
        beside = (found.view(np.uint16) + np.uint16(step % 65536)).view(BF16).astype(np.float64)
        other = np.abs(beside - x)
        known = np.isfinite(beside)
        assert (error[known] <= other[known]).all()
        tie = known & (error == other)
        assert (found.view(np.uint16)[tie] % 2 == 0).all()
