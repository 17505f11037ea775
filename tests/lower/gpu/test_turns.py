"""Groups of waves that start products in turn, and that hand over what they wrote each by itself."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from test_waves_lower import HOPPER, bound, loops, results

from tilewright.check.loop import check_loop
from tilewright.errors import ProgramError
from tilewright.ir.core import Program
from tilewright.ir.tensors import numbers
from tilewright.lower.gpu.lower import lower_waves

FLASH = (Path(__file__).parents[3] / "examples" / "block" / "flash_hopper.block").read_text()
SMALL = {"B": 1, "T": 200, "U": 256, "D": 64, "BK": 64, "WG": 3}


def barriers(lowered: Program, name: str) -> list[tuple[int, int]]:
    """(how many, arrivals) of the barriers whose names begin so."""
    made = [op for op in lowered.walk() if op.name == "alloc" and (op.results[0].name or "").startswith(name)]
    return [numbers((op.attrs["type"].count, op.attrs["type"].arrivals), "barriers") for op in made]


def test_a_round_starts_its_products_after_the_group_before() -> None:
    lowered = lower_waves(bound(FLASH, SMALL), HOPPER)
    (loop,) = (op for op in lowered.walk() if op.name == "for" and any(x.name == "atom" for x in op.blocks[0].ops))
    steps = [
        op.name if op.name == "atom" else f"{op.name} {re.sub(r'_[0-9]+$', '', op.operands[0].name or '')}"
        for op in loop.blocks[0].ops
        if op.name == "atom" or (op.name in ("await", "arrive") and "turns" in (op.operands[0].name or ""))
    ]
    assert steps == ["await turns", "atom", "atom", "arrive turns"]
    assert barriers(lowered, "turns") == [(3, 4)]


def test_turns_change_no_result() -> None:
    program = bound(FLASH, SMALL)
    lowered = lower_waves(program, HOPPER)
    check_loop(lowered, HOPPER)
    alike = lower_waves(bound(FLASH.replace(" overlap turns", ""), SMALL), HOPPER)
    wanted = loops(alike)
    for seed in range(3):
        for got, want in zip(loops(lowered, seed=seed), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_one_group_has_no_turns() -> None:
    assert barriers(lower_waves(bound(FLASH, {**SMALL, "WG": 1}), HOPPER), "turns") == []


def test_turns_are_for_loops_of_one_block() -> None:
    for text in (
        FLASH.replace("schedule dynamic {", "schedule dynamic overlap turns {"),
        FLASH.replace("map %weights = bf16(%scores)\n      }", "} finally {\n map %weights = bf16(%scores)\n      }"),
    ):
        assert text != FLASH
        with pytest.raises(ProgramError, match="overlap turns is for loops of one block"):
            bound(text, SMALL)


def test_groups_that_write_rows_of_their_own_hand_them_over_by_themselves() -> None:
    lowered = lower_waves(bound(FLASH, SMALL), HOPPER)
    assert barriers(lowered, "out_full") == barriers(lowered, "out_empty") == [(3, 4)]
    (store,) = (op for op in lowered.walk() if op.name == "copy_out")
    assert [int(s.hi) + 1 for s in store.attrs["over"]] == [64, 64]


def test_groups_wait_for_all_unless_the_channel_is_apart() -> None:
    together = bound(FLASH.replace("consumer apart", "consumer"), SMALL)
    assert barriers(lower_waves(together, HOPPER), "out_full") == [(1, 12)]
    with pytest.raises(ProgramError, match="channel apart"):
        bound(FLASH.replace("from producer to consumer", "from producer to consumer apart"), {})


def test_groups_that_write_rows_of_one_another_wait_for_all() -> None:
    """Rows change places within a task: what one group writes, another's part would take along."""
    turned = FLASH.replace(
        "view %free (i R, d D) -> [d//64, i, d%64]", "view %free (i R, d D) -> [d//64, R - 1 - i, d%64]"
    )
    assert turned != FLASH
    program = bound(turned, SMALL)
    lowered = lower_waves(program, HOPPER)
    assert barriers(lowered, "out_full") == [(1, 12)]
    for got, want in zip(loops(lowered, seed=3), results(program), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=1e-5)
