"""Channels as rings of stages: a wave's position in a ring, its barriers, and a stage that is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.algebra.expr import ZERO, Expr
from tilewright.ir.core import Op, Value
from tilewright.passes.places import PlacedMemory


@dataclass(frozen=True)
class Count:
    """A wave's position in a ring of stages: registers with the next stage, and with the number of turns of the ring.

    Both are kept, and advanced by comparing: a division of the fill's number gives no address that all lanes are known
    to share, and MMAs would wait for it in every step.
    """

    stages: int
    stage: Value | None
    """None: there is one."""
    turn: Value | None
    """None: nobody asks."""


@dataclass(frozen=True)
class StagePlace:
    """A fill of a ring: its stage, and the turn of the ring."""

    stage: Expr
    turn: Expr


@dataclass(eq=False)
class BarrierRing:
    """A channel in the role that is emitted: its barriers, and the wave's counters."""

    op: Op
    stages: int
    full: Value
    empty: Value
    base: Expr
    """The number of its first barrier: each half of a role has its own, where the channel is the half's."""
    counters: dict[str, Count]
    own: bool
    """True if one role is producer and consumer."""
    leaves: bool = False
    """True if bulk copies leave from the stage that is held."""
    everywhere: bool = False
    """True if workgroups of a cluster load parts for one another: a stage is empty when it is so in all of them."""
    late: bool = False
    """True if the first wave's releases are delayed until the stage is acquired again."""
    groups: int = 1
    """Groups of the role's waves that each hand over a part of their own."""

    def barrier(self, place: StagePlace) -> Expr:
        """Return the index of the barrier of a fill's stage."""
        return self.base + place.stage


@dataclass(frozen=True)
class Stage(PlacedMemory):
    """The memory of a stage that is held, with its channel and the index of its barrier."""

    ring: Any = None
    stage: Expr = ZERO
