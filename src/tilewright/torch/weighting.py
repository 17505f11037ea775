"""Attention with its whole weight matrix in memory: for dropout, or to return the weights.

The operator `attention` (online softmax) never has all weights. Here they are a GEMM and its softmax, and a second GEMM
multiplies them by the values. Dropout is torch's own, with its random generator: on the host, the same seed drops the
same weights as in torch's function.
"""

from __future__ import annotations

from typing import Any

import torch

from tilewright.torch.attention import check


def attention_with_weights(
    q: Any, k: Any, v: Any, bias: Any, is_causal: bool, scale: float | None, dropout_p: float
) -> tuple[Any, Any]:
    """Return (attention of `q` [b, h, m, d], `k` [b, h, n, d] and `v` [b, h, n, e]; its weights [b, h, m, n] after
    dropout).

    `bias` [b, h, m, n], or None, is added to the scores. `is_causal` applies the causal mask. `scale` multiplies the
    scores; None stands for 1/sqrt(d). `dropout_p` is the probability to drop a weight. Scores and weights are f32, or
    f64 for f64 tensors. The result has the dtype of `q` and is rounded once. Under autocast, the tensors are cast
    first, unless they are f64. Gradients flow to all tensors, also to `bias`. Rows whose scores are all -inf become
    NaN. Raise ArgumentError if the tensors do not fit.

    >>> q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 64, 4), torch.ones(1, 1, 64, 1)
    >>> means, weights = attention_with_weights(q, k, v, None, False, None, 0.5)
    >>> weights.unique()  # a weight is dropped, or 1/64 doubled
    tensor([0.0000, 0.0312])
    """
    device, wide = q.device.type, torch.float64 if q.dtype is torch.float64 else torch.float32
    if torch.is_autocast_enabled(device):  # cast as the operator `attention` would, then compute without autocast
        lower = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            q, k, v = (t if t.dtype is torch.float64 else t.to(lower) for t in (q, k, v))
            return attention_with_weights(q, k, v, bias, is_causal, scale, dropout_p)
    check(q, k, v, bias, is_causal, scale)
    matmul = torch.ops.tilewright.matmul
    score_scale = max(q.shape[-1], 1) ** -0.5 if scale is None else scale
    scores = matmul(q.to(wide) * score_scale, k.to(wide).mT)
    if bias is not None:
        scores = scores + bias
    if is_causal:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~visible, float("-inf"))
    weights = torch.nn.functional.dropout(torch.ops.tilewright.softmax(scores, -1), dropout_p)
    return matmul(weights, v.to(wide)).to(q.dtype), weights
