"""The cost of functions of one f32 element on GPUs, in simple arithmetic instructions, without loads and stores.

NVIDIA's were measured on an H200: the time that a function adds to the epilogue of a product of 8192x8192x256, whose
results are rounded to bf16, as results of products mostly are (medians of interleaved replays; a chain of products and
sums takes as many operations as it has there; erf also in gelu after a product of 8192x4096x4096, where it takes
more: 19 and 25). Functions without a figure of that run (log10, sinh, cosh, powf, expm1, log1p) are estimated from
those that they are made of. With all bits of f32, exp takes 8, tanh 37 and sigmoid 44. `widen` is a cast of i8 to bf16,
two elements at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

NVIDIA: Mapping[str, float] = {
    "div": 15, "exp": 5, "exp2": 4, "erf": 23, "tanh": 14, "sigmoid": 13, "reciprocal": 36, "sqrt": 27, "rsqrt": 63,
    "log": 96, "log2": 103, "log10": 105, "sin": 100, "cos": 98, "sinh": 60, "cosh": 50, "cbrt": 470, "powf": 200,
    "expm1": 24, "log1p": 120, "widen": 3,
}  # fmt: skip

OTHERS: Mapping[str, float] = {
    "div": 8, "exp": 2, "exp2": 1, "erf": 20, "tanh": 6, "sigmoid": 6, "reciprocal": 2, "sqrt": 4, "rsqrt": 2,
    "log": 3, "log2": 2, "log10": 3, "sin": 6, "cos": 6, "powf": 8,
    "expm1": 8, "log1p": 8,
}  # fmt: skip
"""Estimates for machines without a code generator: one or two multiplications around 2^x, log2 x, 1/x and 1/sqrt x,
which CDNA3 (v_exp_f32, v_log_f32, v_rcp_f32, v_rsq_f32, v_sin_f32) and Xe (math) have as instructions."""
