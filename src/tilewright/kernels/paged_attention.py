"""Attention on a paged cache: keys and values are stored in pages, and a table lists the pages of each sequence."""

from __future__ import annotations

from typing import Any

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.ir.dtypes import DTypeLike, element_type
from tilewright.kernels.softmax import lowest

B, KV, GQ, D, E = (getattr(tkl.sym, name) for name in ("B", "KV", "GQ", "D", "E"))
PAGES, PAGE, BLOCKS, BLOCK = (getattr(tkl.sym, name) for name in ("PAGES", "PAGE", "BLOCKS", "BLOCK"))
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
ROWS = (B, KV, GQ)


def paged_attention(blocks: int, dtype: DTypeLike = "bf16") -> tkw.Kernel:
    """Return a kernel that computes out[b, j, g], the attention of one query to the first lengths[b] keys of sequence
    b.

    The query is that of sequence b, query head g of KV head j. Keys and values are stored in pages of PAGE positions.
    Arguments: q[B, KV, GQ, D]; k[PAGES, PAGE, KV, D] and v[PAGES, PAGE, KV, E], the cache; table[B, BLOCKS] in i32,
    where table[b, i] is the page with the keys i * PAGE ... (i + 1) * PAGE - 1 of sequence b; lengths[B] in i32; then
    out[B, KV, GQ, E]. q, k, v and out are of type `dtype`, the scale is 1 / sqrt(D). Entries of the table after a
    sequence's last key must also be valid page numbers; keys there are ignored. A sequence of length 0 gives zeros.
    `blocks` is the number of pages per iteration.

    >>> import numpy as np, tilewright
    >>> kernel = tilewright.compile(paged_attention(1, "f32"), strict=True)
    >>> q, k = np.zeros((1, 1, 1, 1), np.float32), np.zeros((3, 2, 1, 1), np.float32)
    >>> v = np.array([[1, 2], [9, 9], [6, 9]], np.float32).reshape(3, 2, 1, 1)
    >>> kernel(q, k, v, np.array([[0, 2]], np.int32), np.array([3], np.int32)).ravel()
    array([3.], dtype=float32)
    """
    of_data = element_type(dtype)
    of_sums = of_data.accumulator
    b, j, i, p, d = (tkw.IndexMapping.iterator(n) for n in range(5))

    def paged(last: Any) -> Any:
        """Return the mapping of a read from the cache, with tile dimensions (sequence, head, block of the sequence,
        position in the page, element). The page number is a dynamic value. `last` is the element dimension, D or E.
        """
        return tkw.IndexMapping(
            5,
            inputs={PAGES: tkw.IndexMapping.dynamic_val(0), PAGE: p, KV: j, last: d},
            outputs={B: b, KV: j, BLOCKS: i, PAGE: p, last: d},
            dynamic_val_mappings={B: b, BLOCKS: i},
        )

    Table: Any = tkl.Memory[B, BLOCKS, GLOBAL, tkl.i32]

    @tkw.wave([tkw.TilingConstraint(BLOCKS, BLOCK)])
    def paged_attention(
        q: tkl.Memory[B, KV, GQ, D, GLOBAL, of_data],
        k: tkl.Memory[PAGES, PAGE, KV, D, GLOBAL, of_data],
        v: tkl.Memory[PAGES, PAGE, KV, E, GLOBAL, of_data],
        table: Table,
        lengths: tkl.Memory[B, GLOBAL, tkl.i32],
        out: tkl.Memory[B, KV, GQ, E, GLOBAL, of_data],
    ) -> None:
        start = [tkl.Register[(*ROWS, of_sums)](x) for x in (lowest(of_sums), 0.0)]

        @tkw.iterate(BLOCKS, init_args=[*start, tkl.Register[(*ROWS, E, of_sums)](0)])
        def walk(highest: Any, total: Any, mean: Any) -> Any:
            pages = tkw.read(table)
            keys = tkw.read(k, mapping=paged(D), mapping_dynamic_vals=(pages,))
            scores = tkw.mma(tkw.read(q), keys, tkl.Register[(*ROWS, BLOCKS, PAGE, of_sums)](0))
            scores = scores * tkw.rsqrt(tkw.scalar(D, of_sums))
            position = tkw.self_index(BLOCKS, tkl.i32) * PAGE + tkw.self_index(PAGE, tkl.i32)
            scores = tkw.select(position < tkw.read(lengths), scores, float("-inf"))
            higher = tkw.max(tkw.max(scores, dim=PAGE), highest, dim=BLOCKS)
            shrink, weights = tkw.exp(highest - higher), tkw.exp(scores - higher)
            total = tkw.sum(tkw.sum(weights, dim=PAGE), total * shrink, dim=BLOCKS)
            values = tkw.read(v, mapping=paged(E), mapping_dynamic_vals=(pages,))
            return higher, total, tkw.mma(tkw.cast(weights, of_data), values, mean * shrink)

        _, total, mean = walk
        sees = total > 0.0
        tkw.write(tkw.cast(tkw.select(sees, mean / tkw.select(sees, total, 1.0), 0.0), of_data), out)

    return paged_attention.bound({BLOCK: blocks})
