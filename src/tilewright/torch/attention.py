"""Attention, forward only: `torch.ops.tilewright.attention`, over any number of heads and batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from tilewright.compiler.kernels import compile
from tilewright.errors import ArgumentError
from tilewright.kernels.attention import attention as attention_kernel
from tilewright.torch.batching import expand_batch
from tilewright.torch.checks import require_float, require_rank, require_same_device, require_same_dtype, torch_dtype_of
from tilewright.torch.learning import as_kernel_argument
from tilewright.torch.library import Definition, Result, define

TILE = 64
"""Keys per step of the online softmax. It is fixed, not planned: it decides how sums are rounded."""


@lru_cache(maxsize=256)
def _kernel(kind: str, causal: bool, bias: bool, scale: float | None, target: str) -> Any:
    """Return the compiled attention kernel for element type `kind` ("f16", ...) and device type `target`, from a cache.

    With `causal` it applies the causal mask; with `bias` it takes another argument, which is added to the scores.
    `scale` multiplies the scores; None stands for 1/sqrt(head size).
    """
    kernel = attention_kernel(TILE, kind, causal=causal, bias=bias, scale=scale)
    return compile(kernel, strict=True, target=target)


def check(q: Any, k: Any, v: Any, bias: Any, is_causal: bool, scale: float | None) -> Result:
    """Return the shape, dtype and device, as a `Result`, of the attention of `q`, `k`, `v` [batch, heads, rows, size].

    `bias` [batch, heads, queries, keys], or None, is added to the scores. Raise ArgumentError if devices, types or
    shapes do not fit, or if the bias does not have the accumulator's type. `is_causal` and `scale` are not checked.
    """
    tensors = {"q": q, "k": k, "v": v}
    require_same_device({**tensors, "bias": bias})
    require_float(q, "q")
    require_same_dtype(tensors)
    for name, tensor in tensors.items():
        require_rank(tensor, name, 4)
    b, h, m, d = q.shape
    n = k.shape[2]
    if tuple(k.shape) != (b, h, n, d):
        raise ArgumentError(
            f"k has shape {tuple(k.shape)}; with q of {tuple(q.shape)} it must be ({b}, {h}, keys, {d})"
        )
    if tuple(v.shape[:3]) != (b, h, n):
        raise ArgumentError(f"v has shape {tuple(v.shape)}; with k of {tuple(k.shape)} it must be ({b}, {h}, {n}, any)")
    if bias is not None:
        score_type = torch_dtype_of(require_float(q, "q").accumulator)
        if bias.dtype is not score_type:
            raise ArgumentError(f"bias holds {bias.dtype}; it is added in {score_type}: convert it")
        if tuple(bias.shape) != (b, h, m, n):
            raise ArgumentError(f"bias has shape {tuple(bias.shape)}; it must be {(b, h, m, n)}: expand it")
    return Result((b, h, m, v.shape[-1]), q.dtype, q.device)


def _run(expected: Result, q: Any, k: Any, v: Any, bias: Any, is_causal: bool, scale: float | None) -> Any:
    """Return the attention of the real tensors `q`, `k`, `v` [batch, heads, rows, size], by one kernel.

    `expected` is the result's shape and dtype. `bias` [batch, heads, queries, keys], or None, is added to the scores.
    `is_causal` applies the causal mask; `scale` multiplies the scores (None: 1/sqrt(size)). No kernel is called if the
    result is empty; without keys the result is zeros.
    """
    result = expected.empty()
    if not result.numel():
        return result
    if not k.shape[2]:  # a mean of no values
        return result.zero_()
    if not q.shape[3] and scale is None:  # sums of nothing are 0, and so are their multiples
        scale = 1.0
    kernel = _kernel(require_float(q, "q").name, is_causal, bias is not None, scale, q.device.type)
    tensors = [q, k, v] if bias is None else [q, k, v, bias]
    kernel(*map(as_kernel_argument, tensors), result)
    return result


def _vmap_rule(
    info: Any, in_dims: Sequence[int | None], q: Any, k: Any, v: Any, bias: Any, is_causal: bool, scale: float | None
) -> tuple[Any, Any]:
    """Return (attention of a batch under torch.vmap, 0), by one call; 0 is the result's vmap dimension.

    The vmap dimension of each tensor is merged with its batch dimension; a tensor without a vmap dimension is broadcast
    first. `in_dims` has the vmap dimension of each argument or None, `info` its extent. `bias` may be None; `is_causal`
    and `scale` are passed on.
    """
    flat = [
        None if t is None else expand_batch(t, d, info.batch_size).flatten(0, 1)
        for t, d in zip((q, k, v, bias), in_dims[:4], strict=True)
    ]
    result = torch.ops.tilewright.attention(*flat, is_causal, scale)
    return result.unflatten(0, (info.batch_size, -1)), 0


ATTENTION = define(
    Definition(
        "attention",
        "(Tensor q, Tensor k, Tensor v, Tensor? bias, bool is_causal, float? scale) -> Tensor",
        check,
        _run,
        vmap=_vmap_rule,
        autocast="lower",
        uncast=("bias",),
    )
)
