"""The builder: result types follow, faults stand at the operation's location, and no block stays open."""

from __future__ import annotations

import pytest

from tilewright.algebra.expr import as_expr
from tilewright.errors import DtypeMismatch, ProgramError
from tilewright.ir.attrs import Range
from tilewright.ir.block import BLOCK, parse_block
from tilewright.ir.builder import Builder
from tilewright.ir.core import Block
from tilewright.ir.dtypes import f32, i32
from tilewright.ir.location import author_location
from tilewright.ir.tensors import TensorType
from tilewright.lower.cpu.lower import lower
from tilewright.targets.registry import machine


def begun() -> tuple[Builder, list]:
    builder = Builder(BLOCK)
    kinds = ((f32, "inout"), (i32, "in"))
    return builder, [builder.argument(k.name, TensorType("global", k, (as_expr(8),), role=r)) for k, r in kinds]


def test_an_exception_within_leaves_no_block_open():
    builder, (x, _) = begun()

    def fails() -> None:
        with builder.inside("tasks", attrs={"ranges": (Range.of("t", 0, 4),)}):
            builder.emit("fill", (x,), {"value": 0})
            builder.open()  # one more, within
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    builder.emit("fill", (x,), {"value": 1})
    assert [op.name for op in builder.program("p").walk()] == ["fill"]


def test_a_block_is_closed_after_those_within():
    builder, _ = begun()
    outer = builder.open()
    builder.open()
    with pytest.raises(ProgramError, match="while one within it is open"):
        builder.close(outer)


def test_faults_stand_at_the_location():
    builder, (x, n) = begun()
    loc = author_location()
    with pytest.raises(DtypeMismatch) as found:
        builder.emit("copy", (n, x), loc=loc)
    assert found.value.location is loc
    for attrs, said in (({"valve": 0}, "fill has no attribute valve; it has value"), ({"value": "a"}, "is no number")):
        with pytest.raises(ProgramError, match=said) as found:
            builder.emit("fill", (x,), attrs, loc=loc)
        assert found.value.location is loc
    with pytest.raises(ProgramError, match="no operation fly"):
        builder.emit("fly")
    assert builder.program("p").body.ops == []


def test_operations_go_to_a_block_that_is_made_elsewhere():
    builder, (x, _) = begun()
    other = Block()
    with builder.into(other):
        builder.emit("fill", (x,), {"value": 1})
    held = builder.create("fill", (x,), {"value": 2})
    assert [op.attrs["value"] for op in other.ops] == [1]
    assert builder.blocks[0].ops == []
    assert held.attrs["value"] == 2


def test_loop_operations_stand_at_the_line_of_the_operation_that_they_came_from():
    text = """block double(%x: in global f32 (8, 20), %y: out global f32 (8, 20))
{
  tasks m in 0..8 {
    %row = view %x (j 20) -> [m, j]
    %to = view %y (j 20) -> [m, j]
    map %to = %row + %row
  }
}"""
    lowered = lower(parse_block(text), None, machine("portable")).program
    lines = {op.name: op.loc.line for op in lowered.walk()}
    assert lines["tasks"] == 3
    assert {line for name, line in lines.items() if name != "tasks"} == {6}


def test_a_loop_with_step_0_is_refused():
    builder, _ = begun()
    with pytest.raises(ProgramError, match=r"for: the attribute ranges is .*, which is no ranges"):
        builder.create("for", (), {"ranges": (Range.of("t", 0, 4, 0),)}, blocks=(Block(),))


def test_a_missing_attribute_is_named():
    builder, (x, _) = begun()
    for name, operands, missing in (("view", (x,), "over"), ("fill", (x,), "value"), ("for", (), "ranges")):
        with pytest.raises(ProgramError, match=f"{name} needs the attribute {missing}"):
            builder.emit(name, operands)
    with pytest.raises(ProgramError, match="param needs the attribute parameters"):
        builder.record("param", {})
    with pytest.raises(ProgramError, match="there is no header line parameters on the block level"):
        builder.record("parameters", {})
    with pytest.raises(ProgramError, match="fill has no attribute values; it has value"):
        builder.emit("fill", (x,), {"value": 0, "values": 0})
    assert not builder.blocks[0].ops
    assert not builder.records
