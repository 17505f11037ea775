"""What loads say to the caches: where results would be driven out by what is read once; loads of the same are one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tilewright import kernels
from tilewright.compiler.native import kernel_for
from tilewright.ir.loop import parse_loop
from tilewright.lower.gpu.cache_hints import mark_streams
from tilewright.lower.gpu.common_loads import join_loads
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
ELEMENTS = 1 << 23
"""32 MiB of f32: one such tensor fits a cache of 50 MiB, two do not."""


def marked(body: str, elements: int = ELEMENTS, written: int = ELEMENTS) -> list[str]:
    """The lines that stream, of tasks that each have 32 elements."""
    text = f"loop program(%x: in global f32 ({elements}), %y: out global f32 ({written}))\n  machine hopper\n{{\n"
    text += f"role all waves 1 (w 1) {{\ntasks t in 0..{elements // 32} {{\n%a = alloc fragment f32 (32, 1)\n"
    text += f"%b = alloc fragment f32 (32, 1)\n{body}\n}}\n}}\n}}\n"
    program = parse_loop(text)
    join_loads(program)
    mark_streams(program, HOPPER)
    printed = str(program)
    assert str(parse_loop(printed)) == printed
    return [line.strip() for line in printed.splitlines() if line.endswith(" stream")]


LOAD, AGAIN = (f"load %{name} (l 32, v 1) = %x[32*t + l]" for name in "ab")
STORE = "store %a (l 32, v 1) -> %y[32*t + l]"


def test_what_is_read_once_leaves_the_cache_to_results() -> None:
    assert marked(f"{LOAD}\n{STORE}") == [f"{LOAD} stream"]


@pytest.mark.parametrize("elements", [ELEMENTS // 2, 2 * ELEMENTS])
def test_nothing_is_said_where_all_fits_or_results_do_not(elements: int) -> None:
    assert marked(f"{LOAD}\n{STORE}", elements, elements) == []


def test_nothing_is_said_where_there_are_few_results() -> None:
    few = "store %a (l 32, v 1) -> %y[l]"
    assert marked(f"{LOAD}\n{few}", 2 * ELEMENTS, 32) == []


def test_nothing_is_said_of_a_machine_that_gains_nothing() -> None:
    """24 MiB of results, 48 in all, and a cache of 40."""
    text = kernel_for(kernels.layer_norm("bf16"), {"M": 49152, "N": 256}, machine=machine("ampere")).text("loop")
    assert not re.search(r"stream$", text, re.M)


def test_what_every_round_reads_is_kept() -> None:
    assert marked(f"for i in 0..2 {{\n{LOAD}\n}}\n{STORE}") == []


def test_only_the_last_of_two_readings_streams() -> None:
    assert marked(f"{LOAD}\nbarrier\n{AGAIN}\n{STORE}") == [f"{AGAIN} stream"]


def test_either_branch_is_the_only_reading() -> None:
    branches = f"if (t < 9) {{\n{LOAD}\n}} else {{\n{AGAIN}\n}}\n{STORE}"
    assert marked(branches) == [f"{LOAD} stream", f"{AGAIN} stream"]
    last = f"if (t <= 9) {{\n{LOAD}\n}}\nif (t >= 10) {{\nbarrier\n{AGAIN}\n}}\n{STORE}"
    assert marked(last) == [f"{LOAD} stream", f"{AGAIN} stream"]
    both = f"if (t <= 9) {{\n{LOAD}\n}}\nif (t >= 9) {{\nbarrier\n{AGAIN}\n}}\n{STORE}"
    assert marked(both) == [f"{AGAIN} stream"]


def test_two_readings_with_nothing_between_them_are_one() -> None:
    both = f"{LOAD}\n{AGAIN}\ncompute %b = %a + %b\n{STORE}"  # %b is written again: it stays
    assert marked(both) == [f"{LOAD} stream", f"{AGAIN} stream"]
    one = (
        f"%c = alloc fragment f32 (32, 1)\n{LOAD}\n{AGAIN}\ncompute %c = %a + %b\nstore %c (l 32, v 1) -> %y[32*t + l]"
    )
    assert marked(one) == [f"{LOAD} stream"]


@pytest.mark.parametrize("between", ["barrier", "together", STORE])
def test_two_readings_with_something_between_them_stay_two(between: str) -> None:
    text = (
        f"loop program(%x: in global f32 (32), %y: out global f32 (32))\n  machine hopper\n{{\n"
        f"role all waves 1 (w 1) {{\ntasks t in 0..1 {{\n%a = alloc fragment f32 (32, 1)\n"
        f"%b = alloc fragment f32 (32, 1)\n%c = alloc fragment f32 (32, 1)\n{LOAD}\n{between}\n{AGAIN}\n"
        f"compute %c = %a + %b\nstore %c (l 32, v 1) -> %y[32*t + l]\n}}\n}}\n}}\n"
    )
    program = parse_loop(text)
    join_loads(program)
    assert str(program).count("= %x[") == 2


def test_a_register_that_a_round_before_wrote_is_loaded_itself() -> None:
    """Before it is loaded, %b is what the round before had."""
    text = """loop program(%x: in global f32 (96), %y: out global f32 (96))
  machine hopper
{
  role all waves 1 (w 1) {
    %b = alloc fragment f32 (32, 1)
    fill %b 0
    for i in 0..3 {
      %a = alloc fragment f32 (32, 1)
      %c = alloc fragment f32 (32, 1)
      load %a (l 32, v 1) = %x[32*i + l]
      compute %c = %a + %b
      load %b (l 32, v 1) = %x[32*i + l]
      store %c (l 32, v 1) -> %y[32*i + l]
    }
  }
}
"""
    for given in (text, text.replace("    fill %b 0\n", "")):
        program = parse_loop(given)
        join_loads(program)
        assert str(program) == given


def loads(kernel: Any, m: int, n: int) -> list[str]:
    """The loads of a kernel's argument x on the loop level: what they end with."""
    text = kernel_for(kernel, {"M": m, "N": n}, target="gpu:hopper").text("loop")
    return ["stream" if line.endswith("stream") else "" for line in re.findall(r"load .* = %x\[.*", text)]


def test_kernels_of_rows_read_once() -> None:
    assert loads(kernels.layer_norm("bf16"), 65536, 256) == ["stream"]
    assert loads(kernels.layer_norm("f32"), 65536, 256) == [""]  # 64 MiB of results
    assert loads(kernels.rms_norm("bf16"), 2048, 8192) == ["stream"]  # what waves share of a row, they keep
    assert loads(kernels.reduction("sum", "columns", "f32"), 65536, 256) == [""]
    text = kernel_for(kernels.softmax("bf16"), {"M": 65536, "N": 256}, target="gpu:hopper").text("ptx")
    assert text.count("ld.global.cs.v4.b32") == 4
    assert "ld.global.v4" not in text
