"""One workgroup at work: its waves are agents that run step by step, in an order that a seed decides.

An agent is a Python generator. It yields None where another agent may run, or a `Waiting` whose condition must hold
first. Asynchronous copies finish late, whenever the schedule says. If no agent can run and no copy is in flight, the
program is deadlocked, and the report says what each agent waits for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.analysis.distribution import placement
from tilewright.errors import (
    DeadlockFault,
    ExecutionError,
    ExpressionError,
    InterpreterFault,
    ProgramError,
    ProtocolFault,
)
from tilewright.interpret.block.accesses import EVERYONE, Watch
from tilewright.interpret.block.channels import Channel
from tilewright.interpret.block.clocks import Clock, Clocks
from tilewright.interpret.block.holding import holding
from tilewright.interpret.block.memory import Buffer, TensorMemory, TensorWindow, at_line, expressions
from tilewright.interpret.block.registers import Registers
from tilewright.interpret.evaluation import evaluated, names_in_all
from tilewright.ir.core import Block, Op, Program, Value
from tilewright.ir.tensors import RegisterType, TensorType, numbers
from tilewright.limits import BUFFER, STEPS, shown
from tilewright.machine import Machine

Array = np.ndarray[Any, np.dtype[Any]]
Steps = Generator["Waiting | None", None, Any]
Handle = Any  # TensorMemory | TensorWindow | Registers | Channel

WAVES = 64
"""The largest number of waves of a workgroup: 1024 lanes in waves of 16."""


@dataclass
class Waiting:
    """A condition `until` that an agent waits for, and the text `why` that a deadlock report shows."""

    until: Callable[[], bool]
    why: Callable[[], str]
    op: Op


@dataclass(eq=False)
class Copying:
    """An asynchronous copy or product in flight: `finish` executes it. It is `covered` if something waits for its
    end.
    """

    finish: Callable[[], None]
    op: Op
    clock: Clock
    done: bool = False
    covered: bool = False
    then: list[Callable[[Copying], None]] = field(default_factory=list)
    """Functions that are called when it has finished."""


@dataclass(eq=False)
class Group:
    """The waves that execute collective operations together, with the operations at which some of them already wait."""

    key: Any
    waves: int
    meetings: dict[Any, dict[int, Any]] = field(default_factory=dict)
    counts: dict[Any, int] = field(default_factory=dict)


class Agent:
    """One wave being interpreted, or its deferred end: the values bound to names, loop variables, and its vector
    clock.
    """

    def __init__(self, worker: Worker, group: Group, wave: int, role: str, clock: Clock):
        self.worker, self.group, self.wave, self.role, self.clock = worker, group, wave, role, clock
        self.started: dict[str, list[Any]] = {}  # asynchronous operations in flight, by kind; see `loop_waves`
        self.deals = 0  # how many dynamically scheduled task loops it has entered
        self.handles: dict[Value, Handle] = {}
        self.values: dict[str, int] = {}
        self.steps: Steps | None = None
        self.waiting: Waiting | None = None

    def peers(self) -> list[Worker]:
        """Return a list of the workgroups (`Worker`s) of the agent's cluster, including the agent's workgroup."""
        return self.worker.cluster.workers

    @property
    def name(self) -> str:
        """The name of the agent (interpreted wave) in reports, such as `load wave 0`, or `wave 0` outside of roles."""
        return f"{self.role} wave {self.wave}" if self.role else f"wave {self.wave}"

    def run(self, block: Block) -> Steps:
        """Execute the operations of `block` in order. The generator yields where other waves may run.

        Raise an ExecutionError if the interpreter's budget of operations is spent, and an InterpreterFault at the
        operation if an integer expression cannot be evaluated, as in a division by 0.
        """
        handlers, budget = self.worker.handlers, self.worker.budget
        for op in block.ops:
            budget.spend(op)
            try:
                steps = handlers[op.name](self, op)
                if steps is not None:
                    yield from steps
            except ExpressionError as fault:
                raise InterpreterFault(f"{at_line(op)}: {fault}", op.loc) from None

    def part_clock(self) -> AbstractContextManager[Clock]:
        """Return a context manager that yields the vector clock for the wave's part of a collective operation on
        memory.

        If the wave is alone in its group, it is the clock of the wave. Otherwise it is the clock of a new actor, so
        that no other wave is ordered after the part before the next synchronisation.
        """
        return nullcontext(self.clock) if self.group.waves == 1 else self.clock.part()

    def exchange(self, op: Op, payload: Any, part: str = "") -> Steps:
        """Wait for the other waves of the group at operation `op`; return a list of the `payload` of each wave, by wave
        number. A generator that yields a Waiting.

        `part` distinguishes several exchanges of one operation. An exchange does not order memory accesses: waves that
        need no data would not wait for each other on a machine.
        """
        group, key = self.group, (id(op), part)
        count = group.counts.get((key, self.wave), 0)
        group.counts[key, self.wave] = count + 1
        meeting = group.meetings.setdefault((key, count), {})
        meeting[self.wave] = payload
        if len(meeting) == group.waves:
            del group.meetings[key, count]
        else:
            yield Waiting(
                lambda: len(meeting) == group.waves,
                lambda: f"waits for the other waves ({len(meeting)} of {group.waves} are there)",
                op,
            )
        return [meeting[wave] for wave in range(group.waves)]

    def meet(self, op: Op, part: str = "") -> Steps:
        """Synchronise with the other waves of the group at operation `op`, as a barrier does. A generator that yields a
        Waiting.

        Everything that one of the waves did before is ordered before what each wave does afterwards. `part`
        distinguishes several barriers of one operation.
        """
        clocks = yield from self.exchange(op, self.clock.now(), part)
        for clock in clocks:
            self.clock.meet(clock)


class Budget:
    """The number of operations that an interpreter may still execute; a program that runs too long ends with an
    error.
    """

    def __init__(self, steps: int):
        self.steps = self.left = steps

    def spend(self, op: Op) -> None:
        """Count one operation or loop iteration, `op`, against the budget. Raise an ExecutionError if the budget is
        spent.
        """
        self.left -= 1
        if self.left < 0:
            raise ExecutionError(
                f"{at_line(op)}: {self.steps} operations were done, and the program goes on; {STEPS.rule}", op.loc
            )

    def require(self, count: int, what: str, op: Op) -> None:
        """Raise an ExecutionError if `count`, the trip count of the loop `op`, exceeds the remaining budget.

        Nothing is counted. `what` names the iterations in the message, such as "tasks".
        """
        if count > self.left:
            raise ExecutionError(f"{at_line(op)}: {shown(count)} {what}; {STEPS.rule}", op.loc)


class Cluster:
    """The workgroups that run at the same time, usually one. Their actors share one set of vector clocks."""

    def __init__(self, seed: int, shared: Iterable[Value] = ()):
        self.workers: list[Worker] = []
        self.clocks = Clocks()
        self.random = random.Random(seed)
        self.shared = frozenset(shared)
        """Channels whose stages receive multicast copies of several workgroups."""
        self.requests: dict[Any, tuple[int, Buffer, Array]] = {}
        """For each multicast copy, (rank, memory, elements) of the first workgroup's request; all must be equal."""
        self.counts: dict[Any, int] = {}

    def run(self) -> None:
        """Run all waves of all workgroups of the cluster to the end, and raise the first fault.

        At the end, raise a ProtocolFault for an asynchronous copy that nothing waits for, or for an incomplete use of a
        channel.
        """
        for worker in self.workers:
            worker.begin()
        self._schedule()
        for worker in self.workers:
            worker.check_end()

    def _schedule(self) -> None:
        """Run the agents (interpreted waves) in random order until all have ended; finish copies in flight at random
        moments.

        Raise a DeadlockFault if no agent can continue and no copy is in flight.
        """
        live = [a for worker in self.workers for a in worker.agents]
        while live:
            ready = [a for a in live if a.waiting is None or a.waiting.until()]
            in_flight = [(w, c) for w in self.workers for c in w.copies if not c.done]
            if in_flight and (not ready or self.random.random() < 0.2):
                worker, copy = self.random.choice(in_flight)
                worker.finish(copy)
                continue
            if not ready:
                raise self._deadlock_fault(live)
            agent = ready[0] if len(ready) == 1 else self.random.choice(ready)
            live += self._advance(agent, live)
        for worker in self.workers:
            for copy in worker.copies:
                if not copy.done:
                    worker.finish(copy)

    def _advance(self, agent: Agent, live: list[Agent]) -> list[Agent]:
        """Run `agent` (an interpreted wave) for one to six steps, or until it must wait or ends.

        Return a list of the agents that it started. If it ends, remove it from `live`, the list of running agents.
        """
        assert agent.steps is not None
        worker = agent.worker
        started_before = len(worker.agents)
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
        return worker.agents[started_before:]

    def _deadlock_fault(self, live: list[Agent]) -> DeadlockFault:
        """Return, not raise, a DeadlockFault with a message that says for what and where each agent (interpreted wave)
        in `live` waits.
        """
        lines = []
        for agent in live:
            assert agent.waiting is not None
            workgroup_name = f"workgroup {agent.worker.rank} " if len(self.workers) > 1 else ""
            line = f"{workgroup_name}{agent.name}: {agent.waiting.why()} at {at_line(agent.waiting.op)}"
            lines.append(line)
        shown = "\n  ".join(dict.fromkeys(lines))
        waiting = live[0].waiting
        return DeadlockFault(f"deadlock: every wave waits\n  {shown}", None if waiting is None else waiting.op.loc)


class Worker:
    """One workgroup: its memory, channels, agents and copies in flight."""

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
        """Create an agent (interpreted wave) for each wave of this workgroup. No agent executes anything yet.

        Start recording accesses to memory if races are possible. Raise a ProgramError for more than `WAVES` waves.
        """
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
        wave_number = 0
        programs: list[Op | None] = [*roles] or [None]
        for count, role in zip(counts, programs, strict=True):
            for wave in range(count):
                agent = Agent(self, group, wave_number, "", self.clocks.begin(EVERYONE))
                agent.handles = dict(self.arguments)
                agent.steps = self._wave_steps(agent, role, count, wave)
                self.agents.append(agent)
                wave_number += 1
        for argument, tensor in self.arguments.items():
            watched = self.watching and argument.type.role != "in"  # nobody races for what is only read
            if self.rank == 0 or not watched:
                tensor.buffer.watch = Watch(tensor.buffer.data.size) if watched else None

    def _wave_steps(self, agent: Agent, role: Op | None, count: int, wave: int) -> Steps:
        """Return the generator that executes the program for one wave, `agent`.

        The wave executes the operations outside of roles and in `role`, the operation of its role; if `role` is None,
        the whole program. `count` is the number of waves in the role, and `wave` the number of this wave in the role.
        """
        if role is None:
            yield from agent.run(self.program.body)
            return
        for op in self.program.body.ops:
            if op.name != "role":
                steps = self.handlers[op.name](agent, op)
                if steps is not None:
                    yield from steps
            elif op is role:
                all_waves, outer_wave = agent.group, agent.wave
                agent.group = self.group((id(op),), count)
                agent.wave, agent.role = wave, op.attrs["name"]
                role_numbers = (wave, self.rank)
                agent.values |= {s.name: n for s, n in zip(op.attrs.get("over", ()), role_numbers, strict=False)}
                yield from agent.run(op.blocks[0])
                agent.group, agent.wave, agent.role = all_waves, outer_wave, ""

    def group(self, key: Any, waves: int) -> Group:
        """Return the group of `waves` waves registered under `key`, for collective operations. The first call with a
        key creates the group.
        """
        existing = self.shared.get(("group", key))
        if existing is None:
            existing = self.shared["group", key] = Group(key, waves)
        group_of_key: Group = existing
        return group_of_key

    def finish(self, copy: Copying) -> None:
        """Execute `copy`, an asynchronous copy in flight: move its data, call the functions in `copy.then`, and end its
        actor.

        Then remove all finished copies that something waits for from `self.copies`.
        """
        copy.finish()
        copy.done = True
        for notify in copy.then:
            notify(copy)
        copy.clock.end()
        self.copies = [c for c in self.copies if not c.done or not c.covered]

    def start(self, agent: Agent) -> None:
        """Add `agent`, such as a `finally` block that runs during the next iteration, to the agents that the scheduler
        runs.
        """
        self.agents.append(agent)

    def check_end(self) -> None:
        """Raise a ProtocolFault for an asynchronous copy that no commit or release waits for, or for a channel with an
        incomplete use of a stage.
        """
        for copy in self.copies:
            if not copy.covered:
                raise ProtocolFault(
                    f"{at_line(copy.op)} is under way when the program ends: no commit and no release covers it",
                    copy.op.loc,
                )
        for handle in self.shared.values():
            if isinstance(handle, Channel):
                handle.check_end()

    # -- memory and registers -------------------------------------------------------------------------

    def shared_tensor(self, agent: Agent, op: Op, kind: TensorType) -> TensorMemory:
        """Return the shared memory of `op`, an `alloc` of type `kind`, for the wave `agent`; all waves of its group
        share the memory.

        Each execution of the `alloc` gets the same memory, marked as uninitialised. Raise LimitExceeded if the tensor
        is too large.
        """
        key = ("alloc", id(op), agent.group.key)
        visit = self.visit((key, agent.wave))
        tensor: TensorMemory | None = self.shared.get((key, visit))
        if tensor is None:
            memory = self.shared.get(key)
            if memory is None:
                name = f"%{op.results[0].name or 'shared'}"
                BUFFER.check(kind.cosize(), at_line(op))
                memory = Buffer(name, np.zeros(kind.cosize(), kind.dtype.numpy), "shared", False)
                memory.watch = Watch(memory.data.size) if self.watching else None
                self.shared[key] = memory
            uninitialised = memory.alike(initialised=np.zeros(memory.data.size, bool), staged=None)
            tensor = self.shared[key, visit] = TensorMemory.whole(uninitialised, kind)
        if self.visit((key, visit, "all")) == agent.group.waves:
            del self.shared[key, visit], self.visits[key, visit, "all"]
        return tensor

    def visit(self, key: Any) -> int:
        """Count one more visit under `key`, such as an operation and a wave; return the number of visits, including
        this one.
        """
        self.visits[key] = self.visits.get(key, 0) + 1
        return self.visits[key]

    def registers(self, agent: Agent, op: Op, kind: RegisterType) -> Registers:
        """Return the uninitialised registers of the wave `agent` for the register tensor of `op`, an `alloc`; `kind` is
        the type of the tensor.

        Raise a ProgramError if the tensor is distributed over another number of threads than the wave's group has.
        """
        spread = placement(kind, self.machine)
        lanes = self.lanes(spread.threads, agent)
        if lanes * agent.group.waves != spread.threads:
            raise ProgramError(
                f"{at_line(op)} is spread over {spread.threads} threads; {agent.group.waves} waves of {lanes} run it",
                op.loc,
            )
        name = op.results[0].name or "register"
        return Registers.uninitialised(kind.dtype.numpy, holding(spread, agent.wave * lanes, lanes), name)

    def lanes(self, threads: int, agent: Agent) -> int:
        """Return the number of lanes of a wave: the machine's number, if there is a machine with a fixed number of
        lanes.

        Otherwise return `threads` divided by the number of waves in the group of `agent`: on a CPU, vectors have any
        width.
        """
        if self.machine is None or self.machine.lanes is None:
            return threads // agent.group.waves
        return self.machine.lanes

    def view(self, base: Handle, op: Op, values: dict[str, int]) -> Handle:
        """Return the view of `base`, a tensor in memory or registers, that `op`, a `view` operation, makes.

        `values` is {loop variable: value}; the shape may depend on it. No element is accessed. Raise a ProgramError if
        a view of registers leaves its tensor or has an element twice.
        """
        shape = tuple([int(evaluated(e, values)) for e in op.results[0].type.shape])
        if isinstance(base, Registers):
            return base.view(op, values, shape)
        used_values = {name: values[name] for name in names_in_all(expressions(op.attrs["at"])) if name in values}
        return TensorWindow(base, op, used_values, shape)
