"""Programs that mean the same become one program: one order of dimensions, one dimension for those that lie behind each
other. Plans and predicted times were others before."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.ir.tile import parse_tile
from tilewright.rewrite.dim_order import in_dim_order
from tilewright.rewrite.join_reads import with_equal_reads_once
from tilewright.rewrite.merge_dims import Sized, merged
from tilewright.targets.registry import machine

sys.path[:0] = [str(Path(__file__).parents[2] / "benchmarks")]
import metamorphic  # noqa: E402
from corpus_plans import machine_of  # noqa: E402
from corpus_requests import planning_of  # noqa: E402

GLOBAL, bf16, f32 = tkl.GLOBAL_ADDRESS_SPACE, tkl.bf16, tkl.f32
M, N, K, M0, M1, N0, N1, K0, K1, U = (
    getattr(tkl.sym, s) for s in ("M", "N", "K", "M0", "M1", "N0", "N1", "K0", "K1", "U")
)
HOPPER = machine("hopper")

PAIRS = {
    "dimensions of registers in another order": (130, 290),
    "operands of products exchanged": (3, 200, 292),
    "rows split": (251, 174),
    "columns split": (6, 43, 262),
    "K split": (155, 213),
    "a unit dimension beside columns": (229,),
    "rows of a convolution in three dimensions": (4, 124),
    "sums over two dimensions, one after the other": (91, 170, 227),
}
"""Pairs of the metamorphic benchmark whose predicted times differed, by what is written otherwise."""


UNEQUAL = pytest.param(
    99,
    "results of column sums over two dimensions",
    marks=pytest.mark.xfail(strict=True, reason="a sum of a loop is split over tasks, one with an accumulator is not"),
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("number", "what"), [*((n, what) for what, ns in PAIRS.items() for n in ns), UNEQUAL])
def test_two_writings_took_different_predicted_times(number: int, what: str):
    pair = metamorphic.pair_of(number)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = (
            metamorphic.predicted_by_search(pair.program.written(w, large=True)) for w in (pair.one, pair.other)
        )
    assert one == other, what


CPU_PAIRS = {
    ("x86.amx", "a unit dimension beside columns"): (91, 229, 243),
    ("x86.amx", "a unit dimension beside what a softmax reduces"): (227, 285),
    ("x86.amx", "rows split"): (12, 80, 251),
    ("x86.amx", "columns split"): (107, 170, 264),
    ("x86.amx", "K split"): (10, 190),
    ("x86.amx", "all of K at once, without a loop"): (24, 96, 273),
    ("x86.avx512", "rows of a chain split"): (159,),
    ("x86.avx512", "columns split"): (43, 211),
    ("x86.avx512", "K split"): (119, 194),
    ("x86.avx512", "all of K at once, without a loop"): (160, 294),
    ("aarch64.neon", "rows and a unit dimension beside columns of a norm"): (83,),
}
"""The same for CPUs, by row of `targets` and what is written otherwise."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("row", "number", "what"), [(row, n, what) for (row, what), numbers in CPU_PAIRS.items() for n in numbers]
)
def test_two_writings_took_different_predicted_times_on_a_cpu(row: str, number: int, what: str):
    pair, cpu = metamorphic.pair_of(number), machine_of(f"{row}/16")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        one, other = (
            metamorphic.predicted_by_compiler(pair.program.written(w, large=True), cpu) for w in (pair.one, pair.other)
        )
    assert one == other, what


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("row", "number"),
    [("hopper/132", n) for numbers in PAIRS.values() for n in numbers]
    + [(f"{row}/16", numbers[0]) for (row, _), numbers in CPU_PAIRS.items()],
)
def test_a_program_in_its_canonical_form_gives_other_results(row: str, number: int):
    pair = metamorphic.pair_of(number)
    wanted = metamorphic.result(pair, pair.one)
    for writing in (pair.one, pair.other):
        written, data = pair.program.written(writing, large=False), pair.program.data()
        arrays = [array.reshape(shape) for array, shape in zip(data.values(), written.shapes, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kernel_for(written.kernel, written.sizes, machine=machine_of(row)).executor.bind(arrays)()
        assert np.array_equal(arrays[-1].reshape(wanted.shape), wanted)


@tkw.wave()
def split(
    x: tkl.Memory[M0, M1, K0, K1, GLOBAL, bf16],
    w: tkl.Memory[N0, N1, K0, K1, GLOBAL, bf16],
    y: tkl.Memory[M0, M1, N0, N1, GLOBAL, f32],
):
    @tkw.iterate(K0, init_args=[tkl.Register[N1, M1, N0, M0, f32](0)])
    def total(acc):
        rows = tkw.read(x)
        return tkw.mma(tkw.read(w), rows, acc)

    tkw.write(total, y)


@tkw.wave()
def plain(x: tkl.Memory[M, K, GLOBAL, bf16], w: tkl.Memory[N, K, GLOBAL, bf16], y: tkl.Memory[M, N, GLOBAL, f32]):
    @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0)])
    def total(acc):
        return tkw.mma(tkw.read(x), tkw.read(w), acc)

    tkw.write(total, y)


SPLIT = {"M0": 6, "M1": 50, "N0": 3, "N1": 40, "K0": 2, "K1": 96}


def test_a_product_over_six_dimensions_is_one_over_three():
    text = str(planning_of(split, SPLIT, HOPPER).program).replace("tile split", "tile plain")
    for outer in "MNK":
        text = text.replace(f"{outer}0_{outer}1", outer)
    assert text == str(planning_of(plain, {"M": 300, "N": 120, "K": 192}, HOPPER).program)


def test_a_plan_names_merged_dimensions_or_all_of_the_author():
    kernel = kernel_for(split, SPLIT, machine=HOPPER)
    plan = kernel.text("plan")
    assert "axis M0_M1 = (M0_M1 300)" in plan
    again = kernel_for(split, SPLIT, machine=HOPPER, plan=plan)
    assert again.text("block") == kernel.text("block")
    own = """axis M0 = (M0 6): task 1
axis M1 = (M1 50): task 50
axis N0 = (N0 3): task 1
axis N1 = (N1 40): task 40
axis K0 = (K0 2): loop 1
axis K1 = (K1 96): whole
grid M0, M1, N0, N1
mma by loops"""
    x, w = (np.arange(-n, n, 1).astype(np.float32) % 5 for n in (300 * 96, 120 * 96))
    x, w = x.reshape(6, 50, 2, 96).astype(bf16.numpy), w.reshape(3, 40, 2, 96).astype(bf16.numpy)
    y = np.zeros((6, 50, 3, 40), np.float32)
    kernel_for(split, SPLIT, machine=HOPPER, plan=own).executor.bind([x, w, y])()
    wanted = x.reshape(300, 192).astype(np.float32) @ w.reshape(120, 192).astype(np.float32).T
    assert np.array_equal(y.reshape(300, 120), wanted)


AUTHORS_DIGITS = """axis rows = (rows_0 300): task 96, loop 32, unit 16
axis columns = (columns_0 128 of 120): task 64, loop 32, unit 16
axis depth = (k0_0 2, k1_0 96): unit k0_0 1, unit k1_0 32
grid rows, columns
loops rows, columns, depth
x in place
w packed at bind, stream
atom amx.bf16
overlap delayed store"""


def test_a_plan_of_blocks_names_digits_of_merged_dimensions_or_of_the_author():
    """A plan over K in two digits was written before dimensions were merged on CPUs."""
    amx = machine_of("x86.amx/16")
    chosen = kernel_for(split, SPLIT, machine=amx).text("plan")
    assert "axis depth = (k0_k1_0 192)" in chosen
    x, w = (np.arange(-n, n, 1).astype(np.float32) % 5 for n in (300 * 96, 120 * 96))
    x, w = x.reshape(6, 50, 2, 96).astype(bf16.numpy), w.reshape(3, 40, 2, 96).astype(bf16.numpy)
    wanted = x.reshape(300, 192).astype(np.float32) @ w.reshape(120, 192).astype(np.float32).T
    for plan in (chosen, AUTHORS_DIGITS):
        kernel, y = kernel_for(split, SPLIT, machine=amx, plan=plan), np.zeros((6, 50, 3, 40), np.float32)
        kernel.executor.bind([x, w, y])()
        assert kernel.text("plan").splitlines()[2] == plan.splitlines()[2]
        assert np.array_equal(y.reshape(300, 120), wanted)


def sized(text: str, **sizes: int) -> Sized:
    """A program from its text, whose loops are all free."""
    program = parse_tile(text)
    numbers = {s: sizes[s.name] for a in program.args for d in a.type.dims for s in d.symbols}
    shapes = {a: tuple(numbers[d] for d in a.type.dims) for a in program.args}
    return Sized(program, numbers, shapes, {op for op in program.walk() if op.name == "iterate"})


BATCHED = """tile batched(%x: global f32[B, H, M, K], %w: global f32[B, H, N, K], %y: global f32[B, H, M, N])
  symbols B, H, K, M, N
{
  %0 = fill value=0 : f32[B, H, M, N]
  %1 = read %x : f32[B, H, M, K]
  %2 = read %w : f32[B, H, N, K]
  %3 = mma %1, %2, %0 : f32[B, H, M, N]
  write %3, %y
}"""


def test_dimensions_of_a_batch_stay_two():
    given = sized(BATCHED, B=2, H=3, M=4, N=5, K=6)
    assert merged(given) is given


@pytest.mark.parametrize(
    ("x", "w"),
    [
        ("[K1, K0, M]", "[N, K0, K1]"),  # another order of memory
        ("[M, K0, K1]", "[K0, N, K1]"),  # a dimension between them
    ],
)
def test_dimensions_that_lie_otherwise_somewhere_stay_two(x: str, w: str):
    text = f"""tile product(%x: global f32{x}, %w: global f32{w}, %y: global f32[M, N])
  symbols K0, K1, M, N
{{
  %0 = fill value=0 : f32[M, N]
  %1 = read %x : f32{x}
  %2 = read %w : f32{w}
  %3 = mma %1, %2, %0 : f32[M, N]
  write %3, %y
}}"""
    given = sized(text, M=4, N=5, K0=2, K1=3)
    assert merged(given) is given


def test_results_of_tiles_over_different_dimensions_are_in_order():
    text = """tile outer(%x: global f32[M, K], %w: global f32[N, K], %a: global f32[N], %b: global f32[M],
    %y: global f32[M, N])
  symbols K, M, N
{
  %0 = fill value=0 : f32[N, M]
  %1 = read %x : f32[M, K]
  %2 = read %w : f32[N, K]
  %3 = mma %2, %1, %0 : f32[N, M]
  %4 = read %a : f32[N]
  %5 = read %b : f32[M]
  %6 = add %4, %5 : f32[N, M]
  %7 = mul %3, %6 : f32[N, M]
  write %7, %y
}"""
    program, _ = in_dim_order(parse_tile(text), ())
    last, *_ = (op for op in program.walk() if op.name == "mul")
    assert [str(v.type) for v in (*last.operands, *last.results)] == ["f32[M, N]"] * 3
    product, *_ = (op for op in program.walk() if op.name == "mma")
    assert [str(v.type) for v in product.operands] == ["f32[M, K]", "f32[N, K]", "f32[M, N]"]


def test_a_loop_over_channels_lost_the_halo_tile():
    program = metamorphic.pair_of(4).program
    assert program.name == "convolution 3x3 by 1"
    small = {"B": 2, "C": 64, "F": 24, "H": 10, "W": 13, "P": 10, "Q": 13, "R": 3, "S": 3}
    pair = replace(metamorphic.pair_of(4), program=replace(program, small=small))
    written, data = pair.program.written(pair.one, large=False), pair.program.data()
    kernel = kernel_for(written.kernel, written.sizes, machine=HOPPER)
    assert "x halo at C" in kernel.text("plan")
    arrays = list(data.values())
    kernel.executor.bind(arrays)()
    assert np.array_equal(arrays[-1], metamorphic.result(pair, pair.one))


def gated(m: int, n: int, k: int) -> tuple[Any, dict[str, int], list[Any]]:
    """Two products of one operand, one of which gates the other."""

    @tkw.wave()
    def unit(
        x: tkl.Memory[M, K, GLOBAL, bf16],
        w: tkl.Memory[N, K, GLOBAL, bf16],
        v: tkl.Memory[N, K, GLOBAL, bf16],
        y: tkl.Memory[M, N, GLOBAL, bf16],
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0), tkl.Register[M, N, f32](0)])
        def sums(gate, value):
            return (
                tkw.mma(tkw.read(x), tkw.read(w), gate),
                tkw.mma(tkw.read(x), tkw.read(v), value),
            )

        tkw.write(tkw.cast(tkw.relu(sums[0]) * sums[1], bf16), y)

    rng = np.random.default_rng(m + n + k)
    arrays = [rng.integers(-1, 2, s).astype(bf16.numpy) for s in ((m, k), (n, k), (n, k))]
    return unit, {"M": m, "N": n, "K": k}, arrays


@pytest.mark.sampled(2)
@pytest.mark.parametrize("extents", [(136, 264, 192), (64, 520, 128), (130, 72, 64)])
def test_two_products_of_one_operand_had_no_pipeline(extents: tuple[int, int, int]):
    kernel, sizes, arrays = gated(*extents)
    made = kernel_for(kernel, sizes, machine=HOPPER)
    assert made.plan is not None
    assert made.plan.pipeline is not None
    x, w, v = (a.astype(np.float32) for a in arrays)
    wanted = (np.maximum(x @ w.T, 0) * (x @ v.T)).astype(bf16.numpy)
    y = np.zeros_like(wanted)
    made.executor.bind([*arrays, y])()
    assert np.array_equal(y, wanted)
    assert str(planning_of(kernel, sizes, HOPPER).program).count("read %x") == 1


def test_memory_that_is_written_is_read_as_often_as_said():
    text = """tile twice(%x: global f32[M], %y: global f32[M])
  symbols M
{
  %0 = read %x : f32[M]
  %1 = read %x : f32[M]
  %2 = add %0, %1 : f32[M]
  write %2, %y
  %3 = read %y : f32[M]
  write %3, %x
  %4 = read %y : f32[M]
  write %4, %y
}"""
    program = parse_tile(text)
    assert with_equal_reads_once(program, ())[0] is program
