"""Programs whose order shows: arguments read and written through different accesses, loops that data move."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import AliasingWarning, FastPathLost
from tilewright.lang import sympy

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
B, M, N, K, U = (tkl.sym.__getattr__(name) for name in "BMNKU")
i, j = (tkw.IndexMapping.iterator(n) for n in range(2))


def both(kernel: Any, symbols: dict[Any, Any], *arrays: Any, **options: Any) -> list[Any]:
    """The arrays after the executor and after machine code, which must agree exactly."""
    results = []
    for target in ("executor", "cpu"):
        copies = [a.copy() if isinstance(a, np.ndarray) else a for a in arrays]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AliasingWarning)
            warnings.simplefilter("ignore", FastPathLost)  # their products are plain loops
            tilewright.compile(kernel, symbols, target=target, **options)(*copies)
        results.append(copies)
    for a, b in zip(*results, strict=True):
        assert np.array_equal(a, b)
    return results[1]


def test_a_tile_written_and_read_back_through_its_turned_mapping_was_refused() -> None:
    """As in Wave's backward attention: p is written turned and read as it is, ds the other way round."""
    turn = tkw.IndexMapping(num_iterators=2, inputs={K: i, M: j}, outputs={M: j, K: i})
    turned = tkw.IndexMapping(num_iterators=2, inputs={M: j, K: i}, outputs={K: i, M: j})

    @tkw.wave([tkw.WorkgroupConstraint(K, 32, 0), tkw.WorkgroupConstraint(N, 32, 1), tkw.TilingConstraint(M, 8)])
    def backward(
        q: tkl.Memory[M, N, GLOBAL, tkl.f32],
        v: tkl.Memory[K, N, GLOBAL, tkl.f32],
        p: tkl.Memory[M, K, GLOBAL, tkl.f32],
        ds: tkl.Memory[M, K, GLOBAL, tkl.f32],
        dq: tkl.Memory[M, N, GLOBAL, tkl.f32],
        dv: tkl.Memory[K, N, GLOBAL, tkl.f32],
    ) -> None:
        @tkw.iterate(M, init_args=[tkl.Register[K, N, tkl.f32](0.0)])
        def total(acc: Any) -> Any:
            rows = tkw.read(q)
            scores = tkw.mma(tkw.read(v), rows, tkl.Register[K, M, tkl.f32](0.0))
            tkw.write(scores, p, mapping=turn)
            back = tkw.read(p)
            tkw.write(back * back, ds)
            squares = tkw.read(ds, mapping=turned)
            tkw.write(tkw.read(dq) + rows * 2.0, dq)
            return tkw.mma(squares, rows, acc)

        tkw.write(total, dv)

    rng = np.random.default_rng(0)
    q, v = (rng.integers(-2, 3, (n, 5)).astype(np.float32) for n in (19, 11))
    p, ds = (np.zeros((19, 11), np.float32) for _ in range(2))
    dq, dv = np.ones((19, 5), np.float32), np.zeros((11, 5), np.float32)
    *_, p, ds, dq, dv = both(backward, {}, q, v, p, ds, dq, dv)
    assert np.array_equal(p, q @ v.T)
    assert np.array_equal(ds, (q @ v.T) ** 2)
    assert np.array_equal(dq, 1 + 2 * q)
    assert np.array_equal(dv, ((q @ v.T) ** 2).T @ q)


def test_an_argument_read_and_written_elsewhere_is_done_in_the_programs_order() -> None:
    further = tkw.IndexMapping(num_iterators=1, inputs={M: (i + 1) % M}, outputs={M: i})

    @tkw.wave()
    def moved(x: tkl.Memory[M, GLOBAL, tkl.f32], y: tkl.Memory[M, GLOBAL, tkl.f32]) -> None:
        tkw.write(tkw.read(x, mapping=further) * 2.0, x)
        tkw.shared_memory_barrier()
        tkw.write(tkw.read(x, mapping=further), y)

    x = np.arange(1, 3001, dtype=np.float32)
    _, y = both(moved, {}, x, np.zeros_like(x))
    assert np.array_equal(y, np.roll(2 * x, -2))


def test_filled_tiles_have_elements_wherever_a_loop_is() -> None:
    """As in Wave's grouped decoding: a mask of numbers made before a loop that starts where its workgroup says."""
    off, length = tkl.sym.OFF, tkl.sym.LENGTH
    constraints = [
        tkw.WorkgroupConstraint(U, 1, 0),
        tkw.TilingConstraint(K, 4, iters=sympy.ceiling(length / 4), start=off),
    ]

    @tkw.wave(constraints)
    def parts(x: tkl.Memory[K, N, GLOBAL, tkl.f32], y: tkl.Memory[U, N, GLOBAL, tkl.f32]) -> None:
        zero, one = (tkl.Register[K, N, tkl.f32](n) for n in (0.0, 1.0))

        @tkw.iterate(K, init_args=[tkl.Register[N, tkl.f32](0.0)])
        def total(acc: Any) -> Any:
            inside = tkw.apply_expr(tkw.self_index(K), lambda x: x < off + length)
            kept = tkw.select(tkw.broadcast(inside, [K, N]), one, zero)
            return tkw.sum(tkw.read(x) * kept, dim=K) + acc

        tkw.write(total, y)

    x = np.random.default_rng(1).integers(-9, 10, (23, 3)).astype(np.float32)
    sizes = {off: 6 * tkl.sym.WORKGROUP_0, length: sympy.Min(K, 6 * (tkl.sym.WORKGROUP_0 + 1)) - off}
    _, y = both(parts, sizes, x, np.full((4, 3), np.nan, np.float32))
    assert np.array_equal(y, np.stack([x[6 * u : 6 * u + 6].sum(0) for u in range(4)]))


def test_a_while_loop_along_a_batch_of_products() -> None:
    @tkw.wave(
        [
            tkw.WorkgroupConstraint(M, 8, 0),
            tkw.WorkgroupConstraint(N, 8, 1),
            tkw.TilingConstraint(K, 4),
            tkw.TilingConstraint(B),
        ]
    )
    def batched(
        a: tkl.Memory[B, M, K, GLOBAL, tkl.f32],
        b: tkl.Memory[B, N, K, GLOBAL, tkl.f32],
        c: tkl.Memory[B, M, N, GLOBAL, tkl.f32],
        total: tkl.Memory[N, M, GLOBAL, tkl.f32],
        after: tkl.Memory[B, M, K, GLOBAL, tkl.f32],
        first: tkl.i32,
    ) -> None:
        @tkw.iterate(B, start=first, condition=B < 5, init_args=[tkl.Register[N, M, tkl.f32](0.0)])
        def body(outer: Any) -> Any:
            @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
            def product(acc: Any) -> Any:
                return tkw.mma(tkw.read(a), tkw.read(b), acc)

            tkw.write(product, c)
            tkw.set_symbol(B, tkw.apply_expr(tkw.self_index(B, tkl.i32), lambda x: x + 2))
            return outer + tkw.permute(product, [N, M])

        tkw.write(body, total)
        tkw.write(tkw.read(a) + 1.0, after)  # along B, outside of the loop

    rng = np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, (5, n, 7)).astype(np.float32) for n in (11, 9))
    c, total = np.full((5, 11, 9), 8, np.float32), np.zeros((9, 11), np.float32)
    *_, c, total, after, _ = both(batched, {B: 5}, a, b, c, total, np.zeros_like(a), 1)
    assert np.array_equal(after, a + 1)
    wanted = np.full((5, 11, 9), 8, np.float32)
    wanted[1::2] = (a @ b.transpose(0, 2, 1))[1::2]
    assert np.array_equal(c, wanted)
    assert np.array_equal(total, wanted[1::2].sum(0).T)


def test_a_persistent_product_whose_tiles_are_reordered() -> None:
    row, column, tile, many = (tkl.sym.__getattr__(n) for n in ("ROW", "COLUMN", "TILE", "MANY"))
    a_at = tkw.IndexMapping(num_iterators=2, inputs={M: i + row, K: j}, outputs={M: i, K: j})
    b_at = tkw.IndexMapping(num_iterators=2, inputs={N: i + column, K: j}, outputs={N: i, K: j})
    c_at = tkw.IndexMapping(num_iterators=2, inputs={M: i, N: j}, outputs={M: i + row, N: j + column})
    wide, high = 3, 4  # tiles along N, along M

    @tkw.wave(
        [
            tkw.GridConstraint(many),
            tkw.WorkgroupConstraint(M, 8, 0),
            tkw.WorkgroupConstraint(N, 8, 1),
            tkw.TilingConstraint(K, 4),
            tkw.TilingConstraint(tile),
        ]
    )
    def reordered(
        a: tkl.Memory[M, K, GLOBAL, tkl.f32],
        b: tkl.Memory[N, K, GLOBAL, tkl.f32],
        c: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ) -> None:
        def scalar(n: Any) -> Any:
            return tkw.scalar(n, tkl.i32)

        group = scalar(tkl.sym.WORKGROUP_0)
        swapped = group // scalar(2) * scalar(2) + (scalar(1) - group % scalar(2))
        first = tkw.select(group < scalar(4), swapped, group)

        @tkw.iterate(tile, start=first, condition=tile < wide * high, init_args=[])
        def persistent() -> None:
            now = scalar(tile)
            tall = tkw.minimum(scalar(high) - now // scalar(2 * wide) * scalar(2), scalar(2))
            inside = now % scalar(2 * wide)
            tkw.set_symbol(row, (now // scalar(2 * wide) * scalar(2) + inside % tall) * scalar(8))
            tkw.set_symbol(column, (inside // tall) * scalar(8))

            @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
            def product(acc: Any) -> Any:
                left = tkw.read(a, mapping=a_at, otherwise=0)
                return tkw.mma(left, tkw.read(b, mapping=b_at, otherwise=0), acc)

            tkw.write(product, c, mapping=c_at)
            tkw.set_symbol(tile, now + scalar(many))

    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, (n, 11)).astype(np.float32) for n in (30, 21))
    *_, c = both(reordered, {many: 5}, a, b, np.full((30, 21), np.nan, np.float32))
    assert np.array_equal(c, a @ b.T)


def test_while_loops_nest_and_conditions_may_have_more_dimensions_than_a_write() -> None:
    """Chains through a table, several in a row: the inner loop's axis is set before it starts."""
    S, T = tkl.sym.S, tkl.sym.T
    now, turn = sympy.Symbol("NOW"), sympy.Symbol("TURN")
    here = tkw.IndexMapping(num_iterators=2, inputs={S: i, T: now}, outputs={S: i, T: j})
    seen_at = tkw.IndexMapping(num_iterators=2, inputs={S: i, T: j}, outputs={S: i, T: now})

    @tkw.wave([tkw.WorkgroupConstraint(S, 1, 0), tkw.TilingConstraint(now), tkw.TilingConstraint(turn)])
    def visited(
        following: tkl.Memory[S, T, GLOBAL, tkl.i32],
        seen: tkl.Memory[S, T, GLOBAL, tkl.i32],
        count: tkl.Memory[S, T, GLOBAL, tkl.i32],
    ) -> None:
        zero, one = (tkl.Register[S, T, K, tkl.i32](n) for n in (0, 1))

        @tkw.iterate(turn, start=zero, condition=turn < 3, init_args=[zero])
        def turns(total: Any) -> Any:
            tkw.set_symbol(now, tkw.scalar(turn, tkl.i32))

            @tkw.iterate(now, start=tkw.read(following, mapping=here), condition=now >= 0, init_args=[total])
            def steps(inner: Any) -> Any:
                @tkw.conditional(inner < zero + 4)  # one value, over a dimension more than the write has
                def early() -> None:
                    tkw.write(tkl.Register[S, T, tkl.i32](1), seen, mapping=seen_at)

                tkw.set_symbol(now, tkw.read(following, mapping=here))
                return inner + one

            tkw.set_symbol(turn, tkw.apply_expr(tkw.self_index(turn, tkl.i32), lambda x: x + 1))
            return steps

        tkw.write(tkw.max(turns, dim=K), count)

    following = np.array([[2, 3, 1, -1], [-1, -1, 0, 1]], np.int32)
    seen = np.zeros_like(following)
    _, seen, count = both(visited, {K: 2}, following, seen, np.zeros_like(following), lenient=True)
    wanted, totals = np.zeros_like(seen), []
    for s, row in enumerate(following):
        total = 0
        for begin in range(3):
            at = row[begin]
            while at >= 0:
                if total < 4:
                    wanted[s, at] = 1
                total, at = total + 1, row[at]
        totals.append(total)
    assert np.array_equal(seen, wanted)
    assert np.array_equal(count, np.repeat(np.array(totals)[:, None], 4, axis=1))
