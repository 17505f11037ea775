"""Random valid block programs: never refused, exact under every schedule, printed and read back.

And the other side: a program from which one line is taken away is refused, or still right; never silently wrong.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from block_checks import on_interpreter
from random_programs import random_block_program
from random_roles import random_role_program

from tilewright import errors
from tilewright.ir.block import parse_block

Array = np.ndarray[Any, np.dtype[Any]]
Made = tuple[str, dict[str, Array], dict[str, Array]]


def results(text: str, arrays: dict[str, Array], names: Any, workers: int, seed: int) -> dict[str, Array]:
    """The outputs of a program, run on copies of the arguments."""
    given = {name: array.copy() for name, array in arrays.items()}
    program = on_interpreter(text, workers, seed)
    program(*[given[arg.name or ""] for arg in program.main.args])
    return {name: given[name] for name in names}


def check(made: Made, seed: int) -> None:
    text, arrays, expected = made
    program = parse_block(text)
    again = parse_block(str(program))
    assert again == program, text
    assert str(again) == str(program), text
    for workers, schedule in ((1, 0), (2, seed + 1), (3, seed + 2)):
        found = results(text, arrays, expected, workers, schedule)
        for name, wanted in expected.items():
            assert np.array_equal(found[name], wanted), f"{name}, {workers} workers, schedule {schedule}:\n{text}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, 160, 20))
def test_programs_of_one_role(first: int) -> None:
    for seed in range(first, first + 20):
        check(random_block_program(seed), seed)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("waves", [2, 4])
def test_programs_of_several_waves(waves: int) -> None:
    for seed in range(20):
        check(random_block_program(seed, waves), seed)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_programs_of_several_roles(first: int) -> None:
    for seed in range(first, first + 10):
        check(random_role_program(seed), seed)


def without_a_line(text: str, starts: tuple[str, ...], rng: random.Random) -> str | None:
    """The text without one of the lines that start so; None where there is none."""
    lines = text.splitlines()
    found = [i for i, line in enumerate(lines) if line.strip().startswith(starts)]
    if not found:
        return None
    gone = rng.choice(found)
    return "\n".join(lines[:gone] + lines[gone + 1 :]) + "\n"


def attempt(text: str, arrays: dict[str, Array], names: Any, workers: int, seed: int) -> tuple[dict[str, Array], Any]:
    """The outputs of a program, or the report that it brings."""
    try:
        return results(text, arrays, names, workers, seed), None
    except errors.TilewrightError as fault:
        return {}, fault


def never_silently_wrong(make: Callable[[int], Made], starts: tuple[str, ...], seeds: range) -> int:
    """How many of the broken programs are refused; those that are not must still be right under every schedule."""
    refused = 0
    for seed in seeds:
        text, arrays, expected = make(seed)
        broken = without_a_line(text, starts, random.Random(seed))
        if broken is None:
            continue
        reports = []
        for workers, schedule in ((1, 0), (2, seed)):
            found, fault = attempt(broken, arrays, expected, workers, schedule)
            reports.append(fault)
            if fault is not None:
                assert "line" in str(fault) or isinstance(fault, errors.NotWrittenFault), fault
                continue
            for name, wanted in expected.items():
                assert np.array_equal(found[name], wanted), f"{name}, {workers} workers, seed {seed}:\n{broken}"
        refused += any(reports)
    return refused


def test_a_removed_barrier_is_found_or_does_not_matter() -> None:
    def make(seed: int) -> Made:
        """One barrier is left, to be taken away too: most of these programs need some of theirs."""
        text, arrays, expected = random_block_program(seed, 2 if seed % 2 else 4)
        head, _, tail = text.partition("barrier\n")
        return head + "barrier\n" + tail.replace("barrier\n", "\n"), arrays, expected

    assert never_silently_wrong(make, ("barrier",), range(40)) >= 15
    assert never_silently_wrong(lambda seed: random_block_program(seed, 2), ("barrier",), range(40)) >= 1


def test_a_removed_step_of_a_channel_is_found_or_does_not_matter() -> None:
    lines = ("commit", "release", "%tx = wait", "%tw = wait", "%tx, %tw = wait", "%sx = acquire", "%room = acquire")
    assert never_silently_wrong(random_role_program, lines, range(60)) >= 45


def test_a_removed_copy_or_fill_in_a_pipeline_is_found() -> None:
    refused = never_silently_wrong(random_role_program, ("copy", "fill %acc", "map %room"), range(40))
    assert refused >= 38
