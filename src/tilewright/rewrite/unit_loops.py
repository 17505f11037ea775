"""Loops of one iteration: the body takes the place of the loop.

    %5 = iterate %0 axis=(K) (%1: f32[M, N]) {       K = 512, in one tile
      %2 = read %a ... ; %3 = mma %2, %w, %1             %2 = read %a ...
      yield %3 }                                          %5 = mma %2, %w, %0

The task itself then computes the body, as in a program without the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Program, building
from tilewright.ir.verifier import verify
from tilewright.rewrite.rewriter import Rewriter


def without_unit_loops(
    program: Program, free: Collection[Op], trips: Callable[[Op], int | None]
) -> tuple[Program, Collection[Op]]:
    """Replace each loop with one iteration by its body; return (new program, counterparts of the other loops of `free`
    in it).

    If there is no such loop, both are returned unchanged. `trips` is a function from a loop to its number of
    iterations, or to None if that is not known. `free` holds the loops that give the same result for every tile size.
    """
    unit = {op for op in program.walk() if op.name == "iterate" and trips(op) == 1}
    if not unit:
        return program, free
    with building():
        rewriter = _WithoutLoops(unit)
        rewritten = replace(program, body=rewriter.body(program.body))
        verify(rewritten)
    return rewritten, {rewriter.kept[op] for op in free if op in rewriter.kept}


class _WithoutLoops(Rewriter):
    """Rewrites a program with the bodies of the loops `unit` in place of these loops."""

    def __init__(self, unit: Collection[Op]):
        super().__init__()
        self.unit = unit

    def over(self, dims: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Return `dims` unchanged: tiles keep their dimensions."""
        return dims

    def access(self, op: Op) -> Mapping[str, object]:
        """Return {}: the read or write `op` keeps its attributes."""
        return {}

    def is_removed(self, op: Op) -> bool:
        """True if the loop `op` has one iteration."""
        return op in self.unit
