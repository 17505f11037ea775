"""Copies that lanes start: what the interpreter says where a line of the loop program is missing."""

from __future__ import annotations

import pytest
from programs import CASES

from tilewright.errors import DeadlockFault, InterpreterFault, OutOfBoundsFault, ProtocolFault, RaceFault
from tilewright.interpret.block.run import interpret
from tilewright.interpret.loop import HANDLERS
from tilewright.ir.loop import parse_loop
from tilewright.lower.gpu.lower import lower_waves

BY_NAME = {case.name: case for case in CASES}


def lines_of(name: str) -> list[str]:
    case = BY_NAME[name]
    return str(lower_waves(case.program, case.machine)).splitlines()


def run(name: str, lines: list[str]) -> None:
    case = BY_NAME[name]
    for seed in range(4):
        interpret(parse_loop("\n".join(lines)), case.arguments(), case.machine, seed=seed, handlers=HANDLERS)


def without(lines: list[str], word: str, which: int = 0) -> list[str]:
    places = [i for i, line in enumerate(lines) if line.strip().startswith(word)]
    return [line for i, line in enumerate(lines) if i != places[which]]


@pytest.mark.parametrize(
    ("name", "word", "fault", "says"),
    [
        ("cp_async_widths", "land", InterpreterFault, "which nothing wrote|nothing orders it|no commit"),
        ("cp_async_widths", "together", RaceFault, "is done by one lane for all"),
        ("cp_async_widths", "arrive", DeadlockFault, "waits for phase 0"),
        ("cp_async_wgmma", "fence", RaceFault, "a fence is missing"),
    ],
)
def test_a_line_that_is_left_out_is_reported(name: str, word: str, fault: type[Exception], says: str) -> None:
    lines = lines_of(name)
    run(name, lines)
    with pytest.raises(fault, match=says):
        run(name, without(lines, word))


def test_a_lane_copies_an_aligned_run_within_the_tensor() -> None:
    lines = lines_of("cp_async_widths")
    at = next(i for i, line in enumerate(lines) if "by cp.async.8" in line)
    shifted = [*lines[:at], lines[at].replace("-> %s8_", "-> %s8_", 1).replace("] by", " + 1] by"), *lines[at + 1 :]]
    with pytest.raises(ProtocolFault, match=r"a lane's 4 values are no aligned run of cp\.async\.8"):
        run("cp_async_widths", shifted)
    bare = [*lines[:at], lines[at].split(" inside ")[0], *lines[at + 1 :]]
    with pytest.raises((OutOfBoundsFault, ProtocolFault)):
        run("cp_async_widths", bare)
