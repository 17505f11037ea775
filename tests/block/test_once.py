"""No operation writes two values to one element: refused when a program is checked, not when it is interpreted."""

from __future__ import annotations

import pytest

from tilewright.check.block import check
from tilewright.errors import ProgramError
from tilewright.ir.block import parse_block
from tilewright.targets.registry import machine

ARGUMENTS = "%x: in global f32 (16, 8), %row: in global f32 (8), %y: out global f32 (8), %z: out global f32 (40)"
REFUSED = {
    "rows of a copy go to one row": (
        "%to = view %y (i 16, j 8) -> [j]\n copy %x -> %to",
        "writes 16 values to each element of %y: no coordinate of %to depends on its axis 0",
    ),
    "rows of sums in registers go to one row": (
        "%s = alloc register f32 (16, 8) as mma.m16n8k8.tf32.c\n fill %s 0\n"
        "%to = view %y (i 16, j 8) -> [j]\n copy %s -> %to",
        "writes 16 values to each element of %y",
    ),
    "a view of a view loses an axis": (
        "%flat = view %y (i 16, j 8) -> [j]\n %to = view %flat (k 16, l 8) -> [15 - k, l]\n copy %x -> %to",
        "no coordinate of %to depends on its axis 0",
    ),
    "a map writes rows to one row": (
        "%to = view %y (i 16, j 8) -> [j]\n map %to = %x + 1",
        "writes 16 values to each element of %y",
    ),
    "a map writes coordinates to one element": (
        "%to = view %y (i 16, j 8) -> [j]\n map over (i 16, j 8) %to = f32([i])",
        "writes 16 values to each element of %y",
    ),
    "a reduction gives several values to one element": (
        "%to = view %y (i 16) -> [0]\n reduce %x -> %to along 1 with sum",
        "writes 16 values to each element of %y",
    ),
    "windows of a copy overlap": (
        "%to = view %z (i 16, j 8) -> [2*i + j]\n copy %x -> %to",
        "elements (0, 2) and (1, 0) of %to are the same",
    ),
}
ALLOWED = {
    "both sides repeat": "%from = view %row (i 16, j 8) -> [j]\n%to = view %y (i 16, j 8) -> [j]\n copy %from -> %to",
    "an axis of one": "%from = view %x (i 1, j 8) -> [i, j]\n%to = view %y (i 1, j 8) -> [j]\n copy %from -> %to",
    "rows past one": "%one = view %y (u 1, j 8) -> [j]\n%to = view %one (i 16, j 8) -> [i ?, j]\n copy %x -> %to",
    "coordinates that are alike": "%to = view %y (i 16, j 8) -> [j]\n map over (i 16, j 8) %to = f32([j])",
    "a fill": "%to = view %y (i 16, j 8) -> [j]\n fill %to 0",
    "digits": "%from = view %x (i 4, j 8) -> [i, j]\n%to = view %z (i 4, j 8) -> [8*(i%4) + j]\n copy %from -> %to",
}


def checked(body: str) -> None:
    check(parse_block(f"block f({ARGUMENTS})\n machine hopper\n{{\n {body}\n}}"), machine("hopper"))


@pytest.mark.parametrize("name", REFUSED)
def test_two_values_of_one_element_are_refused(name: str) -> None:
    body, says = REFUSED[name]
    with pytest.raises(ProgramError) as caught:
        checked(body)
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ALLOWED)
def test_equal_values_and_places_of_their_own_are_not_refused(name: str) -> None:
    checked(ALLOWED[name])
