"""Instructions of a function of one element of f32 on GPUs, beside the loads and stores of it.

NVIDIA's were counted in machine code that the assembler makes for sm_90a of what `targets/nvidia/functions.py` and
`codegen/mathematics` write: code of 32 values less code of 16. They are those of results that are rounded to 16 bits,
as results of products mostly are; where all of f32 is asked for, exp takes 8, tanh 37 and sigmoid 44. Functions that
are called are counted by their bodies. A figure of the special unit, such as 2^x, counts 1 here; `Limits.function_rate`
bounds it.
"""

from __future__ import annotations

from collections.abc import Mapping

NVIDIA: Mapping[str, float] = {
    "div": 16, "exp": 2, "exp2": 1, "erf": 18, "tanh": 9, "sigmoid": 4, "reciprocal": 15, "sqrt": 15, "rsqrt": 28,
    "log": 45, "log2": 55, "log10": 57, "sin": 146, "cos": 145, "sinh": 55, "cosh": 45, "cbrt": 60, "powf": 100,
}  # fmt: skip

OTHERS: Mapping[str, float] = {
    "div": 8, "exp": 2, "exp2": 1, "erf": 20, "tanh": 6, "sigmoid": 6, "reciprocal": 2, "sqrt": 4, "rsqrt": 2,
    "log": 3, "log2": 2, "log10": 3, "sin": 6, "cos": 6, "powf": 8,
}  # fmt: skip
"""Of machines whose code is not written yet: one or two products around 2^x, log2 x, 1/x and 1/sqrt x, which the
instruction set manuals of CDNA3 (v_exp_f32, v_log_f32, v_rcp_f32, v_rsq_f32, v_sin_f32) and Xe (math) have."""
