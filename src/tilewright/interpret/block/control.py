"""Interpret loops, branches, tasks, channels and barriers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from random import Random
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const
from tilewright.analysis.lifetimes import uses_task_memory
from tilewright.errors import OutOfBoundsFault, ProgramError, ProtocolFault
from tilewright.interpret.block.channels import Channel, Fill, Hold
from tilewright.interpret.block.memory import at_line, grid
from tilewright.interpret.block.moving import load
from tilewright.interpret.block.multicast import channels_of
from tilewright.interpret.block.registers import Registers
from tilewright.interpret.block.worker import Agent, Steps, Waiting
from tilewright.interpret.evaluation import evaluated
from tilewright.ir.attrs import Range
from tilewright.ir.core import Op
from tilewright.ir.tensors import numbers


def points(agent: Agent, ranges: tuple[Range, ...]) -> Iterator[dict[str, int]]:
    """Yield {loop variable: value} for each iteration of the loop nest `ranges`, the last variable fastest.

    Also set the variables in `agent.values`, since limits may depend on earlier variables; they stay set at the end.
    `agent` is the wave that executes the loop.
    """
    if not ranges:
        yield {}
        return
    loop, *rest = ranges
    lo, hi = (evaluated(e, agent.values) for e in (loop.lo, loop.hi))
    for value in range(int(lo), int(hi), loop.step):
        agent.values[loop.symbol.name] = value
        for inner_values in points(agent, tuple(rest)):
            yield {loop.symbol.name: value, **inner_values}


def for_(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `for` loop, for the wave `agent`: the body, then the `finally` block, for each value of the loop
    variables.

    With `overlap=defer`, the `finally` block of an iteration runs during the next iteration. Raise an ExecutionError if
    the first range has more iterations than the interpreter may still execute.
    """
    first = op.attrs["ranges"][0]
    lo, hi = (evaluated(e, agent.values) for e in (first.lo, first.hi))
    agent.worker.budget.require(-(-(int(hi) - int(lo)) // first.step), "rounds", op)
    yield from _iterations(agent, op, points(agent, op.attrs["ranges"]))


def _iterations(
    agent: Agent, op: Op, iterations: Iterable[dict[str, int]], synchronises: tuple[bool, ...] = (False, False)
) -> Steps:
    """Execute the blocks of the loop `op` for the wave `agent`, once for each entry of `iterations`, {loop variable:
    value}. At the end, remove the loop variables from `agent.values`.

    With `overlap=defer`, the `finally` block of an iteration runs during the next iteration. `synchronises` is (after
    body, after `finally`): True if the waves of the group synchronise there. Without `defer`, the waves synchronise at
    the end of each iteration if either is True.
    """
    deferred_end: Agent | None = None
    deferred = op.attrs.get("overlap") == "defer"
    for point in iterations:
        agent.worker.budget.spend(op)
        agent.values |= point
        yield from agent.run(op.blocks[0])
        if deferred:
            if synchronises[0]:
                yield from agent.meet(op)
            if deferred_end is not None:
                yield from _join(agent, deferred_end, op)
            deferred_end = _defer(agent, op, synchronises[1])
            continue
        if len(op.blocks) == 2:
            yield from agent.run(op.blocks[1])
        if any(synchronises):
            yield from agent.meet(op)
    for loop in op.attrs["ranges"]:
        agent.values.pop(loop.symbol.name, None)
    if deferred_end is not None:
        yield from _join(agent, deferred_end, op)


def _defer(agent: Agent, op: Op, synchronises: bool) -> Agent:
    """Start the `finally` block of an iteration of `op` as a new agent (interpreted wave), and return the agent.

    It runs concurrently with the wave `agent`, on copies of its registers and loop variables. If `synchronises`, it
    synchronises at its end with the deferred blocks of the other waves.
    """
    deferred = Agent(agent.worker, agent.group, agent.wave, agent.role, agent.clock.fork())
    deferred.clock.parts = list(agent.clock.parts)
    deferred.values, deferred.deals = dict(agent.values), agent.deals
    deferred.handles = {v: h.snapshot() if hasattr(h, "snapshot") else h for v, h in agent.handles.items()}
    deferred.steps = _run_deferred(deferred, op, synchronises)
    agent.worker.start(deferred)
    return deferred


def _run_deferred(deferred: Agent, op: Op, synchronises: bool) -> Steps:
    """Run the `finally` block of the loop `op` for `deferred`, the agent that was started for this block, and mark the
    agent as done (`steps` is None).

    If `synchronises`, the agent synchronises at its end with the deferred blocks of the other waves.
    """
    yield from deferred.run(op.blocks[1])
    if synchronises:
        yield from deferred.meet(op, "deferred")
    deferred.steps = None


def _join(agent: Agent, deferred: Agent, op: Op) -> Steps:
    """Wait until `deferred`, the agent that runs the `finally` block of the previous iteration, has finished.

    Its accesses are then ordered before the next accesses of the wave `agent`. `op` is the loop.
    """
    yield Waiting(lambda: deferred.steps is None, lambda: "waits for the deferred end of the round before", op)
    agent.clock.join(deferred.clock)


def while_(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `while` loop, for the wave `agent`: repeat the body as long as any element of the condition,
    operand 0, is not 0.

    Raise a ProgramError if the condition is not in registers, and an ExecutionError after too many iterations.
    """
    flag = agent.handles[op.operands[0]]
    while True:
        agent.worker.budget.spend(op)
        values = flag.read(flag.mine, op) if isinstance(flag, Registers) else None
        if values is None:
            raise ProgramError(f"{at_line(op)}: the number that `while` looks at is in registers", op.loc)
        if not values.any():
            return
        yield from agent.run(op.blocks[0])


def if_(agent: Agent, op: Op) -> Steps | None:
    """Return the generator that executes `op`, an `if`, for the wave `agent`: it runs the block that the condition
    selects.

    Return None if the condition is false and there is no `else`.
    """
    if evaluated(op.attrs["when"], agent.values):
        return agent.run(op.blocks[0])
    return agent.run(op.blocks[1]) if len(op.blocks) == 2 else None


def share_of(worker: int, workers: int, total: int, schedule: str, seed: int) -> list[int]:
    """Return the numbers of the tasks that worker number `worker` of `workers` executes, in order. There are `total`
    tasks.

    `schedule` "contiguous" gives a run of consecutive tasks. "dynamic" gives each task to a random worker, drawn from
    `seed`. Any other schedule, such as "strided", gives the tasks worker, worker + workers, worker + 2*workers, ...

    >>> share_of(1, 3, 8, "strided", 0), share_of(1, 3, 8, "contiguous", 0)
    ([1, 4, 7], [3, 4, 5])
    """
    if schedule == "contiguous":
        per_worker = -(-total // workers)
        return list(range(worker * per_worker, min(total, (worker + 1) * per_worker)))
    if schedule == "dynamic":  # whoever is free takes the next: any worker may
        random = Random(seed)
        owner = [random.randrange(workers) for _ in range(total)]
        return [task for task in range(total) if owner[task] == worker]
    return list(range(worker, total, workers))


def tasks(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `tasks` loop, for the wave `agent`: the body for each task that the schedule gives to its worker
    (workgroup).

    If the body allocates shared memory, the waves synchronise after each task. With `overlap=pingpong`, two halves of
    the waves alternate. With the attribute `turn` (0 or 1, in loop programs), only every second task is executed, from
    task number `turn` of the worker on. Raise a ProgramError if a limit of the loop is not constant, and an
    ExecutionError for too many tasks.
    """
    ranges = op.attrs["ranges"]
    for r in ranges:
        if not isinstance(r.lo, Const) or not isinstance(r.hi, Const):
            raise ProgramError(f"{at_line(op)}: the limits of tasks are numbers once parameters are bound", op.loc)
    names = [r.symbol.name for r in ranges]
    count = prod(max(0, -(-(r.hi.value - r.lo.value) // r.step)) for r in ranges)
    agent.worker.budget.require(count, "tasks", op)
    every_task = list(product(*(range(r.lo.value, r.hi.value, r.step) for r in ranges)))
    worker, schedule = agent.worker, op.attrs.get("schedule", "strided")
    agent.deals += schedule == "dynamic"
    if schedule == "table":
        task_numbers = _tasks_of_table(agent, op, len(every_task))
    else:
        task_numbers = share_of(worker.number, worker.workers, len(every_task), schedule, worker.seed + agent.deals)
    outer_task = agent.clock.task
    table = id(op.operands[0]) if op.operands else 0
    own_tasks = [
        (
            _task_class(agent, schedule, len(every_task), t, outer_task, table),
            dict(zip(names, every_task[t], strict=True)),
        )
        for t in task_numbers
    ]
    synchronises = worker.task_memory.get(id(op))
    if synchronises is None:
        synchronises = worker.task_memory[id(op)] = uses_task_memory(op)
    if "turn" in op.attrs:  # of the loop level: every second one
        own_tasks = own_tasks[int(evaluated(op.attrs["turn"], agent.values)) :: 2]
    if op.attrs.get("overlap") == "pingpong":
        yield from _pingpong(agent, op, own_tasks, any(synchronises))
    else:
        yield from _iterations(agent, op, (_enter_task(agent, task, point) for task, point in own_tasks), synchronises)
    agent.clock.task = outer_task


def _tasks_of_table(agent: Agent, op: Op, total: int) -> list[int]:
    """Return the numbers of the tasks that the worker of the wave `agent` executes, in order, from the task table,
    operand 0 of `op`.

    They are the entries in the rows w, w + workers, ... of the table, for worker number w; negative entries are
    skipped. Raise an OutOfBoundsFault if the table has a task number of `total` or more, and a ProtocolFault if it has
    a task number twice.
    """
    table = agent.handles[op.operands[0]]
    entries = load(table, grid(table.shape), op, agent.clock)
    task_numbers = entries[entries >= 0]
    if task_numbers.size and task_numbers.max() >= total:
        raise OutOfBoundsFault(f"{at_line(op)}: the table names task {task_numbers.max()}; there are {total}", op.loc)
    numbers_, counts = np.unique(task_numbers, return_counts=True)
    if (counts > 1).any():
        raise ProtocolFault(f"{at_line(op)}: the table names task {numbers_[counts > 1][0]} more than once", op.loc)
    own_rows = entries[agent.worker.number :: agent.worker.workers].reshape(-1)
    return [int(task) for task in own_rows if task >= 0]


def _task_class(agent: Agent, schedule: str, total: int, number: int, outside: int, table: int) -> int:
    """Return a class number of a task. Tasks of one class always run on the same worker, for any number of workers, so
    that their accesses do not race.

    `agent` is the wave that runs the task, `number` the task's number, of `total`. `outside` is the class of the task
    around the loop. Tasks of equal `number` and `outside` in two loops of the same `schedule` have one class.
    Contiguous loops must also have the same `total`, table loops the same `total` and `table` (an id). Two dynamic
    loops must also be the n-th dynamic loop, for the same n, that their wave enters.
    """
    same_loop = {"contiguous": (total,), "dynamic": (agent.deals,), "table": (total, table)}.get(schedule, ())
    classes = agent.worker.classes
    return classes.setdefault((outside, schedule, number, *same_loop), len(classes))


def _enter_task(agent: Agent, task: int, point: dict[str, int]) -> dict[str, int]:
    """Set the current task of the wave `agent` to `task`, a class number for finding races; return `point`, {loop
    variable: value}, unchanged.
    """
    agent.clock.task = task
    return point


def _pingpong(agent: Agent, op: Op, own_tasks: list[tuple[int, dict[str, int]]], synchronises: bool) -> Steps:
    """Execute the ping-pong loop `op` for the wave `agent`: two halves of the role's waves alternate.

    `own_tasks` are the tasks of both halves, as (class number, {loop variable: value}); see `_task_class`. The first
    half executes tasks 0, 2, ..., the second half the others. Bodies run one after another in this order; the `finally`
    block of a task overlaps with the next body. If `synchronises`, the waves of a half synchronise after each task.
    Raise a ProgramError for an odd number of waves.
    """
    worker, role_group = agent.worker, agent.group
    if role_group.waves % 2:
        raise ProgramError(f"{at_line(op)}: pingpong needs an even number of waves, not {role_group.waves}", op.loc)
    half = role_group.waves // 2
    side, wave_in_half = divmod(agent.wave, half)
    visit = worker.visit(("turns", id(op), agent.group.key, agent.wave))
    body_clocks: list[list[np.ndarray[Any, Any]]] = worker.turns.setdefault((id(op), visit), [[] for _ in own_tasks])
    outer_wave = agent.wave
    agent.group, agent.wave = worker.group((role_group.key, id(op), side), half), wave_in_half
    for number, (task, point) in enumerate(own_tasks):
        if number % 2 != side:
            continue
        agent.values |= _enter_task(agent, task, point)
        if number:
            last = body_clocks[number - 1]
            yield Waiting(lambda last=last: len(last) == half, lambda: "waits for its turn", op)  # type: ignore[misc]
            for known in last:
                agent.clock.meet(known)
        yield from agent.run(op.blocks[0])
        body_clocks[number].append(agent.clock.now())
        if len(op.blocks) == 2:
            yield from agent.run(op.blocks[1])
        if synchronises:
            yield from agent.meet(op)
        for name in point:
            agent.values.pop(name, None)
    agent.group, agent.wave = role_group, outer_wave


def role(agent: Agent, op: Op) -> Steps:
    """Raise a ProgramError, always: `role` is allowed only at the top level of a program, where the Worker
    executes it.
    """
    raise ProgramError(f"{at_line(op)}: roles stand on the outermost level of a program", op.loc)


def barrier(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `barrier`, for the wave `agent`: wait for all waves of its group (the workgroup, or its role).

    All accesses of these waves before the barrier are ordered before all their accesses after the barrier. The
    generator yields once before it waits.
    """
    yield None
    yield from agent.meet(op)


def edge(agent: Agent, op: Op) -> Steps | None:
    """Do nothing and return None: an `edge` operation only orders generated code."""
    return None


# -- channels -----------------------------------------------------------------------------------------------


def channel(agent: Agent, op: Op) -> Steps | None:
    """Execute `op`, a `channel`, for the wave `agent`: bind its result to a `Channel`, which passes pipeline stages.
    Return None.

    The first wave creates it. All waves of the worker, or of the role that declares it, share it.
    """
    key = ("channel", id(op), agent.group.key)
    channel_state = agent.worker.shared.get(key)
    if channel_state is None:
        channel_state = agent.worker.shared[key] = Channel(op, numbers((op.attrs["stages"],), "stages")[0])
    agent.handles[op.results[0]] = channel_state
    return None


def acquire(agent: Agent, op: Op) -> Steps:
    """Execute `op`, an `acquire`, for the wave `agent`: wait until the stage of the wave's next fill is free, and take
    the fill for writing.

    A fill is one use of a stage. The results of `op` are bound to the tensors of the stage. If a cluster shares the
    channel, the stage must be free in all workgroups of the cluster. Raise a ProtocolFault in a role that is not the
    producer.
    """
    ring: Channel = agent.handles[op.operands[0]]
    _require_role(agent, op, ring, "producer")
    number = ring.next_of(op, agent)
    yield Waiting(
        lambda: all(shared_ring.may_acquire(number) for shared_ring in channels_of(agent, ring)),
        lambda: _not_free(ring, number),
        op,
    )
    fill = ring.fill(number)
    if number >= ring.stages:
        for shared_ring in channels_of(agent, ring):
            for known in shared_ring.fill(number - ring.stages).freed:
                agent.clock.meet(known)
    ring.begin(fill, agent)
    fill.acquired[agent.wave] = op, agent.clock.stamp
    fill.producers = agent.group.waves
    ring.take(op, agent)
    _bind_stage(agent, op, ring, fill, "producer")


def _not_free(ring: Channel, number: int) -> str:
    """Return text for a deadlock report that explains why the stage of `ring` for fill number `number` is not free: the
    stage's previous fill, and the number of waves that have released it.
    """
    previous_fill = ring.fill(number - ring.stages)
    state = f"{len(previous_fill.released)} of {previous_fill.consumers or '?'} waves have released it"
    return f"waits for stage {number % ring.stages} of %{ring.name} to be free: of fill {previous_fill.number}, {state}"


def _bind_stage(agent: Agent, op: Op, ring: Channel, fill: Fill, side: str) -> None:
    """Bind the results of `op` (acquire or wait), for the wave `agent`, to the tensors of the stage of `fill`.

    `ring` is the channel, `fill` one use of a stage, and `side` "producer" or "consumer". Each access to the tensors is
    checked: it must come before the commit or release.
    """
    hold = Hold(ring, fill, agent.wave, side, op)
    for value, tensor in zip(op.results, ring.views(fill.number, hold, agent), strict=True):
        agent.handles[value] = tensor


def _require_role(agent: Agent, op: Op, ring: Channel, side: str) -> None:
    """Raise a ProtocolFault if the wave `agent` executes `op` in a role that is not the `side` ("producer" or
    "consumer") of the channel `ring`. A wave outside of roles passes.
    """
    expected_role = ring.op.attrs[side]
    if agent.role and agent.role != expected_role:
        raise ProtocolFault(
            f"{at_line(op)} in role {agent.role}: the {side} of %{ring.name} is {expected_role}", op.loc
        )


def commit(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `commit`, for the wave `agent`: pass the oldest fill that the wave has acquired and not committed
    to the consumers.

    A fill is one use of a stage. Raise a ProtocolFault if there is no such fill, or in a role that is not the producer.
    The generator yields once at first, so that other waves may run.
    """
    yield None
    ring: Channel = agent.handles[op.operands[0]]
    _require_role(agent, op, ring, "producer")
    fill = ring.take_oldest_held(op, agent)
    if fill is None:
        raise ProtocolFault(f"{at_line(op)}: nothing of %{ring.name} was acquired that could be committed", op.loc)
    fill.committed.add(agent.wave)
    fill.knows.append(agent.clock.now())


def wait(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `wait`, for the wave `agent`: wait until the wave's next fill is full, and take the fill for
    reading.

    A fill is one use of a stage. The generator yields once, a Waiting for this fill. Then the results of `op` are bound
    to the tensors of the stage. Raise a ProtocolFault in a role that is not the consumer. Raise it too if the previous
    fill of the stage is not full yet: on a machine, the parity of a barrier does not distinguish these two fills.
    """
    ring: Channel = agent.handles[op.operands[0]]
    _require_role(agent, op, ring, "consumer")
    number = ring.next_of(op, agent)
    if number >= ring.stages and not ring.fill(number - ring.stages).full:
        raise ProtocolFault(
            f"{at_line(op)} waits for fill {number} of %{ring.name} while fill {number - ring.stages} of that stage "
            "is not there yet: a barrier tells neighbouring phases apart, not these",
            op.loc,
        )
    fill = ring.fill(number)
    yield Waiting(lambda: fill.full, lambda: _not_full(ring, fill), op)
    for known in fill.knows:
        agent.clock.meet(known)
    fill.waited[agent.wave] = op, agent.clock.stamp
    fill.consumers = agent.group.waves
    ring.take(op, agent)
    _bind_stage(agent, op, ring, fill, "consumer")


def _not_full(ring: Channel, fill: Fill) -> str:
    """Return text for a deadlock report that explains why `fill`, one use of a stage of the channel `ring`, is not
    full: the number of waves that have committed it.
    """
    state = f"{len(fill.committed)} of {fill.producers or '?'} waves have committed it"
    return f"waits for fill {fill.number} of %{ring.name}: {state}"


def release(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `release`, for the wave `agent`: free the oldest fill that the wave has waited for and not
    released, so that producers may use its stage again.

    A fill is one use of a stage. Raise a ProtocolFault if there is no such fill, or in a role that is not the consumer.
    The generator yields once at first, so that other waves may run.
    """
    yield None
    ring: Channel = agent.handles[op.operands[0]]
    _require_role(agent, op, ring, "consumer")
    fill = ring.take_oldest_held(op, agent)
    if fill is None:
        raise ProtocolFault(f"{at_line(op)}: nothing of %{ring.name} was waited for that could be released", op.loc)
    fill.released.add(agent.wave)
    fill.freed.append(agent.clock.now())
    ring.ever_released = True
