"""Wrap one program in a host program that only launches it."""

from __future__ import annotations

from typing import Any

from tilewright.algebra.expr import as_expr
from tilewright.ir.binding import open_parameters
from tilewright.ir.builder import Builder
from tilewright.ir.core import Program
from tilewright.ir.host import HOST


def launching_host(program: Program, workers: int) -> Program:
    """Return a host program that launches `program` on all its arguments, and does nothing else.

    The host program is named `<program>_host`, takes the same arguments, and launches with `workers` workers.
    Parameters of `program` that are open (declared with a range, known only at the call) become parameters of the host
    program, which passes their values on.

    >>> from tilewright.ir.block import parse_block
    >>> print(launching_host(parse_block("block zero(%y: out global f32 (M))\\n  param M in 1..9 { fill %y 0 }"), 2))
    host zero_host(%y: out global f32 (M))
      param M in 1..9
    {
      launch zero(%y) workers 2 with M = M
    }
    <BLANKLINE>
    """
    unbound = open_parameters(program)
    builder = Builder(HOST)
    if unbound:
        builder.record("param", {"parameters": tuple((s, None) for s in unbound)})
    args = tuple(builder.argument(a.name or "", a.type) for a in program.args)
    attrs: dict[str, Any] = {"program": program.name, "workers": as_expr(workers)}
    if unbound:
        attrs["settings"] = tuple((s.name, s) for s in unbound)
    builder.emit("launch", args, attrs)
    return builder.program(f"{program.name}_host")
