"""Functions with the signatures of `torch.nn.functional`, each a call of an operator `torch.ops.tilewright`.

Options that the operators have beyond torch's stand at the end, by name. `activation` is applied to the sums before
they are rounded. `residual` is added to them before that; where its shape or type is not that of the result, torch adds
it to the rounded sums, as it adds any two tensors. `keep_packed` keeps weights packed for the next call, until torch
counts a write to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tilewright.errors import ArgumentError
from tilewright.kernels.conv import padding_of, per_axis
from tilewright.torch.activations import activated
from tilewright.torch.convolutions import output_sizes
from tilewright.torch.weighting import attention_by_weights

PerAxis = int | Sequence[int]


def _require_tensors(**tensors: Any) -> None:
    """Raises for what is no tensor, by the parameter's name; what stands for one while torch traces is taken."""
    for name, tensor in tensors.items():
        if not hasattr(tensor, "dim"):
            raise ArgumentError(f"{name} is of type {type(tensor).__name__}; it must be a tensor of torch")


def linear(
    input: Any,
    weight: Any,
    bias: Any = None,
    *,
    activation: str | None = None,
    residual: Any = None,
    keep_packed: bool = False,
) -> Any:
    """activation(input[..., k] * weight[n, k] + bias[n] + residual[..., n]), as `torch.nn.functional.linear`.

    >>> x, weight = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [-1.0, 0.0]])
    >>> linear(x, weight, torch.tensor([0.5, 0.0]), activation="relu")
    tensor([[11.5000,  0.0000]])
    >>> linear(x, weight, residual=torch.tensor([[1.0, 2.0]]))
    tensor([[12.,  1.]])
    """
    _require_tensors(input=input, weight=weight)
    if weight.dim() == 1:  # one row of weights, and results without a dimension for it
        added = None if bias is None else bias.reshape(1)
        more = _with_axis(residual, -1)
        return linear(input, weight[None], added, activation=activation, residual=more).squeeze(-1)
    if residual is not None and not _is_like(residual, (*input.shape[:-1], weight.shape[0]), input):
        return activated(activation, linear(input, weight, bias, keep_packed=keep_packed) + residual)
    return torch.ops.tilewright.linear(input, weight, bias, activation, keep_packed, residual)


def _with_axis(residual: Any, axis: int) -> Any:
    """A residual with one more dimension; a number and None have none."""
    return residual.unsqueeze(axis) if isinstance(residual, torch.Tensor) else residual


def _is_like(residual: Any, shape: Sequence[Any], x: Any) -> bool:
    """True if a residual has the shape of a result, and the type of the array that it is computed from."""
    return isinstance(residual, torch.Tensor) and tuple(residual.shape) == tuple(shape) and residual.dtype is x.dtype


def matmul(a: Any, b: Any, bias: Any = None, *, activation: str | None = None) -> Any:
    """activation(a[..., m, k] * b[..., k, n] + bias[n]), as `torch.matmul`: batches are broadcast, vectors are taken.

    >>> matmul(torch.ones(2, 3, 4), torch.ones(4, 5)).shape, matmul(torch.ones(4), torch.ones(7, 4, 5)).shape
    (torch.Size([2, 3, 5]), torch.Size([7, 5]))
    """
    _require_tensors(a=a, b=b)
    left = a[None] if a.dim() == 1 else a
    right = b[:, None] if b.dim() == 1 else b
    if right.dim() > 2:
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        left, right = (t.expand(*batch, *t.shape[-2:]) for t in (left, right))
    product = torch.ops.tilewright.matmul(left, right, bias, activation)
    product = product.squeeze(-1) if b.dim() == 1 else product
    return product.squeeze(-1 if b.dim() == 1 else -2) if a.dim() == 1 else product


def bmm(a: Any, b: Any) -> Any:
    """a[i, m, k] * b[i, k, n], as `torch.bmm`.

    >>> bmm(torch.ones(2, 3, 4), torch.ones(2, 4, 5))[1, 2, 3]
    tensor(4.)
    """
    _require_tensors(a=a, b=b)
    return torch.ops.tilewright.bmm(a, b)


# -- convolutions -----------------------------------------------------------------------------------------
# What may stand at the end, by name: activation, residual, keep_packed.


def conv1d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: PerAxis = 1,
    padding: str | PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    **ending: Any,
) -> Any:
    """Convolution of images [n, c, w] or [c, w] with weights [f, c, s], as `torch.nn.functional.conv1d`.

    >>> conv1d(torch.ones(1, 2, 4), torch.ones(1, 2, 3), padding="same")
    tensor([[[4., 6., 6., 4.]]])
    """
    return _conv(1, input, weight, bias, (stride, padding, dilation, groups), **ending)


def conv2d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: PerAxis = 1,
    padding: str | PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    **ending: Any,
) -> Any:
    """Convolution of images [n, c, h, w] or [c, h, w] with weights [f, c, r, s], as `torch.nn.functional.conv2d`.

    >>> conv2d(torch.ones(1, 3, 2, 2), torch.ones(1, 3, 2, 2), padding=(1, 0)).ravel()
    tensor([ 6., 12.,  6.])
    """
    return _conv(2, input, weight, bias, (stride, padding, dilation, groups), **ending)


def conv3d(
    input: Any,
    weight: Any,
    bias: Any = None,
    stride: PerAxis = 1,
    padding: str | PerAxis = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
    **ending: Any,
) -> Any:
    """Convolution of images [n, c, d, h, w] or [c, d, h, w], as `torch.nn.functional.conv3d`.

    >>> conv3d(torch.ones(1, 2, 2, 2, 2), torch.ones(1, 2, 2, 1, 1), stride=(1, 2, 1)).ravel()
    tensor([4., 4.])
    """
    return _conv(3, input, weight, bias, (stride, padding, dilation, groups), **ending)


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
    _require_tensors(input=x, weight=weight)
    if x.dim() == rank + 1:  # one image, and a result without a dimension for it
        images, more = x.unsqueeze(0), _with_axis(residual, 0)
        ending: dict[str, Any] = {"activation": activation, "residual": more, "keep_packed": keep_packed}
        return _conv(rank, images, weight, bias, geometry, **ending).squeeze(0)
    stride, padding, dilation, groups = geometry
    steps, far = _of_axes(stride, rank, "stride"), _of_axes(dilation, rank, "dilation")
    if isinstance(padding, str):
        pairs = padding_of(padding, tuple(weight.shape[2:]), tuple(steps), tuple(far))
        ends = [n for pair in pairs for n in pair]
    else:
        ends = [padding] * rank if isinstance(padding, int) else list(padding) * (rank if len(padding) == 1 else 1)
    operator = getattr(torch.ops.tilewright, f"conv{rank}d")
    options = (steps, ends, far, groups)
    # What does not fit is left to the operator, which says so.
    if residual is not None and x.dim() == weight.dim() == rank + 2 and len(ends) in (rank, 2 * rank):
        shape = (x.shape[0], weight.shape[0], *output_sizes(x.shape[2:], weight.shape[2:], steps, ends, far))
        if not _is_like(residual, shape, x):
            return activated(activation, operator(x, weight, bias, *options, None, keep_packed) + residual)
    return operator(x, weight, bias, *options, activation, keep_packed, residual)


def _of_axes(value: PerAxis, rank: int, name: str) -> list[int]:
    """One number for each axis; torch takes a list of one for all of them, too."""
    if type(value) is tuple and len(value) == rank and all(type(n) is int for n in value):  # as modules hold it
        return list(value)
    one = value[0] if isinstance(value, Sequence) and len(value) == 1 else value
    return list(per_axis(one, rank, name))


# -- rows -------------------------------------------------------------------------------------------------


def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Normalisation over the last dimensions, as `torch.nn.functional.layer_norm`; it has no gradient.

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
    """Division by the root of the mean square, as `torch.nn.functional.rms_norm`; it has no gradient.

    >>> rms_norm(torch.tensor([[1.0, 7.0]]), (2,), torch.tensor([5.0, 5.0]), eps=0.0)
    tensor([[1., 7.]])
    """
    _require_tensors(input=input)
    least = torch.finfo(input.dtype).eps if eps is None else eps
    return torch.ops.tilewright.rms_norm(input, list(normalized_shape), weight, least)


def group_norm(
    input: Any,
    num_groups: int,
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
) -> Any:
    """Normalisation of groups of channels, as `torch.nn.functional.group_norm`; it has no gradient.

    >>> group_norm(torch.tensor([[[1.0, 1.0], [3.0, 3.0]]]), 1, eps=0.0)
    tensor([[[-1., -1.],
             [ 1.,  1.]]])
    """
    _require_tensors(input=input)
    return torch.ops.tilewright.group_norm(input, num_groups, weight, bias, eps)


def softmax(input: Any, dim: int, dtype: Any = None) -> Any:
    """Softmax along a dimension, as `torch.nn.functional.softmax`; it has no gradient.

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
    """Attention, as `torch.nn.functional.scaled_dot_product_attention`; it has no gradient.

    A query that a mask hides all keys from gets 0. With `dropout_p` weights are computed apart from the product with
    the values, and torch's own dropout drops some of them: it follows torch's seed. All weights are then held at once.

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
        heads = query.shape[-3]
        key, value = (t.repeat_interleave(heads // t.shape[-3], -3) for t in (key, value))
    before = torch.broadcast_shapes(*(t.shape[:-2] for t in (query, key, value)))
    q, k, v = (_four(t, before) for t in (query, key, value))
    bias, seen = added_to_scores(attn_mask, q, k, before)
    if dropout_p:
        means, _ = attention_by_weights(q, k, v, bias, is_causal, scale, dropout_p)
    else:
        means = torch.ops.tilewright.attention(q, k, v, bias, is_causal, scale)
    if seen is not None:
        means = means.masked_fill(~seen, 0)
    return means.reshape(*before, *means.shape[-2:])


def _four(tensor: Any, before: Sequence[int]) -> Any:
    """A tensor [..., m, d] as [batch, heads, m, d]."""
    whole = tensor.expand(*before, *tensor.shape[-2:])
    if len(before) < 2:
        return whole.reshape(1, *(before or (1,)), *tensor.shape[-2:])
    return whole.flatten(0, -4) if len(before) > 2 else whole


def added_to_scores(attn_mask: Any, q: Any, k: Any, before: Sequence[int]) -> tuple[Any, Any]:
    """(a mask as what is added to the scores, in their type; which queries see a key, None: all)."""
    if attn_mask is None:
        return None, None
    wide = torch.float64 if q.dtype is torch.float64 else torch.float32
    if attn_mask.dtype is torch.bool:
        nothing = torch.zeros(attn_mask.shape, dtype=wide, device=attn_mask.device)
        added = nothing.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask.dtype is torch.float64 and wide is not torch.float64:
        raise ArgumentError("attn_mask holds torch.float64; it is added in float32: pass attn_mask.float()")
    else:
        added = attn_mask.to(wide)
    whole = added.expand(*before, q.shape[-2], k.shape[-2])
    bias = whole.reshape(*q.shape[:3], k.shape[-2])
    return bias, (bias != float("-inf")).any(-1, keepdim=True)
