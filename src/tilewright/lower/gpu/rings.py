"""Channels as rings of stages: a wave's position in a ring, a channel's barriers, and a stage that a wave holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.algebra.expr import ZERO, Expr
from tilewright.analysis.flat_memory import PlacedMemory
from tilewright.ir.core import Op, Value


@dataclass(frozen=True)
class RingPosition:
    """A wave's position in a ring of stages, kept in registers: the next stage, and the number of turns of the ring.

    Both are advanced by comparison. If they were computed by dividing the number of a fill, the compiler would not see
    that all lanes have the same address, and would wait for MMAs at every step.
    """

    stages: int
    stage: Value | None
    """The register with the index of the next stage; None if the ring has one stage."""
    turn: Value | None
    """The register with the number of completed turns; None if no barrier phase depends on it."""


@dataclass(frozen=True)
class StageFill:
    """One fill of a ring: the index of its stage, and the turn of the ring."""

    stage: Expr
    turn: Expr


@dataclass(eq=False)
class BarrierRing:
    """A channel as the current role sees it: its barriers, and the positions of a wave."""

    op: Op
    stages: int
    full: Value
    empty: Value
    base: Expr
    """The index of the first barrier that this half or group of the role uses."""
    counters: dict[str, RingPosition]
    one_role: bool
    """True if one role is producer and consumer."""
    has_copy_out: bool = False
    """True if a bulk copy reads the stage that the wave holds."""
    cluster_wide: bool = False
    """True if workgroups of a cluster load for each other: a stage is empty once all of them released it."""
    delays_release: bool = False
    """True if the first wave of a group releases a stage only when the stage is acquired again."""
    groups: int = 1
    """The number of groups of waves that use the channel independently, each with a part of every stage."""

    def barrier(self, fill: StageFill) -> Expr:
        """Return the index of the barrier for the stage of `fill`, as an expression. It is the same index in `full` and
        in `empty`.
        """
        return self.base + fill.stage


@dataclass(frozen=True)
class Stage(PlacedMemory):
    """The shared memory of a stage that a wave holds, with its channel (`ring`) and its barrier's index (`stage`)."""

    ring: Any = None
    stage: Expr = ZERO
