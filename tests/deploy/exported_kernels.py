"""Kernels that the tests export: each with its sizes and its options."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.ir.dtypes import dtype

TWO_KERNELS = """host both(%x: in global f32 (M, 12), %w: in global f32 (12), %y: out global f32 (M, 12))
  param M in 1..4096
{
  bind {
    %twice = workspace global f32 (12)
    launch double(%w, %twice) workers 1
  }
  %t = workspace global f32 (M, 12)
  %none = workspace global i32 (5)
  fill %none 0
  launch scale(%x, %twice, %t) workers 3 with M = M
  check %none 3 else "the fourth number is not 0"
  launch shift(%t, %y) workers 2 with M = M
}

block double(%w: in global f32 (12), %t: out global f32 (12))
{
  map %t = %w + %w
}

block scale(%x: in global f32 (M, 12), %w: in global f32 (12), %t: out global f32 (M, 12))
  param M in 1..4096
{
  tasks m in 0..M {
    %row = view %x (j 12) -> [m, j]
    %to = view %t (j 12) -> [m, j]
    map %to = %row * %w
  }
}

block shift(%t: in global f32 (M, 12), %y: out global f32 (M, 12))
  param M in 1..4096
{
  tasks m in 0..M {
    %row = view %t (j 12) -> [m, j]
    %to = view %y (j 12) -> [m, j]
    map %to = %row + 1
  }
}
"""

Case = tuple[Any, dict[str, int] | None, dict[str, Any]]
"""A kernel, its sizes and the options that it is compiled with."""

CASES: dict[str, Case] = {
    "gemm": (kernels.gemm("nn", "f32"), {"M": 37, "N": 29, "K": 41}, {}),
    "gemm_bf16": (kernels.gemm("nt", "bf16", "bf16"), {"M": 19, "N": 23, "K": 33}, {}),
    "gemm_i8": (kernels.gemm("nn", "i8"), {"M": 13, "N": 40, "K": 27}, {}),
    "gemm_bias": (kernels.gemm("tn", "f32", bias=True, activation="gelu"), {"M": 9, "N": 21, "K": 17}, {}),
    "gemm_batched": (kernels.gemm("nn", "f16", batched=True), {"B": 3, "M": 11, "N": 7, "K": 5}, {}),
    "gemm_packed": (kernels.gemm("nn", "f32"), {"M": 37, "N": 29, "K": 41}, {"constant": ["b"]}),
    "gemm_open": (kernels.gemm("nn", "f32"), {"M": 37, "N": 29, "K": 41}, {"dynamic": ["M"]}),
    "conv": (kernels.conv((3, 3), "f32", padding=1, stride=2), {"N": 2, "H": 9, "W": 11, "C": 5, "F": 7}, {}),
    "conv_packed": (
        kernels.conv((3, 2), "bf16", padding=((1, 0), (0, 1))),
        {"N": 1, "H": 8, "W": 6, "C": 6, "F": 10},
        {"constant": ["w"]},
    ),
    "conv_grouped": (
        kernels.conv((3, 3), "f32", padding=1, groups=2),
        {"N": 1, "H": 7, "W": 5, "CG": 3, "F": 8},
        {},
    ),
    "depthwise": (kernels.conv((3, 3), "f32", padding=1, groups=12), {"N": 1, "H": 7, "W": 9, "CG": 1, "F": 12}, {}),
    "softmax": (kernels.softmax("f32"), {"M": 13, "N": 37}, {}),
    "online_softmax": (kernels.online_softmax(16, "f32"), {"M": 7, "N": 50}, {}),
    "row_sums": (kernels.reduction("sum", "columns", "f32"), {"M": 17, "N": 45}, {}),
    "layer_norm": (kernels.layer_norm("f32"), {"M": 11, "N": 39}, {}),
    "attention": (
        kernels.attention(16, "f32", causal=True),
        {"B": 1, "H": 2, "M": 21, "N": 21, "D": 8, "E": 12},
        {},
    ),
    "running": (kernels.running_sum("f32"), {"M": 6, "N": 33}, {}),
    "flipped": (kernels.transpose((1, 0), "f32"), {"D0": 19, "D1": 23}, {}),
    "gather": (kernels.gather_rows("f32"), {"ROWS": 9, "N": 21, "M": 14}, {}),
    "counts": (kernels.histogram(), {"M": 50, "BINS": 9}, {}),
    "both": (TWO_KERNELS, None, {}),
}


SEVERAL = {"gemm_open": {"M": 53}, "both": {"M": 29}}
"""Sizes of calls of kernels that have open ones."""


def compiled(name: str) -> Any:
    """A kernel of the cases, compiled."""
    return compiled_case(CASES[name])


def compiled_case(case: Case) -> Any:
    """A case's kernel, compiled."""
    kernel, sizes, options = case
    if isinstance(kernel, str):
        return tilewright.compile_text(kernel)
    return kernel_for(kernel, sizes, **options)


def run_compiled(kernel: Any, arrays: list[Any], sizes: dict[str, int] | None = None) -> None:
    """Runs a compiled kernel on all its arguments."""
    if isinstance(kernel, tilewright.TextExecutable):
        kernel.bind(*arrays, params=sizes)()
    else:
        kernel.executor.bind(arrays, sizes)()


def arrays_for(manifest: Any, rng: np.random.Generator, sizes: dict[str, int] | None = None) -> list[Any]:
    """Small integers for all arguments of a kernel, as its manifest describes them; outputs hold -7."""
    arrays = []
    for argument in manifest["arguments"]:
        kind = dtype(argument["type"]).numpy
        shape = tuple(n if isinstance(n, int) else int(eval(n, {}, dict(sizes or {}))) for n in argument["shape"])
        least = 0 if argument["type"] == "i32" else -4  # numbers of rows
        values = rng.integers(least, 5, shape) if argument["role"] == "in" else np.full(shape, -7)
        arrays.append(values.astype(kind))
    return arrays
