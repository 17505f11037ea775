"""Kernels to read, to use and to start from: each subject a short file, sizes taken from the arguments.

| file        | kernels                                                                    |
|-------------|----------------------------------------------------------------------------|
| gemm        | matrix products: transposes, batches, bias and activation                  |
| conv        | convolutions over one to three axes: padding, groups, bias and activation  |
| im2col      | the matrix of a convolution                                                |
| attention   | softmax(q k) v over tiles of keys: causal, with a bias                     |
| softmax     | of whole rows, and online over tiles                                       |
| norm        | layer norm, RMS norm                                                       |
| elementwise | gelu, silu, relu; a gated silu                                             |
| reduce      | sum, prod, max, min over rows or columns                                   |
| scan        | running sums of whole rows, and tile by tile                               |
| transpose   | dimensions in another order                                                |
| gather      | rows gathered and scattered by an index, a histogram                       |

Each function gives a kernel, for `tilewright.compile(kernel)`; symbols that follow from its options are bound in it.
Element types are given by name, as `tkl` has them, or as numpy's dtypes.
"""

from tilewright.kernels.attention import attention
from tilewright.kernels.conv import conv
from tilewright.kernels.elementwise import activation, gated_silu
from tilewright.kernels.gather import gather_rows, histogram, scatter_rows
from tilewright.kernels.gemm import gemm
from tilewright.kernels.im2col import im2col
from tilewright.kernels.norm import layer_norm, rms_norm
from tilewright.kernels.reduce import reduction
from tilewright.kernels.scan import running_sum, tiled_running_sum
from tilewright.kernels.softmax import online_softmax, softmax
from tilewright.kernels.transpose import transpose

__all__ = [
    "activation",
    "attention",
    "conv",
    "gated_silu",
    "gather_rows",
    "gemm",
    "histogram",
    "im2col",
    "layer_norm",
    "online_softmax",
    "reduction",
    "rms_norm",
    "running_sum",
    "scatter_rows",
    "softmax",
    "tiled_running_sum",
    "transpose",
]
