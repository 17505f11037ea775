"""Mistakes are taught: typed errors that name the thing, the way out, and point at the author's line."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.errors import (
    AliasingWarning,
    ArgumentError,
    BadMapping,
    DimensionMismatch,
    DtypeMismatch,
    ExecutionError,
    MissingTiling,
    NarrowingWarning,
    NoSuchAttribute,
    NothingWritten,
    OutOfScope,
    ProgramError,
    PythonControlFlow,
    UnboundSymbol,
)
from tilewright.ir.tile import parse_tile
from tilewright.ir.verifier import verify
from tilewright.lang.global_symbols import GLOBAL_ADDRESS_SPACE, THREAD_0, get_workgroup_symbol

M, N, K, L = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.L
f32_mn = tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, tkl.f32]
f16_mn = tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, tkl.f16]
f32_m = tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.f32]


def taught(kernel, error, message, under, symbols=None, **options):
    """Compiling raises this error, and its caret stands under `under` in the author's line."""
    with pytest.raises(error, match=message) as caught:
        tilewright.compile(kernel, symbols or {}, **options)
    lines = str(caught.value).splitlines()
    assert __file__ in lines[-3], lines
    marked = lines[-2][lines[-1].index("^") : lines[-1].rindex("^") + 1]
    assert marked == under, (marked, lines)
    for frame in caught.traceback[1:]:  # no internal frames but the call itself
        assert frame.path.name in ("eager.py", "kernels.py")


def test_element_types_that_differ():
    @tkw.wave()
    def kernel(a: f32_mn, b: f16_mn, c: f32_mn):
        x = tkw.read(a)
        y = tkw.read(b)
        tkw.write(x + y, c)

    taught(kernel, DtypeMismatch, "add of f32 and f16: the element types differ; cast one", "x + y")


def test_a_fraction_beside_an_integer_tile():
    @tkw.wave()
    def kernel(a: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.i32], c: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.i32]):
        tkw.write(tkw.read(a) * 0.5, c)

    taught(kernel, DtypeMismatch, "mul of a tile of i32 and the number 0.5: it is no integer", "tkw.read(a) * 0.5")


def test_dimensions_that_do_not_fit_the_memory():
    @tkw.wave()
    def kernel(a: f32_mn, c: f32_m):
        tkw.write(tkw.read(a), c)

    taught(
        kernel,
        DimensionMismatch,
        r"the tile has the dimensions \[M, N\], the memory \[M\]",
        "tkw.write(tkw.read(a), c)",
    )


def test_mma_without_a_summed_dimension():
    @tkw.wave()
    def kernel(a: f32_mn, b: f32_mn, c: f32_mn):
        tkw.write(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0)), c)

    under = "tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, tkl.f32](0.0))"
    taught(kernel, DimensionMismatch, "no dimension is summed", under)


def test_a_reduction_over_a_dimension_the_tile_lacks():
    @tkw.wave()
    def kernel(a: f32_mn, c: f32_m):
        tkw.write(tkw.sum(tkw.read(a), dim=K), c)

    taught(
        kernel, DimensionMismatch, r"sum over K: the tile has the dimensions \[M, N\]", "tkw.sum(tkw.read(a), dim=K)"
    )


def test_carried_values_that_change_their_type():
    @tkw.wave()
    def kernel(a: f32_mn, c: f32_m):
        start = tkl.Register[M, tkl.f32](0.0)

        @tkw.iterate(N, init_args=[start])
        def loop(acc):
            return tkw.read(a)

        tkw.write(loop, c)

    with pytest.raises(DimensionMismatch, match=r"carried value 0 starts as f32\[M\] and is returned as f32\[M, N\]"):
        tilewright.compile(kernel, target="executor")


def test_a_mapping_whose_outputs_are_not_its_iterators():
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    mapping = tkw.IndexMapping(num_iterators=2, inputs={M: i, N: j}, outputs={M: i, N: j + 1})

    @tkw.wave()
    def kernel(a: f32_mn, c: f32_mn):
        x = tkw.read(a, mapping=mapping)
        tkw.write(x, c)

    message = r"the tile's coordinate N must be an iterator of its own, but is it1 \+ 1"
    taught(kernel, BadMapping, message, "tkw.read(a, mapping=mapping)")


def test_a_mapping_that_forgets_a_dimension_of_memory():
    i = tkw.IndexMapping.iterator(0)
    mapping = tkw.IndexMapping(num_iterators=1, inputs={M: i}, outputs={M: i})

    @tkw.wave()
    def kernel(a: f32_mn, c: f32_m):
        tkw.write(tkw.read(a, mapping=mapping), c)

    taught(kernel, BadMapping, "the mapping gives M, not the memory's N", "tkw.read(a, mapping=mapping)")


def test_python_if_on_a_tile():
    @tkw.wave()
    def kernel(a: f32_mn, c: f32_mn):
        x = tkw.read(a)
        if x > 0:
            x = x + x
        tkw.write(x, c)

    with pytest.raises(PythonControlFlow, match=r"tkw\.select\(condition, a, b\)") as caught:
        tilewright.compile(kernel, target="executor")
    assert "if x > 0:" in str(caught.value)


@pytest.mark.parametrize(
    ("condition", "instead"),
    [
        (lambda t: -1 < t < 1, r"Python reads -1 < t < 1 as .*: write \(-1 < t\) & \(t < 1\)"),
        (lambda t: 0 <= t <= 1 <= 2 * t, r"write \(0 <= t\) & \(t <= 1\) & \(1 <= 2 \* t\)"),
        (lambda t: t > 1 and t < 2, r"For t > 1 and t < 2 write \(t > 1\) & \(t < 2\), of bool tiles"),
        (lambda t: t > 1 or t == 0, r"For t > 1 or t == 0 write \(t > 1\) \| \(t == 0\), of bool tiles"),
        (lambda t: not t > 0, r"For not t > 0 write ~\(t > 0\), of a bool tile"),
        (lambda t: bool(t), r"tkw\.select\(condition, a, b\).* as in \(t > -1\) & \(t < 1\)"),
        (lambda t: t in [1.0, 2.0], r"tkw\.select\(condition, a, b\)"),
        (lambda t: float(t), r"<tile .*> is no Python number: .*tkw\.cast\(tile, element type\)"),
        (lambda t: range(t), r"<tile .*> is no Python number"),
    ],
)
def test_the_truth_of_a_tile_was_refused_without_what_to_write(condition, instead):
    @tkw.wave()
    def kernel(x: f32_mn, y: f32_mn):
        t = tkw.read(x)
        tkw.write(tkw.select(condition(t), t, 0.0), y)

    with pytest.raises(PythonControlFlow, match=instead) as caught:
        tilewright.compile(kernel, target="executor")
    assert __file__ in str(caught.value)
    assert "lambda t:" in str(caught.value)


def test_what_a_chained_comparison_is_told_to_be_works():
    @tkw.wave()
    def kernel(x: f32_mn, y: f32_mn):
        t = tkw.read(x)
        tkw.write(tkw.select((t > -1) & (t < 1), t, 0.0), y)

    x = np.array([[-2, -0.5, 0.5], [1, -1, 2]], np.float32)
    for target in ("executor", "cpu"):
        assert tilewright.compile(kernel, target=target)(x).tolist() == [[0, -0.5, 0.5], [0, 0, 0]]


def test_select_between_two_numbers_says_how_their_type_is_given():
    @tkw.wave()
    def kernel(x: f32_mn, y: f32_mn):
        tkw.write(tkw.select(tkw.read(x) > 1, 1.0, 0.0), y)

    message = (
        r"select\(condition, 1.0, 0.0\): of two numbers .* tkw.select\(condition, tkw.scalar\(1.0, tkl.f32\), 0.0\)"
    )
    taught(kernel, DtypeMismatch, message, "tkw.select(tkw.read(x) > 1, 1.0, 0.0)")

    @tkw.wave()
    def known(x: f32_mn, y: f32_mn):
        tkw.write(tkw.select(True, tkw.read(x), 0.0), y)

    taught(known, DtypeMismatch, "select chooses by a bool tile, not by True", "tkw.select(True, tkw.read(x), 0.0)")


@pytest.mark.parametrize("dtype", [tkl.f32, tkl.f16, tkl.bf16, tkl.i8, tkl.i32], ids=str)
def test_a_number_in_select_has_the_type_of_the_tile_beside_it(dtype):
    memory = tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, dtype]

    @tkw.wave()
    def kernel(x: memory, y: memory):
        t = tkw.read(x)
        tkw.write(tkw.select(t > 1, 1, tkw.select(t < 0, tkw.scalar(2, dtype), 0)) + tkw.select(t == 0, t, 3), y)

    x = np.array([[-1, 0, 1], [2, 3, -4]]).astype(dtype.numpy)
    for target in ("executor", "cpu"):
        run = tilewright.compile(kernel, target=target)
        assert run(x).astype(int).tolist() == [[5, 0, 3], [4, 4, 5]]


def test_python_for_on_a_tile():
    @tkw.wave()
    def kernel(a: f32_mn, c: f32_mn):
        for row in tkw.read(a):
            tkw.write(row, c)

    with pytest.raises(PythonControlFlow, match="Python's `for` cannot walk a tile") as caught:
        tilewright.compile(kernel, target="executor")
    assert "for row in tkw.read(a):" in str(caught.value)


def test_a_kernel_that_never_writes():
    @tkw.wave()
    def kernel(a: f32_mn):
        tkw.read(a)

    with pytest.raises(NothingWritten, match="the kernel kernel never writes") as caught:
        tilewright.compile(kernel, target="executor")
    assert "def kernel(a: f32_mn):" in str(caught.value) or "@tkw.wave()" in str(caught.value)


def test_a_symbol_that_nothing_binds():
    @tkw.wave()
    def kernel(a: f32_mn, c: f32_mn):
        tkw.write(tkw.read(a) * tkw.scalar(L, tkl.f32), c)

    taught(
        kernel,
        UnboundSymbol,
        "the symbol L is neither bound nor found in an argument's shape",
        "tkw.scalar(L, tkl.f32)",
    )
    x = np.ones((2, 3), np.float32)
    assert (tilewright.compile(kernel, {L: 5}, target="executor")(x) == 5).all()


def online_sum(constraints):
    @tkw.wave(constraints)
    def kernel(a: f32_mn, c: f32_m):
        start = tkl.Register[M, tkl.f32](0.0)

        @tkw.iterate(N, init_args=[start])
        def loop(acc):
            return acc * 2.0 + tkw.sum(tkw.read(a), dim=N)

        tkw.write(loop, c)

    return kernel


def test_a_tile_size_that_is_meaning_must_be_given():
    with pytest.raises(MissingTiling, match=r"tkw\.TilingConstraint\(N, BLOCK_N\)"):
        tilewright.compile(online_sum([]), target="executor")
    block = tkl.sym.BLOCK_N
    with pytest.raises(UnboundSymbol, match="BLOCK_N"):
        tilewright.compile(online_sum([tkw.TilingConstraint(N, block)]), target="executor")
    kernel = tilewright.compile(online_sum([tkw.TilingConstraint(N, block)]), {block: 2}, target="executor")
    assert kernel(np.array([[1, 2, 3, 4, 5]], np.float32)).tolist() == [((0 * 2 + 3) * 2 + 7) * 2 + 5]


def test_any_tile_is_checked():
    @tkw.wave()
    def kernel(a: f32_mn, c: f32_m):
        start = tkl.Register[M, tkl.f32](0.0)

        @tkw.iterate(N, init_args=[start], any_tile=True)
        def loop(acc):
            return acc * 2.0 + tkw.sum(tkw.read(a), dim=N)

        tkw.write(loop, c)

    with pytest.raises(ExecutionError, match="tiles of 5 and of 3 give different results"):
        tilewright.compile(kernel, target="executor")(np.array([[1, 2, 3, 4, 5]], np.float32))


def test_a_narrowing_write_is_reported_once_and_refused_when_strict():
    @tkw.wave()
    def kernel(a: f32_mn, c: f16_mn):
        tkw.write(tkw.read(a), c)

    with pytest.warns(NarrowingWarning, match=r"write rounds f32 to f16; say so with tkw\.cast") as seen:
        run = tilewright.compile(kernel, target="executor")
    assert len(seen) == 1
    assert run(np.array([[1 + 2**-12]], np.float32)).tolist() == [[1.0]]
    taught(kernel, DtypeMismatch, "write rounds f32 to f16", "tkw.write(tkw.read(a), c)", strict=True)


def test_an_argument_read_and_written_through_different_accesses_is_reported():
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    turned = tkw.IndexMapping(num_iterators=2, inputs={M: j, N: i}, outputs={M: i, N: j})

    @tkw.wave()
    def kernel(a: f32_mn):
        tkw.write(tkw.read(a, mapping=turned), a)

    with pytest.warns(AliasingWarning, match="argument a is read and written through different accesses") as seen:
        tilewright.compile(kernel, target="executor")
    assert str(seen[0].message).count("File") == 2


def test_reading_and_writing_in_place_is_fine():
    @tkw.wave()
    def kernel(a: f32_mn):
        tkw.write(tkw.read(a) * 2.0, a)

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    tilewright.compile(kernel, target="executor")(x)
    assert x.tolist() == [[0, 2, 4], [6, 8, 10]]


def test_a_read_that_leaves_its_tensor():
    i, j = tkw.IndexMapping.iterator(0), tkw.IndexMapping.iterator(1)
    shifted = tkw.IndexMapping(num_iterators=2, inputs={M: i - 1, N: j}, outputs={M: i, N: j})

    @tkw.wave()
    def kernel(a: f32_mn, c: f32_mn):
        x = tkw.read(a, mapping=shifted)
        tkw.write(x, c)

    with pytest.raises(ExecutionError, match=r"read leaves its tensor.*otherwise=0"):
        tilewright.compile(kernel, target="executor")(np.ones((2, 3), np.float32))


def test_out_of_scope_names_say_so():
    @tkw.wave()
    def threads(a: f32_m, c: f32_m):
        tkw.write(tkw.read(a) * tkw.scalar(THREAD_0, tkl.f32), c)

    taught(threads, OutOfScope, "THREAD_0: a tile program has no threads", "tkw.scalar(THREAD_0, tkl.f32)")

    @tkw.wave()
    def shuffled(a: f32_m, c: f32_m):
        tkw.write(tkw.shuffle(tkw.read(a), 1, 64, None), c)

    taught(
        shuffled, OutOfScope, r"tkw\.shuffle: a tile program has no threads", "tkw.shuffle(tkw.read(a), 1, 64, None)"
    )
    for name in ("SetWavePrio", "get_node_by_tag", "set_wave_prio", "gather_to_lds", "pipeline"):
        with pytest.raises(OutOfScope, match=rf"tkw\.{name}"):
            getattr(tkw, name)()
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = tkw.nonsense


def test_operations_outside_a_kernel():
    with pytest.raises(ProgramError, match=r"Register\[...\]\(value\) only has a meaning inside a kernel"):
        tkl.Register[M, tkl.f32](0.0)


def test_memory_is_not_computed_with():
    @tkw.wave()
    def kernel(a: f32_m, c: f32_m):
        tkw.write(tkw.exp(a), c)

    taught(kernel, DtypeMismatch, "exp: a is memory; read it first", "tkw.exp(a)")


def test_an_uncompiled_kernel_says_how():
    @tkw.wave()
    def kernel(a: f32_m):
        tkw.write(tkw.read(a), a)

    with pytest.raises(ProgramError, match=r"tilewright\.compile\(kernel, symbols\)"):
        kernel(np.ones(3, np.float32))


# -- the call ------------------------------------------------------------------------------------------------


@pytest.fixture
def scaled():
    @tkw.wave()
    def scale(a: f32_mn, b: f32_mn, factor: tkl.f32):
        tkw.write(tkw.read(a) * factor, b)

    return tilewright.compile(scale, target="executor")


def test_arguments_that_fit(scaled):
    x, y = np.ones((2, 3), np.float32), np.full((2, 3), np.nan, np.float32)
    assert scaled(x, y, 2.0) is None
    assert (y == 2).all()
    assert (scaled(x, 3.0) == 3).all()
    assert (scaled(x, None, 4.0) == 4).all()
    turned = np.ones((3, 2), np.float32).T  # any strides will do
    assert (scaled(turned, 5.0) == 5).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: (a,), r"scale takes 3 arguments \(a, b, factor\), or 2 without its outputs; 1 are given"),
        (lambda a, b: (a.astype(np.float64), b, 2.0), "argument a holds f64; it must hold f32"),
        (lambda a, b: (a[0], b, 2.0), r"argument a has shape \(3,\); it must have the 2 dimensions \[M, N\]"),
        (lambda a, b: (a, b[:1], 2.0), r"argument b has shape \(1, 3\); its dimension 0 must be M = 2, not 1"),
        (lambda a, b: (a, a[::-1], 2.0), "the output b shares memory with a, and they are not the same elements"),
        (lambda a, b: (a.tolist(), b, 2.0), "argument a is list; it must be an array"),
        (lambda a, b: (a, b, "2"), "argument factor is '2'; it must be a number of type f32"),
        (
            lambda a, b: (a, np.broadcast_to(b[:1], (2, 3)), 2.0),
            "argument b is written, but the array given is read-only",
        ),
        (lambda a, b: (None, b, 2.0), "argument a is None, and is no output"),
    ],
)
def test_arguments_that_do_not_fit_are_named(scaled, change, message):
    with pytest.raises(ArgumentError, match=message):
        scaled(*change(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32)))


def test_coinciding_outputs_are_refused(scaled):
    one = np.lib.stride_tricks.as_strided(np.ones(3, np.float32), (2, 3), (0, 4))
    with pytest.raises(ArgumentError, match="make elements coincide"):
        scaled(np.ones((2, 3), np.float32), one, 2.0)


def test_unknown_targets_and_plans_are_refused(scaled):
    with pytest.raises(ArgumentError, match="target='tpu'"):
        tilewright.compile(scaled.program, target="tpu")
    with pytest.raises(ArgumentError, match="plan="):
        tilewright.compile(scaled.program, plan="m 16", target="executor")


# -- rows of Wave's mistakes that have a meaning here ---------------------------------------------------------


def gemm(dims_b, dtype=tkl.f16, constraints=()):
    @tkw.wave(constraints)
    def kernel(
        a: tkl.Memory[M, K, GLOBAL_ADDRESS_SPACE, dtype],
        b: tkl.Memory[(*dims_b, GLOBAL_ADDRESS_SPACE, dtype)],
        c: f32_mn,
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def loop(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(loop, c)

    return kernel


def test_what_wave_gets_wrong_or_refuses_runs_right_here():
    rng = np.random.default_rng(0)
    a = rng.integers(-4, 5, (5, 27)).astype(np.float16)
    b = rng.integers(-4, 5, (27, 7)).astype(np.float16)
    wanted = a.astype(np.float32) @ b.astype(np.float32)
    tiled = [tkw.TilingConstraint(K, tkl.sym.BLOCK_K), tkw.WorkgroupConstraint(M, tkl.sym.BLOCK_M, 0)]
    assert (tilewright.compile(gemm((K, N)), target="executor")(a, b) == wanted).all()  # [K, N] without a mapping
    assert (
        tilewright.compile(gemm((N, K), constraints=tiled), target="executor")(a, b.T) == wanted
    ).all()  # BLOCK_K not bound
    wide = gemm((K, N), tkl.f32)
    assert (
        tilewright.compile(wide, target="executor")(a.astype(np.float32), b.astype(np.float32)) == wanted
    ).all()  # f32 inputs

    @tkw.wave([tkw.WorkgroupConstraint(N, 64, 0)])
    def row_max(x: f32_mn, y: f32_m):
        tkw.write(tkw.max(tkw.read(x), dim=N), y)

    negative = -np.arange(1, 55, dtype=np.float32).reshape(2, 27)
    assert tilewright.compile(row_max, target="executor")(negative).tolist() == [
        -1,
        -28,
    ]  # padding does not join the maximum


def test_compiling_twice_gives_the_same_program():
    kernel = gemm((N, K), constraints=[tkw.TilingConstraint(K, 16)])
    assert tilewright.compile(kernel, target="executor").text() == tilewright.compile(kernel, target="executor").text()


def test_every_write_that_may_lose_something_is_narrowing():
    lossy = [(tkl.i32, tkl.i8), (tkl.f16, tkl.bf16), (tkl.bf16, tkl.f16), (tkl.i32, tkl.f32), (tkl.f32, tkl.f16)]
    safe = [(tkl.i8, tkl.i32), (tkl.f16, tkl.f32), (tkl.i8, tkl.f16), (tkl.bf16, tkl.f32), (tkl.bool, tkl.i8)]
    for given, out in lossy + safe:

        @tkw.wave()
        def kernel(a: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, given], c: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, out]):
            tkw.write(tkw.read(a), c)

        if (given, out) in safe:
            tilewright.compile(kernel, strict=True, target="executor")
        else:
            with pytest.raises(DtypeMismatch, match=f"write rounds {given} to {out}"):
                tilewright.compile(kernel, strict=True, target="executor")


def test_compiling_a_program_leaves_it_as_it_was(scaled):
    before = str(scaled.program)
    tilewright.compile(scaled.program, {M: 3}, target="executor")
    assert str(scaled.program) == before


def test_sizes_and_assumptions_are_checked_at_the_call():
    @tkw.wave([tkw.Assumption(M > 2)])
    def kernel(a: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.f32], c: tkl.Memory[N, GLOBAL_ADDRESS_SPACE, tkl.f32]):
        tkw.write(
            tkw.read(
                a, mapping=tkw.IndexMapping(1, {M: tkw.IndexMapping.iterator(0)}, {N: tkw.IndexMapping.iterator(0)})
            ),
            c,
        )

    run = tilewright.compile(kernel, {N: M - 4}, target="executor")
    with pytest.raises(ArgumentError, match="N comes out as -1; it must be at least 0"):
        run(np.ones(3, np.float32))
    with pytest.raises(ArgumentError, match="kernel assumes M >= 3, but M = 2"):
        tilewright.compile(kernel, {N: 1}, target="executor")(np.ones(2, np.float32))
    assert run(np.ones(6, np.float32)).shape == (2,)


def test_tile_sizes_are_at_least_one():
    with pytest.raises(ArgumentError, match="the tile size of N is BLOCK_N = 0; it must be at least 1"):
        tilewright.compile(online_sum([tkw.TilingConstraint(N, tkl.sym.BLOCK_N)]), {"BLOCK_N": 0}, target="executor")


# -- what arrays have, asked of tiles and of memory -----------------------------------------------------------------


def traced(body):
    """The kernel that does this with a tile t of x, and with x and y themselves."""

    @tkw.wave()
    def kernel(x: f32_mn, y: f32_mn):
        t = tkw.read(x)
        body(t, x, y)
        tkw.write(t, y)

    return kernel


@pytest.mark.parametrize(
    ("body", "error", "says"),
    [
        (lambda t, x, y: x + 1.0, DtypeMismatch, r"x, which is memory: read it first, with tkw.read\(x\)"),
        (lambda t, x, y: 1.0 - x, DtypeMismatch, "which is memory: read it first"),
        (lambda t, x, y: np.float32(2) * x, DtypeMismatch, "which is memory: read it first"),
        (lambda t, x, y: y.__setitem__(slice(None), x[:]), DtypeMismatch, r"tkw.write\(tile, x\)"),
        (lambda t, x, y: t @ t, DtypeMismatch, "write tkw.mma"),
        (lambda t, x, y: t.sum(N), NoSuchAttribute, "has no attribute sum: write tkw.sum"),
        (lambda t, x, y: t.shape, NoSuchAttribute, "has no attribute shape: dimensions go by name"),
        (lambda t, x, y: x.shape, NoSuchAttribute, "has no attribute shape: dimensions go by name"),
        (lambda t, x, y: np.exp(t), DtypeMismatch, "numpy.exp of <tile"),
        (lambda t, x, y: tkw.cast(t, 3), DtypeMismatch, "cast: dtype=3: there is no element type 3;"),
        (lambda t, x, y: t + None, DtypeMismatch, "add takes tiles and numbers, not None"),
        (lambda t, x, y: tkw.sum([]), DtypeMismatch, "sum of nothing"),
        (lambda t, x, y: tkw.sum(t, dim=None, acc="a"), DtypeMismatch, "not 'a'"),
        (lambda t, x, y: tkw.max(t, dim="N"), DimensionMismatch, "'N' is neither a symbol nor an integer"),
        (lambda t, x, y: tkw.permute(t, None), DimensionMismatch, "None is neither a symbol nor an integer"),
        (lambda t, x, y: tkw.set_symbol(3, t), DtypeMismatch, "3 is no symbol"),
        (lambda t, x, y: tkw.apply_expr(t, 3), DtypeMismatch, "3 is no function"),
        (lambda t, x, y: tkw.apply_expr(t, M), DtypeMismatch, "<M> is no function"),
        (lambda t, x, y: tkw.apply_expr(t, len), DtypeMismatch, "len.* of 1 symbols raised TypeError"),
        (lambda t, x, y: tkw.iterate(N, init_args=t)(lambda a: a), DtypeMismatch, "give a list of tiles, init_args="),
        (lambda t, x, y: tkw.iterate(N, init_args=[t])(lambda: t), DimensionMismatch, "the 1 values that are carried"),
        (
            lambda t, x, y: tkw.iterate(N, init_args=[t])(lambda a, b: a),
            DimensionMismatch,
            "missing a required argument",
        ),
    ],
)
def test_what_arrays_have_is_asked_of_tiles_and_memory(body, error, says):
    with pytest.raises(error, match=says) as found:
        tilewright.compile(traced(body), target="executor")
    assert __file__ in str(found.value)


def test_powers_numpy_numbers_and_numpy_element_types_mean_what_they_say():
    @tkw.wave()
    def kernel(x: f32_m, y: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.f16]):
        tkw.write(tkw.cast(2 ** tkw.read(x) * np.float64(0.5) + np.int64(1), np.float16), y)

    out = tilewright.compile(kernel, target="executor")(np.array([1, 2, 3], np.float32))
    assert out.tolist() == [2, 3, 5]
    assert "np." not in tilewright.compile(kernel, target="executor").text()


def test_a_kernel_with_open_arguments():
    @tkw.wave()
    def kernel(*args: f32_m):
        tkw.write(tkw.read(args[0]), args[1])

    with pytest.raises(DtypeMismatch, match=r"the parameter \*args.*its arguments are counted"):
        tilewright.compile(kernel, target="executor")


def test_wave_without_parentheses():
    with pytest.raises(ProgramError, match=r"@tkw.wave is written with parentheses, @tkw.wave\(\) or .* given kernel"):

        @tkw.wave
        def kernel(x: f32_m, y: f32_m):
            tkw.write(tkw.read(x), y)


def test_wave_around_something_else_than_a_function():
    with pytest.raises(ProgramError, match=r"@tkw\.wave\(\) marks a Python function, not 7"):
        tkw.wave()(7)


def test_a_dimension_that_stands_twice_and_a_missing_element_type():
    with pytest.raises(DimensionMismatch, match=r"Memory\[M, M, .*the dimension M stands there twice"):
        tkl.Memory[M, M, GLOBAL_ADDRESS_SPACE, tkl.f32]
    with pytest.raises(DimensionMismatch, match=r"Memory\[M, M\]: M is no element type"):
        tkl.Memory[M, M]


def test_memory_without_an_address_space_was_taken_for_fewer_dimensions():
    message = r"N stands where the address space must stand; write Memory\[M, N, GLOBAL_ADDRESS_SPACE, f32\]"
    with pytest.raises(DimensionMismatch, match=message) as caught:

        @tkw.wave()
        def kernel(
            x: f32_mn,
            y: tkl.Memory[M, N, tkl.f32],
        ):
            tkw.write(tkw.read(x), y)

    lines = str(caught.value).splitlines()
    assert __file__ in lines[-3]
    assert lines[-2].strip() == "y: tkl.Memory[M, N, tkl.f32],"
    with pytest.raises(DimensionMismatch, match=r"write Memory\[M, 4, GLOBAL_ADDRESS_SPACE, f16\]") as caught:
        tkl.Memory[M, 4, tkl.f16]
    assert "tkl.Memory[M, 4, tkl.f16]" in str(caught.value)
    with pytest.raises(DimensionMismatch, match=r"write Memory\[M, GLOBAL_ADDRESS_SPACE, f32\]"):
        tkl.Memory[M, tkl.f32]
    for space in (tkl.sym.ADDRESS_SPACE_0, tkl.sym.MY_SPACE, tkl.AddressSpace.GLOBAL_MEMORY):
        assert tkl.Memory[M, space, tkl.f32].dims == (M,)


@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_topk_of_more_elements_than_a_row_has_gave_zeros_or_another_error(target):
    def largest(count, length):
        @tkw.wave()
        def kernel(
            x: tkl.Memory[M, length, GLOBAL_ADDRESS_SPACE, tkl.f32],
            y: tkl.Memory[M, count, GLOBAL_ADDRESS_SPACE, tkl.f32],
        ):
            values, _ = tkw.topk(tkw.read(x), count, length)
            tkw.write(values, y)

        return kernel

    message = "topk over N: k is K = 5, but the tile has 3 elements there; k must be at most 3"
    taught(largest(K, N), DimensionMismatch, message, "tkw.topk(tkw.read(x), count, length)", {K: 5, N: 3})
    taught(largest(5, 3), DimensionMismatch, "topk over 3: k is 5,", "tkw.topk(tkw.read(x), count, length)")
    x = np.array([[1, 3, 2], [6, 5, 4]], np.float32)
    for symbols, args in (({K: 5}, (x,)), ({}, (x, np.zeros((2, 5), np.float32)))):
        with pytest.raises(DimensionMismatch, match=message) as caught:
            tilewright.compile(largest(K, N), symbols, target=target)(*args)
        assert "values, _ = tkw.topk(tkw.read(x), count, length)" in str(caught.value)
    with pytest.raises(DimensionMismatch, match="the tile has 0 elements there"):
        tilewright.compile(largest(K, N), {K: 5}, target=target)(x[:, :0])
    assert tilewright.compile(largest(K, N), {K: 3}, target=target)(x).tolist() == [[3, 2, 1], [6, 5, 4]]


def test_an_iterator_over_2_that_is_not_whole_names_the_other_division():
    i = tkw.IndexMapping.iterator(0)
    half = tkw.IndexMapping(num_iterators=1, inputs={M: i / 2}, outputs={M: i})

    @tkw.wave()
    def kernel(x: f32_m, y: f32_m):
        tkw.write(tkw.read(x, mapping=half), y)

    with pytest.raises(
        ExecutionError, match=r"^it0 / 2: 1 / 2 was said to be exact, but 2 does not divide 1; // rounds"
    ):
        tilewright.compile(kernel, target="executor")(np.ones(4, np.float32))


# -- symbols that a kernel does not have -----------------------------------------------------------------------


def test_symbols_that_the_kernel_does_not_have_are_refused(scaled):
    with pytest.raises(ArgumentError, match=r"symbols: scale has no symbol ZZ; it has M, N$"):
        tilewright.compile(scaled.program, {"ZZ": 3}, target="executor")
    kernel = online_sum([tkw.TilingConstraint(N, tkl.sym.BLOCK_N)])
    for key in ("BLOCKN", tkl.sym.BLOCKN):
        with pytest.raises(ArgumentError, match=r"has no symbol BLOCKN; it has .*; did you mean BLOCK_N\?"):
            tilewright.compile(kernel, {"BLOCK_N": 2, key: 4}, target="executor")
    with pytest.raises(ArgumentError, match="has no symbol ZZ"):
        tilewright.compile(kernel, {"BLOCK_N": 2, tkl.sym.ZZ: tkl.sym.M}, target="executor")
    run = tilewright.compile(scaled.program, target="cpu")
    with pytest.raises(ArgumentError, match="scale has no symbol ZZ; it has M, N"):
        run.text("block", {"M": 2, "N": 3, "ZZ": 4})


def test_symbols_that_only_bindings_or_hints_name_are_known():
    loads, deep, space = tkl.sym.LOADS, tkl.sym.DEEP, tkl.sym.SPACE
    inner = tkl.sym.INNER_LOADS

    @tkw.wave([tkw.TilingConstraint(N, tkl.sym.BLOCK_N)])
    def kernel(x: tkl.Memory[M, N, space, tkl.f32], y: f32_m):
        @tkw.iterate(N, init_args=[tkl.Register[M, tkl.f32](0.0)])
        def total(acc):
            return tkw.sum(tkw.read(x, elements_per_thread=inner), acc, dim=N)

        tkw.write(total, y, elements_per_thread=loads)

    from tilewright.lang.global_symbols import READ_SHARED_DELAY

    bound = {loads: 4, inner: 8, "BLOCK_N": 2 * deep, deep: 3, space: 7, READ_SHARED_DELAY: 1}
    assert tilewright.compile(kernel, bound, target="executor")(np.ones((2, 5), np.float32)).tolist() == [5, 5]


def test_wave_compile_takes_values_for_symbols_that_the_kernel_has_not():
    from tilewright.compat.wave import WaveCompileOptions, wave_compile

    run = wave_compile(WaveCompileOptions(subs={"ZZ": 3, M: 2, N: 3}), online_sum([tkw.TilingConstraint(N, 1)]))
    assert run(np.ones((2, 3), np.float32)) is not None


def test_steps_of_loops_are_refused():
    """A loop took all tiles, whatever its step."""

    @tkw.wave([tkw.TilingConstraint(N, 4)])
    def kernel(x: tkl.Memory[M, N, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32], y: f32_m):
        @tkw.iterate(N, init_args=[tkl.Register[M, tkl.f32](0.0)], step=2)
        def total(acc):
            return tkw.sum(tkw.read(x), acc, dim=N)

        tkw.write(total, y)

    with pytest.raises(OutOfScope, match=r"iterate: step=2: a loop takes every tile of its axis, step=1") as fault:
        kernel.trace()
    assert "init_args" in str(fault.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"address_space": tkl.GLOBAL_ADDRESS_SPACE}, r"allocate: address_space=.*: memory is allocated in SHARED_ADD"),
        ({"parent": 1, "offset": 0}, "allocate: parent, offset: allocated memory is no part of other memory"),
    ],
)
def test_memory_that_is_not_a_workgroups_own_is_refused(options, said):
    """Such memory was allocated as shared memory of its own."""

    @tkw.wave()
    def kernel(x: f32_m, y: f32_m):
        held = tkw.allocate((M,), (M,), tkl.f32, **options)
        tkw.write(tkw.read(x), held)
        tkw.write(tkw.read(held), y)

    with pytest.raises(OutOfScope, match=said):
        kernel.trace()


def test_names_of_other_libraries_say_what_is_written_here():
    for name, wanted in (
        ("where", r"write tkw.select\(condition, a, b\)"),
        ("mean", r"write tkw.sum\(t, dim=N\) / N"),
        ("dot", r"write tkw.mma\(a, b, accumulator\)"),
        ("maximun", r"did you mean maximum\?"),
    ):
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; {wanted}"):
            getattr(tkw, name)


def test_a_logged_tile_with_a_dimension_that_its_mapping_lacks():
    i = tkw.IndexMapping.iterator(0)
    of_rows = tkw.IndexMapping(num_iterators=1, inputs={M: i}, outputs={M: i})

    @tkw.wave()
    def kernel(a: f32_mn, c: f32_mn):
        x = tkw.read(a)
        tkw.debug_log(x, mapping=of_rows)
        tkw.write(x, c)

    message = r"debug_log: the mapping's inputs have \[M\], the tile has \[M, N\]"
    taught(kernel, BadMapping, message, "tkw.debug_log(x, mapping=of_rows)")


@pytest.mark.parametrize("number", [-1, 5, 7, 1.0, "0", True])
def test_a_grid_dimension_was_counted_from_the_end_or_out_of_range(number):
    for make, said in (
        (get_workgroup_symbol, "get_workgroup_symbol: number"),
        (lambda n: tkw.WorkgroupConstraint(M, 4, n), "WorkgroupConstraint: workgroup_dim"),
        (lambda n: tkw.ReorderingConstraint(M, n), "ReorderingConstraint: workgroup_dim"),
    ):
        with pytest.raises(ProgramError, match=f"{said}={number!r}: a grid has dimensions 0 to 4"):
            make(number)


def test_a_grid_dimension_of_a_text_is_checked():
    text = "tile t(%x: global f32[M])\n  symbols M\n  {}\n{{\n  %0 = read %x : f32[M]\n  write %0, %x\n}}\n"
    for record in ("workgroup dim=(M) tile=(4) grid=-1", "reordering value=(M) grid=5"):
        with pytest.raises(ProgramError, match="a grid has dimensions 0 to 4"):
            verify(parse_tile(text.format(record)))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: tkw.GridConstraint((7, 2)), "grid_size=(7, 2) is not one number of workgroups"),
        (lambda: tkw.GridConstraint([]), "grid_size=[] is not one number of workgroups"),
        (lambda: tkw.WorkgroupConstraint(M, 4, apply_fn=3), "apply_fn=3 is not a function"),
        (lambda: tkw.SymbolicAlias(M, N, 3), "source_to_target=3 is not a function"),
        (lambda: tkw.IteratorBindings(3), "bindings=3 is not {iterator: dimension}"),
    ],
    ids=["several", "none", "apply_fn", "source_to_target", "bindings"],
)
def test_an_argument_of_a_constraint_was_cut_short_or_named_by_no_error(make, said):
    with pytest.raises(ProgramError, match=re.escape(said)):
        make()
