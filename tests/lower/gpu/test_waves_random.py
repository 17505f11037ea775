"""Random valid programs for waves of many lanes: the loop program gives what plain numpy gives, under any schedule."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from programs import read_before_written
from random_mma import random_product_program
from random_roles import random_role_program
from random_waves import random_wave_program

from tilewright.check.block import check
from tilewright.check.loop import check_loop
from tilewright.interpret.block.run import interpret
from tilewright.interpret.loop import HANDLERS
from tilewright.ir.binding import bind
from tilewright.ir.block import parse_block
from tilewright.lower.gpu.lower import lower_waves
from tilewright.targets.nvidia.backend import BACKEND
from tilewright.targets.registry import machine

HOPPER = machine("hopper")


def check_both(made: tuple[str, dict[str, Any], dict[str, Any]], seed: int, workers: int) -> None:
    text, arrays, expected = made
    program = bind(parse_block(text), {})
    check(program, HOPPER)
    lowered = lower_waves(program, HOPPER)
    check_loop(lowered, HOPPER)
    given = {name: array.copy() for name, array in arrays.items()}
    interpret(lowered, given, HOPPER, seed=seed, workers=workers, handlers=HANDLERS)
    for name, wanted in expected.items():
        assert np.array_equal(given[name], wanted), f"{name}:\n{text}"
    assert read_before_written(BACKEND.emitted(lowered, HOPPER).text) == []


@pytest.mark.sampled(12)
@pytest.mark.parametrize("seed", range(200, 218))
def test_programs_of_one_role(seed: int) -> None:
    check_both(random_wave_program(seed, (1, 2, 4)[seed % 3]), seed, 1 + seed % 2)


@pytest.mark.parametrize("seed", [s for s in range(100, 124) if "machine hopper" in random_role_program(s)[0]])
def test_programs_of_several_roles(seed: int) -> None:
    check_both(random_role_program(seed), seed, 1 + seed % 3)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(300, 312))
def test_products(seed: int) -> None:
    check_both(random_product_program(seed), seed, 1 + seed % 2)
