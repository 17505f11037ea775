"""What is chosen for the convolutions by which Hopper is measured: wgmma, TMA and a ring."""

from __future__ import annotations

import re

import pytest

from tilewright.cli.workload import Workload, read_problem, read_types
from tilewright.targets.registry import machine

SHAPES = (
    "mb32ic64ih56oc64kh3ph1",
    "mb32ic128ih28oc128kh3ph1",
    "mb32ic256ih14oc256kh3ph1",
    "mb32ic512ih7oc512kh3ph1",
    "mb256ic256ih14oc256kh3ph1",
    "mb8ic640ih32oc640kh3ph1",
    "mb1ic256ih512oc256kh3ph1",
    "mb32ic256ih56oc128kh1sh2ph0",
)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("shape", SHAPES)
def test_choose_takes_wgmma_tma_and_a_ring_of_at_least_three(shape):
    kernel = Workload(read_problem(shape), read_types("bf16")).planned(machine("hopper"))
    text = kernel.text("block")
    assert all((each.atom or "").startswith("wgmma.") for each in kernel.plan.products)
    assert set(re.findall(r"mma .* using (\w+)", text)) == {"wgmma"}
    loads = re.search(r"role load .*?role multiply", text, re.S)[0]
    assert re.findall(r"copy .*", loads)
    assert all(" by tma.load" in line for line in re.findall(r"copy .*", loads))
    stages = [int(n) for n in re.findall(r"stages (\d+) from load to multiply", text)]
    assert max(stages) >= 3
