"""Groups of waves: those that do collective operations together, and those that start their products in turn."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Value


@dataclass(frozen=True)
class WaveGroup:
    """Waves that do collective operations together: how many, this one's number, the barrier where they meet."""

    waves: int
    wave: Expr
    barrier: Expr
    side: Expr
    """Which of two halves it is, where the role's waves take tasks in turn; 0 otherwise."""
    halves: int = 1


@dataclass(frozen=True)
class Turns:
    """The turns of a loop: a barrier for each group, how many rounds the wave has done, and the products of a round."""

    order: Value
    rounds: Value
    products: tuple[Op, ...]
    together: int
    """Waves of a group."""
