"""Functions with the signatures of `torch.nn.functional`, each a call of an operator `torch.ops.tilewright`.

Options beyond torch's come last and are passed by name. `activation` ("relu", "gelu", "gelu_tanh" or "silu") is applied
to the accumulator before it is rounded. `residual` is added to the accumulator before the activation; if its shape or
dtype is not the result's, torch adds it to the rounded result instead, with broadcasting. `keep_packed` keeps weights
packed for the next call, until torch counts a write to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilewright.errors import ArgumentError
from tilewright.kernels.conv import padding_of, per_axis
from tilewright.torch.activations import apply_activation
from tilewright.torch.convolutions import output_sizes
from tilewright.torch.pooling import why_no_average_pool, why_no_max_pool
from tilewright.torch.weighting import attention_with_weights

PerAxis = int | Sequence[int]


def _require_tensors(**tensors: Any) -> None:
    """Raise ArgumentError unless every argument is a tensor of torch, or one of torch.fx's proxies (stand-ins for
    tensors).

    Each keyword is the name of a parameter, for the error. The test is that the value has an attribute `dim`.
    """
    for name, tensor in tensors.items():
        if not hasattr(tensor, "dim"):
            raise ArgumentError(f"{name} is of type {type(tensor).__name__}; it must be a tensor of torch")


def _common_batch(**tensors: Any) -> Sequence[Any]:
    """Return the leading dimensions, all but the last two, of the given tensors after broadcasting: [3, 1, m, k] and
    [4, k, n] give (3, 4).

    Each keyword is the name of a parameter, for the error. Raise ArgumentError unless, in each leading dimension, all
    extents are equal, 1 or missing.
    """
    try:
        batch: Sequence[Any] = torch.broadcast_shapes(*(t.shape[:-2] for t in tensors.values()))
    except RuntimeError as fault:
        shapes = ", ".join(f"{name} has shape {tuple(t.shape)}" for name, t in tensors.items())
        raise ArgumentError(
            f"{shapes}: of each dimension before the last two, the extents must be equal, 1 or missing"
        ) from fault
    return batch


def linear(
    input: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    residual: Any = None,
    keep_packed: bool = False,
) -> Any:
    """Return activation(input[..., k] * weight[n, k] + bias[n] + residual[..., n]), as `torch.nn.functional.linear`.

    A weight [k] gives a result without the dimension n. A residual with another shape or dtype than the result is added
    after the GEMM's result is rounded, and the activation is applied after it. `keep_packed` keeps the packed weight
    for later calls, until torch counts a write to it; it has no effect for a weight [k]. Raise ArgumentError if the
    tensors do not fit.

    >>> x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [-1.0, 0.0]])
    >>> linear(x, weight, torch.tensor([0.5, 0.0]), activation="relu")
    tensor([[11.5000,  0.0000]])
    >>> linear(x, weight, residual=torch.tensor([[1.0, 2.0]]))
    tensor([[12.,  1.]])
    """
    _require_tensors(input=input, weight=weight)
    if weight.dim() == 1:  # a single row of weights: the result lacks dimension n
        expanded_bias = None if bias is None else bias.reshape(1)
        expanded_residual = _unsqueeze_tensor(residual, -1)
        return linear(input, weight[None], expanded_bias, activation=activation, residual=expanded_residual).squeeze(-1)
    if residual is not None and not _has_shape_and_dtype(residual, (*input.shape[:-1], weight.shape[0]), input):
        return apply_activation(activation, linear(input, weight, bias, keep_packed=keep_packed) + residual)
    return torch.ops.tilewright.linear(input, weight, bias, activation, keep_packed, residual)


def _unsqueeze_tensor(residual: Any, axis: int) -> Any:
    """Return the tensor `residual` with a new dimension of extent 1 at `axis`. Return anything but a tensor, such as a
    number or None, unchanged."""
    return residual.unsqueeze(axis) if isinstance(residual, torch.Tensor) else residual


def _has_shape_and_dtype(residual: Any, shape: Sequence[Any], x: Any) -> bool:
    """True if `residual` is a tensor with the given `shape` and the dtype of the tensor `x`."""
    return isinstance(residual, torch.Tensor) and tuple(residual.shape) == tuple(shape) and residual.dtype is x.dtype


def matmul(a: Any, b: Any, bias: Any = None, *, activation: str | None = None) -> Any:
    """Return activation(a[..., m, k] * b[..., k, n] + bias[n]), as `torch.matmul`.

    Leading dimensions are broadcast. `a` may be a vector [k]: the result then has no m. `b` may be a vector [k]: the
    result then has no n. Raise ArgumentError if the tensors do not fit.

    >>> matmul(torch.ones(2, 3, 4), torch.ones(4, 5)).shape, matmul(torch.ones(4), torch.ones(7, 4, 5)).shape
    (torch.Size([2, 3, 5]), torch.Size([7, 5]))
    """
    _require_tensors(a=a, b=b)
    left = a[None] if a.dim() == 1 else a
    right = b[:, None] if b.dim() == 1 else b
    if right.dim() > 2:
        batch = _common_batch(a=left, b=right)
        left, right = (t.expand(*batch, *t.shape[-2:]) for t in (left, right))
    product = torch.ops.tilewright.matmul(left, right, bias, activation)
    product = product.squeeze(-1) if b.dim() == 1 else product
    return product.squeeze(-1 if b.dim() == 1 else -2) if a.dim() == 1 else product


def bmm(a: Any, b: Any) -> Any:
    """Return the batched product of a[i, m, k] and b[i, k, n], a tensor [i, m, n], as `torch.bmm`. Raise ArgumentError
    if the tensors do not fit.

    >>> bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5))[1, 2, 3]
    tensor(4.)
    """
    _require_tensors(a=a, b=b)
    return torch.ops.tilewright.bmm(a, b)


# -- convolutions -----------------------------------------------------------------------------------------
# The epilogue's options are passed by name: activation, residual, keep_packed.


def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: PerAxis = 1,
    padding: str | PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    **epilogue: Any,
) -> Any:
    """Return activation(convolution of `input` with `weight` + bias + residual), as `torch.nn.functional.conv1d`.

    `input` is [n, c, w] or [c, w], `weight` is [f, c / groups, s]. `epilogue` may have `activation`, `residual` and
    `keep_packed`, as in `linear`. Raise ArgumentError if the arguments do not fit.

    >>> conv1d(torch.ones(1, 2, 4), torch.ones(1, 2, 3), padding="same")
    tensor([[[4., 6., 6., 4.]]])
    """
    return _conv(1, input, weight, bias, (stride, padding, dilation, groups), **epilogue)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: PerAxis = 1,
    padding: str | PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    **epilogue: Any,
) -> Any:
    """Return activation(convolution of `input` with `weight` + bias + residual), as `torch.nn.functional.conv2d`.

    `input` is [n, c, h, w] or [c, h, w], `weight` is [f, c / groups, r, s]. `epilogue` may have `activation`,
    `residual` and `keep_packed`, as in `linear`. Raise ArgumentError if the arguments do not fit.

    >>> conv2d(torch.ones(1, 3, 2, 2), torch.ones(1, 3, 2, 2), padding=(1, 0)).ravel()
    tensor([ 6., 12.,  6.])
    """
    return _conv(2, input, weight, bias, (stride, padding, dilation, groups), **epilogue)


def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: PerAxis = 1,
    padding: str | PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    **epilogue: Any,
) -> Any:
    """Return activation(convolution of `input` with `weight` + bias + residual), as `torch.nn.functional.conv3d`.

    `input` is [n, c, d, h, w] or [c, d, h, w], `weight` is [f, c / groups, t, r, s]. `epilogue` may have `activation`,
    `residual` and `keep_packed`, as in `linear`. Raise ArgumentError if the arguments do not fit.

    >>> conv3d(torch.ones(1, 2, 2, 2, 2), torch.ones(1, 2, 2, 1, 1), stride=(1, 2, 1)).ravel()
    tensor([4., 4.])
    """
    return _conv(3, input, weight, bias, (stride, padding, dilation, groups), **epilogue)


def _conv(
    rank: int,
    x: Any,
    weight: Any,
    bias: Any,
    geometry: tuple[PerAxis, str | PerAxis, PerAxis, int],
    *,
    activation: str | None = None,
    residual: Any = None,
    keep_packed: bool = False,
) -> Any:
    """Return activation(convolution of `x` with `weight` + bias + residual) over `rank` spatial axes.

    `x` is [n, c, ...], or one image [c, ...], which gives a result without n. `geometry` is (stride, padding, dilation,
    groups) as torch's functions take them; padding may be "same" or "valid". A residual with another shape or dtype
    than the result is added after the convolution is rounded, and the activation is applied after it. `keep_packed`
    keeps the packed weight for later calls. Raise ArgumentError if the arguments do not fit.
    """
    _require_tensors(input=x, weight=weight)
    if x.dim() == rank + 1:  # a single image: the result lacks the batch dimension
        images, expanded_residual = x.unsqueeze(0), _unsqueeze_tensor(residual, 0)
        epilogue: dict[str, Any] = {"activation": activation, "residual": expanded_residual, "keep_packed": keep_packed}
        return _conv(rank, images, weight, bias, geometry, **epilogue).squeeze(0)
    stride, padding, dilation, groups = geometry
    strides, spread = _per_axis(stride, rank, "stride"), _per_axis(dilation, rank, "dilation")
    if isinstance(padding, str):
        pairs = padding_of(padding, tuple(weight.shape[2:]), tuple(strides), tuple(spread))
        paddings = [n for pair in pairs for n in pair]
    else:
        paddings = [padding] * rank if isinstance(padding, int) else list(padding) * (rank if len(padding) == 1 else 1)
    operator = getattr(torch.ops.tilewright, f"conv{rank}d")
    options = (strides, paddings, spread, groups)
    # Arguments that do not fit go to the operator, which raises the error.
    if residual is not None and x.dim() == weight.dim() == rank + 2 and len(paddings) in (rank, 2 * rank):
        shape = (
            x.shape[0],
            weight.shape[0],
            *output_sizes(x.shape[2:], weight.shape[2:], strides, paddings, spread),
        )
        if not _has_shape_and_dtype(residual, shape, x):
            return apply_activation(activation, operator(x, weight, bias, *options, None, keep_packed) + residual)
    return operator(x, weight, bias, *options, activation, keep_packed, residual)


def _per_axis(value: PerAxis, rank: int, name: str, least: int = 1) -> list[int]:
    """Return `value`, a number or a sequence, as a list with one integer for each of `rank` axes.

    A single number stands for all axes: with rank 2, 2 and (2,) -> [2, 2]. Raise ArgumentError, which calls the option
    `name`, for values that are no integers of at least `least`, or not `rank` of them.
    """
    if type(value) is tuple and len(value) == rank and all(type(n) is int for n in value):  # as modules store it
        return list(value)
    single = value[0] if isinstance(value, Sequence) and len(value) == 1 else value
    return list(per_axis(single, rank, name, least))


# -- pooling ----------------------------------------------------------------------------------------------


def max_pool1d(
    input: Any,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest element of each window of `input`, [n, c, w] or [c, w], as `torch.nn.functional.max_pool1d`.

    It has no gradient. `stride` None stands for `kernel_size`. Raise ArgumentError if `ceil_mode` or `return_indices`
    is true, or if the arguments do not fit.

    >>> max_pool1d(torch.tensor([[[1.0, 5.0, 2.0, 7.0]]]), 2)
    tensor([[[5., 7.]]])
    """
    return _max_pool(1, input, kernel_size, (stride, padding, dilation), ceil_mode, return_indices)


def max_pool2d(
    input: Any,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest element of each window of `input`, [n, c, h, w] or [c, h, w], as
    `torch.nn.functional.max_pool2d`.

    It has no gradient. `stride` None stands for `kernel_size`. Raise ArgumentError if `ceil_mode` or `return_indices`
    is true, or if the arguments do not fit.

    >>> max_pool2d(torch.arange(12.0).view(1, 1, 3, 4), (2, 3), stride=1, padding=(0, 1))
    tensor([[[[ 5.,  6.,  7.,  7.],
              [ 9., 10., 11., 11.]]]])
    """
    return _max_pool(2, input, kernel_size, (stride, padding, dilation), ceil_mode, return_indices)


def max_pool3d(
    input: Any,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Return the largest element of each window of `input`, [n, c, d, h, w] or [c, d, h, w], as
    `torch.nn.functional.max_pool3d`.

    It has no gradient. `stride` None stands for `kernel_size`. Raise ArgumentError if `ceil_mode` or `return_indices`
    is true, or if the arguments do not fit.

    >>> max_pool3d(torch.arange(8.0).view(1, 1, 2, 2, 2), (1, 2, 2)).ravel()
    tensor([3., 7.])
    """
    return _max_pool(3, input, kernel_size, (stride, padding, dilation), ceil_mode, return_indices)


def _max_pool(
    rank: int,
    x: Any,
    kernel_size: PerAxis,
    geometry: tuple[PerAxis | None, PerAxis, PerAxis],
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    """Return the largest element of each window of `x` over `rank` spatial axes.

    `x` is [n, c, ...], or one image [c, ...], which gives a result without n. `kernel_size` has the window's extents.
    `geometry` is (stride, padding, dilation) as torch's functions take them; stride None stands for `kernel_size`.
    Raise ArgumentError if `ceil_mode` or `return_indices` is true, or if the arguments do not fit.
    """
    _require_tensors(input=x)
    why = why_no_max_pool(ceil_mode, return_indices)
    if why is not None:
        raise ArgumentError(why)
    stride, padding, dilation = geometry
    window = _per_axis(kernel_size, rank, "kernel_size")
    strides = window if stride is None else _per_axis(stride, rank, "stride")
    pads, spread = _per_axis(padding, rank, "padding", 0), _per_axis(dilation, rank, "dilation")
    operator = getattr(torch.ops.tilewright, f"max_pool{rank}d")
    if x.dim() == rank + 1:  # a single image: the result lacks the batch dimension
        return operator(x.unsqueeze(0), window, strides, pads, spread).squeeze(0)
    return operator(x, window, strides, pads, spread)


def adaptive_avg_pool1d(input: Any, output_size: Any) -> Any:
    """Return the mean of each channel of `input`, [n, c, w] or [c, w], as `torch.nn.functional.adaptive_avg_pool1d`.

    Raise ArgumentError unless `output_size` is 1.

    >>> adaptive_avg_pool1d(torch.tensor([[[1.0, 5.0, 3.0]]]), 1)
    tensor([[[3.]]])
    """
    return _average_pool(1, input, output_size)


def adaptive_avg_pool2d(input: Any, output_size: Any) -> Any:
    """Return the mean of each channel of `input`, [n, c, h, w] or [c, h, w], as
    `torch.nn.functional.adaptive_avg_pool2d`.

    Raise ArgumentError unless `output_size` is 1 along each axis.

    >>> adaptive_avg_pool2d(torch.arange(12.0).view(1, 2, 2, 3), (1, 1)).ravel()
    tensor([2.5000, 8.5000])
    """
    return _average_pool(2, input, output_size)


def adaptive_avg_pool3d(input: Any, output_size: Any) -> Any:
    """Return the mean of each channel of `input`, [n, c, d, h, w] or [c, d, h, w], as
    `torch.nn.functional.adaptive_avg_pool3d`.

    Raise ArgumentError unless `output_size` is 1 along each axis.

    >>> adaptive_avg_pool3d(torch.arange(8.0).view(1, 1, 2, 2, 2), 1).shape
    torch.Size([1, 1, 1, 1, 1])
    """
    return _average_pool(3, input, output_size)


def _average_pool(rank: int, x: Any, output_size: Any) -> Any:
    """Return the mean of each channel of `x` over its `rank` spatial axes, whose extents are 1 in the result.

    `x` is [n, c, ...], or one image [c, ...], which gives a result without n. Raise ArgumentError unless `output_size`
    is 1, or a sequence with a 1 for each axis.
    """
    _require_tensors(input=x)
    why = why_no_average_pool(output_size)
    if why is not None:
        raise ArgumentError(why)
    sizes = _per_axis(output_size, rank, "output_size")
    operator = getattr(torch.ops.tilewright, f"adaptive_avg_pool{rank}d")
    if x.dim() == rank + 1:  # a single image: the result lacks the batch dimension
        return operator(x.unsqueeze(0), sizes).squeeze(0)
    return operator(x, sizes)


# -- rows -------------------------------------------------------------------------------------------------


def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Return `input` normalised over its last dimensions, of extents `normalized_shape`, as
    `torch.nn.functional.layer_norm`.

    `weight` and `bias` scale and shift the result; `eps` is added to the variance. Raise ArgumentError if the tensors
    do not fit.

    >>> layer_norm(torch.tensor([[1.0, 3.0]]), (2,), eps=0.0)
    tensor([[-1.,  1.]])
    """
    _require_tensors(input=input)
    return torch.ops.tilewright.layer_norm(input, list(normalized_shape), weight, bias, eps)


def rms_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    eps: float | None = None,
) -> Any:
    """Return `input` divided by its root mean square over its last dimensions, as `torch.nn.functional.rms_norm`.

    `normalized_shape` has the extents of these dimensions. `weight` scales the result. `eps` is added to the mean
    square; None stands for `torch.finfo(input.dtype).eps`. Raise ArgumentError if the tensors do not fit.

    >>> rms_norm(torch.tensor([[1.0, 7.0]]), (2,), torch.tensor([5.0, 5.0]), eps=0.0)
    tensor([[1., 7.]])
    """
    _require_tensors(input=input)
    epsilon = torch.finfo(input.dtype).eps if eps is None else eps
    return torch.ops.tilewright.rms_norm(input, list(normalized_shape), weight, epsilon)


def group_norm(
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Return `input` [n, c, ...] with each image normalised over each of `num_groups` groups of channels.

    It is `torch.nn.functional.group_norm`. `weight` and `bias` scale and shift each channel; `eps` is added to the
    variance. Raise ArgumentError if the tensors do not fit.

    >>> group_norm(torch.tensor([[[1.0, 1.0], [3.0, 3.0]]]), 1, eps=0.0)
    tensor([[[-1., -1.],
             [ 1.,  1.]]])
    """
    _require_tensors(input=input)
    return torch.ops.tilewright.group_norm(input, num_groups, weight, bias, eps)


def softmax(input: Any, dim: int, dtype: Any = None) -> Any:
    """Return the softmax of `input` along dimension `dim`, as `torch.nn.functional.softmax`.

    If `dtype` is not None, the input is converted to it first, and the result has it. Raise ArgumentError if there is
    no dimension `dim`, or if the input does not hold floats.

    >>> softmax(torch.zeros(1, 4), dim=-1)
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """
    _require_tensors(input=input)
    x = input if dtype is None else input.to(dtype)
    return torch.ops.tilewright.softmax(x[None], dim)[0] if x.dim() == 0 else torch.ops.tilewright.softmax(x, dim)


def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return the attention of `query` [..., m, d], `key` [..., n, d] and `value` [..., n, e]: a tensor [..., m, e].

    It is `torch.nn.functional.scaled_dot_product_attention`. Leading dimensions are broadcast. With `enable_gqa`, the
    heads (dimension -3) of `key` and `value` are repeated to the number of the query's heads. `attn_mask` is True for
    visible keys, or is added to the scores; `is_causal` applies the causal mask instead. A query with no visible key
    gets 0. `scale` multiplies the scores; None stands for 1/sqrt(d).

    `dropout_p` is the probability to drop a weight, by torch's own dropout, which follows torch's seed. All weights are
    in memory then, and also if a gradient of the mask may be asked for. Raise ArgumentError if the arguments do not
    fit, or for a mask with `is_causal`.

    >>> q = k = torch.zeros(1, 1, 2, 4)
    >>> v = torch.tensor([[1.0], [3.0]]).expand(1, 1, 2, 1)
    >>> scaled_dot_product_attention(q, k, v, is_causal=True).ravel()
    tensor([1., 2.])
    """
    if not 0 <= dropout_p <= 1:
        raise ArgumentError(f"dropout_p={dropout_p}: a probability, from 0 to 1")
    if is_causal and attn_mask is not None:
        raise ArgumentError("is_causal=True: attn_mask is given too; add the causal mask to it, and leave this out")
    _require_tensors(query=query, key=key, value=value)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() < 2:
            raise ArgumentError(f"{name} has shape {tuple(tensor.shape)}; it takes at least 2 dimensions")
    if enable_gqa:
        key, value = (_with_heads_of_query(query, t, name) for t, name in ((key, "key"), (value, "value")))
    batch = _common_batch(query=query, key=key, value=value)
    q, k, v = (_as_four_dimensions(t, batch) for t in (query, key, value))
    bias, has_visible_key = mask_as_bias(attn_mask, q, k, batch)
    trains_mask = isinstance(attn_mask, torch.Tensor) and attn_mask.requires_grad and torch.is_grad_enabled()
    if dropout_p or trains_mask:
        result, _ = attention_with_weights(q, k, v, bias, is_causal, scale, dropout_p)
    else:
        result = torch.ops.tilewright.attention(q, k, v, bias, is_causal, scale)
    result = result.reshape(*batch, *result.shape[-2:])
    return result if has_visible_key is None else result.masked_fill(~has_visible_key, 0)


def _with_heads_of_query(query: Any, tensor: Any, name: str) -> Any:
    """Return the keys or values `tensor` [..., h, n, d] with each head repeated, so that there are as many heads as in
    `query`.

    Equal numbers of heads give `tensor` itself. `name` is the parameter's name in errors. Raise ArgumentError unless
    both tensors have at least 3 dimensions, and h divides the number of heads of `query`.
    """
    for parameter, of_heads in (("query", query), (name, tensor)):
        if of_heads.dim() < 3:
            shape = tuple(of_heads.shape)
            raise ArgumentError(f"enable_gqa=True: {parameter} has shape {shape}; its heads are dimension -3")
    heads, repeated = query.shape[-3], tensor.shape[-3]
    if heads == repeated:
        return tensor
    if not repeated or heads % repeated:
        raise ArgumentError(
            f"enable_gqa=True: {name} has shape {tuple(tensor.shape)}, with {repeated} heads (dimension -3); their "
            f"number must divide the {heads} heads of query, which has shape {tuple(query.shape)}"
        )
    return tensor.repeat_interleave(heads // repeated, -3)


def _as_four_dimensions(tensor: Any, batch: Sequence[int]) -> Any:
    """Return `tensor` [..., m, d], broadcast to the leading dimensions `batch`, as [batch, heads, m, d].

    The last extent in `batch` is the number of heads; the extents before it are merged into one. `batch` (2, 3, 8)
    gives [6, 8, m, d], (8,) gives [1, 8, m, d], and () gives [1, 1, m, d].
    """
    expanded = tensor.expand(*batch, *tensor.shape[-2:])
    if len(batch) < 2:
        return expanded.reshape(1, *(batch or (1,)), *tensor.shape[-2:])
    return expanded.flatten(0, -4) if len(batch) > 2 else expanded


def mask_as_bias(attn_mask: Any, q: Any, k: Any, batch: Sequence[int]) -> tuple[Any, Any]:
    """Return (bias, visible) for the mask `attn_mask`; (None, None) if it is None.

    `bias` [b, h, m, n] is added to the scores: f32, or f64 for f64 queries. `visible` is a bool tensor that is True for
    each query with a visible key; it has the shape of `attn_mask` with a last extent of 1.

    `q` and `k` are [b, h, m, d] and [b, h, n, d]. The mask is broadcast to the leading dimensions `batch` first. A bool
    mask is True for visible keys, as in torch's function; other masks are added as they are. If gradients may be
    recorded, the bias of a query without a visible key is 0 instead of -inf. Otherwise its weights would be NaN, and so
    would the gradients of all keys and values. The caller must replace the results of such queries. Raise ArgumentError
    for a mask that cannot be broadcast, and for a float64 mask unless the queries are float64.
    """
    if attn_mask is None:
        return None, None
    _require_tensors(attn_mask=attn_mask)
    shape = (*batch, q.shape[-2], k.shape[-2])
    extents = list(zip(reversed(attn_mask.shape), reversed(shape), strict=False))
    if attn_mask.dim() > len(shape) or any(n not in (1, wanted) for n, wanted in extents):
        raise ArgumentError(
            f"attn_mask has shape {tuple(attn_mask.shape)}; it must be broadcastable to {shape}, "
            "with queries and keys last"
        )
    score_type = torch.float64 if q.dtype is torch.float64 else torch.float32
    if attn_mask.dtype is torch.bool:
        has_visible_key = attn_mask.any(-1, keepdim=True)
        zeros = torch.zeros(attn_mask.shape, dtype=score_type, device=attn_mask.device)
        added = zeros.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask.dtype is torch.float64 and score_type is not torch.float64:
        raise ArgumentError("attn_mask holds torch.float64; it is added in float32: pass attn_mask.float()")
    else:
        has_visible_key = (attn_mask != float("-inf")).any(-1, keepdim=True)
        added = attn_mask.to(score_type)
    if torch.is_grad_enabled():
        added = added.masked_fill(~has_visible_key, 0)
    expanded = added.expand(shape)
    return expanded.reshape(*q.shape[:3], k.shape[-2]), has_visible_key
