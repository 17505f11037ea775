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
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.registry import machine

EXAMPLES = Path(__file__).parents[3] / "examples" / "block"
HOPPER = machine("hopper")


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


def test_attention_differs_by_the_order_of_sums_only() -> None:
    program = bound("attention_hopper", {"B": 1, "T": 64, "U": 128})
    for got, want in zip(loops(lower_waves(program, HOPPER), seed=3), results(program), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("params", "seed", "workers"),
    [
        ({"T": 192, "U": 192, "CAUSAL": 1}, 5, 2),
        ({"T": 72, "U": 192}, 6, 1),
        ({"T": 128, "U": 256, "D": 64, "BK": 128}, 7, 1),
        ({"B": 2, "T": 128, "U": 128, "D": 64, "WG": 3, "CAUSAL": 1, "GROUP": 2}, 8, 3),
    ],
)
def test_attention_is_what_the_formula_says(params: dict[str, int], seed: int, workers: int) -> None:
    program = bound("flash_hopper", {"B": 1} | params)
    (q, k, v) = (arrays(program)[name].astype(np.float64) for name in "qkv")
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    if params.get("CAUSAL"):
        scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    wanted = weights @ v / weights.sum(axis=-1, keepdims=True)
    lowered = lower_waves(program, HOPPER)
    check_loop(lowered, HOPPER)
    (got,) = loops(lowered, seed, workers)
    np.testing.assert_allclose(got, wanted, rtol=2e-2, atol=2e-2)


def test_the_next_product_goes_on_under_softmax() -> None:
    """Of the loop: scores are waited for while values are multiplied, past the mask, until the sum is scaled."""
    text = str(lower_waves(bound("flash_hopper", {"CAUSAL": 1}), HOPPER))
    lines = [line.strip() for line in text[text.index("role consumer") :].splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith("for s"))
    words = ("atom wgmma.m64n64k16.bf16.ra %scores", "atom wgmma.m64n128k16.bf16.ra.tb %acc", "settle 1 of %scores")
    words += ("if (s_", "exp2(fma(", "await %edge", "settle 0 of %acc")
    places = [next(i for i, line in enumerate(lines) if i > start and word in line) for word in words]
    assert places == sorted(places)
    assert lines[places[0]].endswith("fresh")
    assert [line for line in lines[start : places[-1] + 1] if line.startswith("settle")] == [
        lines[places[2]],
        lines[places[-1]],
    ]


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
    wrong = text.replace("phase (turn_", "phase (1 + turn_", 1)
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


# -- sums that products begin, arithmetic that seldom counts, edges ------------------------------------------------

TWICE = """
block twice(%x: in global bf16 (64, 64), %y: out global f32 (64, 64))
  machine hopper
  waves 4
{
  tasks t in 0..1 {
    %s = alloc shared bf16 (1, 64, 64) swizzle <3,3,3>
    %c = alloc register f32 (64, 64) as wgmma.m64n64k16.bf16.c
    %part = alloc register f32 (64) by ((4,8,4),2):((0,1,16),8)
    %a = view %s (i 64, k 64) -> [0, i, k]
    %b = view %s (k 64, j 64) -> [0, j, k]
    copy %x -> %a
    barrier
    fill %c 0
    LINE
    mma %c += %a * %b using wgmma.m64n64k16.bf16
    mma %c += %a * %b using wgmma.m64n64k16.bf16
    copy %c -> %y
  }
}
"""


def test_a_product_begins_a_sum_that_was_cleared() -> None:
    program = bound(TWICE.replace("LINE", ""), {})
    lowered = lower_waves(program, HOPPER)
    atoms = [op.attrs.get("fresh", False) for op in lowered.walk() if op.name == "atom"]
    assert atoms == [True, False]
    assert not [op for op in lowered.walk() if op.name == "fill"]
    assert str(parse_loop(str(lowered))) == str(lowered)
    np.testing.assert_array_equal(loops(lowered, seed=2)[0], results(program)[0])


@pytest.mark.parametrize(
    "line",
    [
        "map %c = %c + 3",
        "reduce %c -> %part along 1 with max",
        "for i in 0..2 {mma %c += %a * %b using wgmma.m64n64k16.bf16}",
    ],
)
def test_a_cleared_sum_that_is_looked_at_first_is_zero(line: str) -> None:
    program = bound(TWICE.replace("LINE", line), {})
    lowered = lower_waves(program, HOPPER)
    assert not any(op.attrs.get("fresh") for op in lowered.walk() if op.name == "atom")
    np.testing.assert_array_equal(loops(lowered, seed=2)[0], results(program)[0])


def test_an_edge_is_a_wait_that_is_over_at_once() -> None:
    program = bound(ROWS.replace("broadcast %one", "edge\n    broadcast %one"), {})
    lowered = lower_waves(program, HOPPER)
    (edge,) = (op for op in lowered.walk() if op.name == "await")
    assert int(edge.attrs["phase"]) == -1
    for got, want in zip(loops(lowered, seed=4), results(bound(ROWS, {})), strict=True):
        np.testing.assert_array_equal(got, want)


def test_what_seldom_happens_happens_to_the_same_elements() -> None:
    text = ROWS.replace("map %rows = %rows - %wide", "map %rows = select(%rows < 2, %rows - %wide, %rows)")
    program = bound(text.replace("%wide, %rows)", "%wide, %rows) rare"), {})
    lowered = lower_waves(program, HOPPER)
    assert [op.attrs.get("rare") for op in lowered.walk() if op.attrs.get("rare")] == [True]
    assert str(parse_loop(str(lowered))) == str(lowered)
    for got, want in zip(loops(lowered, seed=4), results(bound(text, {})), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("formula", ["%rows - %wide", "select(%rows < 2, %rows, %wide)"])
def test_rare_is_said_of_what_else_stays_as_it_is(formula: str) -> None:
    with pytest.raises(ProgramError, match="where old is the target"):
        bound(ROWS.replace("%rows - %wide", f"{formula} rare"), {})


def test_layouts_take_parameters_and_lets() -> None:
    text = THREE.replace("  waves 12", "  param W = 3\n  let EIGHT = 8\n  let TWO = W - 1\n  waves 12")
    text = text.replace("((4,8,4,3),2)", "((4,{EIGHT},4,{W}),{TWO})")
    program = parse_block(text)
    assert "by ((4,{EIGHT},4,{W}),{TWO}):((0,1,16,64),8)" in str(program)
    assert parse_block(str(program)) == program
    np.testing.assert_array_equal(results(bound(text, {}))[0], results(bound(THREE, {}))[0])
    with pytest.raises(ProgramError):
        bound(text, {"W": 2})


def test_names_of_atoms_take_lets() -> None:
    text = TWICE.replace("LINE", "").replace("  waves 4", "  param N = 128\n  let HALF = N//2\n  waves 4")
    named = bound(text.replace("wgmma.m64n64", "wgmma.m64n{HALF}"), {})
    np.testing.assert_array_equal(results(named)[0], results(bound(text, {}))[0])


THREE = """
block three(%x: in global f32 (192, 64), %y: out global f32 (192))
  machine hopper
  waves 12
{
  tasks t in 0..1 {
    %c = alloc register f32 (192, 64) as wgmma.m64n64k16.bf16.c waves (3, 1)
    %best = alloc register f32 (192) by ((4,8,4,3),2):((0,1,16,64),8)
    copy %x -> %c
    reduce %c -> %best along 1 with max
    copy %best -> %y
  }
}
"""


def test_rows_are_reduced_by_shuffles_where_waves_are_no_power_of_two() -> None:
    program = bound(THREE, {})
    lowered = lower_waves(program, HOPPER)
    assert not [op for op in lowered.walk() if op.name == "barrier"]
    np.testing.assert_array_equal(loops(lowered)[0], results(program)[0])


BESIDE = """
block beside(%x: in global bf16 (64, 64), %y: out global f32 (64, 64), %z: out global f32 (64, 64))
  machine hopper
  waves 4
{
  tasks t in 0..3 {
    %s = alloc shared bf16 (1, 64, 64) swizzle <3,3,3>
    %first = alloc register f32 (64, 64) as wgmma.m64n64k16.bf16.c
    %second = alloc register f32 (64, 64) as wgmma.m64n64k16.bf16.c
    %a = view %s (i 64, k 64) -> [0, i, k]
    %b = view %s (k 64, j 64) -> [0, j, k]
    copy %x -> %a
    barrier
    fill %first 0
    fill %second 0
    mma %first += %a * %b using wgmma.m64n64k16.bf16
    mma %second += %a * %b using wgmma.m64n64k16.bf16
    if (t > 0) {
      map %first = %first*2
    } else {
      LINE
    }
    if (t == 2) {
      copy %first -> %y
      copy %second -> %z
    }
  }
}
"""


def test_a_product_that_a_branch_does_not_look_at_goes_on() -> None:
    program = bound(BESIDE.replace("LINE", ""), {})
    lowered = lower_waves(program, HOPPER)
    assert [op.attrs["pending"] for op in lowered.walk() if op.name == "settle"] == [1, 0]
    names = [op.name for op in lowered.walk() if op.name in ("settle", "if")]
    assert names == ["settle", "if", "settle", "if"]
    for seed in (1, 2):
        for got, want in zip(loops(lowered, seed, workers=1), results(program, workers=1), strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_product_that_one_branch_starts_ends_there() -> None:
    line = "mma %second += %a * %b using wgmma.m64n64k16.bf16"
    program = bound(BESIDE.replace("LINE", line), {})
    lowered = lower_waves(program, HOPPER)
    first = next(op for op in lowered.walk() if op.name == "if")
    assert [op.attrs["pending"] for b in first.blocks for op in b.ops if op.name == "settle"] == [0]
    for got, want in zip(loops(lowered, 3, workers=1), results(program, workers=1), strict=True):
        np.testing.assert_array_equal(got, want)
