"""Grid programs as machine code: workgroups in order, three ways, on ragged sizes with poisoned outputs."""

import warnings

import numpy as np
import pytest
from grid_fuzz import GridFuzz
from tile_checks import interpreted, no_atoms_today, own_cache, three_ways

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import AliasingWarning, ExecutionError, ProgramError
from tilewright.ir.tile import parse_tile
from tilewright.lang import sympy
from tilewright.lang.global_symbols import (
    GLOBAL_ADDRESS_SPACE,
    SHARED_ADDRESS_SPACE,
    WORKGROUP_0,
    WORKGROUP_1,
    WORKGROUP_2,
)

pytestmark = no_atoms_today
__all__ = ["own_cache"]
M, N, K, S = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.S


def mem(*dims, dtype=tkl.f32):
    return tkl.Memory[(*dims, GLOBAL_ADDRESS_SPACE, dtype)]


def integers(shape, dtype=np.float32, low=-4, high=5, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def poisoned(*shape, dtype=np.float32):
    return np.full(shape, np.nan if np.issubdtype(dtype, np.floating) else 99, dtype)


# -- ids and parts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(8, 6), (10, 7), (3, 1), (1, 13)])
def test_ids_in_code_on_ragged_grids(m, n):
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0), tkw.WorkgroupConstraint(N, 3, 1)])
    def kernel(x: mem(M, N), y: mem(M, N)):
        tkw.write(tkw.read(x) + tkw.scalar(10 * WORKGROUP_0 + 100 * WORKGROUP_1, tkl.f32), y)

    _, y = three_ways(kernel, integers((m, n)), poisoned(m, n))
    assert y[-1, -1] - integers((m, n))[-1, -1] == 10 * ((m - 1) // 4) + 100 * ((n - 1) // 3)


def test_later_workgroups_overwrite_what_earlier_ones_wrote():
    i = tkw.IndexMapping.iterator(0)
    back = tkw.IndexMapping(1, inputs={M: i}, outputs={M: i % 3})

    @tkw.wave([tkw.WorkgroupConstraint(M, 3, 0)])
    def kernel(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x) + tkw.scalar(WORKGROUP_0, tkl.f32), y, mapping=back)

    three_ways(kernel, integers(11), poisoned(11))


def test_a_workgroup_reads_what_the_one_before_it_wrote():
    i = tkw.IndexMapping.iterator(0)
    before = tkw.IndexMapping(1, inputs={M: i - 2}, outputs={M: i})

    @tkw.wave([tkw.WorkgroupConstraint(M, 2, 0, apply_fn=lambda wg: 2 * wg)])
    def kernel(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x) + tkw.read(y, mapping=before, otherwise=0), y)

    _, y = three_ways(kernel, np.ones(7, np.float32), poisoned(7))
    assert y.tolist() == [1, 1, 2, 2, 3, 3, 4]


def test_the_first_grid_dimension_is_fastest():
    @tkw.wave([tkw.WorkgroupConstraint(M, 2, 1), tkw.WorkgroupConstraint(N, 2, 0)])
    def kernel(x: mem(M, N), y: mem(K), z: mem(K)):
        total = tkw.sum(tkw.sum(tkw.read(x), dim=N), dim=M)
        tkw.write(tkw.read(y) * 2 + total, y)

    x = integers((5, 3), low=0, high=3)
    three_ways(kernel, x, np.zeros(1, np.float32), np.zeros(1, np.float32))


@pytest.mark.parametrize("size", [7, 16, 33])
def test_split_k_with_workgroups(size):
    length, off = tkl.sym.LENGTH, tkl.sym.OFF
    constraints = [
        tkw.WorkgroupConstraint(M, 4, 0),
        tkw.WorkgroupConstraint(N, 4, 1),
        tkw.WorkgroupConstraint(S, 1, 2),
        tkw.TilingConstraint(K, 2, iters=sympy.ceiling((sympy.Min(K, off + length) - off) / 2), start=off),
    ]

    @tkw.wave(constraints)
    def kernel(a: mem(M, K), b: mem(N, K), c: mem(M, N)):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def loop(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.atomic_add(loop, c)

    a, b = integers((5, size)), integers((6, size), seed=1)
    part = -(-size // 3 // 2) * 2 + 2
    splits = -(-size // part)
    symbols = {S: splits, length: part, off: length * WORKGROUP_2}
    *_, c = three_ways(kernel, a, b, np.zeros((5, 6), np.float32), symbols=symbols)
    assert (c == a @ b.T).all()


@pytest.mark.parametrize("size", [9, 12, 13])
def test_loops_whose_length_follows_from_the_workgroup(size):
    constraints = [
        tkw.WorkgroupConstraint(M, 2, 0),
        tkw.TilingConstraint(K, 3, iters=sympy.ceiling((2 * WORKGROUP_0 + 2) / 3), start=0),
    ]

    @tkw.wave(constraints)
    def kernel(x: mem(M, K), y: mem(M), z: mem(M)):
        @tkw.iterate(K, init_args=[tkl.Register[M, tkl.f32](0.0), tkl.Register[M, tkl.f32](1.0)])
        def loop(total, last):
            return tkw.sum(tkw.read(x), total, dim=K), tkw.max(tkw.read(x), dim=K) - last

        tkw.write(loop[0], y)
        tkw.write(loop[1], z)

    three_ways(kernel, integers((9, size)), poisoned(9), poisoned(9))


def test_starts_of_workgroups_and_more_of_them_than_tiles():
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda wg: 3 * wg, iters=5)])
    def kernel(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x) + tkw.scalar(WORKGROUP_0, tkl.f32), y)

    for size in (4, 10, 12, 14):
        three_ways(kernel, integers(size), poisoned(size))


@pytest.mark.parametrize("size", [6, 5])
def test_a_reordered_grid(size):
    @tkw.wave([tkw.WorkgroupConstraint(M, 2, 0), tkw.ReorderingConstraint(2 - WORKGROUP_0, 0)])
    def kernel(x: mem(M), y: mem(M), ids: mem(M)):
        tkw.write(tkw.read(x) + 1.0, y)
        tkw.write(tkl.Register[M, tkl.f32](WORKGROUP_0), ids)

    three_ways(kernel, integers(size), poisoned(size), poisoned(size))


def test_kinds_of_workgroups_that_alternate():
    @tkw.wave([tkw.WorkgroupConstraint(M, 3, 0, apply_fn=lambda wg: (2 * wg) % 7), tkw.WorkgroupConstraint(N, 1, 1)])
    def kernel(x: mem(M), y: mem(M, N)):
        tkw.write(tkw.read(x) + tkw.scalar(10 * WORKGROUP_0 + WORKGROUP_1, tkl.f32), y)

    run = tilewright.compile(kernel, target="cpu")
    run(integers(91), poisoned(91, 2))
    assert "if " not in run.text("block")

    @tkw.wave([tkw.WorkgroupConstraint(M, 3, 0, apply_fn=lambda wg: (2 * wg) % 8, iters=200)])
    def ragged(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x) + tkw.scalar(WORKGROUP_0, tkl.f32), y)

    run = tilewright.compile(ragged, target="cpu")
    run(integers(7), poisoned(7))
    assert run.text("block").count("if ") == 2
    three_ways(ragged, integers(7), poisoned(7))


def test_a_table_of_rows_leaves_loops_whose_limits_divide_alone():
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda wg: (3 * wg) % 4, iters=4)])
    def kernel(x: mem(M, N), y: mem(M, N)):
        tkw.write(tkw.read(x) + tkw.read(y) * 2.0, y)

    three_ways(kernel, integers((6, 11)), integers((6, 11), seed=1))


def test_five_grid_dimensions():
    D, E = tkl.sym.D, tkl.sym.E
    constraints = [tkw.WorkgroupConstraint(d, 1, place) for place, d in enumerate((M, N, K, D))]
    constraints.append(tkw.WorkgroupConstraint(E, 2, 4, apply_fn=lambda wg: 2 * wg))

    @tkw.wave(constraints)
    def kernel(x: mem(M, N, K, D, E), y: mem(M, N, K, D, E)):
        tkw.write(tkw.read(x) + tkw.scalar(WORKGROUP_2, tkl.f32), y)

    three_ways(kernel, integers((2, 1, 3, 2, 5)), poisoned(2, 1, 3, 2, 5))


def test_a_persistent_grid():
    TILE, TILES, COUNT = tkl.sym.TILE, tkl.sym.TILES, 3
    i = tkw.IndexMapping.iterator(0)
    at = tkw.IndexMapping(1, inputs={M: i + 2 * TILE}, outputs={M: i})
    back = tkw.IndexMapping(1, inputs={M: i}, outputs={M: i + 2 * TILE})

    @tkw.wave([tkw.GridConstraint(COUNT), tkw.WorkgroupConstraint(M, 2, 0), tkw.TilingConstraint(TILE)])
    def kernel(x: mem(M), y: mem(M)):
        @tkw.iterate(TILE, start=tkw.scalar(WORKGROUP_0, tkl.i32), condition=TILE < TILES, init_args=[])
        def walk():
            tkw.write(tkw.read(x, mapping=at) * 2.0, y, mapping=back)
            tkw.set_symbol(TILE, tkw.scalar(TILE, tkl.i32) + COUNT)

    three_ways(kernel, integers(14), poisoned(14), symbols={TILES: 7})


# -- workgroups as tasks ------------------------------------------------------------------------------------


def block_text(kernel, *args, symbols=None):
    run = tilewright.compile(kernel, symbols or {}, target="cpu")
    run(*args)
    return run.text("block")


def test_workgroups_that_do_not_meet_are_tasks():
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0), tkw.WorkgroupConstraint(N, 3, 1, apply_fn=lambda wg: 3 * wg)])
    def kernel(x: mem(M, N), y: mem(N, M), z: mem(K)):
        tile = tkw.read(x) + tkw.scalar(WORKGROUP_0, tkl.f32)
        tkw.write(tile + tkw.read(y), y)
        tkw.atomic_add(tkw.sum(tile, dim=N), z, mapping=tkw.IndexMapping(1, inputs={M: i}, outputs={K: i % 2}))

    i = tkw.IndexMapping.iterator(0)
    args = integers((10, 7)), integers((7, 10), seed=1), np.zeros(2, np.float32)
    text = block_text(kernel, *(a.copy() for a in args))
    assert "tasks w1 in 0..3, w0 in 0..3 {" in text
    assert "?" not in text.replace("if ", "")  # inside a branch nothing can leave memory
    three_ways(kernel, *args)


def test_workgroups_that_meet_are_not_tasks():
    i = tkw.IndexMapping.iterator(0)
    by_id = tkw.IndexMapping(1, inputs={M: i}, outputs={M: i - WORKGROUP_0})
    turned = tkw.IndexMapping(1, inputs={M: 9 - i}, outputs={M: i})

    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0)])
    def at_places_of_ids(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x), y, mapping=by_id)

    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda wg: 3 * wg)])
    def that_overlap(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x) + tkw.scalar(WORKGROUP_0, tkl.f32), y)

    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda wg: 4 * wg)])
    def that_read_elsewhere(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x) + tkw.read(y, mapping=turned), y)

    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda wg: 4 * wg)])
    def that_count(x: mem(M), y: mem(M)):
        tkw.write(tkw.atomic_add(tkw.read(x), y, mapping=tkw.IndexMapping(1, {M: i}, {M: 0 * i})), y)

    for kernel in (at_places_of_ids, that_overlap, that_read_elsewhere, that_count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AliasingWarning)
            assert "tasks t in 0..1 {" in block_text(kernel, integers(10), integers(10, seed=1))
        three_ways(kernel, integers(10), integers(10, seed=1))


# -- memory of a workgroup's own ----------------------------------------------------------------------------


@pytest.mark.parametrize("m", [8, 10, 3])
def test_shared_memory_is_poisoned_for_each_workgroup(m):
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    turned = tkw.IndexMapping(2, inputs={M: i, N: 2 - j}, outputs={M: i, N: j})

    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0)])
    def kernel(x: mem(M, N), y: mem(M, N), z: mem(M, N), w: mem(M, N)):
        shared = tkw.allocate((M, N), (4, N), tkl.f32, SHARED_ADDRESS_SPACE)
        other = tkw.allocate((M, N), (4, N), tkl.f32, SHARED_ADDRESS_SPACE)
        tkw.write(tkw.read(other), w)
        tkw.write(tkw.read(x), shared)
        tkw.write(tkw.read(x) * 3.0, other)
        tkw.shared_memory_barrier()
        tkw.write(tkw.read(shared) * 2.0, y)
        tkw.write(tkw.read(shared, mapping=turned) + tkw.read(other), z)

    *_, w = three_ways(kernel, integers((m, 3)), *(np.zeros((m, 3), np.float32) for _ in range(3)))
    assert np.isnan(w).all()


# -- dimensions left out ------------------------------------------------------------------------------------


def test_dimensions_cut_to_one_may_be_left_out_and_go_along():
    H, KV = tkl.sym.H, tkl.sym.KV
    i, j, k = (tkw.IndexMapping.iterator(n) for n in range(3))
    shared = tkw.IndexMapping(3, inputs={KV: i // 2, N: j, K: k}, outputs={KV: i, N: j, K: k})

    @tkw.wave([tkw.WorkgroupConstraint(H, 1, 0), tkw.WorkgroupConstraint(KV, 1, 0, primary=False)])
    def kernel(q: mem(H, M, K), keys: mem(KV, N, K), out: mem(H, M, N)):
        start = tkl.Register[H, M, N, tkl.f32](0)
        tkw.write(tkw.mma(tkw.read(q), tkw.read(keys, mapping=shared), start), out)

    q, keys = integers((4, 3, 5)), integers((2, 6, 5), seed=1)
    *_, out = three_ways(kernel, q, keys, poisoned(4, 3, 6))
    assert (out == np.einsum("hmk,hnk->hmn", q, keys.repeat(2, axis=0))).all()


def test_what_is_carried_and_written_may_leave_a_dimension_out():
    H = tkl.sym.H

    @tkw.wave([tkw.WorkgroupConstraint(H, 1, 0), tkw.TilingConstraint(K, 2)])
    def kernel(x: mem(H, M, K), y: mem(H, M)):
        @tkw.iterate(K, init_args=[tkl.Register[M, tkl.f32](1)])
        def loop(before):
            return tkw.sum(tkw.read(x), dim=K) - before

        tkw.write(loop, y)

    three_ways(kernel, integers((3, 4, 5)), poisoned(3, 4))


# -- conditions, logs, faults --------------------------------------------------------------------------------


def test_conditions_on_ids():
    @tkw.wave([tkw.WorkgroupConstraint(M, 2, 0)])
    def kernel(x: mem(M), y: mem(M), z: mem(M)):
        tile = tkw.read(x)

        @tkw.conditional(WORKGROUP_0 % 2 < 1)
        def _():
            tkw.write(tile * 2.0, y)

        @tkw.conditional(WORKGROUP_0 > 1, else_return=[tile])
        def chosen():
            return tile + 100.0

        tkw.write(chosen, z)

    three_ways(kernel, integers(9), poisoned(9), poisoned(9))


def test_a_condition_over_nothing_holds_nowhere():
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, iters=3)])
    def kernel(x: mem(M, N), y: mem(M), z: mem(K)):
        tile = tkw.read(x)

        @tkw.conditional(tile > tkl.Register[M, N, tkl.f32](0.0), else_return=[tile])
        def chosen():
            return tile + tkw.broadcast(tkw.max(tkw.max(tile, dim=N), dim=M), [M, N])

        tkw.write(tkw.sum(chosen, dim=N), y)

    three_ways(kernel, integers((6, 3)), poisoned(6), poisoned(1))


def test_logs_are_put_together_over_workgroups():
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0)])
    def kernel(x: mem(M, N), y: mem(M, N)):
        tile = tkw.read(x) * 2.0 + tkw.scalar(WORKGROUP_0, tkl.f32)
        tkw.debug_log(tile, label="tile")
        tkw.write(tile, y)

    x, found = integers((6, 3)), []
    for target in ("executor", "cpu"):
        logs = {}
        tilewright.compile(kernel, target=target)(x, poisoned(6, 3), debug_logs=logs)
        found.append(logs["tile"]["value"])
    np.testing.assert_array_equal(*found)


def test_a_read_that_leaves_memory_in_one_workgroup_is_an_error():
    i = tkw.IndexMapping.iterator(0)
    shifted = tkw.IndexMapping(1, inputs={M: i + WORKGROUP_0}, outputs={M: i})

    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, iters=2)])
    def kernel(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x, mapping=shifted), y)

    run = tilewright.compile(kernel, target="cpu")
    with pytest.raises(ExecutionError, match="read leaves its tensor of 8"):
        run(integers(8), poisoned(8))
    three_ways(kernel, integers(9), poisoned(9))


def test_no_workgroups_do_nothing():
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, iters=0)])
    def kernel(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x), y)

    three_ways(kernel, integers(5), poisoned(5))


def test_constraints_that_wait_for_a_value_are_refused_by_name():
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda wg: 4 * wg + S)])
    def kernel(length: tkl.i32, x: mem(M), y: mem(M)):
        tkw.set_symbol(S, length)
        tkw.write(tkw.read(x) + 1.0, y)

    x, y = integers(7), np.zeros(7, np.float32)
    tilewright.compile(kernel, target="cpu")(1, x, y)  # a scalar argument is known before the program runs
    assert np.array_equal(y, [0, *(x[1:] + 1)])

    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda wg: 4 * wg + S)])
    def by_data(length: mem(K, dtype=tkl.i32), x: mem(M), y: mem(M)):
        tkw.set_symbol(S, tkw.extract(tkw.read(length), 0))
        tkw.write(tkw.read(x) + 1.0, y)

    with pytest.raises(ProgramError, match="a constraint depends on S, which set_symbol gives a value"):
        tilewright.compile(by_data, target="cpu")(np.ones(1, np.int32), x, y)


# -- whole kernels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "k"), [(8, 8, 6), (9, 7, 5), (3, 17, 10)])
def test_a_product_by_way_of_shared_memory(m, n, k):
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0), tkw.WorkgroupConstraint(N, 8, 1), tkw.TilingConstraint(K, 3)])
    def kernel(a: mem(M, K, dtype=tkl.f16), b: mem(N, K, dtype=tkl.f16), c: mem(M, N)):
        of_a = tkw.allocate((M, K), (4, 3), tkl.f16, SHARED_ADDRESS_SPACE)
        of_b = tkw.allocate((N, K), (8, 3), tkl.f16, SHARED_ADDRESS_SPACE)

        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def loop(acc):
            tkw.write(tkw.read(a), of_a)
            tkw.write(tkw.read(b), of_b)
            tkw.shared_memory_barrier()
            return tkw.mma(tkw.read(of_a), tkw.read(of_b), acc)

        tkw.write(loop, c)

    a, b = integers((m, k), np.float16), integers((n, k), np.float16, seed=1)
    *_, c = three_ways(kernel, a, b, poisoned(m, n))
    assert (c == a.astype(np.float32) @ b.T.astype(np.float32)).all()


@pytest.mark.parametrize("tile", [2, 3])
def test_heads_that_share_their_keys(tile):
    H, KV, D = tkl.sym.H, tkl.sym.KV, tkl.sym.D
    i, j, k = (tkw.IndexMapping.iterator(n) for n in range(3))
    of_keys = tkw.IndexMapping(3, inputs={KV: i // 3, N: j, K: k}, outputs={KV: i, N: j, K: k})
    of_values = tkw.IndexMapping(3, inputs={KV: i // 3, D: j, N: k}, outputs={KV: i, D: j, N: k})
    constraints = [
        tkw.WorkgroupConstraint(H, 1, 1),
        tkw.WorkgroupConstraint(KV, 1, 1, primary=False),
        tkw.WorkgroupConstraint(M, 2, 0),
        tkw.TilingConstraint(N, tile),
    ]

    @tkw.wave(constraints)
    def kernel(q: mem(H, M, K), keys: mem(KV, N, K), values: mem(KV, D, N), out: mem(H, M, D)):
        zeros = tkl.Register[H, M, D, tkl.f32](0.0)
        least = tkl.Register[H, M, tkl.f32](-100.0)

        @tkw.iterate(N, init_args=[least, zeros])
        def loop(most, acc):
            s = tkw.mma(tkw.read(q), tkw.read(keys, mapping=of_keys), tkl.Register[H, M, N, tkl.f32](0.0))
            now = tkw.max(s, most, dim=N)
            moved = acc + tkw.broadcast(now - most, [H, M, D])
            return now, tkw.mma(s, tkw.read(values, mapping=of_values), moved)

        tkw.write(loop[1] + tkw.scalar(WORKGROUP_1, tkl.f32), out)

    q, keys, values = integers((6, 5, 4)), integers((2, 7, 4), seed=1), integers((2, 3, 7), seed=2)
    three_ways(kernel, q, keys, values, poisoned(6, 5, 3))


def test_numbers_of_the_call_and_narrow_sums_in_workgroups():
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda wg: 4 * wg), tkw.TilingConstraint(K, 2)])
    def kernel(scale: tkl.f32, x: mem(M, K, dtype=tkl.f16), y: mem(M, dtype=tkl.f16), z: mem(M)):
        @tkw.iterate(K, init_args=[tkl.Register[M, tkl.f16](1.0)])
        def loop(total):
            return tkw.sum(tkw.read(x), total, dim=K)

        tkw.write(loop, y)
        tkw.write(tkw.cast(loop, tkl.f32) * scale, z)

    three_ways(kernel, 3.0, integers((7, 5), np.float16, 0, 900), poisoned(7, dtype=np.float16), poisoned(7))


def test_logs_keep_iterations_of_workgroups_apart():
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda wg: 4 * wg), tkw.TilingConstraint(K, 2)])
    def kernel(x: mem(M, K), y: mem(M)):
        @tkw.iterate(K, init_args=[tkl.Register[M, tkl.f32](1.0)])
        def loop(total):
            found = tkw.sum(tkw.read(x), total, dim=K)
            tkw.debug_log(found, label="found", extra_iteration_dimensions=[(tkl.sym.step, K, 3)])
            return found

        tkw.write(loop, y)

    found = []
    for target in ("executor", "cpu"):
        logs = {}
        tilewright.compile(kernel, target=target)(integers((7, 5)), poisoned(7), debug_logs=logs)
        found.append(logs["found"]["value"])
    np.testing.assert_array_equal(*found)


# -- random programs ------------------------------------------------------------------------------------------


@pytest.mark.sampled(7)
@pytest.mark.filterwarnings("ignore::tilewright.errors.AliasingWarning")
@pytest.mark.parametrize("seed", range(40))
def test_random_grid_programs(seed):
    program = GridFuzz(seed).program()
    rng = np.random.default_rng(seed)
    sizes = {"M": 5, "N": 7, "K": 4} if seed % 2 else {"M": 6, "N": 11, "K": 9}
    arrays = []
    for a in program.args:
        shape = tuple(sizes[str(d)] for d in a.type.dims)
        arrays.append(rng.integers(-3, 4, shape).astype(a.type.dtype.numpy))
    run = tilewright.compile(program, target="cpu")
    wanted = [a.copy() for a in arrays]
    try:
        tilewright.compile(program, target="executor")(*wanted)
    except ExecutionError:  # a workgroup has nothing to take the maximum of
        with pytest.raises(ExecutionError):
            run(*arrays)
        return
    found = [a.copy() for a in arrays]
    run(*found)
    np.testing.assert_array_equal(found[3], wanted[3])
    if seed % 3 == 0:
        interpreted(run, tuple(arrays))
        np.testing.assert_array_equal(arrays[3], wanted[3])


def test_a_lane_with_one_value_of_a_window_is_written():
    """A tensor that is seen from another place on, of which each lane holds one value: it has no digits to count."""
    program = parse_tile("""tile largest(%b: global i32[N, K], %out: global i32[M, N])
  symbols K, M, N, WORKGROUP_2
  workgroup dim=(M) tile=(2) grid=2 start=(2*WORKGROUP_2)
  workgroup dim=(K) tile=(2) grid=0
  workgroup dim=(N) tile=(3) grid=1
{
  %0 = read %b : i32[N, K]
  %1 = max %0 dim=(K) : i32[N]
  %2 = broadcast %1 to=[M, N] : i32[M, N]
  write %2, %out
}""")
    made = tilewright.compile(program, target="gpu:hopper")
    assert "shuffle" in made.text("loop", {"M": 1, "N": 16, "K": 3})
