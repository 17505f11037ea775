"""Attention, forward only: `torch.ops.tilewright.attention`, over any number of heads and batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

from tilewright.compiler.kernels import compile
from tilewright.errors import ArgumentError
from tilewright.kernels.attention import attention as attention_kernel
from tilewright.torch.batching import expanded
from tilewright.torch.checks import dtype_named, require_float, require_rank, require_same_dtype, require_together
from tilewright.torch.learning import as_called
from tilewright.torch.library import Definition, Result, define

TILE = 64
"""Keys that one step of the online softmax takes: part of what is computed, as it decides how sums are rounded."""


@lru_cache(maxsize=256)
def _kernel(kind: str, causal: bool, bias: bool, scale: float | None, target: str) -> Any:
    kernel = attention_kernel(TILE, kind, causal=causal, bias=bias, scale=scale)
    return compile(kernel, strict=True, target=target)


def check(q: Any, k: Any, v: Any, bias: Any, is_causal: bool, scale: float | None) -> Result:
    """Return the form of the result; raises for tensors that do not fit."""
    given = {"q": q, "k": k, "v": v}
    require_together({**given, "bias": bias})
    require_float(q, "q")
    require_same_dtype(given)
    for name, tensor in given.items():
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
        wide = dtype_named(require_float(q, "q").accumulator)
        if bias.dtype is not wide:
            raise ArgumentError(f"bias holds {bias.dtype}; it is added in {wide}: convert it")
        if tuple(bias.shape) != (b, h, m, n):
            raise ArgumentError(f"bias has shape {tuple(bias.shape)}; it must be {(b, h, m, n)}: expand it")
    return Result((b, h, m, v.shape[-1]), q.dtype, q.device)


def _run(expected: Result, q: Any, k: Any, v: Any, bias: Any, is_causal: bool, scale: float | None) -> Any:
    result = expected.empty()
    if not result.numel():
        return result
    if not k.shape[2]:  # a mean of no values
        return result.zero_()
    if not q.shape[3] and scale is None:  # sums of nothing are 0, and so are their multiples
        scale = 1.0
    kernel = _kernel(require_float(q, "q").name, is_causal, bias is not None, scale, q.device.type)
    tensors = [q, k, v] if bias is None else [q, k, v, bias]
    kernel(*map(as_called, tensors), result)
    return result


def _batches(
    info: Any, in_dims: Sequence[int | None], q: Any, k: Any, v: Any, bias: Any, is_causal: bool, scale: float | None
) -> tuple[Any, Any]:
    flat = [
        None if t is None else expanded(t, d, info.batch_size).flatten(0, 1)
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
        vmap=_batches,
        autocast="lower",
        uncast=("bias",),
    )
)
