"""Clusters: workgroups that run together, and copies that each of them brings a part of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright.block as tb
from tilewright import compile_text, errors
from tilewright.check.block import check
from tilewright.interpret.block.run import interpret
from tilewright.interpret.loop import HANDLERS
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.ir.core import Program
from tilewright.ir.loop import parse_loop
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.registry import machine

HOPPER = machine("hopper")
SHARED = """block shared(%x: in global f32 (T, 32), %lines: in global f32 (K, 32), %y: out global f32 (T, 32))
  machine hopper
  param T = 8, K = 5, STAGES = 2, TOGETHER = 2
  cluster TOGETHER
{
  %xs = alloc shared f32 (1, 32)
  %ls = alloc shared f32 (STAGES, 32)
  %rows = channel %xs stages 1 from bring to add
  %ring = channel %ls stages STAGES from bring to add
  role bring waves 1 {
    tasks t in 0..T {
      %sx = acquire %rows
      %row = view %x (i 32) -> [t, i]
      copy %row -> %sx by tma.load
      commit %rows
      for k in 0..K {
        %sl = acquire %ring
        %line = view %lines (i 32) -> [(k + t//TOGETHER)%K, i]
        copy %line -> %sl by tma.load multicast
        commit %ring
      }
    }
  }
  role add waves 1 {
    %v = alloc register f32 (32) by (32,1):(1,0)
    tasks t in 0..T {
      %tx = wait %rows
      copy %tx -> %v
      release %rows
      for k in 0..K {
        %tl = wait %ring
        map %v = %v*2 + %tl
        release %ring
      }
      %to = view %y (i 32) -> [t, i]
      copy %v -> %to
    }
  }
}"""


def program(text: str = SHARED, **params: int) -> Program:
    found = bind(parse_block(text), params)
    check(found, HOPPER)
    return found


def result(found: Program, seed: int, workers: int, **options: Any) -> np.ndarray:
    chance = np.random.default_rng(1)
    rows, lines = (int(a.type.shape[0]) for a in found.args[:2])
    x, more = chance.integers(-4, 5, (rows, 32)), chance.integers(-4, 5, (lines, 32))
    arrays = {"x": x.astype(np.float32), "lines": more.astype(np.float32), "y": np.zeros((rows, 32), np.float32)}
    interpret(found, arrays, HOPPER, seed=seed, workers=workers, **options)
    return arrays["y"]


@pytest.mark.parametrize(("together", "stages"), [(2, 1), (2, 3), (4, 2), (8, 2)])
def test_what_is_shared_means_the_same_as_what_is_not(together: int, stages: int) -> None:
    params = {"TOGETHER": together, "STAGES": stages}
    found = program(**params)
    alone = program(SHARED.replace("cluster TOGETHER", ""), **params)
    lowered = lower_waves(found, HOPPER)
    text = str(lowered)
    assert str(parse_loop(text)) == text
    assert ("everywhere" in text, "multicast" in text) == (True, True)
    wanted = result(alone, 0, 3)
    for seed, workers in ((1, 1), (2, 2 * together)):
        np.testing.assert_array_equal(result(found, seed, workers), wanted)
        np.testing.assert_array_equal(result(lowered, seed, workers, handlers=HANDLERS), wanted)


@pytest.mark.parametrize(
    ("line", "faults"),
    [
        ("arrive %ring_empty", (errors.DeadlockFault,)),
        ("await %ring_empty", (errors.RaceFault, errors.ProtocolFault)),
        ("expect %ring_full", (errors.InterpreterFault,)),
    ],
)
def test_a_step_that_keeps_workgroups_apart_is_missed_where_it_is_left_out(line: str, faults: Any) -> None:
    text = str(lower_waves(program(K=4), HOPPER)).splitlines()
    place = next(i for i, found in enumerate(text) if found.strip().startswith(line))
    broken = parse_loop("\n".join(text[:place] + text[place + 1 :]))
    for seed in range(3):
        with pytest.raises(faults):
            result(broken, seed, 2, handlers=HANDLERS)


def test_a_release_that_stays_at_home_is_missed_by_the_other_workgroup() -> None:
    text = str(lower_waves(program(), HOPPER)).replace(" everywhere", "")
    with pytest.raises(errors.DeadlockFault, match="workgroup 1"):
        result(parse_loop(text), 0, 2, handlers=HANDLERS)


def test_workgroups_that_ask_for_different_elements_are_named() -> None:
    wrong = SHARED.replace("(k + t//TOGETHER)%K", "(k + t)%K")
    with pytest.raises(errors.ProtocolFault, match="ask for different elements, for fill 0 of %ring"):
        result(program(wrong), 0, 2)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("T = 8", "T = 9", "cluster 2: 9 tasks are no multiple of 2"),
        ("TOGETHER = 2", "TOGETHER = 16", "cluster 16: hopper has at most 8 workgroups"),
        ("tasks t in 0..T {\n      %sx", "tasks t in 0..T schedule contiguous {\n      %sx", "dealt out strided"),
        ("%sx by tma.load", "%sx multicast", "a copy by an atom that brings whole boxes"),
        ("cluster TOGETHER", "launch sometime", "launch sometime: there is programmatic"),
        ("TOGETHER = 2", "TOGETHER = 6", "is cut into 6 parts"),
    ],
)
def test_what_workgroups_cannot_do_together_is_refused(old: str, new: str, says: str) -> None:
    text = SHARED.replace(old, new).replace("T = 8", "T = 12" if "6" in new else "T = 8")
    with pytest.raises(errors.ProgramError, match=says):
        compile_text(text, "interpreter")


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ("launch programmatic", "launch programmatic: x86.avx512 has no such launches"),
        ("cluster 2", "cluster 2: x86.avx512 has at most 1"),
    ],
)
def test_what_the_machine_lacks_is_refused(record: str, says: str) -> None:
    text = f"block f(%y: out global f32 (4))\n  machine x86.avx512\n  {record}\n{{\n  fill %y 0\n}}"
    with pytest.raises(errors.ProgramError, match=says):
        compile_text(text, "interpreter")


def test_python_says_it_too() -> None:
    @tb.kernel("hopper", cluster="C", launch="programmatic")
    def brought(x: tb.In("f32", 64), y: tb.Out("f32", "T", 64), *, T=4, C=2):
        stage = tb.shared("f32", (2, 64))
        ring = tb.ring(stage, producer="bring", consumer="take")
        with tb.role("bring", waves=1):
            for _ in tb.tasks(T):
                with ring.fill() as free:
                    tb.copy(x, free, by="tma.load", multicast=True)
        with tb.role("take", waves=2):
            for t in tb.tasks(T):
                with ring.take() as full:
                    y[t, :] = full * 3

    text = str(brought.trace())
    assert [word in text for word in ("cluster 2", "launch programmatic", "by tma.load multicast")] == [True] * 3
    x = np.arange(64, dtype=np.float32)
    y = compile_text(text, "interpreter")(x)
    np.testing.assert_array_equal(y, np.broadcast_to(3 * x, (4, 64)))
