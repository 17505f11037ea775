"""Channels as rings of stages: how far a wave has come in one, its barriers, and a stage that is held."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.algebra.expr import ZERO, Expr
from tilewright.ir.core import Op, Value
from tilewright.passes.places import PlacedMemory


@dataclass(frozen=True)
class Count:
    """How far a wave has come in a ring of stages: which stage is next, and how often the ring has turned.

    Both are kept, and counted on by comparing: a quotient of the fill's number is no address that all lanes are known
    to share, and products would wait for it in every step.
    """

    stages: int
    stage: Value | None
    """None: there is one."""
    turn: Value | None
    """None: nobody asks."""


@dataclass(frozen=True)
class StagePlace:
    """A fill: its stage, and which turn of the ring it is."""

    stage: Expr
    turn: Expr


@dataclass(eq=False)
class BarrierRing:
    """A channel in the role that is written: its barriers, and the wave's counters."""

    op: Op
    stages: int
    full: Value
    empty: Value
    base: Expr
    """The number of its first barrier: each half of a role has its own, where the channel is the half's."""
    counters: dict[str, Count]
    own: bool
    """Whether one role is producer and consumer."""
    leaves: bool = False
    """Whether copies leave from the stage that is held."""
    everywhere: bool = False
    """Whether workgroups of the cluster bring parts for one another: a stage is empty when it is so in all of them."""
    late: bool = False
    """Whether the first wave's releases are put off to where the stage is wanted again."""
    groups: int = 1
    """Groups of the role's waves that each hand over a part of their own."""

    def barrier(self, place: StagePlace) -> Expr:
        """The barrier of a fill's stage."""
        return self.base + place.stage


@dataclass(frozen=True)
class Stage(PlacedMemory):
    """A stage of a channel, held: which barrier it has."""

    ring: Any = None
    stage: Expr = ZERO
