"""Mathematical functions as machine code over whole arrays, and how far they are from higher precision.

>>> sine = CompiledFunction("sin", "f32", lanes=8)
>>> x = np.array([0.5, 3.0, -1e30], np.float32)
>>> bool((error(sine(x), reference("sin", x)) < 2).all())
True
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import erf
from typing import Any

import numpy as np

from tilewright.codegen.formula import FormulaWriter
from tilewright.codegen.text import Writer, vector
from tilewright.ir import dtypes
from tilewright.ir.formula import BINARY, Formula
from tilewright.runtime.codegen import HELPER
from tilewright.targets.cpu.load import link
from tilewright.targets.registry import native

Array = Any
_ENTRY = "apply"


def text(name: str, dtype: str, lanes: int | None, fused: bool = True) -> str:
    """LLVM text of `void apply(inputs..., ptr result, i64 count)`; count is a multiple of the lanes."""
    kind, w = dtypes.dtype(dtype), Writer(fused=fused)
    count, form, size = 1 + (name in BINARY), vector(kind, lanes), kind.bits // 8
    w.line("br label %loop")
    w.label("loop")
    w.line("%at = phi i64 [ 0, %entry ], [ %next, %loop ]")
    values = []
    for k in range(count):
        place = w.value(f"getelementptr {vector(kind, None)}, ptr %in{k}, i64 %at")
        values.append(w.value(f"load {form}, ptr {place}, align {size}"))
    writer = FormulaWriter(w, lanes, None, lambda f: (values[f.value], kind))
    result = writer.write(Formula(name, tuple(map(Formula.operand, range(count)))), kind)
    place = w.value(f"getelementptr {vector(kind, None)}, ptr %out, i64 %at")
    w.line(f"store {form} {result}, ptr {place}, align {size}")
    w.line(f"%next = add i64 %at, {lanes or 1}")
    w.line(f"br i1 {w.value('icmp ult i64 %next, %count')}, label %loop, label %done")
    w.label("done")
    inputs = ", ".join(f"ptr %in{k}" for k in range(count))
    head = f"define void @{_ENTRY}({inputs}, ptr %out, i64 %count) nounwind"
    return "\n".join([*w.declared, f"{head} {{\nentry:\n{w.text()}\n  ret void\n}}\n"])


class CompiledFunction:
    """A function of formulas, as machine code for this CPU; `fused` unset: for one without fused multiply-add."""

    def __init__(self, name: str, dtype: str, lanes: int | None = 8, fused: bool = True):
        self.name, self.lanes, self.fused = name, lanes or 1, fused
        self.type = dtypes.dtype(dtype).numpy
        self.llvm = text(name, dtype, lanes, fused)
        target = native("cpu" if fused else "cpu:portable")
        self.object = HELPER.ask(target.options.request("object"), self.llvm)
        self.code = link(self.object, (_ENTRY,))
        count = 2 + (name in BINARY)
        self.entry = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * count, ctypes.c_int64)(self.code.address(_ENTRY))

    def __call__(self, *arrays: Array) -> Array:
        """The function of all elements."""
        size = arrays[0].size
        whole = -(-size // self.lanes) * self.lanes
        inputs = []
        for given in arrays:
            padded = np.zeros(whole, self.type)
            padded[:size] = given
            inputs.append(padded)
        result = np.empty(whole, self.type)
        if size:
            self.entry(*(a.ctypes.data for a in (*inputs, result)), whole)
        return result[:size]


# -- higher precision ---------------------------------------------------------------------------------------

_erf = np.vectorize(erf, otypes=[np.float64])
_REFERENCES: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10, "sin": np.sin,
    "cos": np.cos, "tanh": np.tanh, "erf": _erf, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x), "powf": np.power, "div": np.divide,
    "sinh": np.sinh, "cosh": np.cosh, "cbrt": np.cbrt, "atan2": np.arctan2, "remf": np.fmod,
    "expm1": np.expm1, "log1p": np.log1p,
}  # fmt: skip
FUNCTIONS = tuple(_REFERENCES)
"""The functions that there is a reference for."""


def by_elements(name: str, dtype: str) -> bool:
    """Whether its reference comes element by element, from mpmath: a thousand times slower than by arrays."""
    return dtype == "f64" and (name == "erf" or np.finfo(np.longdouble).nmant not in (63, 112))


def reference(name: str, *arrays: Array) -> Array:
    """The function in higher precision: f64 for f32 and less; for f64 long double where that is wider, else mpmath."""
    wide: Any = np.longdouble if arrays[0].dtype == np.float64 else np.float64
    with np.errstate(all="ignore"):
        if wide is np.longdouble and by_elements(name, "f64"):
            return _by_mpmath(name, *arrays)
        return np.asarray(_REFERENCES[name](*(a.astype(wide) for a in arrays)))


def _by_mpmath(name: str, *arrays: Array) -> Array:
    """f64 functions element by element; the result is a pair of doubles, the second what the first lacks.

    Where an argument or the result is not finite, or the result is zero, it is numpy's: mpmath has one zero.
    """
    import mpmath as mp

    functions: dict[str, Callable[..., Any]] = {
        "exp2": lambda x: mp.mpf(2) ** x, "log2": lambda x: mp.log(x, 2), "rsqrt": lambda x: 1 / mp.sqrt(x),
        "sigmoid": lambda x: 1 / (1 + mp.exp(-x)), "powf": lambda x, y: mp.mpf(x) ** y, "div": lambda x, y: x / y,
        "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    }  # fmt: skip
    function = functions.get(name) or getattr(mp, name)
    found = np.stack([_REFERENCES[name](*arrays), np.zeros(arrays[0].size)])
    finite = np.isfinite(found[0]) & (found[0] != 0) & np.all([np.isfinite(a) for a in arrays], axis=0)
    with mp.workprec(120):
        for i in np.flatnonzero(finite):
            exact = function(*(mp.mpf(float(a[i])) for a in arrays))
            found[:, i] = float(exact), float(exact - float(exact))
    return found


def error(found: Array, exact: Array) -> Array:
    """How far each result is from the exact value, in units in the last place; infinite where only one is a number.

    Numbers too large for the type count as the power of two that follows its largest.

    >>> error(np.array([1.0, np.inf, np.nan], np.float32), np.array([1 + 2.0**-24, 1e300, np.nan]))
    array([0.5, 0. , 0. ])
    """
    kind = np.finfo(found.dtype)
    pair = exact.ndim > found.ndim
    most = exact[0] if pair else exact
    wide: Any = most.dtype.type
    top = wide(2.0) * wide(2.0 ** (kind.maxexp - 1)) if wide is not np.float64 or kind.bits < 64 else wide(kind.max)
    with np.errstate(all="ignore"):
        limited = np.clip(most, -top, top)
        apart = np.abs(np.clip(found.astype(wide), -top, top) - limited - (exact[1] if pair else 0))
        away = np.asarray(apart / _power_below(limited, kind.minexp) * wide(2.0) ** kind.nmant, np.float64)
    nothing = np.isnan(found)
    away[nothing != np.isnan(most)] = np.inf
    away[nothing & np.isnan(most)] = 0
    return away


def _power_below(x: Array, least: int) -> Array:
    """The largest power of two that is not above |x|, but at least 2^least."""
    if x.dtype == np.float64:
        code = x.view(np.int64) & (0x7FF << 52)
        return np.maximum(code, max(0, least + 1023) << 52).view(np.float64)
    return np.ldexp(x.dtype.type(1), np.maximum(np.frexp(x)[1] - 1, least))
