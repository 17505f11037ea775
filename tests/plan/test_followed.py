"""Constraints that the chosen plan does not follow: `explain()` names each, on every kind of machine."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw

GLOBAL = tkl.GLOBAL_ADDRESS_SPACE
M, N, K, BM, BN, BK, WAVES, LOADED = (getattr(tkl.sym, s) for s in ("M", "N", "K", "BM", "BN", "BK", "WAVES", "LOADED"))
TARGETS = ["gpu:hopper", "cpu:x86.avx512", "cpu"]
SIZES = {"M": 1024, "N": 512, "K": 256}
WORKER = "a workgroup is one worker here"


def product(*constraints: Any) -> Any:
    given = [tkw.WorkgroupConstraint(M, BM, 0), tkw.WorkgroupConstraint(N, BN, 1), tkw.TilingConstraint(K, BK)]

    @tkw.wave([*given, *constraints])
    def product(
        a: tkl.Memory[M, K, GLOBAL, tkl.f16], b: tkl.Memory[N, K, GLOBAL, tkl.f16], c: tkl.Memory[M, N, GLOBAL, tkl.f32]
    ) -> None:
        @tkw.iterate(K, init_args=[tkl.Register[M, N, tkl.f32](0.0)])
        def total(acc: Any) -> Any:
            return tkw.mma(tkw.read(a, elements_per_thread=LOADED), tkw.read(b), acc)

        tkw.write(total, c, elements_per_thread=4)

    return product


def aside(kernel: Any, target: str, **tiles: int) -> list[str]:
    """The lines of `explain()` on what is left aside."""
    symbols = {BM: 128, BN: 128, BK: 64, LOADED: 8, **{getattr(tkl.sym, name): n for name, n in tiles.items()}}
    run = tilewright.compile(kernel, symbols, target=target)
    return [line for line in run.of_sizes(SIZES).explain().splitlines() if "left aside" in line]


@pytest.mark.parametrize("target", TARGETS)
def test_elements_of_a_thread_were_dropped_without_a_word(target: str) -> None:
    why = "what a lane reads and writes at a time follows from the plan" if target == "gpu:hopper" else WORKER
    assert aside(product(), target) == [
        f"elements_per_thread 8 of the read of a is left aside: {why}",
        f"elements_per_thread 4 of the write of c is left aside: {why}",
    ]


@pytest.mark.parametrize("target", TARGETS)
def test_waves_along_dimensions_were_ignored_on_gpus_without_a_word(target: str) -> None:
    lines = aside(product(tkw.WaveConstraint(M, BM / 2), tkw.WaveConstraint(N, BN / 2)), target)
    why = "the plan's waves are 8 along M" if target == "gpu:hopper" else WORKER
    assert [f"the constraint on waves of {d} is left aside: {why}" for d in (M, N)] == lines[:2]


@pytest.mark.parametrize("waves", [4, 8])
def test_waves_that_the_machine_can_have_are_followed(waves: int) -> None:
    kernel = product(tkw.WaveConstraint(M, BM / waves), tkw.WaveConstraint(N, BN))
    run = tilewright.compile(kernel, {BM: 128, BN: 128, BK: 64, LOADED: 8}, target="gpu:hopper").of_sizes(SIZES)
    assert f"consumer {waves} waves" in run.text("plan")
    assert "waves of" not in run.explain()


def test_one_wave_is_one_worker() -> None:
    assert not any("waves of" in line for line in aside(product(tkw.WaveConstraint(M, BM)), "cpu"))


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_hardware_constraint_says_was_not_recorded(target: str) -> None:
    hardware = tkw.HardwareConstraint(
        threads_per_wave=64,
        waves_per_block=(2, WAVES, 1),
        workgroups_per_cluster=(2, 1, 1),
        mma_type=tkw.MMAType.F32_16x16x16_F16,
        vector_shapes={M: 16, N: 16},
        max_bits_per_load=64,
        n_service_waves=1,
    )
    gpu = target == "gpu:hopper"
    assert aside(product(hardware), target, WAVES=2)[:7] == [
        f"the constraint's threads_per_wave 64 is left aside: {'a wave has 32 lanes here' if gpu else WORKER}",
        "the constraint's waves_per_block (2, 2, 1) is left aside: "
        f"{'8 waves compute a task of the plan' if gpu else WORKER}",
        "the constraint's F32_16x16x16_F16 is left aside: atoms are this machine's own",
        "the constraint's vector_shapes M 16, N 16 are left aside: what a register holds follows from the plan",
        "the constraint's workgroups_per_cluster (2, 1, 1) is left aside: plans have no clusters",
        "the constraint's max_bits_per_load 64 is left aside: how wide a load is follows from the plan",
        "the constraint's n_service_waves 1 is left aside: the plan says which waves load",
    ]


def test_what_a_machine_has_is_followed() -> None:
    hardware = tkw.HardwareConstraint(threads_per_wave=32, waves_per_block=(4, 2, 1))
    assert not any("wave" in line for line in aside(product(hardware), "gpu:hopper"))


@pytest.mark.parametrize("target", TARGETS)
def test_tiles_that_fit_no_plan_are_named(target: str) -> None:
    """A loop tile that no step of the ring has was left aside without a word."""
    assert not any("tile of" in line for line in aside(product(), target))
    lines = aside(product(), target, BK=7)
    assert any(line.startswith("the constraint's loop tile of K, 7, is left aside") for line in lines)


@pytest.mark.parametrize("target", TARGETS)
def test_a_program_without_products_has_the_same_notes(target: str) -> None:
    @tkw.wave([tkw.WorkgroupConstraint(M, BM, 0), tkw.WorkgroupConstraint(N, BN, 1), tkw.WaveConstraint(N, BN / 4)])
    def doubled(x: tkl.Memory[M, N, GLOBAL, tkl.f32], y: tkl.Memory[M, N, GLOBAL, tkl.f32]) -> None:
        tkw.write(2.0 * tkw.read(x, elements_per_thread=4), y)

    run = tilewright.compile(doubled, {BM: 8, BN: 128}, target=target)
    lines = [s for s in run.of_sizes({"M": 100, "N": 300}).explain().splitlines() if "left aside" in s]
    assert [line.split(" is left aside")[0] for line in lines] == [
        "the constraint on waves of N",
        "elements_per_thread 4 of the read of x",
    ]


def test_hints_are_part_of_the_programs_text() -> None:
    text = str(product(tkw.HardwareConstraint(waves_per_block=(2, 2, 1))).trace())
    assert "LOADED" in text
    assert "waves=[2, 2, 1]" in text
    assert tilewright.compile(text).text() == text
