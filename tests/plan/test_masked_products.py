"""Masks on coordinates leave out K iterations of a product, or all of a task: exact, and predicted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from every_plan import every_plan

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright.compiler.native import kernel_for
from tilewright.lang import bf16, f32
from tilewright.targets.registry import machine

M, N, K = tkl.sym.M, tkl.sym.N, tkl.sym.K
GLOBAL = tkl.AddressSpace.GLOBAL_MEMORY
HOPPER = machine("hopper")
SIZES = {"M": 200, "N": 136, "K": 264}
"""Ragged for all tiles."""


def _operand(form: str) -> Any:
    """a b where a is zero outside of a mask."""

    @tkw.wave()
    def masked(a: tkl.Memory[M, K, GLOBAL, bf16], b: tkl.Memory[N, K, GLOBAL, bf16], y: tkl.Memory[M, N, GLOBAL, f32]):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0)])
        def total(acc: Any) -> Any:
            k, m, left = tkw.self_index(K), tkw.self_index(M), tkw.read(a)
            if form == "lower":
                left = tkw.select(k <= m, left, 0)
            elif form == "upper":
                left = tkw.select(k >= m, left, 0)
            elif form == "shifted":
                left = tkw.select(k < m - 100, left, 0)
            else:
                left = tkw.select(k <= m, tkw.select(k >= m - 130, left, 0), 0)
            return tkw.mma(left, tkw.read(b), acc)

        tkw.write(total, y)

    return masked


def _result(form: str) -> Any:
    """a b, which is zero outside of a mask."""

    @tkw.wave()
    def masked(a: tkl.Memory[M, K, GLOBAL, bf16], b: tkl.Memory[N, K, GLOBAL, bf16], y: tkl.Memory[M, N, GLOBAL, f32]):
        @tkw.iterate(K, init_args=[tkl.Register[M, N, f32](0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(a), tkw.read(b), acc)

        n, m = tkw.self_index(N), tkw.self_index(M)
        sees = n <= m if form == "lower" else n >= m + 40
        tkw.write(tkw.select(sees, total * 2.0, -7.0), y)

    return masked


PROGRAMS = {f"operand {form}": _operand(form) for form in ("lower", "upper", "shifted", "band")} | {
    f"result {form}": _result(form) for form in ("lower", "upper")
}


def require_exact(found: Any, kernel: Any) -> None:
    rng = np.random.default_rng(3)
    arrays = {
        a.name: rng.integers(-2, 3, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy)
        for a in found.module.host.args
    }
    wanted = tilewright.compile(kernel, target="executor")(arrays["a"], arrays["b"])
    arrays["y"][...] = np.nan
    found.bind(arrays)()
    assert np.array_equal(arrays["y"], wanted)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_iterations_that_masks_leave_are_done(name: str) -> None:
    kernel = PROGRAMS[name]
    plans = every_plan(kernel, SIZES, HOPPER, lambda plan: plan.order == "dynamic")
    for plan in (plans[0], plans[len(plans) // 2], plans[-1]):
        require_exact(kernel_for(kernel, SIZES, machine=HOPPER, plan=str(plan)), kernel)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("target", ["hopper", "cdna3", "xe"])
def test_the_chosen_plan_is_exact(name: str, target: str) -> None:
    require_exact(kernel_for(PROGRAMS[name], SIZES, machine=machine(target)), PROGRAMS[name])


@pytest.mark.parametrize("name", ["operand lower", "result lower"])
def test_half_of_the_work_is_left_out(name: str) -> None:
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    found = kernel_for(PROGRAMS[name], sizes, machine=HOPPER)
    whole = kernel_for(tilewright.kernels.gemm("nt", "bf16"), sizes, machine=HOPPER)
    assert found.plan.order == "dynamic"
    assert found.choice.cycles < 0.75 * whole.choice.cycles
    assert str(whole.plan.order) == "cyclic"


def test_halves_that_take_tasks_in_turn_do_all_iterations() -> None:
    kernel = PROGRAMS["operand lower"]
    plans = every_plan(kernel, SIZES, HOPPER, lambda plan: plan.pipeline is not None and plan.pipeline.pingpong)
    assert all(plan.order == "cyclic" for plan in plans)
    for plan in plans[:1]:
        require_exact(kernel_for(kernel, SIZES, machine=HOPPER, plan=str(plan)), kernel)


def test_a_result_that_is_used_elsewhere_has_no_mask() -> None:
    @tkw.wave()
    def both(
        a: tkl.Memory[M, K, GLOBAL, bf16],
        b: tkl.Memory[N, K, GLOBAL, bf16],
        y: tkl.Memory[M, N, GLOBAL, f32],
        z: tkl.Memory[M, N, GLOBAL, f32],
    ):
        total = tkw.mma(tkw.read(a), tkw.read(b), tkl.Register[M, N, f32](0))
        tkw.write(tkw.select(tkw.self_index(N) <= tkw.self_index(M), total, 0.0), y)
        tkw.write(total, z)

    found = kernel_for(both, SIZES, machine=HOPPER)
    assert found.plan.order != "dynamic"
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-2, 3, shape).astype(bf16.numpy) for shape in ((200, 264), (136, 264)))
    y, z = (np.full((200, 136), np.nan, np.float32) for _ in range(2))
    found.bind({"a": a, "b": b, "y": y, "z": z})()
    wanted = a.astype(np.float32) @ b.astype(np.float32).T
    assert np.array_equal(z, wanted)
    assert np.array_equal(y, np.tril(wanted))
