"""Groups of waves: those that do collective operations together, and those that start their products in turn."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Value


@dataclass(frozen=True)
class WaveGroup:
    """Waves that do collective operations together: their number, this wave's index, and the barrier at which they
    meet.
    """

    waves: int
    wave: Expr
    barrier: Expr
    side: Expr
    """0 or 1: the half of the role, if halves take tasks in turn; 0 otherwise."""
    halves: int = 1


@dataclass(frozen=True)
class Turns:
    """The turns of a loop: a barrier for each group, a counter of iterations, and the MMAs of an iteration."""

    order: Value
    rounds: Value
    products: tuple[Op, ...]
    together: int
    """Waves of a group."""
