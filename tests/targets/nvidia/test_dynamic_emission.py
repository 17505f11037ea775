"""Dynamic tasks and rare arithmetic as LLVM IR: who draws a task, and who branches around."""

from __future__ import annotations

import re

import pytest
from programs import TEXTS

from tilewright.check.block import check
from tilewright.errors import ProgramError
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.gpu.emit import Emitted
from tilewright.targets.nvidia.backend import BACKEND
from tilewright.targets.registry import machine


def emitted(text: str) -> Emitted:
    hopper = machine("hopper")
    program = bind(parse_block(text), {})
    check(program, hopper)
    return BACKEND.emitted(lower_waves(program, hopper), hopper)


SHARED = (TEXTS / "tasks_dynamic.block").read_text().replace("%r*%r", "exp2(%r)")


def test_one_wave_draws_dynamic_tasks_for_all_roles() -> None:
    found = emitted(SHARED)
    assert found.counters == 1
    assert "ptr addrspace(1) %counters" in found.text
    assert found.text.count("atomicrmw uinc_wrap ptr addrspace(1)") == 1
    # both roles read numbers, of three waves altogether, from two places
    assert found.text.count("load volatile i32, ptr addrspace(3)") == 2
    arrivals = re.findall(r"mbarrier.init.*?i32 (\d+)\)", found.text)
    assert sorted(arrivals) == sorted(["1", "1", "3", "3", "1", "2"])


def test_tasks_that_are_not_dynamic_need_no_counters() -> None:
    found = emitted(SHARED.replace(" schedule dynamic", ""))
    assert found.counters == 0
    assert "%counters" not in found.text


def test_roles_that_share_dynamic_tasks_have_equally_many() -> None:
    wrong = SHARED.replace("tasks t in 0..6 schedule", "tasks t in 0..5 schedule", 1)
    with pytest.raises(ProgramError, match="role take has 6 of them, another role 5"):
        emitted(wrong)


def test_a_wave_in_which_a_rare_condition_holds_nowhere_branches_around() -> None:
    text = emitted(SHARED).text
    assert text.count("call i1 @llvm.nvvm.vote.any.sync") == 1
    # small arguments are not scaled: one instruction
    assert text.count("call float @llvm.nvvm.ex2.approx.ftz.f(") == 1


def test_lanes_meet_before_the_next_dynamic_task() -> None:
    """Otherwise a branch of one lane is an edge of the loop itself, and the assembler takes all of it to diverge."""
    lines = [line.strip() for line in emitted(SHARED).text.splitlines()]
    heads = {line.removesuffix(":") for line in lines if line.startswith("head")}
    number = re.compile(r"load volatile i32, ptr addrspace\(3\)")
    dealt = set()
    for i, line in enumerate(lines):
        if number.search(line):
            dealt.add(next(found.removesuffix(":") for found in reversed(lines[:i]) if found.startswith("head")))
    assert len(dealt) == 2
    assert dealt <= heads
    for head in dealt:
        back = [i for i, line in enumerate(lines) if line == f"br label %{head}"][-1]
        assert "bar.warp.sync" in lines[back - 1]
