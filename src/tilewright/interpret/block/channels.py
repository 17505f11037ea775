"""Channels: stages of memory handed from producers to consumers, fill by fill.

Fill number f uses stage f % stages. A producer *acquires* the next fill, which waits until its stage is free, writes
into it and *commits* it; it is full when all waves of the producer have committed and the copies under way into it have
landed. A consumer *waits* for the next fill to be full, reads it and *releases* it; the stage is free when all waves of
the consumer have released it and the copies that read from it are done.

Each wave counts the fills that it takes and gives back. Two actors of one wave (its deferred end, or the other half of
waves that take turns) may not count on unless one is ordered after the other: they would take each other's fills.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import ProtocolFault, RaceFault
from tilewright.interpret.block.clocks import BEGINNING, Stamp
from tilewright.interpret.block.memory import TensorMemory, at_line, grid
from tilewright.ir.core import Op

if TYPE_CHECKING:
    from tilewright.interpret.block.worker import Agent, Copying

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Fill:
    """One use of a stage, from the first acquire to the last release."""

    number: int
    acquired: dict[int, tuple[Op, Stamp]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    waited: dict[int, tuple[Op, Stamp]] = field(default_factory=dict)
    released: set[int] = field(default_factory=set)
    landing: list[Copying] = field(default_factory=list)
    leaving: list[Copying] = field(default_factory=list)
    producers: int = 0
    consumers: int = 0
    knows: list[Array] = field(default_factory=list)
    freed: list[Array] = field(default_factory=list)
    begun: bool = False
    expected: int = 0
    """Parts that workgroups of the cluster bring in all; `brought`, those they have started to."""
    brought: int = 0

    @property
    def full(self) -> bool:
        """Whether consumers may read it."""
        committed = bool(self.producers) and len(self.committed) == self.producers
        return committed and self.brought == self.expected and all(c.done for c in self.landing)

    @property
    def free(self) -> bool:
        """Whether its stage may be filled again."""
        return bool(self.consumers) and len(self.released) == self.consumers and all(c.done for c in self.leaving)


class Channel:
    """A channel of one worker (or of one group of waves, where it is declared in a role)."""

    def __init__(self, op: Op, stages: int):
        self.op, self.stages = op, stages
        self.name = op.results[0].name or "channel"
        self.fills: list[Fill] = []
        self.ever_released = False
        self.at: dict[tuple[str, str, int], tuple[int, Stamp]] = {}  # (step, role, wave) -> the next fill, who took one

    def fill(self, number: int) -> Fill:
        """The fill of that number."""
        while len(self.fills) <= number:
            self.fills.append(Fill(len(self.fills)))
        return self.fills[number]

    def next_of(self, op: Op, agent: Agent) -> int:
        """The number of the next fill that this agent acquires, commits, waits for or releases."""
        number, stamp = self.at.get((op.name, agent.role, agent.wave), (0, BEGINNING))
        if not agent.clock.knows(stamp):
            raise RaceFault(
                f"{at_line(op)}: nothing orders it after the {op.name} of %{self.name} by another part of the same "
                "wave's work; which of them takes which fill is not said",
                op.loc,
            )
        return number

    def take(self, op: Op, agent: Agent) -> None:
        """The agent has done so with its next fill."""
        self.at[op.name, agent.role, agent.wave] = self.next_of(op, agent) + 1, agent.clock.stamp

    def given_back(self, op: Op, agent: Agent) -> Fill | None:
        """The fill that a commit or release hands on, the oldest that the wave holds; None: it holds none."""
        fill = self.fill(self.next_of(op, agent))
        taken = (fill.acquired if op.name == "commit" else fill.waited).get(agent.wave)
        if taken is None:
            return None
        before, stamp = taken
        if not agent.clock.knows(stamp):
            raise RaceFault(f"{at_line(op)}: nothing orders it after {at_line(before)}, whose fill it hands on", op.loc)
        self.take(op, agent)
        return fill

    def may_acquire(self, number: int) -> bool:
        """Whether the stage of a fill is free."""
        return number < self.stages or self.fill(number - self.stages).free

    def tensors(self, agent: Agent) -> list[TensorMemory]:
        """What the stages lie in, as the agent came to it."""
        return [agent.handles[v] for v in self.op.operands]

    def views(self, number: int, hold: Hold, agent: Agent) -> tuple[TensorMemory, ...]:
        """The stage's tensors."""
        return tuple(t.stage(number % self.stages, hold) for t in self.tensors(agent))

    def begin(self, fill: Fill, agent: Agent) -> None:
        """A fill is written to from now on: what fills before wrote into its stage counts as not written."""
        if fill.begun:
            return
        fill.begun, number = True, fill.number
        for tensor in self.tensors(agent):
            written = tensor.buffer.staged
            if written is not None:
                _, places, _ = tensor.locate((number % self.stages, *grid(tensor.shape[1:])), self.op)
                places = np.asarray(places)
                tensor.buffer.initialised[places] &= ~written[places]
                tensor.buffer.given = False

    def check_end(self) -> None:
        """That nothing was left half done."""
        for fill in self.fills:
            for wave, (op, _) in fill.acquired.items():
                if wave not in fill.committed:
                    raise ProtocolFault(
                        f"{at_line(op)} took fill {fill.number} of %{self.name}, which was never committed", op.loc
                    )
            for wave, (op, _) in fill.waited.items():
                if wave not in fill.released and self.ever_released:
                    raise ProtocolFault(
                        f"{at_line(op)} took fill {fill.number} of %{self.name}, which was never released", op.loc
                    )
            if fill.leaving and len(fill.released) != fill.consumers:
                op = fill.leaving[0].op
                raise ProtocolFault(
                    f"{at_line(op)} is under way when the program ends: fill {fill.number} of %{self.name}, which it "
                    "reads, is never released",
                    op.loc,
                )
            if fill.committed and not fill.waited:
                raise ProtocolFault(
                    f"fill {fill.number} of %{self.name} was committed, but nobody waited for it ({at_line(self.op)})",
                    self.op.loc,
                )


class Hold:
    """A stage as one agent holds it: from acquire to commit, or from wait to release."""

    def __init__(self, channel: Channel, fill: Fill, agent: int, side: str, op: Op):
        self.channel, self.fill, self.agent, self.side, self.op = channel, fill, agent, side, op

    def check(self, op: Op) -> None:
        """That it is still held."""
        done = self.fill.committed if self.side == "producer" else self.fill.released
        if self.agent in done:
            word = "committed" if self.side == "producer" else "released"
            raise ProtocolFault(
                f"{at_line(op)} touches fill {self.fill.number} of %{self.channel.name}, taken by {at_line(self.op)}, "
                f"after it was {word}",
                op.loc,
            )
