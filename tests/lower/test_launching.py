"""How programs are launched: the word of a plan, what follows from it, and that results are the same in both ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from every_plan import every_plan

import tilewright
import tilewright.lang as tkl
import tilewright.wave as tkw
from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.errors import ArgumentError
from tilewright.plan.text import parse_plan
from tilewright.targets.registry import machine
from tilewright.transform.launch_order import launch_cycles

HOPPER = machine("hopper")
FEW = replace(HOPPER, limits=replace(HOPPER.limits, following_cycles=0, cores=4))  # sums are taken apart soon
WAYS = ("early", "plain")

CASES = {
    "gemm": (kernels.gemm("nt", "bf16", "bf16"), {"M": 200, "N": 136, "K": 200}, HOPPER),
    "gemm of few rows": (kernels.gemm("nt", "bf16", "bf16"), {"M": 5, "N": 200, "K": 136}, HOPPER),
    "gemm with an epilogue": (
        kernels.gemm("nn", "bf16", "f32", bias=True, activation="relu"),
        {"M": 130, "N": 72, "K": 64},
        HOPPER,
    ),
    "gemm copied by waves": (kernels.gemm("nt", "bf16", "bf16"), {"M": 33, "N": 41, "K": 13}, HOPPER),
    "gemm without roles": (kernels.gemm("nt", "f64", "f64"), {"M": 18, "N": 20, "K": 70}, HOPPER),
    "gemm in parts": (kernels.gemm("nt", "bf16", "bf16"), {"M": 40, "N": 24, "K": 1300}, FEW),
    "conv": (kernels.conv((3, 3), "bf16", padding=1), {"N": 2, "H": 9, "W": 7, "C": 64, "F": 72}, HOPPER),
    "conv in steps": (
        kernels.conv((3, 3), "bf16", padding=1, stride=2),
        {"N": 2, "H": 25, "W": 18, "C": 64, "F": 64},
        HOPPER,
    ),
}


def exact(made, kernel):
    """Small integers through the kernel, interpreted, give what the executor does; results are poisoned first."""
    *inputs, result = made.module.host.args
    rng = np.random.default_rng(5)
    arrays = {a.name: rng.integers(-3, 4, [int(n) for n in a.type.shape]).astype(a.type.dtype.numpy) for a in inputs}
    wanted = tilewright.compile(kernel, target="executor")(*arrays.values())
    found = np.full(wanted.shape, np.nan, wanted.dtype)
    made.bind({**arrays, result.name: found})()
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


def launches(made):
    """Of each program for the machine, in order, whether it is launched early; what packs is a program for any."""
    return [p.record("launch") is not None for p in made.module.programs.values() if p.record("machine") is not None]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_all_programs_of_a_plan_are_launched_as_it_says_and_are_exact(name, way):
    kernel, sizes, row = CASES[name]
    chosen = kernel_for(kernel, sizes, machine=row)
    assert chosen.plan.early
    assert (chosen.plan.parts is not None) == (name == "gemm in parts")
    text = chosen.text("plan").replace("launch early", f"launch {way}")
    made = kernel_for(kernel, sizes, machine=row, plan=text)
    assert made.text("plan") == text
    assert launches(made) == [way == "early"] * (1 if made.plan.parts is None else 2)
    exact(made, kernel)


@pytest.mark.parametrize(("name", "way"), [("gemm", "early"), ("conv", "plain")])
def test_other_schedules_are_exact_in_both_ways(name, way):
    kernel, sizes, row = CASES[name]
    small = replace(row, limits=replace(row.limits, cores=3))  # a worker has several tasks
    every = every_plan(kernel, sizes, small, lambda plan: plan.pipeline is not None and plan.parts is None)
    turns = [plan for plan in every if plan.pipeline.pingpong][:1]
    halo = [plan for plan in every if plan.pipeline.halo_stages][:1]
    turned = [plan for plan in every if plan.products[0].transposed][:1]
    assert turns
    assert halo or name == "gemm"
    for plan in (every[-1], *turns, *halo, *turned):
        assert plan.early
        made = kernel_for(kernel, sizes, machine=small, plan=replace(plan, early=way == "early"))
        assert launches(made) == [way == "early"]
        exact(made, kernel)


def test_a_plan_that_says_neither_is_launched_early():
    kernel, sizes, _ = CASES["gemm"]
    text = kernel_for(kernel, sizes, machine=HOPPER).text("plan")
    unsaid = kernel_for(kernel, sizes, machine=HOPPER, plan=text.replace("launch early\n", ""))
    assert unsaid.text("plan") == text
    assert launches(unsaid) == [True]


def test_the_word_is_read_and_printed_in_both_ways_and_said_once():
    for way in WAYS:
        text = f"axis m = (m 8): task 4; grid m; launch {way}"
        assert str(parse_plan(text)) == text
        assert parse_plan(text).early == (way == "early")
    assert parse_plan("axis m = (m 8): task 4; grid m").early is None
    with pytest.raises(ArgumentError, match="launch is said twice"):
        parse_plan("axis m = (m 8): task 4; launch early; launch plain")
    with pytest.raises(ArgumentError, match="'launch sometime' is no statement"):
        parse_plan("axis m = (m 8): task 4; launch sometime")


@pytest.mark.parametrize("name", ["x86.amx", "x86.avx512", "ampere", "cdna3"])
def test_machines_that_launch_in_one_way_say_nothing_and_refuse_the_other(name):
    kernel, sizes, row = kernels.gemm("nt", "bf16", "f32"), {"M": 64, "N": 32, "K": 64}, machine(name)
    text = kernel_for(kernel, sizes, machine=row).text("plan")
    assert "launch" not in text
    assert kernel_for(kernel, sizes, machine=row, plan=f"{text}launch plain").text("plan") == text
    with pytest.raises(ArgumentError, match=f"`launch early`: {name} has no launches that begin while another ends"):
        kernel_for(kernel, sizes, machine=row, plan=f"{text}launch early")


def test_the_workgroups_of_a_grid_program_are_launched_as_its_plan_says():
    n, block, wg = tkl.sym.N, tkl.sym.BLOCK, tkw.WorkgroupConstraint

    @tkw.wave([wg(n, block, 0)])
    def doubled(
        x: tkl.Memory[n, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32], y: tkl.Memory[n, tkl.GLOBAL_ADDRESS_SPACE, tkl.f32]
    ):
        tkw.write(tkw.read(x) * 2.0, y)

    kernel = doubled.bound({block: 64})
    made = kernel_for(kernel, {"N": 200}, machine=HOPPER)
    assert launches(made) == [True]
    plain = kernel_for(kernel, {"N": 200}, machine=HOPPER, plan=replace(made.plan, early=False))
    assert launches(plain) == [False]


def test_the_model_counts_an_early_launch_as_one_that_follows_another():
    kernel, sizes, _ = CASES["gemm"]
    early = kernel_for(kernel, sizes, machine=HOPPER)
    plain = kernel_for(kernel, sizes, machine=HOPPER, plan=replace(early.plan, early=False))
    limits = HOPPER.limits
    assert plain.choice.cycles - early.choice.cycles == limits.launch_cycles - limits.following_cycles > 0
    assert early.choice.candidates[0].cycles == early.choice.cycles
    quick = replace(HOPPER, limits=replace(limits, launch_cycles=100))
    assert launch_cycles(quick, early=True) == launch_cycles(quick, early=False) == 100
