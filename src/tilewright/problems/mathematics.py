"""Mathematical functions as machine code over whole arrays, and their error against higher precision.

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
    """Return the LLVM text of a function `void apply(inputs..., ptr result, i64 count)` over whole arrays.

    It applies the mathematical function `name`, such as "sin", to arrays of `count` elements of type `dtype`; a
    function of two arguments has two inputs. Its loop handles `lanes` elements at a time (None: one), so `count` must
    be a multiple of `lanes`, and above 0. With `fused`, fused multiply-adds are allowed.
    """
    element, out = dtypes.dtype(dtype), Writer(fused=fused)
    count, vector_type, size = 1 + (name in BINARY), vector(element, lanes), element.bits // 8
    out.line("br label %loop")
    out.label("loop")
    out.line("%at = phi i64 [ 0, %entry ], [ %next, %loop ]")
    values = []
    for k in range(count):
        pointer = out.value(f"getelementptr {vector(element, None)}, ptr %in{k}, i64 %at")
        values.append(out.value(f"load {vector_type}, ptr {pointer}, align {size}"))
    writer = FormulaWriter(out, lanes, None, lambda f: (values[f.value], element))
    result = writer.write(Formula(name, tuple(map(Formula.operand, range(count)))), element)
    pointer = out.value(f"getelementptr {vector(element, None)}, ptr %out, i64 %at")
    out.line(f"store {vector_type} {result}, ptr {pointer}, align {size}")
    out.line(f"%next = add i64 %at, {lanes or 1}")
    out.line(f"br i1 {out.value('icmp ult i64 %next, %count')}, label %loop, label %done")
    out.label("done")
    inputs = ", ".join(f"ptr %in{k}" for k in range(count))
    head = f"define void @{_ENTRY}({inputs}, ptr %out, i64 %count) nounwind"
    return "\n".join([*out.declared, f"{head} {{\nentry:\n{out.text()}\n  ret void\n}}\n"])


class CompiledFunction:
    """A mathematical function compiled to machine code for this CPU; `fused=False` does without fused multiply-add."""

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
        """Return the function of all elements."""
        size = arrays[0].size
        padded_size = -(-size // self.lanes) * self.lanes
        inputs = []
        for array in arrays:
            padded = np.zeros(padded_size, self.type)
            padded[:size] = array
            inputs.append(padded)
        result = np.empty(padded_size, self.type)
        if size:
            self.entry(*(a.ctypes.data for a in (*inputs, result)), padded_size)
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
    """Return True if `reference` computes the function `name` for the type `dtype` element by element by mpmath, which
    is slow.

    Only f64 needs this: always for "erf", and for all functions on machines whose long double is neither the 80-bit nor
    the 128-bit format.
    """
    return dtype == "f64" and (name == "erf" or np.finfo(np.longdouble).nmant not in (63, 112))


def reference(name: str, *arrays: Array) -> Array:
    """Return the mathematical function `name`, such as "exp", of each element of `arrays`, in higher precision.

    The result has the arrays' shape; it is in float64 for f32 and narrower types, and in long double for f64. If
    `by_elements(name, "f64")` is True, mpmath computes an f64 function. The result then has shape (2, size): row 0 has
    the results rounded to doubles, row 1 the remainders.
    """
    wide_type: Any = np.longdouble if arrays[0].dtype == np.float64 else np.float64
    with np.errstate(all="ignore"):
        if wide_type is np.longdouble and by_elements(name, "f64"):
            return _by_mpmath(name, *arrays)
        return np.asarray(_REFERENCES[name](*(a.astype(wide_type) for a in arrays)))


def _by_mpmath(name: str, *arrays: Array) -> Array:
    """Return the function `name` of the flat f64 arrays, computed by mpmath for each element, in shape (2, size).

    Row 0 has the results rounded to doubles, row 1 the remainders. Elements with an argument or a result that is not
    finite, or with result zero, are computed by numpy, since mpmath has only one zero; their remainder is 0.
    """
    import mpmath as mp

    functions: dict[str, Callable[..., Any]] = {
        "exp2": lambda x: mp.mpf(2) ** x, "log2": lambda x: mp.log(x, 2), "rsqrt": lambda x: 1 / mp.sqrt(x),
        "sigmoid": lambda x: 1 / (1 + mp.exp(-x)), "powf": lambda x, y: mp.mpf(x) ** y, "div": lambda x, y: x / y,
        "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    }  # fmt: skip
    function = functions.get(name) or getattr(mp, name)
    result = np.stack([_REFERENCES[name](*arrays), np.zeros(arrays[0].size)])
    finite = np.isfinite(result[0]) & (result[0] != 0) & np.all([np.isfinite(a) for a in arrays], axis=0)
    with mp.workprec(120):
        for i in np.flatnonzero(finite):
            exact = function(*(mp.mpf(float(a[i])) for a in arrays))
            result[:, i] = float(exact), float(exact - float(exact))
    return result


def error(result: Array, exact: Array) -> Array:
    """Return the error of each element of `result` against `exact`, in units in the last place of the type of `result`.

    `exact` has a wider type, or it has shape (2, size) with results and remainders, as `reference` returns them. The
    error is infinite if only one of the two values is NaN, and 0 if both are. Numbers too large for the type of
    `result` count as the power of two after its largest number; if `exact` has remainders, they count as its largest
    number.

    >>> error(np.array([1.0, np.inf, np.nan], np.float32), np.array([1 + 2.0**-24, 1e300, np.nan]))
    array([0.5, 0. , 0. ])
    """
    kind = np.finfo(result.dtype)
    pair = exact.ndim > result.ndim
    leading = exact[0] if pair else exact
    wide_type: Any = leading.dtype.type
    largest = (
        wide_type(2.0) * wide_type(2.0 ** (kind.maxexp - 1))
        if wide_type is not np.float64 or kind.bits < 64
        else wide_type(kind.max)
    )
    with np.errstate(all="ignore"):
        limited = np.clip(leading, -largest, largest)
        distance = np.abs(np.clip(result.astype(wide_type), -largest, largest) - limited - (exact[1] if pair else 0))
        ulps = np.asarray(distance / _power_below(limited, kind.minexp) * wide_type(2.0) ** kind.nmant, np.float64)
    is_nan = np.isnan(result)
    ulps[is_nan != np.isnan(leading)] = np.inf
    ulps[is_nan & np.isnan(leading)] = 0
    return ulps


def _power_below(x: Array, least: int) -> Array:
    """Return, for each element x of the array, the largest power of two that is at most |x|, but at least
    2**`least`.
    """
    if x.dtype == np.float64:
        code = x.view(np.int64) & (0x7FF << 52)
        return np.maximum(code, max(0, least + 1023) << 52).view(np.float64)
    return np.ldexp(x.dtype.type(1), np.maximum(np.frexp(x)[1] - 1, least))
