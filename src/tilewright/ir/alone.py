"""Host programs that launch one program."""

from __future__ import annotations

from typing import Any

from tilewright.algebra.expr import as_expr
from tilewright.ir.binding import open_parameters
from tilewright.ir.builder import Builder
from tilewright.ir.core import Program
from tilewright.ir.host import HOST


def alone(program: Program, workers: int) -> Program:
    """The host program that launches one program, on all its arguments, and does nothing else.

    >>> from tilewright.ir.block import parse_block
    >>> print(alone(parse_block("block zero(%y: out global f32 (M))\\n  param M in 1..9 { fill %y 0 }"), 2))
    host zero_host(%y: out global f32 (M))
      param M in 1..9
    {
      launch zero(%y) workers 2 with M = M
    }
    <BLANKLINE>
    """
    opened = open_parameters(program)
    builder = Builder(HOST)
    if opened:
        builder.record("param", {"parameters": tuple((s, None) for s in opened)})
    args = tuple(builder.argument(a.name or "", a.type) for a in program.args)
    attrs: dict[str, Any] = {"program": program.name, "workers": as_expr(workers)}
    if opened:
        attrs["settings"] = tuple((s.name, s) for s in opened)
    builder.emit("launch", args, attrs)
    return builder.program(f"{program.name}_host")
