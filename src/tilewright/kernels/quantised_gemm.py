"""Products of activations with weights of few bits: whole columns, or blocks along K, have a scale each."""

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
    """c[m, n] = scales[n] * the sum over k of a[m, k] * b[n, k], with weights b of 8 bits and a scale for each column.

    Arguments: a[M, K] and c[M, N] of type `dtype`, b[N, K] of type `weights` (i8, f8e4m3fn, ...), scales[N] in f32.

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
    """c[m, n] = the sum over blocks j of scales[n, j] * the sum over k of a[m, j, k] * b[n, j, k].

    K is BLOCKS times `block` elements; each block of a column of weights has a scale. Arguments: a[M, BLOCKS, BLOCK]
    and c[M, N] of type `dtype`, b[N, BLOCKS, BLOCK] of type `weights`, scales[N, BLOCKS] in f32. Each block is summed
    in f32 before it is scaled.

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
        part = tkw.mma(tkw.read(a), tkw.cast(tkw.read(b), of_data), tkl.Register[M, N, BLOCKS, of_sums](0))
        tkw.write(tkw.cast(tkw.sum(part * tkw.read(scales), dim=BLOCKS), of_data), c)

    return gemm_of_scaled_blocks.bound({BLOCK: block})
