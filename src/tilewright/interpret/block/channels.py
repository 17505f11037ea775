"""Channels: stages of memory handed from producers to consumers, fill by fill.

Fill number f uses stage f % stages. A producer *acquires* the next fill, which waits until its stage is free, writes to
it and *commits* it. The fill is full when all waves of the producer have committed and the asynchronous copies into it
have completed. A consumer *waits* for the next fill to be full, reads it and *releases* it. The stage is free when all
waves of the consumer have released it and the copies that read from it are done.

Each wave counts its fills. Two actors of one wave (its deferred `finally`, or its part in a ping-pong loop) must be
ordered to share the count: otherwise either could take the other's fill.
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
    """One use of a channel's stage, from the first acquire to the last release, with the waves that have done each
    step.

    `landing` are the asynchronous copies into the stage, and `leaving` those from it. `knows` holds the vector clocks
    of the commits and of `landing`; `freed` those of the releases and of `leaving`. `producers` and `consumers` are
    numbers of waves (0: not known yet).
    """

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
    """Multicast parts that the workgroups of the cluster copy to it; `started` counts those already started."""
    started: int = 0

    @property
    def full(self) -> bool:
        """True if consumers may read the stage: all producer waves have committed this fill, all expected multicast
        copies have started, and all asynchronous copies into the stage are done.

        A fill is one use of a pipeline stage, from acquire to release.
        """
        committed = bool(self.producers) and len(self.committed) == self.producers
        return committed and self.started == self.expected and all(c.done for c in self.landing)

    @property
    def free(self) -> bool:
        """True if the stage may be filled again: all consumer waves have released this fill, and all asynchronous
        copies from the stage are done.

        A fill is one use of a pipeline stage, from acquire to release.
        """
        return bool(self.consumers) and len(self.released) == self.consumers and all(c.done for c in self.leaving)


class Channel:
    """A channel of one worker, or of one group of waves if a role declares it."""

    def __init__(self, op: Op, stages: int):
        self.op, self.stages = op, stages
        self.name = op.results[0].name or "channel"
        self.fills: list[Fill] = []
        self.ever_released = False
        self.at: dict[
            tuple[str, str, int], tuple[int, Stamp]
        ] = {}  # (operation, role, wave) -> number of its next fill, moment of its last

    def fill(self, number: int) -> Fill:
        """Return the record of fill number `number`, counted from 0. A fill is one use of a stage, from acquire to
        release. A record that does not exist yet is created.
        """
        while len(self.fills) <= number:
            self.fills.append(Fill(len(self.fills)))
        return self.fills[number]

    def next_of(self, op: Op, agent: Agent) -> int:
        """Return the number of the fill (one use of a stage) to which the wave `agent` applies `op` next.

        `op` is an acquire, commit, wait or release; each wave counts each of the four from 0. Raise a RaceFault if the
        previous operation of this name by the wave is not ordered before `op`: for instance, a deferred `finally` block
        runs concurrently with its wave.
        """
        number, last_moment = self.at.get((op.name, agent.role, agent.wave), (0, BEGINNING))
        if not agent.clock.knows(last_moment):
            raise RaceFault(
                f"{at_line(op)}: nothing orders it after the {op.name} of %{self.name} by another part of the same "
                "wave's work; which of them takes which fill is not said",
                op.loc,
            )
        return number

    def take(self, op: Op, agent: Agent) -> None:
        """Record that the wave `agent` has applied `op` (acquire, commit, wait or release) to its next fill: increase
        the count, and store the moment (clock stamp).

        Raise a RaceFault if the previous operation of this name by the wave is not ordered before `op`.
        """
        self.at[op.name, agent.role, agent.wave] = self.next_of(op, agent) + 1, agent.clock.stamp

    def take_oldest_held(self, op: Op, agent: Agent) -> Fill | None:
        """Record that the wave `agent` applies `op`, a commit or release, and return the fill (one use of a stage) to
        which it applies.

        A commit applies to the oldest fill that the wave has acquired and not committed, a release to the oldest fill
        that it has waited for and not released. If there is none, record nothing and return None. Raise a RaceFault if
        the wave's previous commit (release), or the acquire (wait) of this fill, is not ordered before `op`.
        """
        fill = self.fill(self.next_of(op, agent))
        acquisition = (fill.acquired if op.name == "commit" else fill.waited).get(agent.wave)
        if acquisition is None:
            return None
        acquiring_op, moment = acquisition
        if not agent.clock.knows(moment):
            raise RaceFault(
                f"{at_line(op)}: nothing orders it after {at_line(acquiring_op)}, whose fill it hands on", op.loc
            )
        self.take(op, agent)
        return fill

    def may_acquire(self, number: int) -> bool:
        """True if a producer may start fill number `number` (one use of a stage): the previous fill of the stage is
        free again. The first fill of each stage may always start.
        """
        return number < self.stages or self.fill(number - self.stages).free

    def tensors(self, agent: Agent) -> list[TensorMemory]:
        """Return a list of the channel's tensors in shared memory, as the wave `agent` sees these tensors. The first
        dimension of each tensor counts the stages.
        """
        return [agent.handles[operand] for operand in self.op.operands]

    def views(self, number: int, hold: Hold, agent: Agent) -> tuple[TensorMemory, ...]:
        """Return the tensors of the stage of fill number `number` (one use of a stage), as the wave `agent` sees them.

        The tensors store `hold`, the wave's right to access the stage; each access to the tensors is checked against
        `hold`.
        """
        return tuple(tensor.stage(number % self.stages, hold) for tensor in self.tensors(agent))

    def begin(self, fill: Fill, agent: Agent) -> None:
        """Mark the start of writing `fill` (one use of a stage): elements that earlier fills wrote to the stage become
        uninitialised. Do nothing at the second call for a fill.

        `agent` is a wave that sees the channel's memory.
        """
        if fill.begun:
            return
        fill.begun, number = True, fill.number
        for tensor in self.tensors(agent):
            staged = tensor.buffer.staged
            if staged is not None:
                stage = tensor.stage(number % self.stages, None)
                _, places, _ = stage.locate(grid(stage.shape), self.op)
                places = np.asarray(places)
                tensor.buffer.initialised[places] &= ~staged[places]
                tensor.buffer.given = False

    def check_end(self) -> None:
        """Raise a ProtocolFault if a fill (one use of a stage) is incomplete at the end of the program.

        A fill is incomplete if it was acquired but not committed, committed but never waited for, or read by an
        asynchronous copy but not released. A fill that was waited for must also be released, unless the program never
        releases a fill of this channel.
        """
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
    """The right of one wave to access a stage: from acquire to commit, or from wait to release.

    `agent` is the wave's number, `side` "producer" or "consumer", and `op` the acquire or wait.
    """

    def __init__(self, channel: Channel, fill: Fill, agent: int, side: str, op: Op):
        self.channel, self.fill, self.agent, self.side, self.op = channel, fill, agent, side, op

    def check(self, op: Op) -> None:
        """Raise a ProtocolFault if the wave has already committed (released) the fill, so that `op` accesses the stage
        too late.
        """
        finished_waves = self.fill.committed if self.side == "producer" else self.fill.released
        if self.agent in finished_waves:
            word = "committed" if self.side == "producer" else "released"
            raise ProtocolFault(
                f"{at_line(op)} touches fill {self.fill.number} of %{self.channel.name}, taken by {at_line(self.op)}, "
                f"after it was {word}",
                op.loc,
            )
