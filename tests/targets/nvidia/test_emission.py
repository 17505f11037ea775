"""What must not go wrong in kernels and does not show on the loop level: lanes that meet before one speaks for all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tilewright import compile_text
from tilewright.check.block import check
from tilewright.errors import ProgramError
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.ir.loop import parse_loop
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.nvidia.backend import BACKEND
from tilewright.targets.registry import machine

EXAMPLES = Path(__file__).parents[3] / "examples" / "block"
HANDED = """
block handed(%x: in global f32 (64), %y: out global f32 (64))
  machine hopper
{
  %s = alloc shared f32 (1, 64)
  %once = channel %s stages 1 from bring to take
  role bring waves 1 {
    %free = acquire %once
    copy %x -> %free
    commit %once
  }
  role take waves 2 {
    %r = alloc register f32 (64) by (64,1):(1,0)
    %full = wait %once
    copy %full -> %r
    tasks t in 0..1 {
      copy %r -> %y
    }
  }
}
"""


def test_lanes_meet_before_a_commit_outside_of_loops() -> None:
    hopper = machine("hopper")
    program = bind(parse_block(HANDED), {})
    check(program, hopper)
    text = BACKEND.emitted(lower_waves(program, hopper), hopper).text
    lines = [line for line in text.splitlines() if "bar.warp.sync(i32 -1)" in line or "mbarrier.arrive" in line]
    assert ["warp.sync" in line for line in lines if not line.startswith("declare")][:2] == [True, False]


def emitted(text: str, **params: int) -> tuple[str, str]:
    """(the loop program, LLVM IR)."""
    hopper = machine("hopper")
    program = bind(parse_block(text), params)
    check(program, hopper)
    lowered = lower_waves(program, hopper)
    return str(lowered), BACKEND.emitted(lowered, hopper).text


def example(name: str) -> str:
    return (EXAMPLES / f"{name}.block").read_text()


def test_every_fence_of_the_loop_program_is_one_of_the_proxy() -> None:
    loop, text = emitted(example("gemm_hopper"))
    fences = [line.strip() for line in loop.splitlines()].count("fence")
    assert fences == text.count("fence.proxy.async.shared::cta;") == 2


PHASES = """
loop phases(%y: out global f32 (1))
  machine hopper
{
  %b = alloc barrier (1) arrivals 1
  role all waves 1 {
    await %b[0] phase (-1)
    await %b[0] phase (0)
    await %b[0] phase (1)
    await %b[0] phase (2)
  }
}
"""


def test_a_phase_is_waited_for_by_its_parity() -> None:
    program = parse_loop(PHASES)
    text = BACKEND.emitted(program, machine("hopper")).text
    waits = [line for line in text.splitlines() if "try_wait.parity" in line]
    assert [line.rstrip(")")[-1] for line in waits] == ["1", "0", "1", "0"]


def test_roles_give_and_take_registers() -> None:
    _, text = emitted(example("gemm_hopper"), WG=2)
    calls = re.findall(r"call void @llvm.nvvm.setmaxnreg.(inc|dec).sync.aligned.u32\(i32 (\d+)\)", text)
    assert calls == [("dec", "40"), ("inc", "232")]  # 168 at the entry, of 384 threads


def test_roles_share_out_what_a_workgroup_begins_with() -> None:
    """Three groups of 128 threads begin with 168 registers each: 3*168 can be shared out, not 512."""
    text = example("gemm_hopper").replace("registers SPARE", "registers 96")
    with pytest.raises(ProgramError, match="are 65536 in all; 384 threads begin with 168, 64512 in all"):
        emitted(text.replace("registers OWN", "registers 208"))
    emitted(text.replace("registers OWN", "registers 200"))


def test_more_registers_than_there_are_are_refused() -> None:
    with pytest.raises(ProgramError, match="128 threads with 40, 256 threads with 240 are 66560 in all"):
        emitted(example("gemm_hopper").replace("registers OWN", "registers 240"))
    with pytest.raises(ProgramError, match="registers 20: a role has a multiple of 8, from 24 to 256"):
        emitted(example("gemm_hopper").replace("registers SPARE", "registers 20"))


def test_steps_of_k_are_two_units_of_16_bytes_apart() -> None:
    _, text = emitted(example("gemm_hopper"))
    block = next(line for line in text.splitlines() if "wgmma.mma_async" in line)
    assert [re.findall(rf"add.s64 {name}, \$\d+, (\d+);", block) for name in "xy"] == [["0", "2", "4", "6"]] * 2
    # V of attention has rows of k: 16 of them are 2048 bytes
    _, text = emitted(example("attention_hopper"))
    second = [line for line in text.splitlines() if "wgmma.mma_async" in line][-1]
    assert re.findall(r"add.s64 y, \$\d+, (\d+);", second) == ["0", "128", "256", "384"]


def test_words_of_factors_hold_neighbours_in_order() -> None:
    _, text = emitted(MULTIPLIED)
    loads = dict(re.findall(r"(%\w+) = load half, ptr (%\w+)", text))
    parts = re.findall(r"(%\w+) = insertelement <2 x half> (\S+), half (%\w+), i32 (\d)", text)
    order = re.findall(r"(%\w+) = alloca half", text)
    first = {name: order.index(loads[value]) for name, start, value, at in parts if at == "0" and start == "poison"}
    pairs = [(first[start], order.index(loads[value])) for _, start, value, at in parts if at == "1"]
    assert len(pairs) == len(first) > 0
    assert all(high == low + 1 for low, high in pairs)


MULTIPLIED = """
block product(%a: in global f16 (16, 16), %b: in global f16 (8, 16), %d: out global f32 (16, 8))
  machine hopper
  waves 1
{
  tasks t in 0..1 {
    %ra = alloc register f16 (16, 16) as mma.m16n8k16.f16.a
    %rb = alloc register f16 (16, 8) as mma.m16n8k16.f16.b
    %rc = alloc register f32 (16, 8) as mma.m16n8k16.f16.c
    %turned = view %b (k 16, j 8) -> [j, k]
    copy %a -> %ra
    copy %turned -> %rb
    fill %rc 0
    mma %rc += %ra * %rb using mma.m16n8k16.f16
    copy %rc -> %d
  }
}
"""


SUMS = """
block f(%a: in global f32 (16, 2), %b: in global f32 (32, 2), %c: out global f32 (16, 32))
  machine hopper
{
  tasks t in 0..1 {
    %l = alloc register f32 (16, 2) as fma.m16n32k1.f32.a
    %r = alloc register f32 (2, 32) as fma.m16n32k1.f32.b
    %s = alloc register f32 (16, 32) as fma.m16n32k1.f32.c
    fill %s 0
    copy %a -> %l
    %bt = view %b (k 2, n 32) -> [n, k]
    copy %bt -> %r
    mma %s += %l * %r using fma.m16n32k1.f32
    copy %s -> %c
  }
}
"""


def test_what_begins_sums_adds_to_zero() -> None:
    lines = [x.strip() for x in compile_text(SUMS, "gpu:hopper").text("llvm").splitlines() if "@llvm.fma.f32(" in x]
    calls = [x for x in lines if " = call " in x]
    assert len(calls) == 32  # 16 sums of a lane, two steps of k
    assert sum(x.endswith("float 0x0000000000000000)") for x in calls) == 16
