"""Attention in float64, with a bound on the error of a kernel that goes over tiles of keys in f32."""

import math

import numpy as np
from kernel_checks import F32, rounding


def attention_with_bound(q, k, v, tile, dtype, *, scale=None, bias=None, last_key=None, cap=None):
    """In float64, query by query, and how far a walk over tiles in f32 may be off.

    Scores are off by their sums' roundings, which act on the weights as factors; then come the roundings of the
    weights to `dtype`, of the sums over keys, and of one rescaling for each tile. With `cap`, scores s are
    cap * tanh(s / cap) before the bias is added, which adds roundings of numbers of up to cap.
    """
    q, k, v = (a.astype(np.float64) for a in (q, k, v))
    batch, heads, queries, width = q.shape
    keys = k.shape[2]
    scale = 1 / math.sqrt(width) if scale is None else scale
    unit, tiny = rounding(dtype)
    exact = np.zeros((batch, heads, queries, v.shape[3]))
    bound = np.zeros_like(exact)
    for b, h, m in np.ndindex(batch, heads, queries):
        seen = keys if last_key is None else min(keys, last_key(m) + 1)
        added = np.zeros(seen) if bias is None else bias[b, h, m, :seen].astype(np.float64)
        scores = np.array([math.fsum(q[b, h, m] * k[b, h, n]) * scale for n in range(seen)])
        scores = (scores if cap is None else cap * np.tanh(scores / cap)) + added
        sizes = np.abs(k[b, h, :seen]) @ np.abs(q[b, h, m]) * abs(scale)
        weights = np.exp(scores - scores.max())
        total = math.fsum(weights)
        exact[b, h, m] = weights @ v[b, h, :seen] / total
        visible = np.isfinite(scores)
        span = scores[visible].max() - scores[visible].min() + np.abs(added[visible]).max() + 4 * (cap or 0)
        steps = -(-keys // tile)
        exponent = ((width + 4) * sizes.max() + span * (2 + steps)) * F32
        relative = 2 * exponent + (2 * keys + 8 * steps + 16) * F32 + (0 if dtype == "f32" else unit)
        size = weights @ np.abs(v[b, h, :seen]) / total
        bound[b, h, m] = relative * size + tiny * np.abs(v[b, h, :seen]).sum(axis=0)
    return exact, bound
