"""Plans as text: they round-trip, and what is wrong with a text is said."""

from __future__ import annotations

import pytest

from tilewright.errors import ArgumentError
from tilewright.plan.schedule import Axis, Digit, Schedule, Split, ValuePlacement
from tilewright.plan.text import parse_plan

TEXT = """axis m_2 = (m_2 3): task 1
axis rows = (m_1 56, m_0 57 of 56): task m_1 28, loop 32, unit 16
axis columns = (f_0 96 of 70): task 64, loop 32, unit 16
axis depth = (k_2 3, k_1 3, k_0 64): loop k_0 64, unit k_2 1, unit k_1 1, unit k_0 32
axis rest = (n 5?): whole
grid m_2, rows, columns
raster contiguous
loops columns, rows, depth
x strip at task, stream
w packed at bind
y in place, stream
atom amx.bf16
overlap delayed store"""


def test_a_plan_is_its_text():
    plan = parse_plan(TEXT)
    assert "\n".join(plan.lines()) == TEXT
    assert parse_plan(str(plan)) == plan
    assert plan.axis("rows") == Axis(
        "rows",
        (Digit("m_1", 56, 56), Digit("m_0", 56, 57)),
        (Split("task", 28, "m_1"), Split("loop", 32), Split("unit", 16)),
    )
    assert plan.operand("x") == ValuePlacement("x", "task", "strip", "stream")
    assert (plan.order, plan.overlap, plan.grid) == ("contiguous", "delayed store", ("m_2", "rows", "columns"))


@pytest.mark.parametrize("line", range(len(TEXT.splitlines())))
def test_every_statement_is_part_of_the_plan(line):
    lines = TEXT.splitlines()
    left = lines[:line] + lines[line + 1 :]
    names = {"m_2", "rows", "columns", "depth"}
    if any(lines[line].startswith(f"axis {name} ") for name in names):
        with pytest.raises(ArgumentError, match="there is no axis"):
            parse_plan("\n".join(left))
        return
    if lines[line].startswith("grid "):
        with pytest.raises(ArgumentError, match="`raster contiguous`: no line says the tasks that it orders"):
            parse_plan("\n".join(left))
        return
    other = parse_plan("\n".join(left))
    assert other != parse_plan(TEXT)
    assert parse_plan(str(other)) == other


WRONG = {
    "grid m": "there is no axis m; there are none; in `grid m`",
    "axis m = (m 8): task four": "'task four' is no split",
    "axis m = (m 8): lane 4": "'lane 4' is no split",
    "axis m = (m 8): task 0": "pieces have at least one element",
    "axis m = (m): task 4": "'m' is no digit",
    "axis m = (m 7 of 8): task 4": "at least the extent",
    "axis m = (m 8): task 4; axis m = (m 8): task 4": "m is said twice",
    "axis m = (m 8): task 4; grid n": "there is no axis n; there are m",
    "axis m = (m 8): task 4; loops m, n": "there is no axis n",
    "axis m = (m 8): task 4; x in place, hold": "the hint is one of keep, stream",
    "axis m = (m 8): task 4; x in the attic, keep": "is no statement",
    "axis m = (m 8): task 4; atom a; atom b": "atom is said twice",
    "tiles atom=amx.bf16": "is no statement",
}


@pytest.mark.parametrize("text", WRONG)
def test_what_is_wrong_with_a_text_is_said(text):
    with pytest.raises(ArgumentError, match="plan: ") as caught:
        parse_plan(text)
    assert WRONG[text] in str(caught.value)


def test_differences_are_statements():
    one = parse_plan(TEXT)
    other = Schedule(one.axes, one.grid, ("rows", "columns", "depth"), one.values, one.atom, one.order, "none")
    assert other.difference(one) == "loops rows, columns, depth; overlap none"
    assert one.difference(one) == ""
