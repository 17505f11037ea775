"""Block programs for waves of many lanes: the loop program gives what the block program gives, under any schedule."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.check.block import check
from tilewright.check.loop import check_loop
from tilewright.errors import DeadlockFault, InterpreterFault, ProgramError, ProtocolFault, RaceFault
from tilewright.interpret.block.run import interpret
from tilewright.interpret.loop import HANDLERS
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.ir.core import Program
from tilewright.ir.loop import parse_loop
from tilewright.ir.tensors import numbers
from tilewright.passes.waves.lower import lower_waves
from tilewright.targets.registry import machine

EXAMPLES = Path(__file__).parents[3] / "examples" / "block"
HOPPER = machine("hopper")

MANY = [
    ("gemm_hopper", {"M": 72, "N": 72, "K": 136, "BN": 64, "STAGES": 2}),
    ("gemm_hopper", {"M": 136, "N": 64, "K": 200, "BN": 64, "STAGES": 3}),
    ("gemm_hopper", {"M": 64, "N": 64, "K": 128, "BN": 64, "STAGES": 1}),
    ("gemm_hopper", {"M": 200, "N": 64, "K": 72, "BM": 256, "BN": 64, "STAGES": 2}),
    ("gemm_hopper", {"M": 136, "N": 72, "K": 136, "BM": 64, "WG": 1, "BN": 64, "STAGES": 2, "CLUSTER": 2}),
    ("gemm_hopper_pingpong", {"M": 200, "N": 72, "K": 136, "BN": 64, "STAGES": 2}),
    ("gemm_hopper_pingpong", {"M": 200, "N": 136, "K": 72, "BM": 128, "BN": 64, "STAGES": 2, "GROUP": 2}),
    ("conv_hopper", {"N": 1, "H": 7, "W": 5, "R": 3, "S": 2, "F": 72, "STAGES": 2}),
    ("conv_hopper", {"N": 2, "H": 9, "W": 7, "STRIDE": 2, "STAGES": 2}),
    ("conv_hopper", {"N": 2, "H": 5, "W": 4, "F": 136, "BM": 64, "WG": 1, "STAGES": 2, "CLUSTER": 2}),
    ("conv_hopper_halo", {"N": 1, "H": 3, "W": 4, "C": 128}),
    ("conv_hopper_patches", {"N": 1, "H": 9, "W": 9, "PATCHES": 1}),
    ("conv_hopper_patches", {"N": 3, "H": 8, "W": 5, "PATCHES": 2, "STAGES": 1}),
]


def bound(name: str, params: dict[str, int]) -> Program:
    text = name if "\n" in name else (EXAMPLES / f"{name}.block").read_text()
    program = bind(parse_block(text), params)
    check(program, HOPPER)
    return program


def arrays(program: Program) -> dict[str, np.ndarray[Any, Any]]:
    chance, found = np.random.default_rng(7), {}
    for arg in program.args:
        shape = numbers(arg.type.shape, "argument")
        values = chance.integers(-3, 4, shape) if arg.type.role != "out" else np.zeros(shape)
        found[arg.name or ""] = values.astype(arg.type.dtype.numpy)
    return found


def results(program: Program, seed: int = 0, workers: int = 2, **options: Any) -> list[np.ndarray[Any, Any]]:
    found = arrays(program)
    interpret(program, found, HOPPER, seed=seed, workers=workers, **options)
    return [found[a.name or ""].astype(np.float64) for a in program.args if a.type.role != "in"]


def loops(program: Program, seed: int = 0, workers: int = 2) -> list[np.ndarray[Any, Any]]:
    return results(program, seed, workers, handlers=HANDLERS)


@pytest.mark.parametrize(("name", "params"), MANY)
def test_examples_give_the_same_on_both_levels(name: str, params: dict[str, int]) -> None:
    program = bound(name, params)
    lowered = lower_waves(program, HOPPER)
    check_loop(lowered, HOPPER)
    wanted = results(program)
    for seed, workers in ((1, 1), (2, 3)):
        for got, want in zip(loops(lowered, seed, workers), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_attention_differs_by_the_order_of_sums_only() -> None:
    program = bound("attention_hopper", {"B": 1, "T": 64, "U": 128})
    for got, want in zip(loops(lower_waves(program, HOPPER), seed=3), results(program), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-5)


@pytest.mark.parametrize(
    "params", [{"T": 128, "U": 128, "CAUSAL": 1}, {"T": 128, "U": 192}, {"T": 128, "U": 128, "D": 64, "BK": 128}]
)
def test_attention_is_what_the_formula_says(params: dict[str, int]) -> None:
    program = bound("flash_hopper", {"B": 1, **params})
    (q, k, v) = (arrays(program)[name].astype(np.float64) for name in "qkv")
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    if params.get("CAUSAL"):
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    wanted = weights @ v / weights.sum(axis=-1, keepdims=True)
    (got,) = loops(lower_waves(program, HOPPER), seed=5, workers=1)
    np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=2e-2)


def test_the_loop_program_is_read_back_from_its_text() -> None:
    text = str(lower_waves(bound("gemm_hopper_pingpong", {"M": 128, "N": 64, "BN": 64}), HOPPER))
    assert str(parse_loop(text)) == text


def _order(text: str, *words: str) -> list[int]:
    """Where each line with a word stands first in the consumer's tasks."""
    lines = text[text.index("role consumer") :].splitlines()
    return [next(i for i, line in enumerate(lines) if word in line) for word in words]


def test_halves_that_take_turns_waited_for_their_last_products_before_they_handed_on() -> None:
    text = str(lower_waves(bound("gemm_hopper_pingpong", {"M": 128, "N": 64, "BN": 64}), HOPPER))
    fill, turn, product, hand, settled = _order(text, "fill %acc", "await %turn", "atom ", "arrive %turn", "settle 0")
    assert fill < turn < product < hand < settled


def test_products_that_read_other_memory_than_stages_end_within_the_turn() -> None:
    text = """block f(%x: in global bf16 (T, 64, 64), %d: out global f32 (T, 64, 64))
      machine hopper
      param T = 3
    {
      %own = alloc shared bf16 (64, 64) swizzle <3,3,3>
      role all waves 8 {
        tasks t in 0..T overlap pingpong {
          %acc = alloc register f32 (64, 64) as wgmma.m64n64k16.bf16.c
          fill %acc 0
          %from = view %x (i 64, c 64) -> [t, i, c]
          copy %from -> %own
          barrier
          %turned = view %own (c 64, i 64) -> [i, c]
          mma %acc += %own * %turned using wgmma.m64n64k16.bf16
        } finally {
          %to = view %d (i 64, j 64) -> [t, i, j]
          copy %acc -> %to
        }
      }
    }"""
    program = bound(text, {})
    lowered = lower_waves(program, HOPPER)
    lines = [line.strip() for line in str(lowered).splitlines()]
    settled = next(i for i, line in enumerate(lines) if line.startswith("settle 0"))
    assert settled < next(i for i, line in enumerate(lines) if line.startswith("arrive %turn"))
    np.testing.assert_array_equal(loops(lowered, workers=1)[0], results(program, workers=1)[0])


# -- what is left out is found --------------------------------------------------------------------------------

SMALL = {"M": 136, "N": 64, "K": 136, "BM": 64, "WG": 1, "BN": 64, "STAGES": 2}


@cache
def _small() -> str:
    """The lowered product: three tasks of three steps."""
    return str(lower_waves(bound("gemm_hopper", SMALL), HOPPER))


def _without(line: str, count: int = 1) -> Program:
    """The lowered product without some lines: the last that begin so."""
    lines = _small().splitlines()
    places = [i for i, found in enumerate(lines) if found.strip().startswith(line)]
    assert len(places) >= count, line
    for place in reversed(places[-count:]):
        del lines[place]
    return parse_loop("\n".join(lines))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("fence", RaceFault),
        ("settle 0", RaceFault),
        ("settle 1", RaceFault),
        ("drain 0", ProtocolFault),
        ("drain 1", RaceFault),
        ("arrive %ring_empty", DeadlockFault),
        ("arrive %ring_full", DeadlockFault),
        ("await %ring_full", InterpreterFault),
        ("await %ring_empty", InterpreterFault),
        ("await %out_full", InterpreterFault),
        ("expect", InterpreterFault),
    ],
)
def test_a_line_that_is_left_out_is_reported(line: str, fault: type[Exception]) -> None:
    with pytest.raises(fault):
        loops(_without(line), workers=1)


def test_a_wrong_phase_is_reported() -> None:
    text = _small()
    wrong = text.replace("phase (fill_", "phase (1 + fill_", 1)
    assert wrong != text
    with pytest.raises(InterpreterFault):
        loops(parse_loop(wrong), workers=1)


# -- one role, plain operations ---------------------------------------------------------------------------------

ROWS = """
block rows(%x: in global f32 (M, 48), %y: out global f32 (M, 48), %best: out global f32 (M))
  machine hopper
  param M = 24
  waves 2
{
  tasks m in 0..M//8 {
    %rows = alloc register f32 (8, 48) by ((8,8),6):((8,1),64)
    %wide = alloc register f32 (8, 48) by ((8,8),6):((8,1),64)
    %one = alloc register f32 (8) by ((8,8),1):((0,1),0)
    %shared = alloc shared f32 (8, 48)
    %from = view %x (i 8, j 48) -> [8*m + i, j]
    %to = view %y (i 8, j 48) -> [8*m + i, j]
    %bests = view %best (i 8) -> [8*m + i]
    copy %from -> %shared
    barrier
    copy %shared -> %rows
    reduce %rows -> %one along 1 with max
    broadcast %one -> %wide along 1
    map %rows = %rows - %wide
    copy %rows -> %to
    copy %one -> %bests
  }
}
"""


def test_rows_over_lanes() -> None:
    program = bound(ROWS, {})
    for got, want in zip(loops(lower_waves(program, HOPPER), seed=4), results(program), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_view_of_registers_that_a_loop_moves_is_refused() -> None:
    text = (EXAMPLES / "gemm_hopper.block").read_text().replace("BN//64 unroll", "BN//64")
    with pytest.raises(ProgramError, match="unroll the loop"):
        lower_waves(bound(text, {}), HOPPER)
