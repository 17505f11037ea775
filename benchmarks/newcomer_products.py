"""Products, attention and lookups of PyTorch, as a newcomer writes them."""

from __future__ import annotations

from typing import Any

import numpy as np
from newcomer_form import f32, i32, iterators, memory, operator, zeros
from newcomer_rows import exps

import tilewright.lang as tkl
import tilewright.wave as tkw

B, D, E, H, J, K, L, M, N, V = (getattr(tkl.sym, name) for name in "BDEHJKLMNV")


def product_of(name: str, a: str, b: str, c: str, sizes: Any, tiny: Any, of: str = "bf16") -> None:
    """Add an einsum of two operands, all summed dimensions at once."""

    @operator("product", sizes, tiny, name, of=of)
    def make(t: Any) -> Any:
        left, right, result = ([getattr(tkl.sym, letter.upper()) for letter in letters] for letters in (a, b, c))

        @tkw.wave()
        def einsum(x: memory(*left, t), w: memory(*right, t), y: memory(*result, t)) -> None:
            total = tkw.mma(tkw.read(x), tkw.read(w), zeros(*result))
            tkw.write(tkw.cast(total, t), y)

        return einsum, lambda x, w: np.einsum(f"{a},{b}->{c}", x, w)


TINY = {"B": 2, "H": 3, "M": 4, "N": 5, "K": 6, "D": 7, "J": 3}
product_of("matmul", "mk", "kn", "mn", {"M": 4096, "K": 4096, "N": 4096}, TINY)
product_of("matmul_f32", "mk", "kn", "mn", {"M": 2048, "K": 2048, "N": 2048}, TINY, "f32")
product_of("bmm", "bmk", "bkn", "bmn", {"B": 64, "M": 512, "K": 512, "N": 512}, TINY)
product_of("mv", "nk", "k", "n", {"N": 16384, "K": 8192}, TINY)
product_of("einsum_of_heads", "bmhd", "bnhd", "bhmn", {"B": 8, "H": 16, "M": 1024, "N": 1024, "D": 64}, TINY)


@operator("product", {"M": 8192, "K": 4096, "N": 4096}, {"M": 3, "K": 5, "N": 4}, of="bf16")
def linear(t: Any) -> Any:
    @tkw.wave()
    def linear(x: memory(M, K, t), w: memory(N, K, t), b: memory(N, t), y: memory(M, N, t)) -> None:
        @tkw.iterate(K, init_args=[zeros(M, N)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(x), tkw.read(w), acc)

        tkw.write(tkw.cast(total + tkw.cast(tkw.read(b), f32), t), y)

    return linear, lambda x, w, b: x @ w.T + b


@operator("product", {"M": 8192, "N": 4096}, {"M": 3, "N": 5})
def outer(t: Any) -> Any:
    @tkw.wave()
    def outer(a: memory(M, t), b: memory(N, t), y: memory(M, N, t)) -> None:
        tkw.write(tkw.read(a) * tkw.read(b), y)

    return outer, np.outer


@operator("product", {"M": 4096, "N": 4096, "K": 128}, {"M": 3, "N": 5, "K": 4})
def squared_cdist(t: Any) -> Any:
    @tkw.wave()
    def squared_cdist(a: memory(M, K, t), b: memory(N, K, t), y: memory(M, N, t)) -> None:
        left, right = tkw.read(a), tkw.read(b)
        lengths = tkw.sum(left * left, dim=K) + tkw.sum(right * right, dim=K)
        tkw.write(lengths - 2.0 * tkw.mma(left, right, zeros(M, N)), y)

    return squared_cdist, lambda a, b: ((a[:, None] - b) ** 2).sum(-1)


def attention(name: str, causal: bool) -> None:
    """Add scaled_dot_product_attention, as its documentation defines it."""
    heads = {"B": 4, "H": 16, "M": 4096, "N": 4096, "D": 128, "E": 128}

    @operator("product", heads, {"B": 2, "H": 2, "M": 5, "N": 5, "D": 4, "E": 3}, name, of="bf16", exact=False)
    def make(t: Any) -> Any:
        @tkw.wave()
        def attention(
            q: memory(B, H, M, D, t), k: memory(B, H, N, D, t), v: memory(B, H, N, E, t), y: memory(B, H, M, E, t)
        ) -> None:
            scores = tkw.mma(tkw.read(q), tkw.read(k), zeros(B, H, M, N)) * 0.125
            if causal:
                scores = tkw.select(tkw.self_index(N) <= tkw.self_index(M), scores, float("-inf"))
            weights = tkw.exp(scores - tkw.max(scores, dim=N))
            weights = weights / tkw.sum(weights, dim=N)
            tkw.write(tkw.cast(tkw.mma(tkw.cast(weights, t), tkw.read(v), zeros(B, H, M, E)), t), y)

        def wanted(q: Any, k: Any, v: Any) -> Any:
            scores = np.einsum("bhmd,bhnd->bhmn", q, k) * 0.125
            if causal:
                scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
            return np.einsum("bhmn,bhne->bhme", exps(scores, -1), v)

        return attention, wanted


attention("attention", causal=False)
attention("attention_causal", causal=True)


@operator("lookup", {"M": 65536, "V": 50000, "N": 1024}, {"M": 5, "V": 7, "N": 3}, of="bf16", below={"index": "V"})
def embedding(t: Any) -> Any:
    m, n = iterators(2)
    row = tkw.IndexMapping(
        2,
        inputs={V: tkw.IndexMapping.dynamic_val(0), N: n},
        outputs={M: m, N: n},
        dynamic_val_mappings={M: m},
    )

    @tkw.wave()
    def embedding(index: memory(M, i32), table: memory(V, N, t), y: memory(M, N, t)) -> None:
        tkw.write(tkw.read(table, mapping=row, mapping_dynamic_vals=(tkw.read(index),)), y)

    return embedding, lambda index, table: table[index]


@operator("lookup", {"M": 8192, "V": 4096, "N": 1024}, {"M": 5, "V": 7, "N": 3}, below={"index": "V"})
def index_select(t: Any) -> Any:
    m, n = iterators(2)
    column = tkw.IndexMapping(
        2,
        inputs={M: m, V: tkw.IndexMapping.dynamic_val(0)},
        outputs={M: m, N: n},
        dynamic_val_mappings={N: n},
    )

    @tkw.wave()
    def index_select(index: memory(N, i32), x: memory(M, V, t), y: memory(M, N, t)) -> None:
        tkw.write(tkw.read(x, mapping=column, mapping_dynamic_vals=(tkw.read(index),)), y)

    return index_select, lambda index, x: x[:, index]


@operator("lookup", {"M": 1 << 24, "V": 256}, {"M": 31, "V": 7}, below={"x": "V"}, starts=("counts",))
def histogram(t: Any) -> Any:
    (m,) = iterators(1)
    bucket = tkw.IndexMapping(
        1, inputs={M: m}, outputs={V: tkw.IndexMapping.dynamic_val(0)}, dynamic_val_mappings={M: m}
    )

    @tkw.wave()
    def histogram(x: memory(M, i32), counts: memory(V, i32)) -> None:
        one = tkl.Register[M, i32](1)
        tkw.atomic_add(one, counts, mapping=bucket, mapping_dynamic_vals=(tkw.read(x),))

    return histogram, lambda x: np.bincount(x, minlength=7)
