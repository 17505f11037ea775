"""Sizes that arguments or data tell when a kernel runs: Wave's attention over pages, over sequences of many lengths."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import ArgumentError
from tilewright.lang import sympy

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
S, N, K, U, B = (tkl.sym.__getattr__(name) for name in ("S", "N", "K", "U", "B"))
START, LENGTH = tkl.sym.START, tkl.sym.LENGTH
i, j, k = (tkw.IndexMapping.iterator(n) for n in range(3))


def lengths_of_pages() -> Any:
    """Sums of the pages of every sequence: ends[S] says where the next one starts."""
    following = tkw.IndexMapping(num_iterators=1, inputs={S: i + 1}, outputs={S: i})
    of_page = tkw.IndexMapping(num_iterators=2, inputs={K: i + START, N: j}, outputs={K: i, N: j})
    constraints = [
        tkw.WorkgroupConstraint(S, 1, 0),
        tkw.TilingConstraint(K, 4, iters=sympy.ceiling(LENGTH / 4)),
    ]

    @tkw.wave(constraints)
    def sums(
        q: tkl.Memory[S, N, GLOBAL, tkl.f32],
        pages: tkl.Memory[K, N, GLOBAL, tkl.f32],
        ends: tkl.Memory[S, GLOBAL, tkl.i32],
        out: tkl.Memory[S, N, GLOBAL, tkl.f32],
    ) -> None:
        first = tkw.read(ends)
        length = tkw.read(ends, mapping=following) - first
        tkw.set_symbol(START, first)
        tkw.set_symbol(LENGTH, length)
        zero, one = (tkl.Register[K, N, tkl.f32](x) for x in (0.0, 1.0))
        start = tkl.Register[S, N, tkl.f32](0.0)

        @tkw.iterate(K, init_args=[start])
        def total(acc: Any) -> Any:
            page = tkw.read(pages, mapping=of_page, otherwise=0)
            inside = tkw.apply_expr(tkw.self_index(K), lambda x: x < LENGTH)
            kept = page * tkw.select(tkw.broadcast(inside, [K, N]), one, zero)
            return tkw.sum(kept, dim=K) + acc

        tkw.write(total * tkw.read(q), out)

    return sums


@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_an_argument_longer_than_its_dimension_was_refused(target: str) -> None:
    rng = np.random.default_rng(0)
    q, pages = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((3, 5), (16, 5)))
    ends = np.array([0, 7, 7, 16], np.int32)
    out = np.full((3, 5), np.nan, np.float32)
    with pytest.raises(ArgumentError, match=r"argument ends has shape .4,.; its dimension 0 must be S = 3, not 4"):
        tilewright.compile(lengths_of_pages(), target="executor")(q, pages, ends, out)
    tilewright.compile(lengths_of_pages(), target=target, lenient=True)(q, pages, ends, out)
    wanted = np.stack([pages[a:b].sum(0) for a, b in pairwise(ends)]) * q
    assert np.array_equal(out, wanted)
    with pytest.raises(ArgumentError, match="its dimension 0 must be at least S = 3, not 2"):
        tilewright.compile(lengths_of_pages(), lenient=True, target="executor")(q, pages, ends[:2], out)


@pytest.mark.parametrize(("target", "dynamic"), [("executor", ()), ("cpu", ()), ("cpu", ["M"])])
def test_products_of_longer_arguments_keep_to_their_dimensions(target: str, dynamic: Any) -> None:
    M = tkl.sym.M

    @tkw.wave()
    def gemm(
        a: tkl.Memory[M, K, GLOBAL, tkl.f32],
        b: tkl.Memory[N, K, GLOBAL, tkl.f32],
        c: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(total, c)

    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((9, 13), (11, 17)))
    c = np.full((12, 14), 7, np.float32)
    tilewright.compile(gemm, target=target, dynamic=dynamic, lenient=True)(a, b, c)
    wanted = np.full((12, 14), 7, np.float32)
    wanted[:9, :11] = a @ b[:, :13].T
    assert np.array_equal(c, wanted)


def ragged_copies(free: bool, rows: int = 30) -> Any:
    """Every sequence of rows reversed in sign: workgroups along N, which set_symbol ends for each sequence."""
    moved = tkw.IndexMapping(num_iterators=2, inputs={N: i + START, B: j}, outputs={N: i, B: j})
    back = tkw.IndexMapping(num_iterators=2, inputs={N: i, B: j}, outputs={N: i + START, B: j})
    following = tkw.IndexMapping(num_iterators=1, inputs={S: i + 1}, outputs={S: i})
    layout = tkl.MemoryLayout(shape=[None, B] if free else [rows, B])
    ends_layout = tkl.MemoryLayout(shape=[None])
    LONGEST = tkl.sym.LONGEST
    constraints = [
        tkw.WorkgroupConstraint(N, 8, 0, iters=sympy.ceiling(LONGEST / 8)),
        tkw.WorkgroupConstraint(S, 1, 1, iters=S - 1),
    ]

    @tkw.wave(constraints)
    def negated(
        x: tkl.Memory[N, B, GLOBAL, tkl.f32, layout],  # type: ignore[valid-type]
        ends: tkl.Memory[S, GLOBAL, tkl.i32, ends_layout],  # type: ignore[valid-type]
        LONGEST: tkl.SymbolBind[tkl.i32],  # noqa: N803
        y: tkl.Memory[N, B, GLOBAL, tkl.f32, layout],  # type: ignore[valid-type]
    ) -> None:
        scale = tkl.Register[N, B, tkl.f32](-1.0)  # before N has its size of a sequence
        first = tkw.read(ends)
        tkw.set_symbol(START, first)
        tkw.set_symbol(N, tkw.read(ends, mapping=following) - first)
        tkw.write(tkw.read(x, mapping=moved) * scale, y, mapping=back)

    return negated


@pytest.mark.parametrize("target", ["executor", "cpu"])
@pytest.mark.parametrize("free", [True, False])
def test_a_workgroups_dimension_that_set_symbol_ends_had_no_size(free: bool, target: str) -> None:
    x = np.random.default_rng(2).standard_normal((30, 3)).astype(np.float32)
    ends = np.array([0, 9, 9, 10, 27, 30], np.int32)
    y = np.full_like(x, np.nan)
    tilewright.compile(ragged_copies(free), target=target)(x, ends, 17, y)
    assert np.array_equal(y, -x)


@pytest.mark.parametrize("target", ["executor", "cpu"])
@pytest.mark.parametrize("size", [6, 8])
def test_an_empty_workgroup_of_a_dimension_that_goes_along_raised_numpys_error(target: str, size: int) -> None:
    @tkw.wave([tkw.WorkgroupConstraint(N, 4, 0), tkw.WorkgroupConstraint(B, 4, 0, primary=False)])
    def sums(
        x: tkl.Memory[N, GLOBAL, tkl.f32],
        w: tkl.Memory[B, GLOBAL, tkl.f32],
        y: tkl.Memory[N, GLOBAL, tkl.f32],
    ) -> None:
        start = tkl.Register[B, tkl.f32](tkl.sym.WORKGROUP_0)  # makes workgroups part of the meaning
        both = tkw.maximum(tkw.read(w), start)
        tkw.write(tkw.read(x) + tkw.sum(both, dim=B), y)

    x, w = np.arange(13, dtype=np.float32), np.array([3, 1, 2, 5, 0, 7, 4, 6], np.float32)[:size]
    y = np.zeros_like(x)
    tilewright.compile(sums, target=target)(x, w, y)
    totals = [sum(max(n, g) for n in w[4 * g : 4 * g + 4]) for g in range(4)]
    assert np.array_equal(y, x + np.repeat(totals, 4)[:13])


H, G, D, Q = (tkl.sym.__getattr__(name) for name in ("H", "G", "D", "Q"))


def extended(causal: bool) -> Any:
    """Scores times values, without a softmax: over the pages of a sequence, then over its own new rows.

    As in Wave's attention for extended sequences: Q rows and K of every sequence end where data say, heads go in
    groups, keys of the cache are found by page.
    """
    l = tkw.IndexMapping.iterator(2)  # noqa: E741
    PAGES, LONGEST = tkl.sym.PAGES, tkl.sym.LONGEST
    page = tkw.IndexMapping.dynamic_val(0)
    q_at = tkw.IndexMapping(num_iterators=3, inputs={H: i, Q: j + START, D: l}, outputs={H: i, Q: j, D: l})
    y_at = tkw.IndexMapping(num_iterators=3, inputs={H: i, D: j, Q: l}, outputs={H: i, Q: l + START, D: j})
    own = tkw.IndexMapping(num_iterators=3, inputs={G: i // 2, K: j + START, D: l}, outputs={G: i, K: j, D: l})
    cached = tkw.IndexMapping(
        num_iterators=3, inputs={G: i // 2, K: page, D: l}, outputs={G: i, K: j, D: l}, dynamic_val_mappings={K: j}
    )
    listed = tkw.IndexMapping(num_iterators=1, inputs={K: i + PAGES}, outputs={K: i})
    following = tkw.IndexMapping(num_iterators=1, inputs={S: i + 1}, outputs={S: i})
    rows, many = tkl.MemoryLayout(shape=[None, H, D]), tkl.MemoryLayout(shape=[None, G, D])
    line = tkl.MemoryLayout(shape=[None])
    constraints = [
        tkw.WorkgroupConstraint(Q, 8, 0, iters=sympy.ceiling(LONGEST / 8)),
        tkw.WorkgroupConstraint(H, 1, 1),
        tkw.WorkgroupConstraint(G, 1, 1, primary=False),
        tkw.WorkgroupConstraint(S, 1, 2, iters=S - 1),
        tkw.TilingConstraint(K, 4),
    ]

    @tkw.wave(constraints)
    def attention(
        q: tkl.Memory[Q, H, D, GLOBAL, tkl.f32, rows],  # type: ignore[valid-type]
        k: tkl.Memory[K, G, D, GLOBAL, tkl.f32, many],  # type: ignore[valid-type]
        cache: tkl.Memory[K, G, D, GLOBAL, tkl.f32, many],  # type: ignore[valid-type]
        starts: tkl.Memory[S, GLOBAL, tkl.i32, line],  # type: ignore[valid-type]
        ends: tkl.Memory[S, GLOBAL, tkl.i32, line],  # type: ignore[valid-type]
        pages: tkl.Memory[K, GLOBAL, tkl.i32, line],  # type: ignore[valid-type]
        LONGEST: tkl.SymbolBind[tkl.i32],  # noqa: N803
        y: tkl.Memory[Q, H, D, GLOBAL, tkl.f32, rows],  # type: ignore[valid-type]
    ) -> None:
        none = tkl.Register[H, D, Q, tkl.f32](0.0)
        zero, one = (tkl.Register[Q, K, tkl.f32](x) for x in (0.0, 1.0))
        first = tkw.read(starts)
        tkw.set_symbol(START, first)
        new = tkw.read(starts, mapping=following) - first
        tkw.set_symbol(Q, new)
        of_pages = tkw.read(ends)
        tkw.set_symbol(PAGES, of_pages)
        tkw.set_symbol(K, tkw.read(ends, mapping=following) - of_pages)

        def scored(keys: Any, acc: Any, kept: Any) -> Any:
            scores = tkw.mma(keys, tkw.read(q, mapping=q_at), tkl.Register[H, K, Q, tkl.f32](0.0))
            weights = tkw.permute(scores, [H, Q, K]) * tkw.select(kept, one, zero)
            return tkw.mma(tkw.permute(keys, [G, D, K]), weights, acc)

        def inside() -> Any:
            return tkw.broadcast(tkw.apply_expr(tkw.self_index(K), lambda x: x < K), [Q, K])

        @tkw.iterate(K, init_args=[none])
        def before(acc: Any) -> Any:
            keys = tkw.read(cache, mapping=cached, mapping_dynamic_vals=(tkw.read(pages, mapping=listed),))
            return scored(keys, acc, inside())

        tkw.set_symbol(K, new)

        @tkw.iterate(K, init_args=[before])
        def total(acc: Any) -> Any:
            kept = inside()
            if causal:
                kept = kept & (tkw.broadcast(tkw.self_index(Q), [Q, K]) >= tkw.self_index(K))
            return scored(tkw.read(k, mapping=own), acc, kept)

        tkw.write(total, y, mapping=y_at)

    return attention


@pytest.mark.filterwarnings("ignore::tilewright.errors.FastPathLost")  # a grid program
@pytest.mark.parametrize("target", ["executor", "cpu"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_over_sequences_whose_lengths_are_data(target: str, causal: bool) -> None:
    rng = np.random.default_rng(4)
    new, old = [9, 1, 13], [6, 0, 11]
    starts, ends = (np.concatenate([[0], np.cumsum(x)]).astype(np.int32) for x in (new, old))
    q = rng.integers(-2, 3, (sum(new), 4, 5)).astype(np.float32)
    k, cache = (rng.integers(-2, 3, (n, 2, 5)).astype(np.float32) for n in (sum(new), 40))
    pages = rng.permutation(40)[: sum(old)].astype(np.int32)
    y = np.full_like(q, np.nan)
    kernel = tilewright.compile(extended(causal), {H: 4, G: 2, D: 5}, target=target)
    kernel(q, k, cache, starts, ends, pages, max(new), y)
    for s, length in enumerate(new):
        mine = slice(starts[s], starts[s + 1])
        found = cache[pages[ends[s] : ends[s + 1]]]
        for h in range(4):
            own = q[mine, h] @ k[mine, h // 2].T
            own = np.tril(own) if causal else own
            wanted = q[mine, h] @ found[:, h // 2].T @ found[:, h // 2] + own @ k[mine, h // 2]
            assert np.array_equal(y[mine, h], wanted), (s, h, length)


def test_a_layout_of_numbers_takes_an_array_with_fewer_dimensions() -> None:
    layout = tkl.MemoryLayout(shape=[3, 1, 1])

    @tkw.wave()
    def sums(
        x: tkl.Memory[S, N, GLOBAL, tkl.f32],
        y: tkl.Memory[S, N, B, GLOBAL, tkl.f32, layout],  # type: ignore[valid-type]
    ) -> None:
        total = tkw.sum(tkw.read(x), dim=N)
        tkw.write(tkw.broadcast(total, [S, N, B]), y)  # of which y has one element for each s

    x, y = np.arange(6, dtype=np.float32).reshape(3, 2), np.zeros(3, np.float32)
    with pytest.raises(ArgumentError, match="argument y has shape"):
        tilewright.compile(sums, {B: 4}, target="executor")(x, y)
    tilewright.compile(sums, {B: 4}, lenient=True, target="executor")(x, y)
    assert y.tolist() == [1, 5, 9]
