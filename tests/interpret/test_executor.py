"""What tile programs mean: the executor against plain numpy, exactly, on small integers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import DimensionMismatch, ExecutionError, UnboundSymbol
from tilewright.lang import sympy
from tilewright.lang.global_symbols import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE, WORKGROUP_0, WORKGROUP_2

M, N, K, B = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.B
NUMPY = {tkl.f16: np.float16, tkl.bf16: ml_dtypes.bfloat16, tkl.f32: np.float32, tkl.i8: np.int8, tkl.i32: np.int32}


def mem(*dims, dtype=tkl.f32):
    return tkl.Memory[(*dims, GLOBAL_ADDRESS_SPACE, dtype)]


def integers(shape, dtype=np.float32, low=-4, high=5, seed=0):
    return np.random.default_rng(seed).integers(low, high, shape).astype(dtype)


def poisoned(shape, dtype=np.float32):
    return np.full(shape, np.nan, dtype)


# -- multiplication -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "out"), [(tkl.f16, tkl.f32), (tkl.bf16, tkl.f32), (tkl.f32, tkl.f32), (tkl.i8, tkl.i32)]
)
@pytest.mark.parametrize("dims_a", [(B, M, K), (K, B, M)])
@pytest.mark.parametrize("dims_b", [(N, K), (B, K, N), (K, N, B)])
def test_mma_goes_by_the_names_of_dimensions(given, out, dims_a, dims_b):
    @tkw.wave()
    def kernel(a: mem(*dims_a, dtype=given), b: mem(*dims_b, dtype=given), c: mem(N, M, B, dtype=out)):
        @tkw.iterate(K, init_args=[tkl.Register[B, M, N, out](0)])
        def loop(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(loop, c)

    sizes = {B: 3, M: 5, N: 7, K: 11}
    a = integers([sizes[d] for d in dims_a], NUMPY[given])
    b = integers([sizes[d] for d in dims_b], NUMPY[given], seed=1)
    letters = {B: "b", M: "m", N: "n", K: "k"}
    spec = f"{''.join(letters[d] for d in dims_a)},{''.join(letters[d] for d in dims_b)}->nmb"
    wanted = np.einsum(spec, a.astype(np.int64), b.astype(np.int64))
    found = tilewright.compile(kernel, target="executor")(a, b)
    assert found.dtype == NUMPY[out]
    assert (found == wanted).all()


def test_accumulators_are_carried_wide_and_rounded_once():
    """Partial sums pass 2048, where f16 no longer holds odd numbers; the total does again."""

    @tkw.wave([tkw.TilingConstraint(K, 1)])
    def kernel(a: mem(M, K, dtype=tkl.f16), b: mem(N, K, dtype=tkl.f16), c: mem(M, N, dtype=tkl.f16)):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f16](0.0)])
        def loop(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(loop, c)

    a = np.array([[64, 1, 1, -64]], np.float16)
    b = np.array([[64, 1, 1, 63]], np.float16)
    assert tilewright.compile(kernel, target="executor")(a, b).tolist() == [[66.0]]


def test_integer_products_are_exact_beyond_floats():
    @tkw.wave()
    def kernel(a: mem(M, K, dtype=tkl.i32), b: mem(N, K, dtype=tkl.i32), c: mem(M, N, dtype=tkl.i64)):
        acc = tkl.Register[M, N, tkl.i64](0)
        tkw.write(tkw.mma(tkw.read(a), tkw.read(b), acc), c)

    big = np.array([[2**30 + 1, 3]], np.int32)
    assert tilewright.compile(kernel, target="executor")(big, big).tolist() == [[(2**30 + 1) ** 2 + 9]]


def test_tf32_only_when_asked():
    def product(precision):
        @tkw.wave()
        def kernel(a: mem(M, K), b: mem(N, K), c: mem(M, N)):
            tkw.write(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0), precision=precision), c)

        one = np.array([[1 + 2**-12]], np.float32)
        return tilewright.compile(kernel, target="executor")(one, np.ones((1, 1), np.float32))[0, 0]

    assert product(None) == np.float32(1 + 2**-12)
    assert product("tf32") == 1.0


# -- reductions, scans, choices -------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [M, N])
def test_reductions_over_any_dimension_with_ragged_edges(dim):
    kept = N if dim is M else M

    @tkw.wave([tkw.WorkgroupConstraint(M, 64, 0), tkw.TilingConstraint(dim, 4)])
    def kernel(x: mem(M, N), low: mem(kept), high: mem(kept), total: mem(kept), product: mem(kept)):
        tile = tkw.read(x)
        tkw.write(tkw.min(tile, dim=dim), low)
        tkw.write(tkw.max([tile, tile - 1.0], dim=dim), high)
        tkw.write(tkw.sum(tile, acc=tkl.Register[kept, tkl.f32](10.0), dim=dim), total)
        tkw.write(tkw.prod(tile, dim=dim), product)

    x = integers((5, 7), low=-3, high=0)
    outs = [poisoned((5 if dim is N else 7,)) for _ in range(4)]
    tilewright.compile(kernel, target="executor")(x, *outs)
    axis = 0 if dim is M else 1
    for out, wanted in zip(outs, (x.min(axis), x.max(axis), x.sum(axis) + 10, x.prod(axis)), strict=True):
        assert (out == wanted).all()


def test_loops_that_only_accumulate_need_no_tile_size():
    @tkw.wave()
    def kernel(x: mem(M, N), y: mem(M), z: mem(M)):
        start = [tkl.Register[M, tkl.f32](-1e9), tkl.Register[M, tkl.f32](0.0)]

        @tkw.iterate(N, init_args=start)
        def loop(high, total):
            tile = tkw.read(x)
            return tkw.max(tile, acc=high, dim=N), tkw.sum(tile, acc=total, dim=N)

        high, total = loop
        tkw.write(high, y)
        tkw.write(total, z)

    x = integers((4, 9))
    high, total = tilewright.compile(kernel, target="executor")(x)
    assert (high == x.max(1)).all()
    assert (total == x.sum(1)).all()


def test_a_loop_may_carry_nothing_and_write():
    @tkw.wave([tkw.TilingConstraint(N, 4)])
    def kernel(x: mem(M, N), y: mem(M, N)):
        @tkw.iterate(N, init_args=[])
        def loop():
            tkw.write(tkw.read(x) + tkw.cast(tkw.self_index(N), tkl.f32), y)

    x, y = integers((3, 10)), poisoned((3, 10))
    tilewright.compile(kernel, target="executor")(x, y)
    assert (y == x + np.arange(10)).all()


def test_nested_loops():
    @tkw.wave([tkw.TilingConstraint(M, 2), tkw.TilingConstraint(N, 3)])
    def kernel(x: mem(M, N), y: mem(B)):
        @tkw.iterate(M, init_args=[tkl.Register[B, tkl.f32](0.0)])
        def rows(outer):
            @tkw.iterate(N, init_args=[outer])
            def columns(inner):
                return inner + tkw.sum(tkw.sum(tkw.read(x), dim=N), dim=M)

            return columns

        tkw.write(rows, y)

    x = integers((5, 8))
    assert tilewright.compile(kernel, {B: 1}, target="executor")(x).tolist() == [x.sum()]


def test_cumsum_from_a_start_and_topk():
    @tkw.wave()
    def kernel(x: mem(M, N), running: mem(M, N), best: mem(M, K), where: mem(M, K, dtype=tkl.i32)):
        tile = tkw.read(x)
        tkw.write(tkw.cumsum(tile, acc=tkl.Register[M, tkl.f32](5.0), dim=N), running)
        values, places = tkw.topk(tile, K, N)
        tkw.write(values, best)
        tkw.write(places, where)

    x = np.array([[3, 1, 3, 2], [0, -1, 5, 5]], np.float32)
    running, best, where = tilewright.compile(kernel, {K: 3}, target="executor")(x)
    assert (running == np.cumsum(x, 1) + 5).all()
    assert best.tolist() == [[3, 3, 2], [5, 5, 0]]
    assert where.tolist() == [[0, 2, 3], [2, 3, 0]]


# -- accesses ---------------------------------------------------------------------------------------------------


def test_reads_may_leave_memory_where_that_is_said_and_writes_are_dropped():
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    shifted = tkw.IndexMapping(num_iterators=2, inputs={M: i - 1, N: j + 2}, outputs={M: i, N: j})
    back = tkw.IndexMapping(num_iterators=2, inputs={M: i, N: j}, outputs={M: i + 1, N: j})

    @tkw.wave()
    def kernel(x: mem(M, N), y: mem(M, N), z: mem(M, N)):
        tile = tkw.read(x, mapping=shifted, otherwise=-7)
        tkw.write(tile, y)
        tkw.write(tile, z, mapping=back)

    x = integers((4, 5))
    y, z = poisoned((4, 5)), np.full((4, 5), 99, np.float32)
    tilewright.compile(kernel, target="executor")(x, y, z)
    wanted = np.full((4, 5), -7, np.float32)
    wanted[1:, :3] = x[:-1, 2:]
    assert (y == wanted).all()
    assert (z[0] == 99).all()
    assert (z[1:] == wanted[:-1]).all()


def test_elements_that_do_not_exist_never_touch_the_result():
    """The padding is infinite in memory; it must not be read."""
    i, k = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    window = tkw.IndexMapping(num_iterators=2, inputs={N: i + k - 1}, outputs={M: i, K: k})

    @tkw.wave()
    def kernel(x: mem(N), w: mem(K), y: mem(M)):
        tkw.write(tkw.sum(tkw.read(x, mapping=window, otherwise=0) * tkw.read(w), dim=K), y)

    x = np.array([np.inf, 2, 3, 4, np.inf], np.float32)[1:4]
    found = tilewright.compile(kernel, {M: 3}, target="executor")(x, np.ones(3, np.float32))
    assert found.tolist() == [5, 9, 7]


def test_gather_scatter_and_atomics():
    i, j, d = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1), tkw.IndexMapping.dynamic_val(0)
    rows_in = tkw.IndexMapping(2, inputs={N: d, K: j}, outputs={M: i, K: j}, dynamic_val_mappings={M: i})
    rows_out = tkw.IndexMapping(2, inputs={M: i, K: j}, outputs={N: d, K: j}, dynamic_val_mappings={M: i})

    @tkw.wave()
    def kernel(table: mem(N, K), where: mem(M, dtype=tkl.i32), out: mem(M, K), back: mem(N, K), total: mem(N, K)):
        places = tkw.read(where)
        tile = tkw.read(table, mapping=rows_in, mapping_dynamic_vals=(places,))
        tkw.write(tile, out)
        tkw.write(tile, back, mapping=rows_out, mapping_dynamic_vals=(places,))
        tkw.atomic_add(tile, total, mapping=rows_out, mapping_dynamic_vals=(places,))

    table = integers((6, 3))
    where = np.array([4, 0, 4, 9, 2], np.int32)
    with pytest.raises(ExecutionError, match="read leaves its tensor"):
        tilewright.compile(kernel, target="executor")(table, where)
    where[3] = 1
    back, total = np.zeros((6, 3), np.float32), np.ones((6, 3), np.float32)
    out = poisoned((5, 3))
    tilewright.compile(kernel, target="executor")(table, where, out, back, total)
    assert (out == table[where]).all()
    wanted = np.ones((6, 3), np.float32)
    np.add.at(wanted, where, table[where])
    assert (total == wanted).all()
    assert (back[[0, 1, 2, 4]] == table[[0, 1, 2, 4]]).all()
    assert (back[[3, 5]] == 0).all()


def test_source_and_target_with_iterator_bindings():
    m, n = tkl.sym.m, tkl.sym.n

    @tkw.wave([tkw.IteratorBindings({m: M, n: N})])
    def kernel(x: mem(N, M), where: mem(M, dtype=tkl.i32), y: mem(M, N), z: mem(M, N)):
        tile = tkw.read(x, source=(n, m), target=(m, n))
        tkw.write(tile, y, source=(m, n), target=(m, n))
        places = tkw.read(where)
        tkw.write(tkw.read(x, source=(n, places), target=(m, n)), z)

    x, where = integers((4, 3)), np.array([2, 0, 1], np.int32)
    y, z = tilewright.compile(kernel, target="executor")(x, where)
    assert (y == x.T).all()
    assert (z == x.T[where]).all()


def test_bounds_limit_the_iteration():
    @tkw.wave()
    def kernel(x: mem(M, N), length: tkl.SymbolBind[tkl.i32], y: mem(M, N)):
        tkw.write(tkw.read(x, bounds={N: tkl.sym.length}) + 1.0, y, bounds={M: 2})

    x, y = integers((3, 4)), np.full((3, 4), 50, np.float32)
    tilewright.compile(kernel, target="executor")(x, 3, y)
    wanted = np.where(np.arange(4) < 3, x, 0) + 1
    assert (y[:2] == wanted[:2]).all()
    assert (y[2] == 50).all()


# -- symbols, conditions, while loops ----------------------------------------------------------------------------


def test_symbols_set_from_tiles_are_per_element():
    i = tkw.IndexMapping.iterator(0)
    S = tkl.sym.S
    mapping = tkw.IndexMapping(num_iterators=1, inputs={N: sympy.Min(i + S, N - 1)}, outputs={M: i})

    @tkw.wave()
    def kernel(x: mem(N), shift: mem(M, dtype=tkl.i32), y: mem(M), z: mem(M, dtype=tkl.i32)):
        places = tkw.read(shift)
        tkw.set_symbol(S, places)
        tkw.write(tkw.read(x, mapping=mapping), y)
        tkw.write(tkw.apply_expr(places, lambda v: sympy.Piecewise((v * 10, v > 1), (v - 5, True))), z)

    x, shift = np.arange(8, dtype=np.float32), np.array([0, 3, 1, 7, 2], np.int32)
    y, z = tilewright.compile(kernel, target="executor")(x, shift)
    assert (y == np.minimum(np.arange(5) + shift, 7)).all()
    assert z.tolist() == [-5, 30, -4, 70, 20]


def test_conditions_element_by_element_and_by_expression():
    @tkw.wave()
    def kernel(x: mem(M, N), y: mem(M, N), z: mem(M, N)):
        tile = tkw.read(x)

        @tkw.conditional(tile > 0)
        def positive():
            tkw.write(tile * 10.0, y)

        @tkw.conditional(M > 3)
        def large():
            tkw.write(tile, z)

    x = integers((3, 4))
    y, z = np.full((3, 4), 7, np.float32), np.full((3, 4), 7, np.float32)
    tilewright.compile(kernel, target="executor")(x, y, z)
    assert (y == np.where(x > 0, x * 10, 7)).all()
    assert (z == 7).all()
    x = integers((4, 4))
    y, z = np.zeros((4, 4), np.float32), np.zeros((4, 4), np.float32)
    tilewright.compile(kernel, target="executor")(x, y, z)
    assert (z == x).all()


def test_conditions_with_values():
    @tkw.wave()
    def kernel(x: mem(M, N), y: mem(M, N)):
        tile = tkw.read(x)

        @tkw.conditional(tile > 0, else_return=[-tile])
        def chosen():
            return tile * 2.0

        tkw.write(chosen, y)

    x = integers((3, 4))
    assert (tilewright.compile(kernel, target="executor")(x) == np.where(x > 0, 2 * x, -x)).all()


def test_while_loops_walk_by_their_own_steps():
    i = tkw.IndexMapping.iterator(0)
    P = tkl.sym.P
    at = tkw.IndexMapping(num_iterators=1, inputs={N: P + i}, outputs={B: i})

    @tkw.wave([tkw.TilingConstraint(P)])
    def kernel(following: mem(N, dtype=tkl.i32), out: mem(B, dtype=tkl.i32)):
        first = tkw.scalar(0, tkl.i32)
        total = tkl.Register[B, tkl.i32](0)

        @tkw.iterate(P, start=first, condition=P < 6, init_args=[total])
        def walk(acc):
            place = tkw.read(following, mapping=at)
            tkw.set_symbol(P, place)
            return acc + place

        tkw.write(walk, out)

    chain = np.array([2, 9, 3, 5, 9, 7, 9, 8, 9], np.int32)  # 0 -> 2 -> 3 -> 5 -> 7
    assert tilewright.compile(kernel, {B: 1}, target="executor")(chain).tolist() == [2 + 3 + 5 + 7]


# -- grid programs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [7, 16, 33])
def test_split_k_with_workgroups(size):
    length, off, S = tkl.sym.LENGTH, tkl.sym.OFF, tkl.sym.S
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
    c = np.zeros((5, 6), np.float32)
    part = -(-size // 3 // 2) * 2 + 2
    splits = -(-size // part)
    tilewright.compile(kernel, {S: splits, length: part, off: length * WORKGROUP_2}, target="executor")(a, b, c)
    assert (c == a @ b.T).all()


def test_workgroups_share_memory_within_themselves_only():
    block = 4

    @tkw.wave([tkw.WorkgroupConstraint(M, block, 0)])
    def kernel(x: mem(M, N), y: mem(M, N), ids: mem(M, dtype=tkl.i32)):
        shared = tkw.allocate((M, N), (block, N), tkl.f32, SHARED_ADDRESS_SPACE)
        tkw.write(tkw.read(x), shared)
        tkw.shared_memory_barrier()
        tkw.write(tkw.read(shared) * 2.0, y)
        tkw.write(tkl.Register[M, tkl.i32](0) + tkw.scalar(WORKGROUP_0, tkl.i32), ids)

    x = integers((10, 3))
    y, ids = tilewright.compile(kernel, target="executor")(x)
    assert (y == 2 * x).all()
    assert ids.tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2]


def test_a_reordered_grid_does_the_same_work():
    @tkw.wave([tkw.WorkgroupConstraint(M, 2, 0), tkw.ReorderingConstraint(2 - WORKGROUP_0, 0)])
    def kernel(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x) + 1.0, y)

    x, y = integers((6,)), poisoned((6,))
    tilewright.compile(kernel, target="executor")(x, y)
    assert (y == x + 1).all()


# -- forms and numbers -------------------------------------------------------------------------------------------


def test_dimensions_may_be_expressions():
    @tkw.wave([tkw.TilingConstraint(K, 4)])
    def kernel(packed: mem(M, K / 2, dtype=tkl.i16), wide: mem(M, K, dtype=tkl.i8), total: mem(M, dtype=tkl.i32)):
        @tkw.iterate(K, init_args=[tkl.Register[M, tkl.i32](0)])
        def loop(acc):
            halves = tkw.bitcast(tkw.read(packed), tkl.i8)
            tkw.write(halves, wide)
            return tkw.sum(tkw.cast(halves, tkl.i32), acc=acc, dim=K)

        tkw.write(loop, total)

    packed = integers((3, 6), np.int16, -3000, 3000)
    wide, total = tilewright.compile(kernel, target="executor")(packed)
    assert (wide == packed.view(np.int8)).all()
    assert (total == packed.view(np.int8).astype(np.int32).sum(1)).all()


def test_broadcast_by_union_permute_and_reshape():
    @tkw.wave()
    def kernel(x: mem(M), y: mem(N), z: mem(N, M), flat: mem(K)):
        both = tkw.read(x) + tkw.read(y)
        tkw.write(tkw.permute(both, [N, M]), z)
        tkw.write(tkw.reshape(both, [K]), flat)

    x, y = integers((3,)), integers((4,), seed=1)
    z, flat = tilewright.compile(kernel, {K: M * N}, target="executor")(x, y)
    assert (z == (x[:, None] + y).T).all()
    assert (flat == (x[:, None] + y).ravel()).all()


def test_arithmetic_rounds_to_its_element_type():
    @tkw.wave()
    def kernel(x: mem(M, dtype=tkl.bf16), y: mem(M, dtype=tkl.bf16), z: mem(M, dtype=tkl.bf16)):
        a = tkw.read(x)
        tkw.write(a + 1.0, y)
        tkw.write(tkw.exp2(a) / 3.0, z)

    x = np.array([256, 1.0, -2.0], ml_dtypes.bfloat16)
    y, z = tilewright.compile(kernel, target="executor")(x)
    assert y.astype(np.float32).tolist() == [256, 2, -1]  # 257 is between two bf16 numbers
    with np.errstate(over="ignore"):
        steps = np.exp2(x.astype(np.float32)).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert (z == (steps / np.float32(3)).astype(ml_dtypes.bfloat16)).all()


def test_integers_wrap_and_divide_as_machines_do():
    @tkw.wave()
    def kernel(x: mem(M, dtype=tkl.i8), s: mem(M, dtype=tkl.i8), q: mem(M, dtype=tkl.i8), r: mem(M, dtype=tkl.i8)):
        a = tkw.read(x)
        tkw.write(a + 100, s)
        tkw.write(a / 3, q)
        tkw.write((a // 3) ^ (a << 1), r)

    x = np.array([-128, -7, 7, 100], np.int8)
    s, q, r = tilewright.compile(kernel, target="executor")(x)
    assert s.tolist() == [-28, 93, 107, -56]
    assert q.tolist() == [-42, -2, 2, 33]
    assert (r == (x // 3) ^ (x << 1)).all()


def run_in_all_ways(kernel, *inputs):
    """Results of the executor, machine code, and the interpreters of block and loop programs, each as a list."""
    compiled = tilewright.compile(kernel, target="cpu")
    texts = [compiled.text(level, {M: len(inputs[0])}) for level in ("host", "loop")]
    ways = (
        tilewright.compile(kernel, target="executor"),
        compiled,
        *(tilewright.compile_text(text, "interpreter") for text in texts),
    )
    return [run(*inputs).tolist() for run in ways]


@pytest.mark.parametrize(
    ("dtype", "numbers", "rounded"),
    [
        (tkl.f32, [0.49999997, 8388609, -8388611, -8388609, 2.5, -1.5], [0, 8388609, -8388611, -8388609, 3, -2]),
        (tkl.f64, [0.49999999999999994, 2.0**52 + 1, -(2.0**52) - 1, -0.5], [0, 2.0**52 + 1, -(2.0**52) - 1, -1]),
        (tkl.f16, [0.49975586, 1025, -2047, 1.5, -2.5], [0, 1025, -2047, 2, -3]),
        (tkl.bf16, [0.49804688, 129, -255, 1.5, -2.5], [0, 129, -255, 2, -3]),
        (tkl.i64, [2**53 + 1, -(2**53) - 1, 7], [2**53 + 1, -(2**53) - 1, 7]),
    ],
    ids=str,
)
def test_round_moves_no_integer_and_no_number_below_a_half(dtype, numbers, rounded):
    @tkw.wave()
    def kernel(x: mem(M, dtype=dtype), y: mem(M, dtype=dtype)):
        tkw.write(tkw.round(tkw.read(x)), y)

    assert run_in_all_ways(kernel, np.array(numbers, dtype.numpy)) == [rounded] * 4


def test_quotients_of_the_smallest_integer_have_their_sign():
    @tkw.wave()
    def kernel(x: mem(M, dtype=tkl.i64), y: mem(M, dtype=tkl.i64), z: mem(M, dtype=tkl.i64)):
        tkw.write(tkw.read(x) / tkw.read(y), z)

    smallest = -(2**63)
    x = np.array([smallest, smallest, smallest, smallest, -7, 7, 7, 5])
    y = np.array([2, -3, -1, smallest, 2, -2, 2, 0])
    assert run_in_all_ways(kernel, x, y) == [[-(2**62), 3074457345618258602, smallest, 1, -3, -3, 3, 0]] * 4


def test_fp8_inputs():
    @tkw.wave()
    def kernel(a: mem(M, K, dtype=tkl.f8e4m3fn), b: mem(N, K, dtype=tkl.f8e5m2), c: mem(M, N)):
        tkw.write(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0)), c)

    a, b = integers((3, 5), ml_dtypes.float8_e4m3fn), integers((4, 5), ml_dtypes.float8_e5m2, seed=1)
    assert (tilewright.compile(kernel, target="executor")(a, b) == a.astype(np.float32) @ b.astype(np.float32).T).all()


def test_debug_logs_hold_tiles_and_change_nothing():
    @tkw.wave([tkw.TilingConstraint(K, 2)])
    def kernel(a: mem(M, K), c: mem(M)):
        @tkw.iterate(K, init_args=[tkl.Register[M, tkl.f32](0.0)])
        def loop(acc):
            tile = tkw.read(a)
            tkw.debug_log(tile * 3.0, label="tripled")
            return tkw.sum(tile, acc=acc, dim=K)

        tkw.debug_log(loop)
        tkw.write(loop, c)

    a = integers((3, 5))
    logs: dict = {}
    found = tilewright.compile(kernel, target="executor")(a, debug_logs=logs)
    assert (found == a.sum(1)).all()
    assert (logs["tripled"]["value"] == 3 * a).all()
    assert (logs["debug_log_output_1"]["value"] == a.sum(1)).all()


def test_empty_batches_end_before_they_start():
    @tkw.wave()
    def kernel(x: mem(M, N), y: mem(M, N)):
        tkw.write(tkw.read(x) + 1.0, y)

    assert tilewright.compile(kernel, target="executor")(np.empty((0, 5), np.float32)).shape == (0, 5)


def test_dynamic_sizes_are_read_from_shapes():
    @tkw.wave()
    def kernel(x: mem(M, 2 * N), y: mem(M, N)):
        i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
        even = tkw.IndexMapping(2, inputs={M: i, 2 * N: 2 * j}, outputs={M: i, N: j})
        tkw.write(tkw.read(x, mapping=even), y)

    run = tilewright.compile(kernel, target="executor")
    for shape in ((2, 6), (5, 10)):
        x = integers(shape)
        assert (run(x) == x[:, ::2]).all()


def test_a_narrow_accumulator_has_one_value_whoever_asks():
    @tkw.wave()
    def kernel(x: mem(M, N, dtype=tkl.f16), direct: mem(M), scaled: mem(M)):
        total = tkw.sum(tkw.read(x), dim=N)
        tkw.write(tkw.cast(total, tkl.f32), direct)
        tkw.write(tkw.cast(total * 1.0, tkl.f32), scaled)

    direct, scaled = tilewright.compile(kernel, target="executor")(np.array([[2048, 1, 0.5]], np.float16))
    assert direct.tolist() == scaled.tolist() == [2050.0]


def test_floats_outside_an_integer_type_stay_at_its_limit():
    @tkw.wave()
    def kernel(x: mem(M), y: mem(M, dtype=tkl.i8), z: mem(M, dtype=tkl.i64)):
        tkw.write(tkw.cast(tkw.read(x), tkl.i8), y)
        tkw.write(tkw.cast(tkw.read(x), tkl.i64), z)

    y, z = tilewright.compile(kernel, target="executor")(
        np.array([300, -300.5, 1.9, -1.9, np.nan, np.inf, 127.5], np.float32)
    )
    assert y.tolist() == [127, -128, 1, -1, 0, 127, 127]
    assert z.tolist() == [300, -300, 1, -1, 0, 2**63 - 1, 127]


# -- what Wave's own kernels rely on ------------------------------------------------------------------------------


def test_a_persistent_grid_shares_the_tiles_among_its_workgroups():
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

    x, y = integers((14,)), poisoned((14,))
    tilewright.compile(kernel, {TILES: 7}, target="executor")(x, y)
    assert (y == 2 * x).all()


def test_atomics_give_what_was_there_before_and_may_be_turned_as_reads():
    i, d = tkw.IndexMapping.iterator(0), tkw.IndexMapping.dynamic_val(0)
    as_write = tkw.IndexMapping(1, inputs={M: i}, outputs={N: d}, dynamic_val_mappings={M: i})
    as_read = tkw.IndexMapping(1, inputs={N: 0 * i}, outputs={M: i})

    @tkw.wave()
    def kernel(x: mem(M), where: mem(M, dtype=tkl.i32), total: mem(N), before: mem(M), low: mem(N)):
        tile = tkw.read(x)
        old = tkw.atomic_add(tile, total, mapping=as_write, mapping_dynamic_vals=(tkw.read(where),))
        tkw.write(old, before)
        tkw.atomic_min(tile, low, mapping=as_read)

    x, where = np.array([3, 1, 4, 1], np.float32), np.array([0, 2, 0, 0], np.int32)
    total, before, low = np.full(3, 10, np.float32), poisoned((4,)), np.full(3, 2, np.float32)
    tilewright.compile(kernel, target="executor")(x, where, total, before, low)
    assert total.tolist() == [18, 10, 11]
    assert before.tolist() == [10, 10, 13, 17]
    assert low.tolist() == [1, 2, 2]


def test_five_grid_dimensions_have_ids_of_their_own():
    D, E = tkl.sym.D, tkl.sym.E
    constraints = [tkw.WorkgroupConstraint(d, 1, place) for place, d in enumerate((M, N, K, D))]
    constraints.append(tkw.WorkgroupConstraint(E, 2, 4, apply_fn=lambda wg: 2 * wg))

    @tkw.wave(constraints)
    def kernel(x: mem(M, N, K, D, E), y: mem(M, N, K, D, E)):
        tkw.write(tkw.read(x) + 1.0, y)

    x, y = integers((2, 1, 3, 2, 5)), poisoned((2, 1, 3, 2, 5))
    tilewright.compile(kernel, target="executor")(x, y)
    assert (y == x + 1).all()


def test_a_dimension_set_from_a_value_ends_there():
    @tkw.wave([tkw.WorkgroupConstraint(M, 4, 0, apply_fn=lambda wg: 4 * wg)])
    def kernel(length: tkl.i32, x: mem(M), y: mem(M)):
        tkw.set_symbol(M, length)
        tkw.write(tkw.read(x) + 1.0, y)

    x, y = integers((7,)), np.full(7, 50, np.float32)
    tilewright.compile(kernel, target="executor")(5, x, y)
    assert (y[:5] == x[:5] + 1).all()
    assert (y[5:] == 50).all()


def test_while_conditions_may_ask_carried_values():
    from tilewright.lang.global_symbols import GET_ITER_ARG

    P = tkl.sym.P

    @tkw.wave([tkw.TilingConstraint(P)])
    def kernel(limit: tkl.SymbolBind[tkl.i32], out: mem(B, dtype=tkl.i32)):
        start = tkl.Register[B, tkl.i32](1)
        condition = (GET_ITER_ARG(0) < tkl.sym.limit) & (P < 100)

        @tkw.iterate(P, start=tkw.scalar(0, tkl.i32), condition=condition, init_args=[start])
        def doubling(value):
            here = tkw.max(tkw.self_index(P), dim=P)  # the loop's axis is one wide: its value now
            tkw.set_symbol(P, here + 1)
            return value * 2

        tkw.write(doubling, out)

    assert tilewright.compile(kernel, {B: 1}, target="executor")(40).tolist() == [64]


def test_dimensions_cut_to_one_may_be_left_out():
    H, KV = tkl.sym.H, tkl.sym.KV
    i, j, k = (tkw.IndexMapping.iterator(n) for n in range(3))
    shared = tkw.IndexMapping(3, inputs={KV: i // 2, N: j, K: k}, outputs={KV: i, N: j, K: k})
    constraints = [tkw.WorkgroupConstraint(H, 1, 0), tkw.WorkgroupConstraint(KV, 1, 0, primary=False)]

    def grouped(constraints):
        @tkw.wave(constraints)
        def kernel(q: mem(H, M, K), keys: mem(KV, N, K), out: mem(H, M, N)):
            start = tkl.Register[H, M, N, tkl.f32](0)
            tkw.write(tkw.mma(tkw.read(q), tkw.read(keys, mapping=shared), start), out)

        return kernel

    q, keys = integers((4, 3, 5)), integers((2, 6, 5), seed=1)
    found = tilewright.compile(grouped(constraints), target="executor")(q, keys)
    assert (found == np.einsum("hmk,hnk->hmn", q, keys.repeat(2, axis=0))).all()
    with pytest.raises(DimensionMismatch, match="the dimension KV of one factor is neither"):
        tilewright.compile(grouped([]), target="executor")


def test_conditions_made_by_expressions_are_bool():
    @tkw.wave()
    def kernel(x: mem(M, dtype=tkl.i32), y: mem(M)):
        tile = tkw.read(x)
        inside = tkw.apply_expr(tile, lambda v: (v > -2) & (v < 3)) & (tile != 0)
        tkw.write(tkw.select(inside, tkw.cast(tile, tkl.f32), -9.0), y)

    x = integers((20,), np.int32)
    assert (tilewright.compile(kernel, target="executor")(x) == np.where((x > -2) & (x < 3) & (x != 0), x, -9)).all()


def test_logs_can_be_mapped_printed_and_handled():
    seen = []
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    turned = tkw.IndexMapping(2, inputs={M: i, N: j}, outputs={N: j, M: i})

    @tkw.wave()
    def kernel(x: mem(M, N), y: mem(M, N)):
        tile = tkw.read(x)
        tkw.debug_log(tile, label="turned", mapping=turned, printer=lambda *a: seen.append(a), handler=seen.append)
        tkw.write(tile, y)

    x = integers((2, 3))
    tilewright.compile(kernel, target="executor")(x)
    (label, value), logs = seen
    assert label == "turned"
    assert (value == x.T).all()
    assert logs["turned"]["value"] is value


def test_memory_may_measure_other_than_its_dimensions():
    i = tkw.IndexMapping.iterator(0)
    clipped = tkw.IndexMapping(1, inputs={M: sympy.Min(i, 2)}, outputs={M: i})
    table = tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.f32, tkl.MemoryLayout(shape=(3,))]

    @tkw.wave()
    def kernel(x: table, y: mem(M)):
        tkw.write(tkw.read(x, mapping=clipped), y)

    run = tilewright.compile(kernel, {M: 5}, target="executor")
    assert run(np.array([7, 8, 9], np.float32)).tolist() == [7, 8, 9, 9, 9]
    assert "global f32[M] sized [3]" in run.text()
    assert tilewright.compile(run.text(), target="executor").text() == run.text()


def test_a_symbol_set_from_a_tile_may_stand_for_a_dimension():
    S = tkl.sym.S
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    picked = tkw.IndexMapping(2, inputs={S: S, N: j}, outputs={S: i, N: j})

    @tkw.wave()
    def kernel(x: mem(S, N), where: mem(M, N, dtype=tkl.i32), y: mem(M, N)):
        tkw.set_symbol(S, tkw.read(where))
        tkw.write(tkw.read(x, mapping=picked), y)

    x, where = integers((4, 3)), integers((5, 3), np.int32, 0, 4)
    assert (tilewright.compile(kernel, target="executor")(x, where) == np.take_along_axis(x, where, 0)).all()


def test_logs_keep_iterations_apart_and_need_no_tile_size():
    def product(constraints):
        @tkw.wave(constraints)
        def kernel(a: mem(M, K), b: mem(N, K), c: mem(M, N)):
            @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
            def loop(acc):
                acc = tkw.mma(tkw.read(a), tkw.read(b), acc)
                tkw.debug_log(acc, label="acc", extra_iteration_dimensions=[(tkl.sym.iter, K, 3)])
                return acc

            tkw.write(loop, c)

        return kernel

    a, b = integers((3, 8)), integers((4, 8), seed=1)
    logs: dict = {}
    c = tilewright.compile(product([tkw.TilingConstraint(K, 2)]), target="executor")(a, b, debug_logs=logs)
    assert (c == a @ b.T).all()
    value = logs["acc"]["value"]
    assert logs["acc"]["iteration_dimensions"] == [tkl.sym.iter]
    assert (value[0] == a[:, :2] @ b[:, :2].T).all()
    assert (value[1] == a[:, :4] @ b[:, :4].T).all()
    assert (value[2] == c).all()  # later iterations overwrite the last
    assert (tilewright.compile(product([]), target="executor")(a, b) == c).all()


def test_a_symbol_set_to_what_it_cannot_be_is_named():
    i = tkw.IndexMapping.iterator(0)
    S = tkl.sym.S
    at = tkw.IndexMapping(1, inputs={N: S + i}, outputs={M: i})

    @tkw.wave()
    def kernel(x: mem(N), shift: mem(M, dtype=tkl.i32), y: mem(M)):
        tkw.set_symbol(S, tkw.read(shift))
        tkw.write(tkw.read(x, mapping=at, otherwise=0), y)

    with pytest.raises(ExecutionError, match=r"S = .* is outside its range: 0 to inf"):
        tilewright.compile(kernel, target="executor")(integers((4,)), np.array([0, -1], np.int32))


def test_symbols_that_only_look_like_workgroups_and_spaces_are_the_authors():
    WORKGROUP_SIZE, ADDRESS_SPACE_COUNT = tkl.sym.WORKGROUP_SIZE, tkl.sym.ADDRESS_SPACE_COUNT

    @tkw.wave()
    def kernel(x: mem(M), y: mem(M)):
        tkw.write(tkw.read(x) + tkw.scalar(WORKGROUP_SIZE * ADDRESS_SPACE_COUNT, tkl.f32), y)

    found = tilewright.compile(kernel, {WORKGROUP_SIZE: 3, ADDRESS_SPACE_COUNT: 5}, target="executor")(
        np.zeros(2, np.float32)
    )
    assert found.tolist() == [15, 15]
    with pytest.raises(UnboundSymbol, match="WORKGROUP_SIZE"):
        tilewright.compile(kernel, {ADDRESS_SPACE_COUNT: 5}, target="executor")
