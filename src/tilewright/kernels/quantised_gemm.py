"""GEMM of activations with 8-bit weights that have a scale per column, or per block along K."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
BLOCKS, BLOCK = tkl.sym.BLOCKS, tkl.sym.BLOCK
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def gemm_of_scaled_columns(weights: DTypeLike = "i8", dtype: DTypeLike = "bf16") -> tkw.Kernel:
    """Return a kernel that computes c[m, n] = scales[n] * sum over k of a[m, k] * b[n, k], with 8-bit weights b.

    Arguments: a[M, K] of type `dtype`, b[N, K] of type `weights` (i8, f8e4m3fn, ...), scales[N] in f32, then c[M, N] of
    type `dtype`. Weights are converted to `dtype` before they are multiplied, and products are accumulated in f32. If
    `dtype` is f64, scales and sums are in f64.

    >>> import numpy as np, ml_dtypes, tilewright
    >>> kernel = tilewright.compile(gemm_of_scaled_columns("i8", "f32"), strict=True)
    >>> kernel(np.array([[1, 2]], np.float32), np.array([[3, 4], [5, 6]], np.int8), np.array([1, 0.5], np.float32))
    array([[11. ,  8.5]], dtype=float32)
    """
    of_data, of_weights = element_type(dtype), element_type(weights)
    of_sums = of_data.accumulator

    @tkw.wave()
    def gemm_of_scaled_columns(
        a: tkl.Memory[M, K, GLOBAL, of_data],
        b: tkl.Memory[N, K, GLOBAL, of_weights],
        scales: tkl.Memory[N, GLOBAL, of_sums],
        c: tkl.Memory[M, N, GLOBAL, of_data],
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, of_sums](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(a), tkw.cast(tkw.read(b), of_data), acc)

        tkw.write(tkw.cast(total * tkw.read(scales), of_data), c)

    return gemm_of_scaled_columns


def gemm_of_scaled_blocks(block: int, weights: DTypeLike = "i8", dtype: DTypeLike = "bf16") -> tkw.Kernel:
    """Return a kernel that computes c[m, n] = sum over j of scales[n, j] * sum over k of a[m, j, k] * b[n, j, k], with
    8-bit weights b.

    The reduced dimension has BLOCKS blocks j of `block` elements k; each block has a scale for each column n.
    Arguments: a[M, BLOCKS, BLOCK] of type `dtype`, b[N, BLOCKS, BLOCK] of type `weights` (i8, f8e4m3fn, ...), scales[N,
    BLOCKS] in f32, then c[M, N] of type `dtype`. Weights are converted to `dtype` before they are multiplied. Each
    block is accumulated in f32 before it is scaled. If `dtype` is f64, scales and sums are in f64. Raise
    `ArgumentError` if `block` is below 1.

    >>> import numpy as np, tilewright
    >>> kernel = tilewright.compile(gemm_of_scaled_blocks(2, "i8", "f32"), strict=True)
    >>> a, b = np.array([[[1, 2], [3, 4]]], np.float32), np.array([[[1, 1], [1, 0]]], np.int8)
    >>> kernel(a, b, np.array([[10, 0.5]], np.float32))
    array([[31.5]], dtype=float32)
    """
    if block < 1:
        raise ArgumentError(f"block={block}: a block has at least one element of K")
    of_data, of_weights = element_type(dtype), element_type(weights)
    of_sums = of_data.accumulator

    @tkw.wave()
    def gemm_of_scaled_blocks(
        a: tkl.Memory[M, BLOCKS, BLOCK, GLOBAL, of_data],
        b: tkl.Memory[N, BLOCKS, BLOCK, GLOBAL, of_weights],
        scales: tkl.Memory[N, BLOCKS, GLOBAL, of_sums],
        c: tkl.Memory[M, N, GLOBAL, of_data],
    ) -> None:
        block_sums = tkw.mma(tkw.read(a), tkw.cast(tkw.read(b), of_data), tkl.Register[M, N, BLOCKS, of_sums](0))
        tkw.write(tkw.cast(tkw.sum(block_sums * tkw.read(scales), dim=BLOCKS), of_data), c)

    return gemm_of_scaled_blocks.bound({BLOCK: block})
