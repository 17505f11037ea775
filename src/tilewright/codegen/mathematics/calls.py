"""Mathematical functions by name: short ones are inlined, others are defined once a module and called."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.codegen.mathematics.arctangent import arctangent
from tilewright.codegen.mathematics.circular import cos, sin
from tilewright.codegen.mathematics.error_function import erf
from tilewright.codegen.mathematics.exponential import exp, exp2, expm1, sigmoid, tanh
from tilewright.codegen.mathematics.hyperbolic import cosh, sinh
from tilewright.codegen.mathematics.lanes import Lanes, Number
from tilewright.codegen.mathematics.logarithm import log, log1p, log2, log10
from tilewright.codegen.mathematics.power import power
from tilewright.codegen.mathematics.remainder import remainder
from tilewright.codegen.mathematics.root import cbrt
from tilewright.codegen.text import Writer

FUNCTIONS: dict[str, Callable[..., Number]] = {
    "exp": exp, "exp2": exp2, "log": log, "log2": log2, "log10": log10, "sin": sin, "cos": cos, "tanh": tanh,
    "erf": erf, "sigmoid": sigmoid, "powf": power, "sinh": sinh, "cosh": cosh, "cbrt": cbrt, "atan2": arctangent,
    "remf": remainder, "expm1": expm1, "log1p": log1p,
}  # fmt: skip
"""Emitters of the functions, by the names that formulas use."""
_IN_PLACE = ("exp", "exp2", "tanh", "erf", "sigmoid")
"""Functions that are always inlined: a call would cost more than it saves."""


def emit_function(w: Writer, name: str, values: Sequence[str], lanes: int | None, bits: int) -> str:
    """Emit the mathematical function `name`, such as "log", of the LLVM operands `values`; return the name of the
    result.

    Short functions are inlined. For others, a function is defined in the module once and called. `w` is the writer. The
    operands are vectors of `lanes` floats of `bits` bits (32 or 64); `lanes` None: single floats.

    >>> w = Writer()
    >>> emit_function(w, "log", ["%x"], 8, 32)
    '%v1'
    >>> print(w.text())
      %v1 = call <8 x float> @tw.log.v8f32(<8 x float> %x)
    """
    if name in _IN_PLACE:
        m = Lanes(w, lanes, bits)
        return FUNCTIONS[name](m, *map(m.number, values)).text
    symbol = f"@tw.{name}.{'' if lanes is None else f'v{lanes}'}f{bits}"
    if symbol not in w.defined:
        inner = Writer(w.fused, w.nan_maximum, w.defined, scale=w.scale)
        m = Lanes(inner, lanes, bits)
        kind, parameters = m.form(m.float), [f"%x{i}" for i in range(len(values))]
        result = FUNCTIONS[name](m, *map(m.number, parameters))
        header = f"define internal {kind} {symbol}({', '.join(f'{kind} {place}' for place in parameters)}) nounwind"
        w.define(symbol, f"{header} {{\nentry:\n{inner.text()}\n  ret {kind} {result}\n}}", inner)
    kind = Lanes(w, lanes, bits).form({32: "float", 64: "double"}[bits])
    return w.value(f"call {kind} {symbol}({', '.join(f'{kind} {v}' for v in values)})")
