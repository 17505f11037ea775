"""Kernels to read, to use and to start from: each subject a short file, sizes taken from the arguments.

| file                | kernels                                                                   |
|---------------------|---------------------------------------------------------------------------|
| gemm                | matrix products: transposes, batches, bias and activation                 |
| conv                | convolutions over one to three axes: padding, groups, bias and activation |
| conv_gradients      | their gradients, of images and of filters                                 |
| im2col              | the matrix of a convolution                                               |
| attention           | softmax(q k) v over tiles of keys: causal, with a bias                    |
| grouped_attention   | query heads that share keys: window, soft cap, slopes, sinks, segments    |
| attention_gradients | gradients of attention, by the logarithms of its sums                     |
| paged_attention     | one query on a cache of pages that a table names                          |
| linear_attention    | causal, without softmax, by chunks                                        |
| softmax             | of whole rows, and online over tiles                                      |
| norm                | layer norm, RMS norm, group norm                                          |
| norm_gradients      | gradients of softmax, layer norm, RMS norm and group norm                 |
| elementwise         | gelu, also by tanh, silu, relu; a gated silu                              |
| reduce              | sum, prod, max, min over rows or columns                                  |
| scan                | running sums of whole rows, and tile by tile                              |
| transpose           | dimensions in another order                                               |
| gather              | rows gathered and scattered by an index, a histogram                      |
| pooling             | the largest element, or the mean, of windows of images; means of images   |
| quantised_gemm      | weights of 8 bits with scales of columns or of blocks                     |
| rotary              | rotary embedding                                                          |
| cross_entropy       | the loss of a linear layer's classes                                      |
| gating              | the best experts of each token, and their shares                          |
| sums                | the types in which kernels sum products                                   |

Each function gives a kernel, for `tilewright.compile(kernel)`; symbols that follow from its options are bound in it.
Element types are given by name, as `tkl` has them, or as numpy's dtypes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType
from tilewright.kernels.attention import attention
from tilewright.kernels.attention_gradients import attention_key_gradient, attention_query_gradient, attention_sums
from tilewright.kernels.conv import conv
from tilewright.kernels.conv_gradients import conv_filter_gradient, conv_image_gradient
from tilewright.kernels.cross_entropy import linear_cross_entropy
from tilewright.kernels.elementwise import activation, gated_silu
from tilewright.kernels.gather import gather_rows, histogram, scatter_rows
from tilewright.kernels.gating import top_k_gating
from tilewright.kernels.gemm import gemm
from tilewright.kernels.grouped_attention import grouped_attention
from tilewright.kernels.im2col import im2col
from tilewright.kernels.linear_attention import linear_attention
from tilewright.kernels.norm import group_norm, layer_norm, rms_norm
from tilewright.kernels.norm_gradients import (
    group_norm_gradient,
    group_norm_weight_gradient,
    layer_norm_gradient,
    layer_norm_weight_gradient,
    rms_norm_gradient,
    rms_norm_weight_gradient,
    softmax_gradient,
)
from tilewright.kernels.paged_attention import paged_attention
from tilewright.kernels.pooling import image_mean, pooling
from tilewright.kernels.quantised_gemm import gemm_of_scaled_blocks, gemm_of_scaled_columns
from tilewright.kernels.reduce import reduction
from tilewright.kernels.rotary import rotary
from tilewright.kernels.scan import running_sum, tiled_running_sum
from tilewright.kernels.softmax import online_softmax, softmax
from tilewright.kernels.transpose import transpose
from tilewright.limits import ELEMENTS
from tilewright.signatures import check_all

__all__ = [
    "activation",
    "attention",
    "attention_key_gradient",
    "attention_query_gradient",
    "attention_sums",
    "conv",
    "conv_filter_gradient",
    "conv_image_gradient",
    "gated_silu",
    "gather_rows",
    "gemm",
    "gemm_of_scaled_blocks",
    "gemm_of_scaled_columns",
    "group_norm",
    "group_norm_gradient",
    "group_norm_weight_gradient",
    "grouped_attention",
    "histogram",
    "im2col",
    "image_mean",
    "layer_norm",
    "layer_norm_gradient",
    "layer_norm_weight_gradient",
    "linear_attention",
    "linear_cross_entropy",
    "online_softmax",
    "paged_attention",
    "pooling",
    "reduction",
    "rms_norm",
    "rms_norm_gradient",
    "rms_norm_weight_gradient",
    "rotary",
    "running_sum",
    "scatter_rows",
    "softmax",
    "softmax_gradient",
    "tiled_running_sum",
    "top_k_gating",
    "transpose",
]


def _is_size(x: Any) -> bool:
    """Return True if `x` is an integer, Python's or numpy's (not a bool), within the allowed number of elements of a
    tensor.

    The magnitude counts, so negative integers are allowed too.
    """
    return isinstance(x, int | np.integer) and not isinstance(x, bool) and abs(int(x)) <= ELEMENTS.most


def _is_count(x: Any) -> bool:
    """Return True if `x` is an integer of at least 1, within the allowed number of elements of a tensor."""
    return _is_size(x) and x >= 1


def _is_type(x: Any) -> bool:
    """Return True if `x` can name an element type: a string, a `DType`, a numpy dtype or a numpy scalar type.

    Whether Tilewright has a type of this name is not checked.
    """
    return isinstance(x, DType | str | np.dtype) or (isinstance(x, type) and issubclass(x, np.generic))


def _sequence_of(is_valid: Callable[[Any], bool], count: int | None = None) -> Callable[[Any], bool]:
    """Return a function that returns True if its argument is a sequence of `count` values (None: of any length), and
    `is_valid` is true for each.
    """
    return lambda x: isinstance(x, Sequence) and count in (None, len(x)) and all(map(is_valid, x))


check_all(
    globals(),
    __all__,
    {
        "DType | str": (_is_type, "an element type"),
        "DType | str | None": (_is_type, "an element type"),
        "int": (_is_count, "an integer of at least 1"),
        "attention.first_query": (_is_size, "an integer"),
        "grouped_attention.first_query": (_is_size, "an integer"),
        "str": (lambda x: isinstance(x, str), "a text"),
        "str | None": (lambda x: isinstance(x, str), "a text"),
        "bool": (lambda x: isinstance(x, bool), "True or False"),
        "bool | Sequence[str]": (lambda x: isinstance(x, bool | list | tuple), "True, False, or a list of texts"),
        "float": (lambda x: isinstance(x, int | float) and not isinstance(x, bool), "a number"),
        "grouped_attention.window": (lambda x: _is_size(x) and x >= 0, "an integer of at least 0"),
        "float | None": (lambda x: isinstance(x, int | float) and not isinstance(x, bool), "a number"),
        "Sequence[int]": (_sequence_of(_is_size), "a tuple of integers"),
        "tuple[int, int]": (_sequence_of(_is_count, 2), "a pair of integers of at least 1"),
        "im2col.padding": (_sequence_of(_is_size, 2), "a pair of integers"),
    },
    ArgumentError,
)
