"""Groups of waves: waves that do collective operations together, and groups that start their MMAs in order."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.algebra.expr import Expr
from tilewright.ir.core import Op, Value


@dataclass(frozen=True)
class WaveGroup:
    """Waves that do collective operations together: their number, this wave's index among them, and the identifier of
    the barrier at which they synchronise.
    """

    waves: int
    wave: Expr
    barrier: Expr
    side: Expr
    """0 or 1: the half of the role, if halves take tasks in turn; 0 otherwise."""
    halves: int = 1


@dataclass(frozen=True)
class OrderedGroups:
    """The order in which groups of waves start the MMAs of a loop: a barrier per group (`order`), a counter of
    iterations (`iterations`), the MMAs of one iteration, and the waves per group (`waves_per_group`).
    """

    order: Value
    iterations: Value
    products: tuple[Op, ...]
    waves_per_group: int
    """The number of waves per group."""
