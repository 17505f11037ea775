"""Operations and constraints of Wave's that had another meaning here, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import DimensionMismatch, PythonControlFlow
from tilewright.lang import sympy

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
M, N, K, U = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.U
TARGETS = ["executor", "cpu"]


@pytest.mark.parametrize("target", TARGETS)
def test_an_alias_was_reversed_and_waves_shared_their_reductions(target: str) -> None:
    """Each wave sums its own tile of K: U of them, where U = ceil(K / tile)."""
    BLOCK = tkl.sym.BLOCK
    constraints = [
        tkw.WorkgroupConstraint(M, 4, 0),
        tkw.WorkgroupConstraint(K, BLOCK, 1),
        tkw.WaveConstraint(K, BLOCK / 2),
        tkw.SymbolicAlias(U, K, lambda x: sympy.ceiling(x / (BLOCK / 2))),
    ]

    @tkw.wave(constraints)
    def sums(x: tkl.Memory[M, K, GLOBAL, tkl.f32], y: tkl.Memory[U, M, GLOBAL, tkl.f32]) -> None:
        tkw.write(tkw.sum(tkw.read(x), dim=K), y)

    x = np.random.default_rng(0).integers(-9, 10, (6, 22)).astype(np.float32)
    y = np.full((6, 6), np.nan, np.float32)
    tilewright.compile(sums, {BLOCK: 8}, target=target)(x, y)
    wanted = np.stack([x[:, 4 * u : 4 * u + 4].sum(1) for u in range(6)])
    assert np.array_equal(y, wanted)


def test_an_alias_says_source_of_target() -> None:
    alias = tkw.SymbolicAlias(U, K, lambda x: 2 * x + 1)
    assert alias.source_to_target(K) is 2 * K + 1

    @tkw.wave([alias])
    def filled(x: tkl.Memory[K, GLOBAL, tkl.f32], y: tkl.Memory[U, GLOBAL, tkl.f32]) -> None:
        tkw.write(tkw.register([U], tkl.f32, 3.0), y)

    assert tilewright.compile(filled, target="executor")(np.zeros(3, np.float32)).tolist() == [3.0] * 7


@pytest.mark.parametrize("target", TARGETS)
def test_a_register_by_function_and_an_else_that_is_a_list(target: str) -> None:
    @tkw.wave([tkw.WaveConstraint(M, 4, 0)])
    def chosen(x: tkl.Memory[M, GLOBAL, tkl.f32], y: tkl.Memory[M, GLOBAL, tkl.f32]) -> None:
        tile = tkw.read(x)
        other = tkw.register([M], tkl.f32, -1.0)

        @tkw.conditional(tile > other, else_return=[other])
        def larger() -> Any:
            return [tile * tile]

        tkw.write(larger, y)

    x = np.array([-3, -1, 2, 5, 0.5], np.float32)
    assert tilewright.compile(chosen, target=target)(x).tolist() == [-1, -1, 4, 25, 0.25]


def test_ceiling_and_floor_of_numbers() -> None:
    assert [int(sympy.ceiling(x)) for x in (2.5, 3.0, 4, -1.5)] == [3, 3, 4, -1]
    assert int(sympy.floor(2.5)) == 2


@pytest.mark.parametrize("along", [M, 0, -2])
@pytest.mark.parametrize("target", TARGETS)
def test_scatter_add(target: str, along: Any) -> None:
    """Wave's own kernels name the dimension by its number."""

    @tkw.wave()
    def counted(
        x: tkl.Memory[M, N, GLOBAL, tkl.f32],
        to: tkl.Memory[M, GLOBAL, tkl.i32],
        y: tkl.Memory[M, N, GLOBAL, tkl.f32],
    ) -> None:
        tkw.scatter_add(tkw.read(x), tkw.read(to), along, y)

    rng = np.random.default_rng(1)
    x, to = rng.integers(-5, 6, (7, 3)).astype(np.float32), np.array([2, 0, 2, 6, 6, 6, 1], np.int32)
    y = np.ones((7, 3), np.float32)
    tilewright.compile(counted, target=target)(x, to, y)
    wanted = np.ones((7, 3), np.float32)
    np.add.at(wanted, to, x)
    assert np.array_equal(y, wanted)


def test_an_iterator_that_only_looks_up_keeps_its_dimension() -> None:
    """A dimension bound by set_symbol whose iterator stands only in dynamic_val_mappings was taken for another."""
    S = tkl.sym.S
    i, j = (tkw.IndexMapping.iterator(n) for n in range(2))
    d0 = tkw.IndexMapping.dynamic_val(0)
    gathered = tkw.IndexMapping(
        num_iterators=2, inputs={K: d0, N: j}, outputs={K: i, N: j}, dynamic_val_mappings={K: i}
    )
    constraints = [tkw.WorkgroupConstraint(S, 1, 0), tkw.TilingConstraint(K, 4)]

    @tkw.wave([*constraints, tkw.ReorderingConstraint(tkl.sym.WORKGROUP_0, 0)])
    def sums(
        cache: tkl.Memory[K, N, GLOBAL, tkl.f32],
        pages: tkl.Memory[K, GLOBAL, tkl.i32],
        lengths: tkl.Memory[S, GLOBAL, tkl.i32],
        y: tkl.Memory[S, N, GLOBAL, tkl.f32],
    ) -> None:
        tkw.set_symbol(K, tkw.read(lengths))

        @tkw.iterate(K, init_args=[tkl.Register[S, N, tkl.f32](0.0)])
        def total(acc: Any) -> Any:
            page = tkw.read(pages)
            rows = tkw.read(cache, mapping=gathered, mapping_dynamic_vals=(page,))
            return tkw.sum(rows, dim=K) + acc

        tkw.write(total, y)

    rng = np.random.default_rng(2)
    cache, pages = rng.integers(-5, 6, (9, 5)).astype(np.float32), rng.permutation(9).astype(np.int32)
    lengths = np.array([9, 0, 5], np.int32)
    y = np.full((3, 5), np.nan, np.float32)
    tilewright.compile(sums, target="executor")(cache, pages, lengths, y)
    assert np.array_equal(y, np.stack([cache[pages[:n]].sum(0) for n in lengths]))


@pytest.mark.parametrize("target", TARGETS)
def test_a_while_loop_ends_for_each_workgroup_when_it_is_done(target: str) -> None:
    """Chains through a table, until a negative number ends them: as in Wave's speculative decoding."""
    S, B = tkl.sym.S, tkl.sym.B
    NOW = sympy.Symbol("NOW")
    i, j = (tkw.IndexMapping.iterator(n) for n in range(2))
    here = tkw.IndexMapping(num_iterators=2, inputs={S: i, B: NOW}, outputs={S: i, B: j})
    begin = tkw.IndexMapping(num_iterators=2, inputs={S: i, B: sympy.Integer(0)}, outputs={S: i, B: j})

    @tkw.wave([tkw.WorkgroupConstraint(S, 1, 0), tkw.TilingConstraint(NOW)])
    def followed(
        following: tkl.Memory[S, B, GLOBAL, tkl.i32],
        count: tkl.Memory[S, B, GLOBAL, tkl.i32],
    ) -> None:
        first = tkw.read(following, mapping=begin)
        zero, one = (tkl.Register[S, B, tkl.i32](n) for n in (0, 1))

        @tkw.iterate(NOW, start=first, condition=NOW >= 0, init_args=[zero])
        def steps(total: Any) -> Any:
            tkw.set_symbol(NOW, tkw.read(following, mapping=here))
            return total + one

        tkw.write(steps, count)

    following = np.array([[2, 3, 1, -1], [-1, 0, 0, 0], [1, 2, 3, -5]], np.int32)
    count = np.full((3, 4), 9, np.int32)
    tilewright.compile(followed, target=target, lenient=True)(following, count)
    assert np.array_equal(count, np.repeat([[3], [0], [3]], 4, axis=1))


@pytest.mark.parametrize("limit", [2, 50])
@pytest.mark.parametrize("target", TARGETS)
def test_the_body_of_a_conditional_could_not_take_what_else_return_gives(target: str, limit: int) -> None:
    @tkw.wave()
    def larger(x: tkl.Memory[M, N, GLOBAL, tkl.f16], y: tkl.Memory[M, N, GLOBAL, tkl.f16], threshold: tkl.i32) -> None:
        tile = tkw.read(x)

        @tkw.conditional(threshold > tkw.scalar(10, tkl.i32), else_return=[tile])
        def chosen(given: Any) -> Any:
            return given * tkw.scalar(2.5, tkl.f16)

        tkw.write(chosen, y)

    x, y = np.arange(-9, 12, 1, np.float16).reshape(3, 7), np.zeros((3, 7), np.float16)
    tilewright.compile(larger, target=target)(x, y, limit)
    assert np.array_equal(y, x * np.float16(2.5) if limit > 10 else x)


def test_a_conditional_whose_body_takes_too_many_values_is_named() -> None:
    @tkw.wave()
    def wrong(x: tkl.Memory[M, GLOBAL, tkl.f32], y: tkl.Memory[M, GLOBAL, tkl.f32]) -> None:
        tile = tkw.read(x)

        @tkw.conditional(tile > 0, else_return=[tile])
        def chosen(a: Any, b: Any) -> Any:
            return a + b

        tkw.write(chosen, y)

    with pytest.raises(DimensionMismatch, match="chosen is called with the 1 values of else_return"):
        wrong.trace()


@pytest.mark.parametrize("target", TARGETS)
def test_an_atomic_whose_places_are_a_tile_was_refused(target: str) -> None:
    """A histogram: one is added at every place that the tile names, however many counters there are."""
    i, place = tkw.IndexMapping.iterator(0), tkw.IndexMapping.dynamic_val(0)
    counter = tkw.IndexMapping(num_iterators=1, inputs={K: place}, outputs={K: i}, dynamic_val_mappings={K: i})

    @tkw.wave([tkw.WorkgroupConstraint(N, N, 0), tkw.WorkgroupConstraint(K, K, 1)])
    def histogram(places: tkl.Memory[N, GLOBAL, tkl.i32], counts: tkl.Memory[K, GLOBAL, tkl.i32]) -> None:
        shared = tkw.allocate((K,), (K,), tkl.i32)
        tkw.write(tkl.Register[K, tkl.i32](0), shared)
        ones = tkl.Register[K, tkl.i32](1)
        tkw.atomic_add(ones, shared, mapping=counter, mapping_dynamic_vals=(tkw.read(places),))
        tkw.write(tkw.read(shared), counts)

    places, counts = np.random.default_rng(3).integers(0, 5, 67).astype(np.int32), np.zeros(5, np.int32)
    tilewright.compile(histogram, target=target)(places, counts)
    assert np.array_equal(counts, np.bincount(places, minlength=5))


def test_an_atomic_of_values_beside_places_of_another_dimension_is_refused() -> None:
    """Which element of K belongs to which place along N, nothing says."""
    i, place = tkw.IndexMapping.iterator(0), tkw.IndexMapping.dynamic_val(0)
    at = tkw.IndexMapping(num_iterators=1, inputs={K: i}, outputs={K: place})

    @tkw.wave()
    def unclear(
        x: tkl.Memory[K, GLOBAL, tkl.i32], places: tkl.Memory[N, GLOBAL, tkl.i32], y: tkl.Memory[K, GLOBAL, tkl.i32]
    ) -> None:
        tkw.atomic_add(tkw.read(x), y, mapping=at, mapping_dynamic_vals=(tkw.read(places),))

    with pytest.raises(DimensionMismatch, match=r"the mapping is over \[N\], the tile has \[K\]"):
        unclear.trace()


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_could_not_be_written_along_the_dimensions_it_lacks(target: str) -> None:
    @tkw.wave()
    def repeated(
        x: tkl.Memory[N, GLOBAL, tkl.f32], y: tkl.Memory[M, N, GLOBAL, tkl.f32], z: tkl.Memory[N, M, GLOBAL, tkl.f32]
    ) -> None:
        tile = tkw.read(x)
        tkw.write(tile, y)
        tkw.write(tile[2], z)

    x, y, z = np.arange(7, dtype=np.float32), np.zeros((5, 7), np.float32), np.zeros((7, 5), np.float32)
    tilewright.compile(repeated, target=target)(x, y, z)
    assert np.array_equal(y, np.broadcast_to(x, (5, 7)))
    assert np.array_equal(z, np.full((7, 5), 2))


@pytest.mark.parametrize("target", TARGETS)
def test_a_tile_had_no_elements(target: str) -> None:
    @tkw.wave()
    def scaled(x: tkl.Memory[M, N, GLOBAL, tkl.f32], y: tkl.Memory[M, N, GLOBAL, tkl.f32]) -> None:
        tile = tkw.read(x)
        tkw.write(tile * tile[1, N - 2], y)

    x = np.arange(-4, 31, dtype=np.float32).reshape(5, 7)
    assert np.array_equal(tilewright.compile(scaled, {N: 7}, target=target)(x), x * x[1, 5])


@pytest.mark.parametrize("place", [0, slice(1, 2), (0, 1, 2), True, 0.5])
def test_an_element_needs_a_coordinate_for_each_dimension(place: Any) -> None:
    @tkw.wave()
    def wrong(x: tkl.Memory[M, N, GLOBAL, tkl.f32], y: tkl.Memory[M, N, GLOBAL, tkl.f32]) -> None:
        tkw.write(tkw.read(x)[place], y)

    with pytest.raises(PythonControlFlow, match="give a coordinate for each of its 2 dimensions"):
        wrong.trace()
