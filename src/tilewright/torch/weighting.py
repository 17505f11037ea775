"""Attention that holds all its weights at once: for dropout of some, and for callers who want to see them.

The operator `attention` never has all weights. Here they are a product and its softmax, and a second product takes
their means of the values. Weights are dropped by torch's own dropout, by its generator: on the host the same seed drops
the same ones as in torch's function.
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright.torch.attention import check


def attention_with_weights(
    q: Any, k: Any, v: Any, bias: Any, is_causal: bool, scale: float | None, dropout_p: float
) -> tuple[Any, Any]:
    """Return (what the operator `attention` would, its weights [b, h, m, n]), weights dropped by a probability.

    Scores and weights are f32, f64 for tensors of f64; the result is rounded once. Rows whose scores are all -inf are
    NaN: the caller sets them.

    >>> q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 64, 4), torch.ones(1, 1, 64, 1)
    >>> means, weights = attention_with_weights(q, k, v, None, False, None, 0.5)
    >>> weights.unique()  # 1/64 is kept, and doubled, or dropped
    tensor([0.0000, 0.0312])
    """
    device, wide = q.device.type, torch.float64 if q.dtype is torch.float64 else torch.float32
    if torch.is_autocast_enabled(device):  # it casts the tensors of `attention`, and not its sums
        lower = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            q, k, v = (t if t.dtype is torch.float64 else t.to(lower) for t in (q, k, v))
            return attention_with_weights(q, k, v, bias, is_causal, scale, dropout_p)
    check(q, k, v, bias, is_causal, scale)
    matmul = torch.ops.tilewright.matmul
    factor = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
    scores = matmul(q.to(wide) * factor, k.to(wide).mT)
    if bias is not None:
        scores = scores + bias
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
    weights = torch.nn.functional.dropout(torch.ops.tilewright.softmax(scores, -1), dropout_p)
    return matmul(weights, v.to(wide)).to(q.dtype), weights
