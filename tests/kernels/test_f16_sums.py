"""`accumulate="f16"`: products of f16 that are summed in f16, only where that is asked for."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_checks import run, same, small_integers

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.cli.workload import read_problem, read_workload
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError, DtypeMismatch
from tilewright.targets.cpu import host
from tilewright.targets.registry import machine

ROWS = ("aarch64.neon.fullfp16", "aarch64.neon", "x86.avx2", "x86.amx", "hopper")
SUMS_SO = {"aarch64.neon.fullfp16"}
PROBLEMS = (
    "mb1ic3ih11iw8oc17kh5kw3sh2sw1ph2pw0",
    "mb2ic7ih5iw9oc8kh2kw3ph1pw1dh1dw0",
    "mb1ic40ih4iw3oc33kh1kw1",
    "g2mb1ic10ih6iw7oc18kh3kw3ph1pw1",
    "g9mb1ic9ih6iw7oc9kh3kw3ph1pw1",
    "1x1:1x1",
    "3x5:5x7",
    "17x65:65x33",
    "2x13x24:2x24x40",
)
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K


class Memory:
    """Tensors of f16."""

    def __class_getitem__(cls, dims):
        return tkl.Memory[(*dims, GLOBAL, tkl.f16)]


def exactly(work, kernel):
    """Runs a kernel on small integers into an output full of NaN."""
    arrays = work.arrays(np.random.default_rng(5), exact=True)
    *_, out = arrays.values()
    kernel.bind(arrays)()
    assert np.array_equal(out, work.reference(arrays).astype(out.dtype))


@pytest.mark.parametrize("problem", PROBLEMS)
def test_sums_of_integers_are_exact_on_this_cpu(problem):
    work = read_workload(read_problem(problem), "f16sums")
    exactly(work, work.compiled())


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("problem", PROBLEMS[1:2] + PROBLEMS[4:5] + PROBLEMS[6:7])
def test_sums_of_integers_are_exact_on_every_machine(problem, row):
    work = read_workload(read_problem(problem), "f16sums")
    kernel = work.planned(machine(row))
    exactly(work, kernel)
    said = f"accumulate=f16: {machine(row).name} has no such atom; it accumulates in f32 and rounds once"
    assert (said in kernel.explain()) == (row not in SUMS_SO)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_error_of_real_data_is_within_its_bound(problem):
    """|y - exact| <= K * (2**-11 * sum of |a * b| + 2**-24), of which f32 sums take a small part."""
    work = read_workload(read_problem(problem), "f16sums")
    for kernel in (work.compiled(), work.planned(machine("aarch64.neon.fullfp16"))):
        checks = work.check(kernel, np.random.default_rng(6))
        assert checks.wrong == 0
        assert checks.share <= 1


@pytest.mark.parametrize("tile", [1, 2, 5])
def test_the_executor_rounds_after_every_product(tile):
    """2048 + 1 lies halfway between two numbers of f16, and is rounded to the even one; whatever the tile size."""

    def total(asked):
        @tkw.wave([tkw.TilingConstraint(K, tile)])
        def kernel(a: Memory[M, K], b: Memory[K, N], c: Memory[M, N]):
            @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f16](0)])
            def total(acc):
                return tkw.mma(tkw.read(a), tkw.read(b), acc, accumulate=asked)

            tkw.write(total, c)

        a, b = np.array([[2048, 1, 1, 3, 0.5]], np.float16), np.ones((5, 1), np.float16)
        return run(kernel, (a, b), (1, 1), "f16").item()

    assert total(None) == 2054  # of 2053.5, rounded once
    assert total("f16") == 2052


@pytest.mark.parametrize("row", [row for row in ROWS if row not in SUMS_SO])
def test_machines_without_such_atoms_round_once(row):
    a, b = np.array([[2048, 1, 1, 3, 0.5]], np.float16), np.ones((5, 16), np.float16)
    sizes = {"M": 1, "N": 16, "K": 5}
    for asked in (None, "f16"):
        kernel = kernel_for(kernels.gemm("nn", "f16", "f32", accumulate=asked), sizes, machine=machine(row))
        out = np.full((1, 16), np.nan, np.float32)
        kernel.bind({"a": a, "b": b, "c": out})()
        wanted = 2053.5 if asked is None else 2054
        assert out.tolist() == [[wanted] * 16]


def test_nothing_changes_where_it_is_not_asked_for():
    row = machine("aarch64.neon.fullfp16.dotprod")
    for problem in ("mb1ic64ih8oc64kh3ph1", "32x64:64x32"):
        works = [read_workload(read_problem(problem), dt) for dt in ("f16", "f16sums")]
        usual, asked = (work.planned(row) for work in works)
        assert (usual.plan.atom, asked.plan.atom) == ("neon.f32", "neon.f16")
        assert "accumulate" not in f"{works[0].traced}{usual.explain()}"
        assert "accumulate=f16" in str(works[1].traced)
        assert asked.plan.axis("columns").split("loop").size % 8 == 0


def test_rows_that_elements_are_picked_from_fit_the_registers_for_that():
    """Blocks of 14 rows were planned: products pick halves from 16 of the 32 registers, the rest were moved."""
    work = read_workload(read_problem("mb1ic64ih14oc64kh3ph1"), "f16sums")
    row = machine("aarch64.neon.fullfp16.dotprod")
    kernel = work.planned(row)
    assert "loop 7, unit 1" in str(kernel.plan.axis("rows"))
    given = str(kernel.plan).replace("loop 7,", "loop 14,")
    with pytest.raises(ArgumentError, match=r"neon\.f16 picks from 16 registers, enough for 8 rows; here are 14"):
        work.planned(row, given.replace("loop 16,", "loop 8,"))


def test_bias_and_activation_stay_in_f32():
    rng = np.random.default_rng(8)
    x, w = small_integers(rng, (2, 5, 7, 9), "f16"), small_integers(rng, (11, 3, 3, 9), "f16")
    bias = rng.integers(-40, 40, 11).astype(np.float32) + np.float32(2.0**-14)
    options = {"padding": 1, "activation": "relu", "out_dtype": "f32"}
    usual, asked = (tilewright.conv2d(x, w, bias, accumulate=each, **options) for each in (None, "f16"))
    assert asked.dtype == np.float32
    same(asked, usual)
    layer = tilewright.Conv2d(w, bias, accumulate="f16", **options)
    assert "accumulate='f16'" in repr(layer)
    same(layer(x), usual)


def test_products_of_arrays_and_layers_take_it():
    rng = np.random.default_rng(9)
    a, b = small_integers(rng, (2, 5, 13), "f16"), small_integers(rng, (13, 21), "f16")
    wanted = a.astype(np.int64) @ b.astype(np.int64)
    made = tilewright.matmul(a, b, accumulate="f16")
    assert made.dtype == np.float16
    same(made, wanted)
    layer = tilewright.Linear(b.T.copy(), accumulate="f16", activation="relu")
    assert repr(layer) == "Linear(weight f16[21, 13], activation='relu', accumulate='f16')"
    same(layer(a), np.maximum(wanted, 0))
    x, w = small_integers(rng, (1, 9, 5), "f16"), small_integers(rng, (3, 2, 5), "f16")
    same(tilewright.conv1d(x, w, accumulate="f16"), tilewright.conv1d(x, w).astype(np.float64))


def test_open_sizes_are_summed_so_too():
    kernel = tilewright.compile(kernels.gemm("nt", "f16", accumulate="f16"), target="cpu", dynamic=["M", "K"])
    rng = np.random.default_rng(10)
    for m, k in ((5, 7), (1, 1), (20, 33)):
        a, b = small_integers(rng, (m, k), "f16"), small_integers(rng, (19, k), "f16")
        out = np.full((m, 19), np.nan, np.float16)
        kernel(a, b, out)
        same(out, a.astype(np.int64) @ b.T.astype(np.int64))


def test_two_products_may_be_summed_differently():
    """A program with several products: each has the sums that it asks for."""

    @tkw.wave()
    def kernel(a: Memory[M, K], b: Memory[K, N], c: Memory[M, N], d: Memory[M, N]):
        x, y = tkw.read(a), tkw.read(b)
        zero = tkl.Register[M, N, tkl.f16](0)
        tkw.write(tkw.mma(x, y, zero, accumulate="f16"), c)
        tkw.write(tkw.mma(x, y, zero), d)

    a, b = np.full((3, 64), 1, np.float16), np.ones((64, 24), np.float16)
    a[:, 0] = 2048
    for target in ("executor", "cpu"):
        c, d = (np.full((3, 24), np.nan, np.float16) for _ in range(2))
        tilewright.compile(kernel, target=target)(a, b, c, d)
        assert set(d.ravel().tolist()) == {2112}
        narrow = target == "executor" or "fullfp16" in host.host_machine().features
        assert set(c.ravel().tolist()) == {2048 if narrow else 2112}


def test_other_values_and_types_are_refused():
    for value in ("bf16", "f32", ""):
        with pytest.raises(ArgumentError, match=f"accumulate={value!r}: 'f16', which sums products of f16 in f16, or"):
            kernels.gemm("nn", "f16", accumulate=value)
    for made in (kernels.gemm, lambda **options: kernels.conv((3,), "bf16", **options)):
        dtype = {} if made is not kernels.gemm else {"dtype": "bf16"}
        with pytest.raises(ArgumentError, match="accumulate='f16': factors are bf16; only products of f16 are"):
            made(accumulate="f16", **dtype)
    x = np.ones((1, 4, 1), np.float32)
    for call in (
        lambda: tilewright.conv1d(x, x[:, :2], accumulate="f16"),
        lambda: tilewright.Conv1d(x, accumulate="f16"),
        lambda: tilewright.matmul(x, x.swapaxes(1, 2), accumulate="f16"),
        lambda: tilewright.Linear(x[0], accumulate="f16"),
    ):
        with pytest.raises(ArgumentError, match="accumulate='f16': factors are f32; only products of f16 are summed"):
            call()


@pytest.mark.parametrize(
    ("factor", "total", "asked", "said"),
    [
        (tkl.f16, tkl.f32, "f16", 'mma of f16 and f16 into f32: accumulate="f16" takes factors and an accumulator of'),
        (tkl.f32, tkl.f16, "f16", 'mma of f32 and f32 into f16: accumulate="f16" takes factors and an accumulator of'),
        (tkl.f16, tkl.f16, "f32", "mma: accumulate='f32'; \"f16\" or nothing"),
    ],
)
def test_the_tile_language_refuses_other_types(factor, total, asked, said):
    @tkw.wave()
    def kernel(
        a: tkl.Memory[M, K, GLOBAL, factor], b: tkl.Memory[K, N, GLOBAL, factor], c: tkl.Memory[M, N, GLOBAL, total]
    ):
        tkw.write(tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, total](0), accumulate=asked), c)

    with pytest.raises(DtypeMismatch, match=said):
        kernel.trace()
