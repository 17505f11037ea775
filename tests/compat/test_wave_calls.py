"""Wave's compile call: a kernel with Wave's text, its options, and what is said of those without meaning."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compat import wave as compat
from tilewright.compat.wave import (
    SchedulingType,
    WaveCompileOptions,
    get_default_scheduling_params,
    set_default_run_config,
    wave_compile,
)
from tilewright.errors import (
    ArgumentError,
    ExpressionError,
    IgnoredOptionWarning,
    MissingPackage,
    OutOfScope,
    ProgramError,
)
from tilewright.lang import sympy
from tilewright.lang.global_symbols import *  # noqa: F403 - as Wave's kernels do
from tilewright.lang.global_symbols import GLOBAL_ADDRESS_SPACE, SHARED_ADDRESS_SPACE


def gemm_of_waves_text(mfma_variant=tkw.MMAType.F32_16x16x16_F16):
    M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
    BLOCK_M, BLOCK_N, BLOCK_K = tkl.sym.BLOCK_M, tkl.sym.BLOCK_N, tkl.sym.BLOCK_K
    ADDRESS_SPACE = tkl.sym.ADDRESS_SPACE
    constraints: list[tkw.Constraint] = [tkw.WorkgroupConstraint(M, BLOCK_M, 0)]
    constraints += [tkw.WorkgroupConstraint(N, BLOCK_N, 1)]
    constraints += [tkw.TilingConstraint(K, BLOCK_K)]
    constraints += [tkw.WaveConstraint(M, BLOCK_M / 2)]
    constraints += [tkw.WaveConstraint(N, BLOCK_N / 2)]
    constraints += [tkw.HardwareConstraint(threads_per_wave=64, mma_type=mfma_variant)]

    @tkw.wave(constraints)
    def gemm(
        a: tkl.Memory[M, K, ADDRESS_SPACE, tkl.f16],
        b: tkl.Memory[N, K, ADDRESS_SPACE, tkl.f16],
        c: tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, tkl.f32],
    ):
        c_reg = tkl.Register[M, N, tkl.f32](0.0)

        @tkw.iterate(K, init_args=[c_reg])
        def repeat(acc: tkl.Register[M, N, tkl.f32]) -> tkl.Register[M, N, tkl.f32]:
            a_reg = tkw.read(a, elements_per_thread=4)
            b_reg = tkw.read(b, elements_per_thread=4)
            return tkw.mma(a_reg, b_reg, acc)

        tkw.write(repeat, c, elements_per_thread=4)

    subs = {ADDRESS_SPACE: SHARED_ADDRESS_SPACE, BLOCK_M: 64, BLOCK_N: 64, BLOCK_K: 32, M: 33, N: 21, K: 50}
    subs.update(get_default_scheduling_params())
    return gemm, subs


def check(run):
    rng = np.random.default_rng(0)
    a, b = rng.integers(-4, 5, (33, 50)).astype(np.float16), rng.integers(-4, 5, (21, 50)).astype(np.float16)
    c = np.full((33, 21), np.nan, np.float32)
    assert run(a, b, c) is None
    assert (c == a.astype(np.float32) @ b.T.astype(np.float32)).all()


def test_a_wave_gemm_runs_with_waves_call():
    gemm, subs = gemm_of_waves_text()
    options = set_default_run_config(WaveCompileOptions(subs=subs))
    check(wave_compile(options, gemm))


def test_dynamic_symbols_come_from_shapes():
    gemm, subs = gemm_of_waves_text()
    M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
    options = WaveCompileOptions(subs=subs, dynamic_symbols=[M, N, K])
    options.subs[M] = 1  # a dynamic symbol's value does not count
    check(wave_compile(options, gemm))


def test_options_without_meaning_are_named_once():
    compat._named.clear()
    gemm, subs = gemm_of_waves_text()
    options = WaveCompileOptions(subs=subs, canonicalize=True, schedule=SchedulingType.PREFETCH, use_buffer_ops=False)
    options.waves_per_eu = 2
    assert options.schedule is SchedulingType.PREFETCH
    assert options.backend == "llvm"
    with pytest.warns(IgnoredOptionWarning, match="without meaning here: canonicalize, schedule, waves_per_eu$"):
        wave_compile(options, gemm)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wave_compile(options, gemm)


def test_unknown_options_are_refused_and_manual_schedules_are_named_once():
    compat._named.clear()
    with pytest.raises(ArgumentError, match="WaveCompileOptions has no option colour"):
        WaveCompileOptions(subs={}, colour="red")
    gemm, subs = gemm_of_waves_text()

    @tkw.wave_schedule.wave_schedule()
    def ping_pong():
        raise AssertionError("a schedule is never run")

    with pytest.warns(IgnoredOptionWarning, match="without meaning here: the schedule ping_pong$"):
        check(wave_compile(WaveCompileOptions(subs=subs), gemm, ping_pong))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check(wave_compile(WaveCompileOptions(subs=subs), gemm, ping_pong))


def test_names_that_wave_has_and_ours_had_not():
    options = WaveCompileOptions(subs={}, verify_region_captures=True, enable_swizzle=True, cluster_barrier_delay=2)
    options.enable_mark_hardware_transpose_candidates = options.allow_noncontiguous_runtime_buffers = True
    options.edit_ir_after = ["hoisting"]
    options.print_mlir_after_water = "all"
    assert options.target.startswith("gfx") is False
    gemm, subs = gemm_of_waves_text()
    native = wave_compile(WaveCompileOptions(subs=subs, target="cpu"), gemm)
    check(native)
    assert "on cpu" in repr(native)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_a_gpu = wave_compile(WaveCompileOptions(subs=subs, target="gpu:hopper"), gemm)  # was the executor
    assert "on gpu:hopper" in repr(on_a_gpu)
    assert "wgmma" in on_a_gpu.text("asm", {})
    compat._named.clear()
    with pytest.warns(IgnoredOptionWarning, match="without meaning here: target$"):
        assert "on cpu" in repr(wave_compile(WaveCompileOptions(subs=subs, target="gfx942"), gemm))
    with pytest.raises(ArgumentError, match="has no machine 'nonsense'"):
        wave_compile(WaveCompileOptions(subs=subs, target="cpu:nonsense"), gemm)
    assert [c.name for c in compat.CoalescingType] == ["LINEAR", "WAVE_TILE_ALIGNED"]
    torch = pytest.importorskip("torch")
    assert compat.TORCH_DTYPE_TO_WAVE[torch.bfloat16] is tkl.bf16
    assert compat.torch_dtype_range(torch.int16) == [-32768, 32767]


@pytest.mark.parametrize("name", ["TORCH_DTYPE_TO_WAVE", "torch_dtype_range", "device_zeros"])
def test_what_needs_torch_says_so_in_one_line_where_it_is_not_installed(monkeypatch, name):
    """TORCH_DTYPE_TO_WAVE raised ModuleNotFoundError."""
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not there
    with pytest.raises(MissingPackage, match=rf"^tilewright\.compat\.wave\.{name} needs torch, .*: pip install torch$"):
        getattr(compat, name)(3)


def test_assembly_dumps_are_out_of_scope_by_name():
    gemm, subs = gemm_of_waves_text()
    with pytest.raises(OutOfScope, match="compile_to_asm: there is no AMD assembly here"):
        wave_compile(WaveCompileOptions(subs=subs, compile_to_asm=True), gemm)


def test_what_a_read_finds_outside_memory_is_zero_as_with_amds_buffers():
    M, N = tkl.sym.M, tkl.sym.N
    i = tkw.IndexMapping.iterator(0)
    further = tkw.IndexMapping(num_iterators=1, inputs={M: i + 3}, outputs={M: i})

    @tkw.wave()
    def shifted(x: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.f32], y: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.f32]):
        tkw.write(tkw.read(x, mapping=further), y)

    x = np.arange(7, dtype=np.float32)
    y = np.full(7, np.nan, np.float32)
    wave_compile(WaveCompileOptions(subs={N: 1}), shifted)(x, y)
    assert y.tolist() == [3, 4, 5, 6, 0, 0, 0]


@pytest.mark.parametrize("kind", [tkl.i32, tkl.f32])
def test_modulo_floored_where_waves_takes_the_dividends_sign(kind):
    M = tkl.sym.M

    @tkw.wave()
    def modulo(
        x: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, kind],
        d: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, kind],
        y: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, kind],
        z: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, kind],
    ):
        tkw.write(tkw.read(x) % tkw.read(d), y)
        tkw.write(17 % tkw.read(d), z)

    x, d = np.array([-7, 7, -7, 7, 6], kind.numpy), np.array([3, -3, -3, 3, 4], kind.numpy)
    y, z = np.zeros_like(x), np.zeros_like(x)
    wave_compile(WaveCompileOptions(subs={}), modulo)(x, d, y, z)
    assert np.array_equal(y, np.fmod(x, d))
    assert np.array_equal(z, np.fmod(np.full_like(d, 17), d))
    tilewright.compile(modulo, target="executor")(x, d, y, z)
    assert np.array_equal(y, np.mod(x, d))


@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_symbols_that_set_symbol_makes_negative(target):
    M, S, D = tkl.sym.M, tkl.sym.S, tkl.sym.D
    i = tkw.IndexMapping.iterator(0)
    back = tkw.IndexMapping(num_iterators=1, inputs={M: i + D}, outputs={M: i})

    @tkw.wave([tkw.WorkgroupConstraint(S, 1, 0), tkw.WorkgroupConstraint(M, 8, 1)])
    def moved(
        x: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.f32],
        by: tkl.Memory[S, GLOBAL_ADDRESS_SPACE, tkl.i32],
        y: tkl.Memory[S, M, GLOBAL_ADDRESS_SPACE, tkl.f32],
    ):
        tkw.set_symbol(D, tkw.read(by))
        tkw.write(tkw.broadcast(tkw.read(x, mapping=back), [S, M]), y)

    x, by = np.arange(1, 7, dtype=np.float32), np.array([-2, 0, 3], np.int32)
    y = np.full((3, 6), np.nan, np.float32)
    kernel = wave_compile(WaveCompileOptions(subs={}, target=target), with_workgroups(moved, S))
    kernel(x, by, y)
    assert y.tolist() == [[0, 0, 1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [4, 5, 6, 0, 0, 0]]


def with_workgroups(kernel, dim):
    """The kernel, with workgroups as part of its meaning: each has one coordinate of the dimension."""
    kernel.constraints = (*kernel.constraints, tkw.ReorderingConstraint(tkl.sym.WORKGROUP_0, 0))
    return kernel


@pytest.mark.parametrize("target", ["executor", "cpu"])
def test_an_assumption_that_does_not_hold_is_named_and_changes_nothing(target):
    """It was refused; Wave's own dynamic tests call kernels so, since its assumptions only guide schedules."""
    M = tkl.sym.M

    @tkw.wave([tkw.Assumption(M > 4)])
    def doubled(x: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.f32], y: tkl.Memory[M, GLOBAL_ADDRESS_SPACE, tkl.f32]):
        tkw.write(tkw.read(x) * 2.0, y)

    run = compat.wave_compile(compat.WaveCompileOptions(dynamic_symbols=[M], target=target), doubled)
    x, y = np.arange(3, dtype=np.float32), np.full(3, np.nan, np.float32)
    with pytest.warns(IgnoredOptionWarning, match="doubled assumes .*M.*, but M = 3"):
        run(x, y)
    np.testing.assert_array_equal(y, x * 2)
    with pytest.raises(ArgumentError, match="doubled assumes"):
        tilewright.compile(doubled, target=target)(x, y)


def test_torch_is_not_loaded_by_the_compatibility_layer():
    assert "torch" not in sys.modules or compat._torch("this") is not None
    assert compat.ceildiv(7, 2) == 4
    with pytest.raises(ArgumentError, match=r"ceildiv: a=array\(\['x'\].* is not an integer"):
        compat.ceildiv(np.array(["x"]), 2)
    with pytest.raises(ArgumentError, match="ceildiv: b=0 is not an integer other than 0"):
        compat.ceildiv(7, 0)
    assert compat.clamp(9, 1, 4) == 4


def test_sympys_names_on_our_expressions():
    M, S = tkl.sym.M, sympy.Symbol("S", nonnegative=True)
    assert isinstance(S, sympy.Symbol)
    assert S is tkl.sym.S
    assert not (sympy.Symbol("S") >= 0).is_constant  # of either sign, as in sympy
    assert str(sympy.ceiling(M / 64)) == "-((-M)//64)"
    assert sympy.floor(M / 4).subs({M: 11}) is sympy.Integer(2)
    assert int(sympy.Max(sympy.Min(1024, 256), 64)) == 256
    assert sympy.Mod(M, 4).subs({M: 7}) is sympy.Integer(3)
    pieces = sympy.Piecewise((1, M < 2), (M, sympy.Eq(M, 5)), (0, True))
    assert [int(pieces.subs({M: v})) for v in (0, 1, 2, 5, 6)] == [1, 1, 0, 5, 0]
    assert int(sympy.And(sympy.Lt(M, 4), sympy.Ge(M, 2)).subs({M: 3})) == 1
    assert int(sympy.Or(sympy.Gt(M, 4), sympy.Le(M, 1), sympy.Ne(M, M)).subs({M: 3})) == 0
    assert int(sympy.Abs(M - 5).subs({M: 2})) == 3
    assert sympy.symbols("a b", nonnegative=True) == (tkl.sym.a, tkl.sym.b)
    with pytest.raises(ProgramError, match="the last case must have the condition True, not M <= 1"):
        sympy.Piecewise((1, M < 2))
    for cases in ((), ((1, M < 2), 0)):
        with pytest.raises(ProgramError, match=r"Piecewise: .*: give pairs \(value, condition\)"):
            sympy.Piecewise(*cases)
    for call in (sympy.ceiling, sympy.floor, sympy.Not):
        with pytest.raises(ExpressionError, match="inf is neither an integer nor an expression"):
            call(sympy.oo)
    with pytest.raises(ProgramError, match=r"symbols: \('a', 'b'\) is no text"):
        sympy.symbols(("a", "b"))


def test_names_are_reached_through_modules_as_in_waves_examples():
    assert tkw.utils.general_utils.ceildiv(7, 2) == 4
    assert tkw.utils.run_utils.set_default_run_config is set_default_run_config
    assert tkl.global_symbols.GLOBAL_ADDRESS_SPACE is GLOBAL_ADDRESS_SPACE


def test_waves_simulator_had_no_place():
    """The decorated function is called with arrays; sizes come from these, and tile sizes are not bound."""
    M, N, BLOCK_M = tkl.sym.M, tkl.sym.N, tkl.sym.BLOCK_M

    @compat.wave_sim([tkw.WorkgroupConstraint(M, BLOCK_M, 0), tkw.HardwareConstraint(threads_per_wave=64)])
    def added(
        x: tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, tkl.f32],
        b: tkl.Memory[N, GLOBAL_ADDRESS_SPACE, tkl.f32],
        y: tkl.Memory[M, N, GLOBAL_ADDRESS_SPACE, tkl.f32],
    ):
        tkw.write(tkw.read(x) + tkw.read(b), y)

    x, b, y = np.ones((3, 5), np.float32), np.arange(5, dtype=np.float32), np.zeros((3, 5), np.float32)
    added(x, b, y)
    assert np.array_equal(y, x + b)
