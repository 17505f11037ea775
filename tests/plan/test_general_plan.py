"""Plans of any program: given in full, in part by constraints, or chosen; and what executables say of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.kernels.gemm import gemm
from tilewright.kernels.softmax import softmax
from tilewright.plan.search import as_plan, search
from tilewright.targets.registry import machine

M, N, K, BM, BK = tkl.sym.M, tkl.sym.N, tkl.sym.K, tkl.sym.BM, tkl.sym.BK
GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
AMX = machine("x86.amx")


def integers(shape, seed=0):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def scaled(constraints=()):
    @tkw.wave(list(constraints))
    def scaled(x: tkl.Memory[M, N, GLOBAL, tkl.f32], y: tkl.Memory[N, M, GLOBAL, tkl.f32]):
        tkw.write(tkw.permute(tkw.read(x) * 2.0, [N, M]), y)

    return scaled


def planned(kernel, sizes, machine=AMX):
    program = kernel.trace()
    named = {s.name: s for a in program.args for d in a.type.dims for s in d.symbols}
    return search(program, {named[name]: n for name, n in sizes.items()}, machine)


# -- given in full --------------------------------------------------------------------------------------------


def test_a_given_plan_is_done():
    x = integers((60, 48))
    seen = set()
    for rows, columns, tasks in ((60, 48, "N, M"), (1, 48, "N, M"), (20, 16, "N, M"), (20, 16, "M, N"), (3, 1, "N, M")):
        plan = f"axis N = (N 48): task {columns}; axis M = (M 60): task {rows}; grid {tasks}"
        run = tilewright.compile(scaled(), target="cpu", plan=plan)
        assert np.array_equal(run(x), 2 * x.T)
        assert "; ".join(run.text("plan").splitlines()) == plan
        seen.add(run.text("block"))
    assert len(seen) == 5


WRONG = {
    "axis N = (N 40): task 8; axis M = (M 60): task 60; grid N, M": "says N 40, the program has N 48",
    "axis M = (M 60): task 60; grid M": "no line says how N is split, such as `axis N = (N 48): whole`",
    "axis N = (N 48): loop 8; axis M = (M 60): task 60; grid N, M": "the axes with a task are M",
    "axis N = (N 48): task 8; axis M = (M 60): task 60; grid N, M; overlap delayed store": "nothing overlaps without",
    "rubbish": "is no statement",
}


@pytest.mark.parametrize("plan", WRONG)
def test_a_plan_that_cannot_be_done_is_refused(plan):
    with pytest.raises(ArgumentError, match="plan: ") as caught:
        tilewright.compile(scaled(), target="cpu", plan=plan)(integers((60, 48)))
    assert WRONG[plan] in str(caught.value)


def test_tasks_along_a_reduction_are_refused_with_the_operation():
    run = tilewright.compile(softmax("f32"), target="cpu")
    x = integers((6, 40))
    run(x)
    plan = run.text("plan")
    line = next(line for line in plan.splitlines() if "whole" in line)
    assert "goes along it" in run.explain()
    other = tilewright.compile(softmax("f32"), target="cpu", plan=plan.replace(line, line.replace("whole", "task 8")))
    with pytest.raises(ArgumentError, match=r"tasks cannot split it, because .* goes along it"):
        other(x)


def test_the_executor_takes_no_plan():
    with pytest.raises(ArgumentError, match="target='executor' has no plans"):
        tilewright.compile(scaled(), plan="axis N = (N 48): task 8", target="executor")


# -- parts by constraints -------------------------------------------------------------------------------------


def test_constraints_fix_tasks_of_any_program():
    kernel = scaled([tkw.WorkgroupConstraint(M, BM, 0)])
    run = tilewright.compile(kernel, {BM: 15}, target="cpu")
    x = integers((60, 48))
    assert np.array_equal(run(x), 2 * x.T)
    assert "axis M = (M 60): task 15" in run.text("plan")


def test_a_constraint_that_does_not_divide_leaves_the_last_task_less():
    run = tilewright.compile(scaled([tkw.WorkgroupConstraint(M, BM, 0)]), {BM: 16}, target="cpu")
    x = integers((60, 48))
    assert np.array_equal(run(x), 2 * x.T)
    assert "axis M = (M 60): task 16" in run.text("plan")


@pytest.mark.parametrize(("n", "m"), [(7, 60), (48, 59), (7, 13), (47, 1)])
def test_tasks_need_not_divide_what_they_cut(n, m):
    plan = f"axis N = (N 48): task {n}; axis M = (M 60): task {m}; grid N, M"
    run = tilewright.compile(scaled(), target="cpu", plan=plan)
    x = integers((60, 48))
    assert np.array_equal(run(x), 2 * x.T)


def product(constraints, dtype):
    @tkw.wave(list(constraints))
    def product(
        a: tkl.Memory[M, K, GLOBAL, dtype], b: tkl.Memory[N, K, GLOBAL, dtype], c: tkl.Memory[M, N, GLOBAL, tkl.f32]
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(total, c)

    return product


@pytest.mark.parametrize("dtype", [tkl.f32, tkl.bf16])
def test_constraints_fix_tasks_and_loops_of_a_contraction(dtype):
    kernel = product([tkw.WorkgroupConstraint(M, BM, 0), tkw.TilingConstraint(K, BK)], dtype)
    a, b = integers((96, 128)).astype(dtype.numpy), integers((64, 128), 1).astype(dtype.numpy)
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    for rows, deep in ((32, 32), (96, 64)):
        run = tilewright.compile(kernel, {BM: rows, BK: deep}, target="cpu")
        assert np.array_equal(run(a, b), wanted)
        plan = run.text("plan")
        assert f"axis rows = (m_0 96): task {rows}, " in plan
        assert f"loop k_0 {deep}, unit" in plan


def test_constraints_that_fit_no_plan_are_left_aside_and_named():
    kernel = product([tkw.WorkgroupConstraint(N, BM, 0)], tkl.f32)
    run = tilewright.compile(kernel, {BM: 5}, target="cpu")
    a, b = integers((20, 12)), integers((64, 12), 1)
    assert np.array_equal(run(a, b), a @ b.T)
    assert "the constraint's workgroup tile of N, 5, is left aside: a task has " in run.explain()


def test_a_loop_that_fits_no_plan_is_left_aside_and_named():
    kernel = product([tkw.TilingConstraint(K, BK)], tkl.f32)
    a, b = integers((20, 12)), integers((33, 12), 1)
    for deep, fits in ((4, True), (12, True), (64, True), (5, False)):
        run = tilewright.compile(kernel, {BK: deep}, target="cpu")
        assert np.array_equal(run(a, b), a @ b.T)
        assert (f"the constraint's loop tile of K, {deep}, is left aside" not in run.explain()) == fits


def test_what_a_machine_does_not_have_is_left_aside_and_named():
    hardware = tkw.HardwareConstraint(threads_per_wave=64, mma_type=tkw.MMAType.F32_16x16x16_F16)
    for kernel in (
        product([hardware, tkw.WaveConstraint(M, 16)], tkl.f32),
        scaled([hardware, tkw.WaveConstraint(M, 16)]),
    ):
        run = tilewright.compile(kernel, target="cpu")
        a, b = integers((20, 12)), integers((64, 12), 1)
        found = run(a, b) if kernel.__name__ == "product" else run(a)
        assert np.array_equal(found, a @ b.T if found.shape == (20, 64) else 2 * a.T)
        assert "the constraint on waves of M is left aside: a workgroup is one worker here" in run.explain()
        assert "F32_16x16x16_F16 is left aside" in run.explain()


# -- chosen ---------------------------------------------------------------------------------------------------


def test_the_choice_follows_the_machine():
    sizes = {"M": 4096, "N": 4096}
    usual = planned(scaled(), sizes)
    small = planned(scaled(), sizes, replace(AMX, limits=replace(AMX.limits, l2_bytes=128 << 10, l1_bytes=8 << 10)))
    many = planned(scaled(), sizes, replace(AMX, limits=replace(AMX.limits, cores=64)))
    area = [np.prod(list(x.best.kernel.widths.values())) for x in (usual, small, many)]
    assert area[1] < area[0]
    assert as_plan(small.best) != as_plan(usual.best)
    assert many.best.cycles < usual.best.cycles
    assert usual.roofline <= usual.best.cycles


def test_contractions_take_a_plan_too():
    run = tilewright.compile(gemm("nn", "f32", "f32"), target="cpu")
    a, b = integers((37, 50)), integers((50, 21), 1)
    assert np.array_equal(run(a, b), a @ b)
    plan = run.text("plan")
    assert "atom " in plan
    other = plan.replace("loops columns, rows, depth", "loops rows, columns, depth")
    pinned = tilewright.compile(gemm("nn", "f32", "f32"), target="cpu", plan=other)
    assert np.array_equal(pinned(a, b), a @ b)
    assert pinned.text("plan") == other
    host = tilewright.compile_text(pinned.text("host"), "cpu")
    assert np.array_equal(host(a, b), a @ b)
    assert "predicted" in run.explain()
    assert "roofline" in run.explain()


def test_benchmark_says_how_long_a_call_takes():
    run = tilewright.compile(scaled(), target="cpu")
    found = run.benchmark(integers((60, 48)), np.empty((48, 60), np.float32), seconds=0.01)
    assert 0 < found["shortest"] <= found["median"] < 1
    assert found["calls"] >= 1


def test_a_constraint_on_a_loop_of_products_is_kept():
    """The tile was left aside without a word where the loop only adds products."""

    @tkw.wave([tkw.TilingConstraint(K, BM)])
    def sums(
        a: tkl.Memory[M, K, GLOBAL, tkl.f32],
        b: tkl.Memory[N, K, GLOBAL, tkl.f32],
        c: tkl.Memory[M, N, GLOBAL, tkl.f32],
        rows: tkl.Memory[M, GLOBAL, tkl.f32],
    ):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc):
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        tkw.write(total, c)
        tkw.write(tkw.max(total, dim=N), rows)

    run = tilewright.compile(sums, {BM: 16}, target="cpu")
    a, b = integers((19, 40)), integers((21, 40))
    found, rows = run(a, b)
    assert np.array_equal(found, a @ b.T)
    assert np.array_equal(rows, (a @ b.T).max(1))
    assert "axis K = (K 40): loop 16" in run.text("plan")


@pytest.mark.parametrize("sizes", [(1024, 1024, 1024), (300, 200, 100), (96, 1000, 64)])
def test_tasks_and_blocks_of_one_product_are_as_good_as_a_contractions(sizes):
    """Tasks had a rule of their own, which read B again and again: 1024 cubed took four times as long."""
    named, target = dict(zip("MNK", sizes, strict=True)), "cpu:x86.avx512"
    cycles = []
    for path in ("best", "general"):
        run = tilewright.compile(gemm("nn", "f32"), target=target)
        run.path = path
        plan = run.text("plan", named)  # for the cores and caches of this CPU, by which it is rated too
        cycles.append(kernel_for(gemm("nn", "f32"), named, target=target, plan=plan).choice.cycles)
    assert cycles[1] <= 1.2 * cycles[0]


@pytest.mark.parametrize(
    ("row", "kernel", "sizes"),
    [
        ("hopper", gemm("tn", "i8", "i32"), {"M": 1000, "N": 1001, "K": 999}),
        ("cdna3", gemm("nt", "bf16", "bf16"), {"M": 3000, "N": 5000, "K": 2000}),
    ],
)
def test_planning_never_ended_where_shared_memory_holds_no_task(row, kernel, sizes):
    """Tasks of one product got no smaller, and the same plans came again and again."""
    assert "mma by" in kernel_for(kernel, sizes, machine=machine(row)).text("plan")
