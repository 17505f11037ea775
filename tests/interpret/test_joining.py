"""Workgroups that the executor runs together: which may, and that the result is that of one after another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.interpret import joining
from tilewright.interpret.run import Run
from tilewright.lang.global_symbols import WORKGROUP_0, WORKGROUP_1, WORKGROUP_2

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
B, M, N, K = (getattr(tkl.sym, name) for name in "BMNK")
i, j = (tkw.IndexMapping.iterator(n) for n in range(2))


def memory(*dims: Any) -> Any:
    return tkl.Memory[*dims, GLOBAL, tkl.f32]


def grid(*more: Any) -> list[Any]:
    """Tiles of 2 of M, of 3 of N, and of one of B, along three dimensions of the grid."""
    return [
        tkw.WorkgroupConstraint(M, 2, 0),
        tkw.WorkgroupConstraint(N, 3, 1),
        tkw.WorkgroupConstraint(B, 1, 2),
        *more,
    ]


def number_of_the_workgroup() -> Any:
    return tkw.cast(tkw.scalar(WORKGROUP_2, tkl.i32), tkl.f32)


@tkw.wave(grid(tkw.TilingConstraint(K, 4)))
def product(a: memory(M, K), b: memory(B, N, K), c: memory(B, M, N)) -> None:
    @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(acc: Any) -> Any:
        return tkw.mma(tkw.read(a), tkw.read(b), acc)  # B is one wide: the factors and the sum have it or not

    tkw.write(total, c)


@tkw.wave(grid(tkw.TilingConstraint(K, 4, iters=(WORKGROUP_0 + 1) * 2)))
def lower(a: memory(M, K), b: memory(B, N, K), c: memory(B, M, N)) -> None:
    @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
    def total(acc: Any) -> Any:
        return tkw.mma(tkw.read(a), tkw.read(b), acc)

    tkw.write(total, c)


@tkw.wave(grid())
def largest(a: memory(M, K), b: memory(B, N, K), c: memory(B, M, N)) -> None:
    """Each workgroup takes the largest of its own part of N."""
    tile = tkw.max(tkw.max(tkw.read(b), dim=K), dim=N)
    shared = tkw.sum(tkw.read(a), dim=K)
    tkw.write(tkw.broadcast(shared + tile + number_of_the_workgroup(), [B, M, N]), c)


@tkw.wave(grid())
def meeting(a: memory(M, K), b: memory(B, N, K), c: memory(B, M, N)) -> None:
    """All of M is written to the same three rows: the last workgroup stays."""
    k = tkw.IndexMapping.iterator(2)
    folded = tkw.IndexMapping(num_iterators=3, inputs={B: i, M: j, N: k}, outputs={B: i, M: j % 3, N: k})
    rows = tkw.sum(tkw.read(a), dim=K) + number_of_the_workgroup()
    tkw.write(tkw.broadcast(rows, [B, M, N]), c, mapping=folded)


@pytest.mark.parametrize(
    ("kernel", "together"),
    [(product, {0: 5, 1: 3}), (lower, {1: 3}), (largest, {0: 5}), (meeting, {1: 3})],
    ids=["product", "lower", "largest", "meeting"],
)
def test_workgroups_ran_one_by_one_where_nothing_tells_them_apart(
    kernel: Any, together: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((9, 40), (2, 7, 40)))
    current, seen = Run.workgroup, []

    def workgroup(run: Run, ids: Any, joined: Any) -> None:
        seen.append((ids, dict(joined)))
        current(run, ids, joined)

    monkeypatch.setattr(Run, "workgroup", workgroup)
    results = []
    for most in (joining.MOST, 0):
        monkeypatch.setattr(joining, "MOST", most)
        results.append(np.zeros((2, 9, 7), np.float32))
        tilewright.compile(kernel, target="executor")(a, b, results[-1])
    assert np.array_equal(*results)
    assert seen[0] == ((0, 0, 0), together)
    assert len([ids for ids, joined in seen if not joined]) == 5 * 3 * 2


def test_tiles_of_workgroups_that_run_together_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MOST", 2 * 2 * 7)  # the largest tile of a workgroup is 2 rows of 7
    counts = []

    def workgroup(run: Run, ids: Any, joined: Any) -> None:
        counts.append(dict(joined))
        current(run, ids, joined)

    @tkw.wave([tkw.WorkgroupConstraint(M, 2, 0), tkw.WorkgroupConstraint(B, 1, 1)])
    def doubled(x: memory(B, M, N), y: memory(B, M, N)) -> None:
        tkw.write(tkw.read(x) + tkw.cast(tkw.scalar(WORKGROUP_1, tkl.i32), tkl.f32), y)

    current = Run.workgroup
    monkeypatch.setattr(Run, "workgroup", workgroup)
    x = np.arange(2 * 9 * 7, dtype=np.float32).reshape(2, 9, 7)
    y = tilewright.compile(doubled, target="executor")(x)
    assert np.array_equal(y, x + np.arange(2).reshape(2, 1, 1))
    assert counts == [{0: 2}] * 6
