"""2-D convolution as an implicit GEMM (M = output pixels, K = filter taps x channels), for any stride and padding."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.algebra.expr import Expr
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DTypeLike, element_type

LAYOUTS = ("nchw_fchw", "nhwc_hwcf")


def get_igemm_conv2d(
    layout: str,
    n: int,
    h: int,
    w: int,
    c: int,
    hf: int,
    wf: int,
    nf: int,
    stride: int | tuple[int, int],
    input_dtype: DTypeLike = tkl.f16,
    output_dtype: DTypeLike = tkl.f32,
    mem_space: Any = tkl.SHARED_ADDRESS_SPACE,
    block_m: int | None = None,
    block_n: int | None = None,
    block_k: int | None = None,
    ratio_m: int | None = None,
    ratio_n: int | None = None,
    *,
    padding: int | tuple[int, int] = (0, 0),
    dilation: int | tuple[int, int] = (1, 1),
) -> tuple[tkw.Kernel, dict[Any, Any]]:
    """Return (kernel, symbols) of a 2-D convolution as an implicit GEMM, for `tilewright.compile(kernel, symbols)`. The
    kernel is `conv(x, we, out)`, with image `x`, filter `we` and result `out`; `symbols` is {symbol: size}.

    `layout` "nhwc_hwcf" has input (N, H, W, C) and filter (HF, WF, C, NF); "nchw_fchw" has (N, C, H, W) and (NF, C, HF,
    WF). `n`, `h`, `w`, `c` are the extents of the input, `hf`, `wf` those of the filter, `nf` the number of output
    channels. `stride`, `padding` and `dilation` are (height, width), or one number for both. The GEMM has M = N * H_OUT
    * W_OUT, N = NF and K = HF * WF * C; reads in the padding return 0.

    `mem_space` is the address space of the input and the filter. `block_*` (tile sizes) and `ratio_*` (waves along M
    and N) are hints. Raise ArgumentError for another layout, or an empty output.

    >>> import numpy as np, tilewright
    >>> conv, symbols = get_igemm_conv2d("nhwc_hwcf", 1, 4, 5, 2, 3, 2, 3, 1, "f32", "f32", padding=(1, 0))
    >>> x, we = np.ones((1, 4, 5, 2), np.float32), np.ones((3, 2, 2, 3), np.float32)
    >>> tilewright.compile(conv, symbols)(x, we)[0, :, 0, 0]
    array([ 8., 12., 12.,  8.], dtype=float32)
    """
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout={layout!r}: there are {', '.join(LAYOUTS)}")
    of_input, of_output = element_type(input_dtype), element_type(output_dtype)
    (stride_h, stride_w), (pad_h, pad_w), (dil_h, dil_w) = _pair(stride), _pair(padding), _pair(dilation)
    h_out = (h + 2 * pad_h - dil_h * (hf - 1) - 1) // stride_h + 1
    w_out = (w + 2 * pad_w - dil_w * (wf - 1) - 1) // stride_w + 1
    if h_out < 1 or w_out < 1:
        raise ArgumentError(f"the output would be {h_out} x {w_out}: the filter is larger than the padded image")

    sym = tkl.sym
    N, C, H, W, NF, HF, WF = sym.N, sym.C, sym.H, sym.W, sym.NF, sym.HF, sym.WF
    H_OUT, W_OUT, M, K = sym.H_OUT, sym.W_OUT, sym.M, sym.K
    BLOCK_M, BLOCK_N, BLOCK_K, ADDRESS_SPACE = sym.BLOCK_M, sym.BLOCK_N, sym.BLOCK_K, sym.ADDRESS_SPACE

    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    row, column = (i % (H_OUT * W_OUT)) // W_OUT, i % W_OUT

    def tap(k: Expr) -> tuple[Expr, Expr]:
        """Return (row, column) of the filter tap at the index `k` along K, as expressions."""
        return k // (WF * C), (k // C) % WF

    tap_h, tap_w = tap(j)
    x_mapping = tkw.IndexMapping(
        num_iterators=2,
        inputs={
            N: i // (H_OUT * W_OUT),
            C: j % C,
            H: row * stride_h + tap_h * dil_h - pad_h,
            W: column * stride_w + tap_w * dil_w - pad_w,
        },
        outputs={M: i, K: j},
    )
    tap_h, tap_w = tap(j)
    w_mapping = tkw.IndexMapping(
        num_iterators=2,
        inputs={NF: i, C: j % C, HF: tap_h, WF: tap_w},
        outputs={NF: i, K: j},
    )
    out_mapping = tkw.IndexMapping(
        num_iterators=2,
        inputs={M: i, NF: j},
        outputs={N: i // (H_OUT * W_OUT), NF: j, H_OUT: row, W_OUT: column},
    )

    constraints: list[tkw.Constraint] = [
        tkw.WorkgroupConstraint(M, BLOCK_M, 0),
        tkw.WorkgroupConstraint(NF, BLOCK_N, 1),
        tkw.TilingConstraint(K, BLOCK_K),
    ]
    if ratio_m and ratio_n:
        constraints += [tkw.WaveConstraint(M, BLOCK_M // ratio_m), tkw.WaveConstraint(NF, BLOCK_N // ratio_n)]

    channels_last = layout == "nhwc_hwcf"
    x_dims = (N, H, W, C) if channels_last else (N, C, H, W)
    w_dims = (HF, WF, C, NF) if channels_last else (NF, C, HF, WF)
    y_dims = (N, H_OUT, W_OUT, NF) if channels_last else (N, NF, H_OUT, W_OUT)
    outside = 0 if pad_h or pad_w else None
    accumulator = tkl.f32 if of_input.is_float else tkl.i32
    if of_input is tkl.f64:
        accumulator = tkl.f64

    @tkw.wave(constraints)
    def conv(
        x: tkl.Memory[(*x_dims, ADDRESS_SPACE, of_input)],
        we: tkl.Memory[(*w_dims, ADDRESS_SPACE, of_input)],
        out: tkl.Memory[(*y_dims, tkl.GLOBAL_ADDRESS_SPACE, of_output)],
    ) -> None:
        """Convolve the image `x` with the filter `we` and write the result to `out`."""
        c_reg = tkl.Register[M, NF, accumulator](0)

        @tkw.iterate(K, init_args=[c_reg])
        def repeat(acc: Any) -> Any:
            """Add the product of one tile of K to the sums `acc`."""
            a_reg = tkw.read(x, mapping=x_mapping, otherwise=outside)
            b_reg = tkw.read(we, mapping=w_mapping)
            return tkw.mma(a_reg, b_reg, acc)

        result = repeat if of_output is accumulator else tkw.cast(repeat, of_output)
        tkw.write(result, out, mapping=out_mapping)

    symbols: dict[Any, Any] = {
        N: n,
        C: c,
        W: w,
        H: h,
        NF: nf,
        WF: wf,
        HF: hf,
        H_OUT: h_out,
        W_OUT: w_out,
        M: n * h_out * w_out,
        K: hf * wf * c,
        ADDRESS_SPACE: mem_space,
    }
    for block, size in ((BLOCK_M, block_m), (BLOCK_N, block_n), (BLOCK_K, block_k)):
        if size is not None:
            symbols[block] = size
    return conv, symbols


def _pair(x: int | tuple[int, int]) -> tuple[int, int]:
    """Return `x` as a pair (height, width): an integer stands for both."""
    return (x, x) if isinstance(x, int) else (x[0], x[1])
