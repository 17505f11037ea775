"""One workgroup at work: its waves are agents that run step by step, in an order that a seed decides.

An agent is a Python generator. It yields None where another may run, or a `Waiting` whose condition must hold first.
Copies that are under way are finished late, whenever the schedule says. When nobody can run and nothing is under way,
the program is stuck, and the report says who waits for what.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.check.distribution import placement
from tilewright.errors import DeadlockFault, ExecutionError, ProgramError, ProtocolFault
from tilewright.interpret.block.accesses import EVERYONE, Watch
from tilewright.interpret.block.channels import Channel
from tilewright.interpret.block.clocks import Clock, Clocks
from tilewright.interpret.block.memory import Buffer, TensorMemory, TensorWindow, at_line
from tilewright.interpret.block.registers import Registers
from tilewright.interpret.evaluation import evaluated, names_in
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.tensors import RegisterType, TensorType, numbers
from tilewright.limits import BUFFER, STEPS, shown
from tilewright.machine import Machine

Array = np.ndarray[Any, np.dtype[Any]]
Steps = Generator["Waiting | None", None, Any]
Handle = Any  # Tensor | View | Registers | Channel

WAVES = 32
"""The most waves of a workgroup."""


@dataclass
class Waiting:
    """What an agent waits for, and how to say it."""

    until: Callable[[], bool]
    why: Callable[[], str]
    op: Op


@dataclass(eq=False)
class Copying:
    """A copy that is under way: `finish` does it."""

    finish: Callable[[], None]
    op: Op
    clock: Clock
    done: bool = False
    covered: bool = False
    then: list[Callable[[Copying], None]] = field(default_factory=list)
    """Who is told of its end."""


@dataclass(eq=False)
class Group:
    """Waves that do collective operations together."""

    key: Any
    waves: int
    meetings: dict[Any, dict[int, Any]] = field(default_factory=dict)
    counts: dict[Any, int] = field(default_factory=dict)


class Agent:
    """One wave (or the deferred part of one): where it is, what its names mean, what it knows."""

    def __init__(self, worker: Worker, group: Group, wave: int, role: str, clock: Clock):
        self.worker, self.group, self.wave, self.role, self.clock = worker, group, wave, role, clock
        self.started: dict[str, list[Any]] = {}  # what goes on by itself, by kind; see `loop_waves`
        self.deals = 0  # how often it has come to tasks whose owners only the run decides
        self.handles: dict[Value, Handle] = {}
        self.values: dict[str, int] = {}
        self.steps: Steps | None = None
        self.waiting: Waiting | None = None

    def peers(self) -> list[Worker]:
        """The workgroups of the cluster, this one among them."""
        return self.worker.cluster.workers

    @property
    def name(self) -> str:
        """What the agent is called in reports."""
        return f"{self.role} wave {self.wave}" if self.role else f"wave {self.wave}"

    def run(self, block: Block) -> Steps:
        """The operations of a block, in order."""
        handlers, budget = self.worker.handlers, self.worker.budget
        for op in block.ops:
            budget.spend(op)
            steps = handlers[op.name](self, op)
            if steps is not None:
                yield from steps

    def part(self) -> AbstractContextManager[Clock]:
        """The clock under which the wave does its part of a collective operation on memory."""
        return nullcontext(self.clock) if self.group.waves == 1 else self.clock.part()

    def exchange(self, op: Op, payload: Any, part: str = "") -> Steps:
        """Waits for the other waves of the group at (a part of) an operation; gives what each brought, by wave.

        That orders nothing: where a wave needs nothing from another, a machine does not make it wait.
        """
        group, place = self.group, (id(op), part)
        count = group.counts.get((place, self.wave), 0)
        group.counts[place, self.wave] = count + 1
        meeting = group.meetings.setdefault((place, count), {})
        meeting[self.wave] = payload
        if len(meeting) == group.waves:
            del group.meetings[place, count]
        else:
            yield Waiting(
                lambda: len(meeting) == group.waves,
                lambda: f"waits for the other waves ({len(meeting)} of {group.waves} are there)",
                op,
            )
        return [meeting[w] for w in range(group.waves)]

    def meet(self, op: Op, part: str = "") -> Steps:
        """Meets the other waves of the group: what each did before is ordered before what all do from here on."""
        known = yield from self.exchange(op, self.clock.now(), part)
        for other in known:
            self.clock.meet(other)


class Budget:
    """How many operations an interpreter still does; a program that goes on and on ends with an error."""

    def __init__(self, steps: int):
        self.steps = self.left = steps

    def spend(self, op: Op) -> None:
        """One operation, or one round of a loop, is done."""
        self.left -= 1
        if self.left < 0:
            raise ExecutionError(
                f"{at_line(op)}: {self.steps} operations were done, and the program goes on; {STEPS.rule}", op.loc
            )

    def require(self, count: int, what: str, op: Op) -> None:
        """Raises at once where so many rounds are to come."""
        if count > self.left:
            raise ExecutionError(f"{at_line(op)}: {shown(count)} {what}; {STEPS.rule}", op.loc)


class Cluster:
    """Workgroups that run at the same time: mostly one alone. Their actors have one set of clocks."""

    def __init__(self, seed: int, shared: Iterable[Value] = ()):
        self.workers: list[Worker] = []
        self.clocks = Clocks()
        self.random = random.Random(seed)
        self.shared = frozenset(shared)
        """Channels into whose stages they bring parts for one another."""
        self.requests: dict[Any, tuple[int, Buffer, Array]] = {}
        """What the first of them asked for, of each copy that they share: all ask for the same."""
        self.counts: dict[Any, int] = {}

    def run(self) -> None:
        """Runs all waves to the end; raises what is wrong."""
        for worker in self.workers:
            worker.begin()
        self._schedule()
        for worker in self.workers:
            worker.check_end()

    def _schedule(self) -> None:
        live = [a for worker in self.workers for a in worker.agents]
        while live:
            ready = [a for a in live if a.waiting is None or a.waiting.until()]
            pending = [(w, c) for w in self.workers for c in w.copies if not c.done]
            if pending and (not ready or self.random.random() < 0.2):
                worker, copy = self.random.choice(pending)
                worker.finish(copy)
                continue
            if not ready:
                raise self._stuck(live)
            agent = ready[0] if len(ready) == 1 else self.random.choice(ready)
            live += self._advance(agent, live)
        for worker in self.workers:
            for copy in worker.copies:
                if not copy.done:
                    worker.finish(copy)

    def _advance(self, agent: Agent, live: list[Agent]) -> list[Agent]:
        """One agent runs on, until it waits; gives the agents that it started."""
        assert agent.steps is not None
        worker = agent.worker
        before = len(worker.agents)
        for _ in range(self.random.randint(1, 6)):
            try:
                agent.waiting = next(agent.steps)
            except StopIteration:
                live.remove(agent)
                agent.clock.end()
                break
            if agent.waiting is not None:
                if not agent.waiting.until():
                    break
                agent.waiting = None
        return worker.agents[before:]

    def _stuck(self, live: list[Agent]) -> DeadlockFault:
        lines = []
        for agent in live:
            assert agent.waiting is not None
            who = f"workgroup {agent.worker.rank} " if len(self.workers) > 1 else ""
            line = f"{who}{agent.name}: {agent.waiting.why()} at {at_line(agent.waiting.op)}"
            lines.append(line)
        shown = "\n  ".join(dict.fromkeys(lines))
        waiting = live[0].waiting
        return DeadlockFault(f"deadlock: every wave waits\n  {shown}", None if waiting is None else waiting.op.loc)


class Worker:
    """One workgroup: its memory, its channels, its agents."""

    def __init__(
        self,
        program: Program,
        machine: Machine | None,
        arguments: Mapping[Value, TensorMemory],
        number: int,
        workers: int,
        seed: int,
        handlers: Mapping[str, Callable[[Agent, Op], Steps | None]],
        classes: dict[Any, int],
        budget: Budget,
        cluster: Cluster,
    ):
        self.budget = budget
        self.cluster, self.rank = cluster, len(cluster.workers)
        cluster.workers.append(self)
        self.program, self.machine, self.handlers = program, machine, handlers
        self.number, self.workers, self.classes = number, workers, classes
        self.seed = seed
        self.arguments = arguments
        self.shared: dict[Any, Handle] = {}
        self.copies: list[Copying] = []
        self.agents: list[Agent] = []
        self.clocks = cluster.clocks
        self.visits: dict[Any, int] = {}
        self.task_memory: dict[int, tuple[bool, ...]] = {}
        self.turns: dict[Any, Any] = {}
        self.logs: list[tuple[str, Array]] = []
        self.watching = False

    # -- running ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """All waves are made, and have done nothing yet."""
        roles = [op for op in self.program.body.ops if op.name == "role"]
        record = self.program.record("waves")
        if roles:
            counts = [numbers((op.attrs["waves"],), op.name)[0] for op in roles]
        else:
            counts = [1 if record is None else numbers((record.attrs["count"],), "waves")[0]]
        total = sum(counts)
        if total > WAVES:
            raise ProgramError(f"{total} waves are more than the interpreter takes ({WAVES})")
        overlaps = any(op.attrs.get("overlap", "none") != "none" for op in self.program.walk())
        self.watching = total > 1 or overlaps or any("by" in op.attrs for op in self.program.walk())
        group = Group("all", total)
        place = 0
        parts: list[Op | None] = [*roles] or [None]
        for count, role in zip(counts, parts, strict=True):
            for wave in range(count):
                agent = Agent(self, group, place, "", self.clocks.begin(EVERYONE))
                agent.handles = dict(self.arguments)
                agent.steps = self._wave(agent, role, count, wave)
                self.agents.append(agent)
                place += 1
        for argument, tensor in self.arguments.items():
            watched = self.watching and argument.type.role != "in"  # nobody races for what is only read
            if self.rank == 0 or not watched:
                tensor.buffer.watch = Watch(tensor.buffer.data.size) if watched else None

    def _wave(self, agent: Agent, role: Op | None, count: int, wave: int) -> Steps:
        """A wave runs what stands outside roles, and its own role."""
        if role is None:
            yield from agent.run(self.program.body)
            return
        for op in self.program.body.ops:
            if op.name != "role":
                steps = self.handlers[op.name](agent, op)
                if steps is not None:
                    yield from steps
            elif op is role:
                everyone, place = agent.group, agent.wave
                agent.group = self.group((id(op),), count)
                agent.wave, agent.role = wave, op.attrs["name"]
                numbers_ = (wave, self.rank)
                agent.values |= {s.name: n for s, n in zip(op.attrs.get("over", ()), numbers_, strict=False)}
                yield from agent.run(op.blocks[0])
                agent.group, agent.wave, agent.role = everyone, place, ""

    def group(self, key: Any, waves: int) -> Group:
        """The group of that key; made once."""
        found = self.shared.get(("group", key))
        if found is None:
            found = self.shared["group", key] = Group(key, waves)
        made: Group = found
        return made

    def finish(self, copy: Copying) -> None:
        """A copy that is under way is done."""
        copy.finish()
        copy.done = True
        for told in copy.then:
            told(copy)
        copy.clock.end()
        self.copies = [c for c in self.copies if not c.done or not c.covered]

    def start(self, agent: Agent) -> None:
        """A further agent, which the scheduler takes up."""
        self.agents.append(agent)

    def check_end(self) -> None:
        """That nothing was left half done."""
        for copy in self.copies:
            if not copy.covered:
                raise ProtocolFault(
                    f"{at_line(copy.op)} is under way when the program ends: no commit and no release covers it",
                    copy.op.loc,
                )
        for found in self.shared.values():
            if isinstance(found, Channel):
                found.check_end()

    # -- making things --------------------------------------------------------------------------------

    def shared_tensor(self, agent: Agent, op: Op, kind: TensorType) -> TensorMemory:
        """The shared memory of an alloc: one for the worker, or for the group of a role.

        Each time it is come to, the same memory is taken, and nothing of it is initialised.
        """
        key = ("alloc", id(op), agent.group.key)
        visit = self.visit((key, agent.wave))
        found: TensorMemory | None = self.shared.get((key, visit))
        if found is None:
            memory = self.shared.get(key)
            if memory is None:
                name = f"%{op.results[0].name or 'shared'}"
                BUFFER.check(kind.cosize(), at_line(op))
                memory = Buffer(name, np.zeros(kind.cosize(), kind.dtype.numpy), "shared", False)
                memory.watch = Watch(memory.data.size) if self.watching else None
                self.shared[key] = memory
            fresh = memory.alike(initialised=np.zeros(memory.data.size, bool), staged=None)
            found = self.shared[key, visit] = TensorMemory.whole(fresh, kind)
        if self.visit((key, visit, "all")) == agent.group.waves:
            del self.shared[key, visit], self.visits[key, visit, "all"]
        return found

    def visit(self, key: Any) -> int:
        """How often somebody has come there, this time included."""
        self.visits[key] = self.visits.get(key, 0) + 1
        return self.visits[key]

    def registers(self, agent: Agent, op: Op, kind: RegisterType) -> Registers:
        """A wave's part of a register tensor."""
        spread = placement(kind, self.machine)
        lanes = self.lanes(spread.threads, agent)
        if lanes * agent.group.waves != spread.threads:
            raise ProgramError(
                f"{at_line(op)} is spread over {spread.threads} threads; {agent.group.waves} waves of {lanes} run it",
                op.loc,
            )
        part = slice(agent.wave * lanes, (agent.wave + 1) * lanes)
        elements = spread.elements[part]
        ids = (
            np.ravel_multi_index(np.unravel_index(elements, spread.shape, order="F"), spread.shape)
            if spread.shape
            else elements
        )
        shape = elements.shape
        name = op.results[0].name or "register"
        data = np.zeros(shape, kind.dtype.numpy)
        return Registers(data, np.zeros(shape, bool), np.asarray(ids), spread.first[part], spread.shape, name)

    def lanes(self, threads: int, agent: Agent) -> int:
        """The lanes of a wave: the machine's, or, where vectors have any width, what the tensor has."""
        if self.machine is None or self.machine.lanes is None:
            return threads // agent.group.waves
        return self.machine.lanes

    def view(self, base: Handle, op: Op, values: dict[str, int]) -> Handle:
        """The view that an operation makes."""
        shape = tuple(int(evaluated(e, values)) for e in op.results[0].type.shape)
        if isinstance(base, Registers):
            return base.view(op, values, shape)
        used = {name: values[name] for e, _ in op.attrs["at"] for name in names_in(e) if name in values}
        return TensorWindow(base, op, used, shape)
