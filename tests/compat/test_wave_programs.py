"""Attention as Wave's own kernels do it: backward, decoding in splits, paged, ragged, grouped heads, speculative.

Each is compiled by `wave_compile`, for the executor and for the CPU, and compared with numpy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compat.wave import SymbolicAlias, WaveCompileOptions, wave_compile
from tilewright.lang import sympy
from tilewright.lang.global_symbols import GET_ITER_ARG, GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE, WORKGROUP_2

GLOBAL = GLOBAL_ADDRESS_SPACE
LOWEST = -1e6
i, j, k_, l_ = (tkw.IndexMapping.iterator(n) for n in range(4))
B, H, M, N, K1, K2, S, U = (getattr(tkl.sym, name) for name in ("B", "H", "M", "N", "K1", "K2", "S", "U"))
Layout = tkl.MemoryLayout


pytestmark = [
    pytest.mark.parametrize("target", ["executor", "cpu"]),
    pytest.mark.filterwarnings("ignore::tilewright.errors.FastPathLost"),  # grid programs
    pytest.mark.filterwarnings("ignore::tilewright.errors.AliasingWarning"),  # p and ds come back turned
]


def mapping(inputs: dict[Any, Any], outputs: dict[Any, Any], values: Any = None) -> Any:
    return tkw.IndexMapping(
        num_iterators=len(inputs), inputs=inputs, outputs=outputs, dynamic_val_mappings=values or {}
    )


def compiled(kernel: Any, symbols: dict[Any, Any], target: str, dynamic: Any = ()) -> Any:
    return wave_compile(WaveCompileOptions(subs=symbols, dynamic_symbols=list(dynamic), target=target), kernel)


def normal(rng: Any, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float16)


def attention(q: Any, k: Any, v: Any, base: float = 2.0) -> Any:
    """Softmax to this base of q times k, times v, in f64; [M, K1], [K2, K1], [K2, N]."""
    scores = q.astype(float) @ k.astype(float).T
    weights = base ** (scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v.astype(float)


def online(scores: Any, values: Any, carried: tuple[Any, Any, Any], dim: Any) -> tuple[Any, Any, Any]:
    """One step of a softmax over tiles: the largest so far, the sum, the weighted values."""
    largest, total, acc = carried
    new = tkw.max(scores, largest, dim=dim)
    scale, weights = tkw.exp2(largest - new), tkw.exp2(scores - new)
    return new, tkw.sum(weights, total * scale, dim=dim), tkw.mma(values, tkw.cast(weights, tkl.f16), acc * scale)


@pytest.mark.sampled(1)
def test_backward_attention(target: str) -> None:
    """p and ds go through memory and come back turned; dq is read, added to and written in every step."""
    turn = mapping({B: i, K2: j, M: k_}, {B: i, M: k_, K2: j})
    turned = mapping({B: i, M: k_, K2: j}, {B: i, K2: j, M: k_})
    constraints = [
        tkw.WorkgroupConstraint(K2, 64, 0),
        tkw.WorkgroupConstraint(B, 1, 1),
        tkw.TilingConstraint(M, 8),
    ]

    @tkw.wave(constraints)
    def backward(
        q: tkl.Memory[B, M, K1, GLOBAL, tkl.f32],
        k: tkl.Memory[B, K2, K1, GLOBAL, tkl.f32],
        v: tkl.Memory[B, K2, N, GLOBAL, tkl.f32],
        do: tkl.Memory[B, M, N, GLOBAL, tkl.f32],
        lse: tkl.Memory[B, M, GLOBAL, tkl.f32],
        delta: tkl.Memory[B, M, GLOBAL, tkl.f32],
        p: tkl.Memory[B, M, K2, GLOBAL, tkl.f32],
        ds: tkl.Memory[B, M, K2, GLOBAL, tkl.f32],
        dq: tkl.Memory[B, M, K1, GLOBAL, tkl.f32],
        dk: tkl.Memory[B, K2, K1, GLOBAL, tkl.f32],
        dv: tkl.Memory[B, K2, N, GLOBAL, tkl.f32],
    ) -> None:
        starts = [tkl.Register[B, K2, K1, tkl.f32](0.0), tkl.Register[B, K2, N, tkl.f32](0.0)]

        @tkw.iterate(M, init_args=starts)
        def gradients(dk_so_far: Any, dv_so_far: Any) -> Any:
            rows, gradient, keys = tkw.read(q), tkw.read(do), tkw.read(k)
            scores = tkw.mma(keys, rows, tkl.Register[B, K2, M, tkl.f32](0.0))
            weights = tkw.exp(scores - tkw.broadcast(tkw.read(lse), [B, K2, M]))
            tkw.write(weights, p, mapping=turn)
            tkw.shared_memory_barrier()
            dv_now = tkw.mma(weights, tkw.permute(gradient, [B, N, M]), dv_so_far)
            dp = tkw.mma(gradient, tkw.read(v), tkl.Register[B, M, K2, tkl.f32](0.0))
            difference = dp - tkw.broadcast(tkw.read(delta), [B, M, K2])
            tkw.write(tkw.read(p) * difference, ds)
            tkw.shared_memory_barrier()
            dk_now = tkw.mma(tkw.read(ds, mapping=turned), tkw.permute(rows, [B, K1, M]), dk_so_far)
            tkw.write(tkw.mma(tkw.read(ds), tkw.permute(keys, [B, K1, K2]), tkw.read(dq)), dq)
            return dk_now, dv_now

        dk_all, dv_all = gradients
        tkw.write(dk_all, dk)
        tkw.write(dv_all, dv)

    rng = np.random.default_rng(0)
    b, m, k1, k2, n = 2, 19, 6, 37, 5
    q, k, v, do = (rng.standard_normal((b, *s)).astype(np.float32) for s in ((m, k1), (k2, k1), (k2, n), (m, n)))
    scores = np.einsum("bmc,bkc->bmk", q, k, dtype=float)
    lse = np.log(np.exp(scores).sum(-1))
    weights = np.exp(scores - lse[..., None])
    out = np.einsum("bmk,bkn->bmn", weights, v)
    delta = (out * do).sum(-1)
    want_ds = weights * (np.einsum("bmn,bkn->bmk", do, v) - delta[..., None])
    p, ds = (np.zeros((b, m, k2), np.float32) for _ in range(2))
    dq, dk, dv = (np.zeros(x.shape, np.float32) for x in (q, k, v))
    run = compiled(backward, {}, target)
    run(q, k, v, do, lse.astype(np.float32), delta.astype(np.float32), p, ds, dq, dk, dv)
    for got, wanted in (
        (dq, np.einsum("bmk,bkc->bmc", want_ds, k)),
        (dk, np.einsum("bmk,bmc->bkc", want_ds, q)),
        (dv, np.einsum("bmk,bmn->bkn", weights, do)),
    ):
        assert np.abs(got - wanted).max() < 1e-4


@pytest.mark.sampled(1)
def test_decoding_in_splits_that_waves_reduce(target: str) -> None:
    """Each wave has its own part of K2; U of them, by an alias, are put together by a second kernel."""
    block = tkl.sym.BLOCK_K2
    constraints = [
        *(tkw.WorkgroupConstraint(M, 32, 0), tkw.WaveConstraint(M, 16)),
        *(tkw.WorkgroupConstraint(N, 32, 1), tkw.WaveConstraint(N, 16)),
        *(tkw.WorkgroupConstraint(K2, block, 2), tkw.WaveConstraint(K2, block / 2), tkw.WorkgroupConstraint(B, 1, 3)),
        SymbolicAlias(U, K2, lambda x: sympy.ceiling(x / (block / 2))),
    ]

    @tkw.wave(constraints)
    def phase_0(
        q: tkl.Memory[B, M, K1, GLOBAL, tkl.f16],
        k: tkl.Memory[B, K2, K1, GLOBAL, tkl.f16],
        v: tkl.Memory[B, N, K2, GLOBAL, tkl.f16],
        parts: tkl.Memory[U, B, N, M, GLOBAL, tkl.f32],
        logs: tkl.Memory[U, B, M, GLOBAL, tkl.f32],
    ) -> None:
        scores = tkw.mma(tkw.read(k), tkw.read(q), tkl.Register[B, K2, M, tkl.f32](0.0))
        start = tkl.Register[B, M, tkl.f32](LOWEST), tkl.Register[B, M, tkl.f32](0.0)
        none = tkl.Register[B, N, M, tkl.f32](0.0)
        largest, total, acc = online(tkw.permute(scores, [B, M, K2]), tkw.read(v), (*start, none), K2)
        tkw.write(largest + tkw.log2(total), logs)
        tkw.write(acc / total, parts)

    put = mapping({B: i, N: j, M: k_}, {B: i, N: j, M: k_})

    @tkw.wave([tkw.WorkgroupConstraint(M, 32, 0), tkw.WorkgroupConstraint(B, 1, 1), tkw.TilingConstraint(U, 1)])
    def phase_1(
        parts: tkl.Memory[U, B, N, M, GLOBAL, tkl.f32],
        logs: tkl.Memory[U, B, M, GLOBAL, tkl.f32],
        output: tkl.Memory[B, M, N, GLOBAL, tkl.f32],
    ) -> None:
        start = [tkl.Register[B, M, tkl.f32](LOWEST), tkl.Register[B, M, tkl.f32](0.0)]

        @tkw.iterate(U, init_args=[*start, tkl.Register[B, N, M, tkl.f32](0.0)])
        def together(largest: Any, total: Any, acc: Any) -> Any:
            here = tkw.read(logs)
            new = tkw.maximum(here, largest)
            old, mine = tkw.exp2(largest - new), tkw.exp2(here - new)
            return new, total * old + mine, acc * old + mine * tkw.read(parts)

        _, total, acc = together
        tkw.write(acc / total, output, mapping=put)

    rng = np.random.default_rng(1)
    b, m, n, k1, k2 = 2, 35, 33, 16, 27
    q, k, v = normal(rng, b, m, k1), normal(rng, b, k2, k1), normal(rng, b, n, k2)
    splits = math.ceil(k2 / 8)
    symbols = {block: 16, U: splits}
    parts, logs = np.zeros((splits, b, n, m), np.float32), np.zeros((splits, b, m), np.float32)
    output = np.zeros((b, m, n), np.float32)
    compiled(phase_0, symbols, target)(q, k, v, parts, logs)
    compiled(phase_1, {U: splits}, target)(parts, logs, output)
    for batch in range(b):
        assert np.abs(output[batch] - attention(q[batch], k[batch], v[batch].T)).max() < 5e-3


def test_prefill_of_sequences_whose_lengths_are_data(target: str) -> None:
    """Workgroups go over `iters` tiles of the longest sequence; set_symbol ends each where its own length is."""
    G, D, E_, Q, OFF = (getattr(tkl.sym, name) for name in ("H_KV", "D_KV", "D_Q", "N_Q", "OFFSET"))
    lengths = np.array([17, 24, 3], np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int32)
    rows, heads, groups, dq, dk = int(lengths.sum()), 4, 2, 8, 12
    constraints = [
        tkw.WorkgroupConstraint(Q, 16, 0, iters=math.ceil(lengths.max() / 16)),
        tkw.WorkgroupConstraint(D, 16, 1),
        tkw.WorkgroupConstraint(H, 1, 2),
        tkw.WorkgroupConstraint(G, 1, 2, primary=False),
        tkw.WorkgroupConstraint(S, 1, 3),
        tkw.TilingConstraint(K2, 8),
    ]
    q_at = mapping({H: i, Q: j + OFF, E_: k_}, {H: i, Q: j, E_: k_})
    k_at = mapping({G: i // (heads // groups), K2: j + OFF, E_: k_}, {G: i, K2: j, E_: k_})
    v_at = mapping({G: i // (heads // groups), D: j, K2: k_ + OFF}, {G: i, D: j, K2: k_})
    y_at = mapping({H: i, D: j, Q: k_}, {H: i, Q: k_ + OFF, D: j})

    @tkw.wave(constraints)
    def prefill(
        q: tkl.Memory[Q, H, E_, GLOBAL, tkl.f16, Layout(shape=(rows, heads, dq))],  # type: ignore[valid-type]
        k: tkl.Memory[K2, G, E_, GLOBAL, tkl.f16, Layout(shape=(rows, groups, dq))],  # type: ignore[valid-type]
        v: tkl.Memory[K2, G, D, GLOBAL, tkl.f16, Layout(shape=(rows, groups, dk))],  # type: ignore[valid-type]
        begins: tkl.Memory[S, GLOBAL, tkl.i32],
        counts: tkl.Memory[S, GLOBAL, tkl.i32],
        y: tkl.Memory[Q, H, D, GLOBAL, tkl.f32, Layout(shape=(rows, heads, dk))],  # type: ignore[valid-type]
    ) -> None:
        start = [tkl.Register[H, Q, tkl.f32](LOWEST), tkl.Register[H, Q, tkl.f32](0.0)]
        zero = tkl.Register[H, Q, K2, tkl.f32](0.0)  # before its dimensions have their sizes, as in Wave's own
        tkw.set_symbol(OFF, tkw.read(begins, elements_per_thread=1))
        count = tkw.read(counts, elements_per_thread=1)
        tkw.set_symbol(Q, count)
        tkw.set_symbol(K2, count)

        @tkw.iterate(K2, init_args=[*start, tkl.Register[H, D, Q, tkl.f32](0.0)])
        def sums(*carried: Any) -> Any:
            keys, queries = tkw.read(k, mapping=k_at), tkw.read(q, mapping=q_at)
            scores = tkw.mma(keys, queries, tkl.Register[H, K2, Q, tkl.f32](0.0))
            return online(tkw.permute(scores, [H, Q, K2]) + zero, tkw.read(v, mapping=v_at), carried, K2)

        _, total, acc = sums
        tkw.write(acc * tkw.reciprocal(total), y, mapping=y_at)

    rng = np.random.default_rng(2)
    q, k, v = normal(rng, rows, heads, dq), normal(rng, rows, groups, dq), normal(rng, rows, groups, dk)
    y = np.zeros((rows, heads, dk), np.float32)
    compiled(prefill, {H: heads, G: groups, D: dk, E_: dq, S: 3}, target)(q, k, v, offsets, lengths, y)
    for begin, length in zip(offsets, lengths, strict=True):
        mine = slice(begin, begin + length)
        for h in range(heads):
            wanted = attention(q[mine, h], k[mine, h // 2], v[mine, h // 2])
            assert np.abs(y[mine, h] - wanted).max() < 5e-3


def test_grouped_decoding_in_splits(target: str) -> None:
    """Heads of queries share a head of keys; a split of N_KV is a workgroup, and its loop starts where that does."""
    G, D, E_, KV, OFF, LEN = (getattr(tkl.sym, name) for name in ("G", "D", "E", "N_KV", "SPLIT_OFF", "SPLIT_LEN"))
    heads, groups, dq, dk, sequences, length, splits, block = 12, 2, 8, 10, 2, 29, 4, 6
    ratio, per = heads // groups, math.ceil(length / splits)
    constraints = [
        tkw.WorkgroupConstraint(U, 1, 2),
        tkw.TilingConstraint(KV, 4, iters=sympy.ceiling(LEN / 4), start=OFF),
        tkw.WorkgroupConstraint(G, 1, 1, apply_fn=lambda wg: wg // math.ceil(ratio / block), iters=heads // block),
        tkw.WorkgroupConstraint(H, block, 1, primary=False),
        tkw.WorkgroupConstraint(B, 1, 0),
    ]
    k_at = mapping({B: i, G: j, KV: k_, E_: l_}, {B: i, G: j, KV: k_, E_: l_})
    v_at = mapping({B: i, G: j, D: k_, KV: l_}, {B: i, G: j, D: k_, KV: l_})
    keys_lie, values_lie = (Layout(shape=(sequences, length, groups, d)) for d in (dq, dk))

    @tkw.wave(constraints)
    def phase_0(
        q: tkl.Memory[B, H, E_, GLOBAL, tkl.f16],
        k: tkl.Memory[B, KV, G, E_, GLOBAL, tkl.f16, keys_lie],  # type: ignore[valid-type]
        v: tkl.Memory[B, KV, G, D, GLOBAL, tkl.f16, values_lie],  # type: ignore[valid-type]
        parts: tkl.Memory[U, B, D, H, GLOBAL, tkl.f32],
        logs: tkl.Memory[U, B, H, GLOBAL, tkl.f32],
    ) -> None:
        zero, low = (tkl.Register[H, KV, tkl.f32](x) for x in (0.0, LOWEST))
        start = [tkl.Register[B, H, tkl.f32](LOWEST), tkl.Register[B, H, tkl.f32](0.0)]

        @tkw.iterate(KV, init_args=[*start, tkl.Register[B, D, H, tkl.f32](0.0)])
        def sums(*carried: Any) -> Any:
            scores = tkw.mma(tkw.read(k, mapping=k_at), tkw.read(q), tkl.Register[B, KV, H, tkl.f32](0.0))
            inside = tkw.apply_expr(tkw.self_index(KV, tkl.i32), lambda x: x < (OFF + LEN))
            kept = tkw.cast(tkw.broadcast(inside, target_shape=[H, KV]), tkw.i1)
            scores = tkw.permute(scores, [B, H, KV]) + tkw.select(kept, zero, low)
            return online(scores, tkw.read(v, mapping=v_at), carried, KV)

        largest, total, acc = sums

        @tkw.conditional(LEN > 0)
        def then() -> None:
            tkw.write(largest + tkw.log2(total), logs)
            tkw.write(acc * tkw.reciprocal(total), parts)

    rng = np.random.default_rng(3)
    q = normal(rng, sequences, heads, dq)
    k, v = normal(rng, sequences, length, groups, dq), normal(rng, sequences, length, groups, dk)
    parts = np.zeros((splits, sequences, dk, heads), np.float32)
    logs = np.zeros((splits, sequences, heads), np.float32)
    sizes = {H: heads, D: dk, E_: dq, KV: length, G: groups, B: sequences, U: splits}
    split = {OFF: WORKGROUP_2 * per, LEN: sympy.Min(length, (WORKGROUP_2 + 1) * per) - WORKGROUP_2 * per}
    compiled(phase_0, {**sizes, **split}, target)(q, k, v, parts, logs)
    shares = np.exp2(logs - logs.max(0))
    output = (parts * shares[:, :, None]).sum(0) / shares.sum(0)[:, None]
    for s in range(sequences):
        for h in range(heads):
            wanted = attention(q[s, h][None], k[s, :, h // ratio], v[s, :, h // ratio])[0]
            assert np.abs(output[s, :, h] - wanted).max() < 5e-3


def test_paged_attention_reads_one_past_its_dimension(target: str) -> None:
    """request_indices has S + 1 elements: a sequence ends where the next begins; keys are found by their page."""
    G, SPACE = tkl.sym.BH, tkl.sym.ADDRESS_SPACE
    BEGIN, OFF, LEN = (getattr(tkl.sym, name) for name in ("KV_START_IDX", "SPLIT_OFF", "SPLIT_LEN"))
    heads, groups, k1, n, sequences, length, splits, block = 6, 1, 8, 8, 3, 13, 4, 8
    place = tkw.IndexMapping.dynamic_val(0)
    following = mapping({S: i + 1}, {S: i})
    keys_at = mapping({S: place // K2, G: j, K2: place % K2, K1: l_}, {S: i, G: j, K2: k_, K1: l_}, {K2: k_})
    values_at = mapping({S: place // K2, G: j, N: k_, K2: place % K2}, {S: i, G: j, N: k_, K2: l_}, {K2: l_})
    pages_at = mapping({K2: i + BEGIN}, {K2: i})
    constraints = [
        tkw.WorkgroupConstraint(U, 1, 2),
        tkw.TilingConstraint(K2, 4, iters=sympy.ceiling(LEN / 4), start=OFF),
        tkw.WorkgroupConstraint(
            G, 1, 1, apply_fn=lambda wg: wg // math.ceil(heads / groups / block), iters=heads // min(block, heads)
        ),
        tkw.WorkgroupConstraint(B, block, 1, primary=False),
        tkw.WaveConstraint(B, block),
        tkw.WorkgroupConstraint(S, 1, 0),
    ]

    @tkw.wave(constraints)
    def paged(
        q: tkl.Memory[S, B, K1, GLOBAL, tkl.f16],
        k: tkl.Memory[S, K2, G, K1, SPACE, tkl.f16],
        v: tkl.Memory[S, K2, G, N, SPACE, tkl.f16],
        request_indices: tkl.Memory[S, GLOBAL, tkl.i32],
        kv_indices: tkl.Memory[K2, GLOBAL, tkl.i32],
        parts: tkl.Memory[U, S, N, B, GLOBAL, tkl.f32],
        logs: tkl.Memory[U, S, B, GLOBAL, tkl.f32],
    ) -> None:
        begin = tkw.read(request_indices)
        count = tkw.read(request_indices, mapping=following) - begin
        tkw.set_symbol(BEGIN, begin)
        per = tkw.cast(tkw.apply_expr(count, lambda x: sympy.ceiling(x / U)), tkl.i32)
        first = tkw.broadcast(tkw.self_index(U, tkl.i32), target_shape=[S, U]) * per
        tkw.set_symbol(OFF, first)
        three = [tkw.broadcast(x, target_shape=[S, U]) for x in (per, count)]
        mine = tkw.apply_expr([*three, first], lambda x, y, z: sympy.Min(x, sympy.Max(y - z, 0)))
        tkw.set_symbol(LEN, mine)
        zero, low = (tkl.Register[B, K2, tkl.f32](x) for x in (0.0, LOWEST))
        start = [tkl.Register[S, B, tkl.f32](LOWEST), tkl.Register[S, B, tkl.f32](0.0)]

        @tkw.iterate(K2, init_args=[*start, tkl.Register[S, N, B, tkl.f32](0.0)])
        def sums(*carried: Any) -> Any:
            page = tkw.read(kv_indices, mapping=pages_at)
            keys = tkw.read(k, mapping=keys_at, mapping_dynamic_vals=(page,))
            scores = tkw.mma(keys, tkw.read(q), tkl.Register[S, K2, B, tkl.f32](0.0))
            inside = tkw.apply_expr(tkw.self_index(K2, tkl.i32), lambda x: x < (OFF + LEN))
            kept = tkw.cast(tkw.broadcast(inside, target_shape=[B, K2]), tkw.i1)
            scores = tkw.permute(scores, [S, B, K2]) + tkw.select(kept, zero, low)
            values = tkw.read(v, mapping=values_at, mapping_dynamic_vals=(page,))
            return online(scores, values, carried, K2)

        largest, total, acc = sums

        @tkw.conditional(LEN > 0)
        def then() -> None:
            tkw.write(largest + tkw.log2(total), logs)
            tkw.write(acc * tkw.reciprocal(total), parts)

    rng = np.random.default_rng(4)
    q = normal(rng, sequences, heads, k1)
    k, v = normal(rng, sequences * length, groups, k1), normal(rng, sequences * length, groups, n)
    pages = rng.permutation(sequences * length).astype(np.int32)
    requests = np.array([0, 9, 10, 23], np.int32)
    parts = np.zeros((splits, sequences, n, heads), np.float32)
    logs = np.full((splits, sequences, heads), -np.inf, np.float32)
    sizes = {SPACE: SHARED_ADDRESS_SPACE, B: heads, N: n, K1: k1, U: splits, G: groups}
    run = compiled(paged, sizes, target, [K2, S])
    shaped = (x.reshape(sequences, length, groups, -1) for x in (k, v))
    run(q, *shaped, requests, pages, parts, logs)
    shares = np.exp2(logs - logs.max(0))
    output = (parts * shares[:, :, None]).sum(0) / shares.sum(0)[:, None]
    for s in range(sequences):
        found = pages[requests[s] : requests[s + 1]]
        for h in range(heads):
            wanted = attention(q[s, h][None], k[found, 0], v[found, 0])[0]
            assert np.abs(output[s, :, h] - wanted).max() < 5e-3


def test_speculative_decoding(target: str) -> None:
    """Two while loops in one another, a state for each workgroup, and tables in which a negative number is the end."""
    CUR, J, D = sympy.Symbol("CUR_INDEX"), sympy.Symbol("J"), tkl.sym.D
    AT, TOKEN, COUNT, LAST = (getattr(tkl.sym, x) for x in ("CUR_PROB_OFFSET", "DRAFT_TOKEN_ID", "NUM_ACC", "LAST_ACC"))
    batch, steps, drafts, tokens = 2, 3, 6, 20
    here = mapping({S: i, B: CUR}, {S: i, B: j})
    chance = mapping({S: i, B: AT, D: TOKEN}, {S: i, B: j, D: k_})
    draft = mapping({S: i, B: CUR, D: TOKEN}, {S: i, B: j, D: k_})
    first = mapping({S: i, B: sympy.Integer(0)}, {S: i, B: j})
    to_count = mapping({S: i, B: j}, {S: i, B: COUNT})
    to_last = mapping({S: i, B: j}, {B: LAST})
    to_draft = mapping({S: i, B: j, D: k_}, {S: i, B: CUR, D: TOKEN})
    to_first = mapping({S: i, B: j}, {S: i, B: sympy.Integer(0)})
    whole = [S, B, D]

    @tkw.wave([tkw.WorkgroupConstraint(S, 1, 0), tkw.TilingConstraint(CUR), tkw.TilingConstraint(J)])
    def sampled(
        coins: tkl.Memory[S, B, GLOBAL, tkl.f32],
        target_chances: tkl.Memory[S, B, D, GLOBAL, tkl.f32],
        draft_chances: tkl.Memory[S, B, D, GLOBAL, tkl.f32],
        candidates: tkl.Memory[S, B, GLOBAL, tkl.i32],
        indices: tkl.Memory[S, B, GLOBAL, tkl.i32],
        next_token: tkl.Memory[S, B, GLOBAL, tkl.i32],
        next_sibling: tkl.Memory[S, B, GLOBAL, tkl.i32],
        predicts: tkl.Memory[B, GLOBAL, tkl.i32, Layout(shape=[batch * drafts])],  # type: ignore[valid-type]
        accepted: tkl.Memory[S, B, GLOBAL, tkl.i32, Layout(shape=[batch, steps])],  # type: ignore[valid-type]
        counts: tkl.Memory[S, B, D, GLOBAL, tkl.i32, Layout(shape=[batch, 1, 1])],  # type: ignore[valid-type]
    ) -> None:
        one, none = (tkw.Register[S, B, D, tkl.i32](x) for x in (1, 0))
        nothing, certain = (tkw.Register[S, B, D, tkl.f32](x) for x in (0.0, 1.0))

        def spread(x: Any) -> Any:
            return tkw.broadcast(x, target_shape=whole)

        coin = tkw.read(coins, mapping=first)
        last = tkw.read(indices, mapping=first)
        tkw.write(last, accepted, mapping=to_first)
        open_outside = (steps - 1 >= J) & sympy.Eq(GET_ITER_ARG(6), 0)
        open_inside = (CUR >= 0) & sympy.Eq(GET_ITER_ARG(6), 0)
        begin = [none, none, spread(last), none, nothing, spread(coin), none]

        @tkw.iterate(J, start=one, condition=open_outside, init_args=begin)
        def outer(cur: Any, count: Any, last: Any, at: Any, sums: Any, coin: Any, done: Any) -> Any:
            tkw.set_symbol(CUR, cur)
            cur = tkw.read(next_token, mapping=here)
            fresh = tkw.Register[S, B, D, tkl.i32](0)
            carried = [spread(cur), count, last, at, sums, coin, fresh]

            @tkw.iterate(CUR, start=cur, condition=open_inside, init_args=carried)
            def inner(cur: Any, count: Any, last: Any, at: Any, sums: Any, coin: Any, found: Any) -> Any:
                tkw.set_symbol(CUR, cur)
                index, token = tkw.read(indices, mapping=here), tkw.read(candidates, mapping=here)
                tkw.set_symbol(TOKEN, token)
                tkw.set_symbol(AT, at)
                probability = tkw.read(target_chances, mapping=chance)
                taken = (coin <= sums / certain) | (probability >= certain)
                left = ~taken
                count = tkw.select(taken, count + one, count)
                tkw.set_symbol(COUNT, count)
                tkw.set_symbol(LAST, last)
                at = tkw.select(taken, spread(cur), spread(at))
                coin = tkw.select(taken, spread(tkw.read(coins, mapping=here)), spread(coin))

                @tkw.conditional(taken)
                def accept() -> None:
                    tkw.write(token, predicts, mapping=to_last)
                    tkw.write(index, accepted, mapping=to_count)

                @tkw.conditional(left)
                def refuse() -> None:
                    tkw.write(tkw.read(target_chances, mapping=draft), draft_chances, mapping=to_draft)

                last = tkw.select(taken, spread(index), last)
                sums = tkw.select(taken, nothing, sums + probability)
                cur = tkw.select(left, spread(tkw.read(next_sibling, mapping=here)), spread(cur))
                tkw.set_symbol(CUR, cur)
                return cur, count, last, at, sums, coin, tkw.select(taken, one, found)

            cur, count, last, at, sums, coin, _ = inner
            tkw.set_symbol(J, tkw.apply_expr(tkw.self_index(J, tkl.i32), lambda x: x + 1))
            return cur, count, last, at, sums, coin, tkw.select(cur < none, one, done)

        tkw.write(outer[1], counts, elements_per_thread=1)

    rng = np.random.default_rng(0)
    coins = (rng.random((batch, drafts)) * 0.5).astype(np.float32)
    chances = rng.random((batch, drafts, tokens)).astype(np.float32)
    candidates = rng.integers(0, tokens, (batch, drafts)).astype(np.int32)
    indices = np.arange(batch * drafts, dtype=np.int32).reshape(batch, drafts)
    following = np.array([[1, 2, -1, 4, 5, -1], [3, -1, -1, 4, 5, -1]], np.int32)
    sibling = np.array([[-1, 3, -1, 2, -1, -1], [-1, -1, -1, 5, -1, -1]], np.int32)
    predicts, accepted = np.full(batch * drafts, -9, np.int32), np.full((batch, steps), -1, np.int32)
    counts, refused = np.zeros((batch, 1, 1), np.int32), np.zeros_like(chances)
    run = compiled(sampled, {B: drafts, S: batch, D: tokens}, target)
    run(coins, chances, refused, candidates, indices, following, sibling, predicts, accepted, counts)
    want_predicts, want_accepted, want_refused = np.full_like(predicts, -9), np.full_like(accepted, -1), 0 * chances
    for s in range(batch):
        sums, at, coin, last, count, cur = 0.0, 0, coins[s, 0], indices[s, 0], 0, 0
        want_accepted[s, 0] = last
        for _ in range(1, steps):
            cur = following[s, cur]
            while cur != -1:
                token, probability = candidates[s, cur], chances[s, at, candidates[s, cur]]
                if coin <= sums or probability >= 1:
                    count += 1
                    want_predicts[last], want_accepted[s, count] = token, indices[s, cur]
                    at, coin, last, sums = cur, coins[s, cur], indices[s, cur], 0.0
                    break
                want_refused[s, cur, token] = chances[s, cur, token]
                sums, cur = sums + probability, sibling[s, cur]
            if cur < 0:
                break
        assert counts[s, 0, 0] == count
    assert np.array_equal(predicts, want_predicts)
    assert np.array_equal(accepted, want_accepted)
    assert np.array_equal(refused, want_refused)


def test_a_function_of_a_filled_register_ended_where_an_argument_did(target: str) -> None:
    """A sequence longer than the first argument: what was computed from a register alone had that argument's length,
    and the rest of the sequence was left out of the sum."""
    LEN = tkl.sym.LEN

    @tkw.wave(
        [
            tkw.WorkgroupConstraint(S, 1, 0, iters=S - 1),
            tkw.WorkgroupConstraint(M, M, 1),
            tkw.TilingConstraint(N, 4),
            tkw.IteratorBindings({tkl.sym.s: S, tkl.sym.n: N, tkl.sym.m: M}),
        ]
    )
    def capped(
        short: tkl.Memory[N, M, GLOBAL, tkl.f32, Layout(shape=[None, 3])],
        x: tkl.Memory[N, M, GLOBAL, tkl.f32, Layout(shape=[None, 3])],
        ends: tkl.Memory[S, GLOBAL, tkl.i32, Layout(shape=[None])],
        y: tkl.Memory[S, M, GLOBAL, tkl.f32, Layout(shape=[None, 3])],
    ) -> None:
        limit = tkl.Register[M, N, tkl.f32](4.0)
        zero = tkl.Register[M, tkl.f32](0.0)
        first = tkw.read(ends)
        tkw.set_symbol(LEN, first)
        tkw.set_symbol(N, tkw.read(ends, source=(tkl.sym.s + 1,), target=(tkl.sym.s,)) - first)

        @tkw.iterate(N, init_args=[zero])
        def total(acc: Any) -> Any:
            tile = tkw.read(x, source=(tkl.sym.n + LEN, tkl.sym.m), target=(tkl.sym.m, tkl.sym.n))
            scaled = tile * tkw.reciprocal(limit) * tkw.cast(tkw.cast(limit, tkl.f16), tkl.f32)
            return tkw.sum(tkw.select(tile > -limit, scaled, limit), acc, dim=N)

        tkw.write(total, y)

    ends = np.array([0, 11, 13], np.int32)
    x = np.random.default_rng(5).integers(-3, 4, (13, 3)).astype(np.float32)
    y = np.zeros((3, 3), np.float32)
    compiled(capped, {M: 3}, target, dynamic=[N, S])(np.zeros((2, 3), np.float32), x, ends, y)
    assert np.array_equal(y, [x[:11].sum(0), x[11:].sum(0), [0, 0, 0]])
