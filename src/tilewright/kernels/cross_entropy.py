"""Cross entropy of a linear layer's outputs, without storing the logits or their softmax."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type
from tilewright.kernels.softmax import lowest

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
BLOCK_N = tkl.sym.BLOCK_N
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE


def linear_cross_entropy(tile: int, dtype: DTypeLike = "bf16") -> tkw.Kernel:
    """Return a kernel that computes the cross entropy of a linear layer's outputs, loss[m], without storing the logits.

    loss[m] = log(sum over n of exp(z[m, n])) - z[m, labels[m]], with the logits z[m, n] = <x[m], w[n]>. Arguments: x[M,
    K], w[N, K] of type `dtype`, labels[M] in i32, then loss[M] in f32 (f64 for f64). `tile` is the tile size along the
    N classes. If a label is no class, its z counts as 0: the loss is the logarithm alone.

    >>> import numpy as np, tilewright
    >>> kernel = tilewright.compile(linear_cross_entropy(2, "f32"), strict=True)
    >>> x, w = np.log(np.array([[2], [4]], np.float32)), np.array([[1], [1], [1], [1]], np.float32)
    >>> np.exp(kernel(x, w, np.array([3, -1], np.int32))).round(4)
    array([ 4., 16.], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator

    @tkw.wave([tkw.TilingConstraint(N, BLOCK_N)])
    def linear_cross_entropy(
        x: tkl.Memory[M, K, GLOBAL, of_data],
        w: tkl.Memory[N, K, GLOBAL, of_data],
        labels: tkl.Memory[M, GLOBAL, tkl.i32],
        loss: tkl.Memory[M, GLOBAL, of_sums],
    ) -> None:
        @tkw.iterate(N, init_args=[tkl.Register[M, of_sums](start) for start in (lowest(of_sums), 0.0, 0.0)])
        def row_facts(highest: Any, total: Any, chosen: Any) -> Any:
            logits = tkw.mma(tkw.read(x), tkw.read(w), tkl.Register[M, N, of_sums](0))
            is_label = tkw.self_index(N, tkl.i32) == tkw.read(labels)
            higher = tkw.max(logits, highest, dim=N)
            total = tkw.sum(tkw.exp(logits - higher), total * tkw.exp(highest - higher), dim=N)
            return higher, total, tkw.sum(tkw.select(is_label, logits, 0.0), chosen, dim=N)

        highest, total, chosen = row_facts
        tkw.write(highest + tkw.log(total) - chosen, loss)

    return linear_cross_entropy.bound({BLOCK_N: tile})
