"""Attention over any number of heads and batches: the operator `torch.ops.tilewright.attention`, with gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from tilewright.compiler.kernels import compile
from tilewright.errors import ArgumentError, MissingBackward
from tilewright.kernels.attention import attention as attention_kernel
from tilewright.torch.batching import expand_batch
from tilewright.torch.checks import require_float, require_rank, require_same_device, require_same_dtype, torch_dtype_of
from tilewright.torch.learning import as_kernel_argument
from tilewright.torch.library import Definition, Result, define

TILE = 64
"""Keys per step of the online softmax. It is fixed, not planned: it decides how sums are rounded."""


@lru_cache(maxsize=256)
def _kernel(kind: str, causal: bool, bias: bool, scale: float | None, target: str) -> Any:
    """Return the compiled attention kernel for element type `kind` ("f16", ...) and device type `target` ("cpu"), from
    a cache.

    With `causal`, the kernel applies the causal mask. With `bias`, it takes a fourth tensor, which is added to the
    scores. `scale` multiplies the scores; None stands for 1/sqrt(head size).
    """
    kernel = attention_kernel(TILE, kind, causal=causal, bias=bias, scale=scale)
    return compile(kernel, strict=True, target=target)


def check(q: Any, k: Any, v: Any, bias: Any, is_causal: bool, scale: float | None) -> Result:
    """Return the shape [b, h, m, e], dtype and device of an attention's result, as a `Result`.

    The tensors are `q` [b, h, m, d], `k` [b, h, n, d] and `v` [b, h, n, e]: batch, heads, rows, size. `bias` [b, h, m,
    n], or None, is added to the scores. Raise ArgumentError if devices, dtypes or shapes do not fit, or if the bias
    does not have the accumulator's dtype. `is_causal` and `scale` are not used.
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
    """Return the attention of the real tensors `q` [b, h, m, d], `k` [b, h, n, d] and `v` [b, h, n, e], by one kernel.

    `expected` is the `Result` of `check`. `bias` [b, h, m, n], or None, is added to the scores. `is_causal` applies the
    causal mask. `scale` multiplies the scores; None stands for 1/sqrt(d). Two cases need no kernel: an empty result,
    and no keys (n = 0), which gives zeros.
    """
    result = expected.empty()
    if not result.numel():
        return result
    if not k.shape[2]:  # a mean of no values
        return result.zero_()
    kernel = _kernel(require_float(q, "q").name, is_causal, bias is not None, kernel_scale(q, scale), q.device.type)
    tensors = [q, k, v] if bias is None else [q, k, v, bias]
    kernel(*map(as_kernel_argument, tensors), result)
    return result


def kernel_scale(q: Any, scale: float | None) -> float | None:
    """Return the option `scale` for attention's kernels: `scale` itself, except 1.0 if `scale` is None and d = 0.

    `q` [b, h, m, d] has the queries. Kernels replace None by 1/sqrt(d), which does not exist for d = 0. All scores are
    0 then, so that any number would do.
    """
    return 1.0 if scale is None and not q.shape[3] else scale


def batch_rule(name: str) -> Callable[..., tuple[Any, Any]]:
    """Return the rule for torch.vmap of the operator `name`. Every tensor argument of the operator must have a batch as
    its first dimension."""

    def rule(info: Any, in_dims: Sequence[int | None], *args: Any) -> tuple[Any, Any]:
        """Return (result with the vmap dimension first, 0), by one call. If there are several results, both items are
        tuples.

        `args` are all arguments of the operator. `in_dims` has the vmap dimension of each argument, or None.
        `info.batch_size` is the extent of the vmap dimension. The vmap dimension of each tensor is merged with its
        batch dimension; a tensor without a vmap dimension is broadcast first.
        """
        size = info.batch_size
        merged = [
            expand_batch(a, d, size).flatten(0, 1) if isinstance(a, torch.Tensor) else a
            for a, d in zip(args, in_dims, strict=True)
        ]
        results = getattr(torch.ops.tilewright, name)(*merged)
        if isinstance(results, tuple):
            return tuple(t.unflatten(0, (size, -1)) for t in results), (0,) * len(results)
        return results.unflatten(0, (size, -1)), 0

    return rule


def _gradients(gradient: Any, inputs: tuple[Any, ...], output: Any, needed: Sequence[bool]) -> Sequence[Any]:
    """Return (dq, dk, dv, None, None, None): a gradient or None for each argument of the operator `attention`.

    `inputs` are the six arguments, `output` is the result, and `gradient` is with respect to `output`. `needed` has a
    bool for each argument; arguments that need no gradient get None. Raise MissingBackward if the bias needs a
    gradient: it would have the size of all scores, which the kernels never store.
    """
    q, k, v, bias, is_causal, scale = inputs
    if needed[3]:
        raise MissingBackward(
            "torch.ops.tilewright.attention has no gradient by its bias: call "
            "tilewright.torch.functional.scaled_dot_product_attention, which stores all weights if the mask needs one"
        )
    operators, options = torch.ops.tilewright, (bias, is_causal, scale)
    logs = operators.attention_sums(q, k, *options)
    along = (output.to(logs.dtype) * gradient.to(logs.dtype)).sum(-1)
    tensors = (q, k, v, gradient, logs, along)
    dq = operators.attention_query_gradient(*tensors, *options) if needed[0] else None
    dk, dv = operators.attention_key_gradient(*tensors, *options) if needed[1] or needed[2] else (None, None)
    return dq, dk if needed[1] else None, dv if needed[2] else None, None, None, None


ATTENTION = define(
    Definition(
        "attention",
        "(Tensor q, Tensor k, Tensor v, Tensor? bias, bool is_causal, float? scale) -> Tensor",
        check,
        _run,
        _gradients,
        keeps_output=True,
        vmap=batch_rule("attention"),
        autocast="lower",
        uncast=("bias",),
    )
)
