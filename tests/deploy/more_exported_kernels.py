"""Further kernels that are exported and called from C: with those of `exported_kernels`, more than fifty.

`benchmarks/calls_from_c.py` runs all of them, tests a few.
"""

from __future__ import annotations

import random

from exported_kernels import CASES, Case

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels

M, N = tkl.sym.M, tkl.sym.N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


@tkw.wave()
def sum_and_difference(
    a: tkl.Memory[M, N, GLOBAL, tkl.f32],
    b: tkl.Memory[M, N, GLOBAL, tkl.f32],
    added: tkl.Memory[M, N, GLOBAL, tkl.f32],
    taken: tkl.Memory[N, M, GLOBAL, tkl.f16],
):
    """Two outputs, of other types and with other dimensions first."""
    x, y = tkw.read(a), tkw.read(b)
    tkw.write(x + y, added)
    tkw.write(tkw.cast(x - y, tkl.f16), taken)


@tkw.wave()
def scaled(x: tkl.Memory[M, N, GLOBAL, tkl.f32], factor: tkl.f32, more: tkl.i32, y: tkl.Memory[M, N, GLOBAL, tkl.f32]):
    """Numbers among the arguments."""
    tkw.write(tkw.read(x) * factor + tkw.cast(more, tkl.f32), y)


BRANCHES = """host branches(%x: in global i32 (N), %y: out global i32 (N), %z: inout global i32 (2, 4))
  size N
{
  if (N == 0) {
    return
  }
  %flat = reshape %z [8]
  fill %flat 3
  %order = workspace global i32 (N)
  if (N >= 5) {
    table %order (i N) = (N - i - 1)
    launch add(%x, %order, %y) workers 2 with N = N
  } else {
    fill %order -2
    launch add(%x, %order, %y) workers (60//N) with N = N
  }
}

block add(%x: in global i32 (N), %o: in global i32 (N), %y: out global i32 (N))
  param N in 1..1000
{
  tasks n in 0..N {
    %a = view %x (j 1) -> [n]
    %b = view %o (j 1) -> [n]
    %to = view %y (j 1) -> [n]
    map %to = %a + %b
  }
}
"""

ROWS_OF_TWICE_K = """block tripled(%x: in global f32 (M, 2*K), %y: out global f32 (M, 2*K))
  param M in 1..100, K in 1..8
{
  tasks m in 0..M {
    %row = view %x (j 2*K) -> [m, j]
    %to = view %y (j 2*K) -> [m, j]
    map %to = %row * 3
  }
}
"""

_HEADS = {"B": 2, "H": 3, "M": 17, "N": 23, "D": 8, "E": 8}
_IMAGE = {"N": 2, "H": 7, "W": 6, "C": 5, "F": 9}

MORE: dict[str, Case] = {
    "gemm_f16": (kernels.gemm("nt", "f16", "f32"), {"M": 21, "N": 18, "K": 35}, {}),
    "gemm_f64": (kernels.gemm("tt", "f64"), {"M": 15, "N": 26, "K": 9}, {}),
    "gemm_i8_i8": (kernels.gemm("nt", "i8", "i8"), {"M": 12, "N": 9, "K": 20}, {}),
    "gemm_row": (kernels.gemm("nt", "f32"), {"M": 1, "N": 67, "K": 45}, {}),
    "gemm_column": (kernels.gemm("nn", "f32"), {"M": 53, "N": 1, "K": 31}, {}),
    "gemm_deep": (kernels.gemm("nn", "f32"), {"M": 6, "N": 7, "K": 1027}, {}),
    "gemm_larger": (kernels.gemm("nn", "f32"), {"M": 150, "N": 131, "K": 97}, {}),
    "gemm_relu": (
        kernels.gemm("nn", "bf16", "f32", bias=True, activation="relu"),
        {"M": 14, "N": 33, "K": 19},
        {"constant": ["b"]},
    ),
    "gemm_batch_packed": (
        kernels.gemm("nn", "bf16", batched=True),
        {"B": 2, "M": 13, "N": 20, "K": 11},
        {"constant": ["b"]},
    ),
    "gemm_two_open": (kernels.gemm("nn", "f32"), {"M": 37, "N": 29, "K": 41}, {"dynamic": ["M", "N"]}),
    "gemm_open_packed": (
        kernels.gemm("nn", "bf16"),
        {"M": 37, "N": 29, "K": 41},
        {"dynamic": ["M"], "constant": ["b"]},
    ),
    "conv1d": (kernels.conv((5,), "f32", padding=2), {"N": 2, "W": 19, "C": 4, "F": 6}, {}),
    "conv3d": (kernels.conv((2, 3, 2), "f32", padding=1), {"N": 1, "D": 4, "H": 5, "W": 6, "C": 3, "F": 5}, {}),
    "conv_point": (kernels.conv((1, 1), "f32"), _IMAGE, {}),
    "conv_dilated": (kernels.conv((3, 2), "f32", dilation=(2, 1), padding=2), _IMAGE, {}),
    "conv_bias": (kernels.conv((3, 3), "bf16", padding=1, bias=True, activation="relu"), _IMAGE, {}),
    "conv_i8": (kernels.conv((3, 3), "i8", padding=1), _IMAGE, {}),
    "conv_open": (kernels.conv((3, 3), "f32", padding=1), _IMAGE, {"dynamic": ["N"]}),
    "conv_grouped_bf16": (
        kernels.conv((3, 3), "bf16", "f32", padding=1, stride=2, groups=3),
        {"N": 2, "H": 9, "W": 8, "CG": 4, "F": 6},
        {"constant": ["w"]},
    ),
    "conv_image_gradient": (kernels.conv_image_gradient((3, 3), "f32", padding=1), {**_IMAGE, "P": 7, "Q": 6}, {}),
    "conv_filter_gradient": (kernels.conv_filter_gradient((3, 3), "f32", padding=1), {**_IMAGE, "P": 7, "Q": 6}, {}),
    "im2col": (kernels.im2col((3, 3), "f16", padding=(1, 1)), {"N": 1, "H": 6, "W": 7, "C": 4}, {}),
    "attention_f16": (kernels.attention(16, "f16"), _HEADS, {}),
    "attention_bf16": (kernels.attention(16, "bf16", "f32", causal=True, first_query=6), _HEADS, {}),
    "attention_bias": (kernels.attention(8, "f32", bias=True, scale=0.5), _HEADS, {}),
    "attention_decode": (kernels.attention(16, "f32"), {**_HEADS, "M": 1, "N": 61}, {}),
    "rms_norm": (kernels.rms_norm("bf16"), {"M": 9, "N": 40}, {}),
    "group_norm": (kernels.group_norm("f32"), {"N": 2, "G": 3, "CG": 4, "S": 11}, {}),
    "softmax_bf16": (kernels.softmax("bf16"), {"M": 8, "N": 29}, {}),
    "softmax_open": (kernels.softmax("f32"), {"M": 13, "N": 37}, {"dynamic": ["M"]}),
    "column_maxima": (kernels.reduction("max", "rows", "bf16"), {"M": 19, "N": 27}, {}),
    "column_sums": (kernels.reduction("sum", "rows", "i8", "i32"), {"M": 33, "N": 17}, {}),
    "gelu": (kernels.activation("gelu", "f32"), {"M": 7, "N": 43}, {}),
    "silu": (kernels.activation("silu", "f16"), {"M": 5, "N": 31}, {}),
    "gated": (kernels.gated_silu("bf16"), {"M": 6, "N": 22}, {}),
    "running_i32": (kernels.running_sum("i32"), {"M": 4, "N": 41}, {}),
    "running_tiles": (kernels.tiled_running_sum(16, "f32"), {"M": 5, "N": 70}, {}),
    "transposed_i8": (kernels.transpose((2, 0, 1), "i8"), {"D0": 5, "D1": 6, "D2": 9}, {}),
    "transposed_four": (kernels.transpose((0, 3, 1, 2), "bf16"), {"D0": 2, "D1": 3, "D2": 5, "D3": 7}, {}),
    "two_outputs": (sum_and_difference, {"M": 11, "N": 14}, {}),
    "numbers": (scaled, {"M": 6, "N": 13}, {}),
    "branches": (BRANCHES, None, {}),
    "tripled": (ROWS_OF_TWICE_K, None, {}),
}

CALL_SIZES = {
    "gemm_two_open": {"M": 44, "N": 19},
    "gemm_open_packed": {"M": 5},
    "conv_open": {"N": 3},
    "softmax_open": {"M": 21},
    "branches": {"N": 17},
    "tripled": {"M": 9, "K": 3},
}
"""Sizes of calls of kernels that have open ones."""
ALL = {**CASES, **MORE}
FEW = sorted(random.Random(34).sample(sorted(ALL), 14))
"""The kernels that the tests call from C."""
