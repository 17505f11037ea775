"""Mixture-of-experts gating: the best experts of each token, and their softmax weights."""

from __future__ import annotations

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def top_k_gating(count: int, dtype: DTypeLike = "f32") -> tkw.Kernel:
    """Return a kernel for expert routing: for each token, the `count` experts with the largest scores, and their
    softmax.

    Arguments: scores[M, N] for M tokens and N experts, then shares[M, K] (the softmax over the K scores) of the same
    type `dtype`, and experts[M, K] (the experts' indices) in i32. K is `count`. Both results are in descending order of
    the scores; of equal scores, the lower index comes first.

    >>> import numpy as np, tilewright
    >>> scores = np.log(np.array([[1, 6, 2]], np.float32))
    >>> shares, experts = tilewright.compile(top_k_gating(2), strict=True)(scores)
    >>> shares.round(4), experts
    (array([[0.75, 0.25]], dtype=float32), array([[1, 2]], dtype=int32))
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator

    @tkw.wave()
    def top_k_gating(
        scores: tkl.Memory[M, N, GLOBAL, of_data],
        shares: tkl.Memory[M, K, GLOBAL, of_data],
        experts: tkl.Memory[M, K, GLOBAL, tkl.i32],
    ) -> None:
        best, indices = tkw.topk(tkw.read(scores), K, N)
        weights = tkw.exp(tkw.cast(best, of_sums) - tkw.max(tkw.cast(best, of_sums), dim=K))
        tkw.write(tkw.cast(weights / tkw.sum(weights, dim=K), of_data), shares)
        tkw.write(indices, experts)

    return top_k_gating.bound({K: count})
