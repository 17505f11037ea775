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
    """Yield the values of the loop variables by name for each iteration, the last variable fastest, and set them in
    `agent.values`. Limits may depend on earlier variables.
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
    """Execute a `for` for the wave `agent`: the body for each value of the loop variables, with `finally` at the end of
    each iteration, deferred if `overlap` says so.
    """
    first = op.attrs["ranges"][0]
    lo, hi = (evaluated(e, agent.values) for e in (first.lo, first.hi))
    agent.worker.budget.require(-(-(int(hi) - int(lo)) // first.step), "rounds", op)
    yield from _iterations(agent, op, points(agent, op.attrs["ranges"]))


def _iterations(
    agent: Agent, op: Op, iterations: Iterable[dict[str, int]], synchronises: tuple[bool, ...] = (False, False)
) -> Steps:
    """Execute the loop `op`; `iterations` has the loop variables of each iteration. A deferred end overlaps with the
    next iteration. `synchronises` = (body, end) says after which of the two blocks the waves synchronise.
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
    """Start the end of an iteration as an agent (an interpreted wave) of its own, on a copy of the registers, and
    return it. `synchronises` says whether the waves synchronise after it.
    """
    deferred = Agent(agent.worker, agent.group, agent.wave, agent.role, agent.clock.fork())
    deferred.clock.parts = list(agent.clock.parts)
    deferred.values, deferred.deals = dict(agent.values), agent.deals
    deferred.handles = {v: h.snapshot() if hasattr(h, "snapshot") else h for v, h in agent.handles.items()}
    deferred.steps = _run_deferred(deferred, op, synchronises)
    agent.worker.start(deferred)
    return deferred


def _run_deferred(deferred: Agent, op: Op, synchronises: bool) -> Steps:
    """Run the `finally` block of `op` for the deferred agent, and mark the agent as done."""
    yield from deferred.run(op.blocks[1])
    if synchronises:
        yield from deferred.meet(op, "deferred")
    deferred.steps = None


def _join(agent: Agent, deferred: Agent, op: Op) -> Steps:
    """Wait until the agent `deferred`, the deferred end of an iteration, has finished, and order it before what the
    wave does next.
    """
    yield Waiting(lambda: deferred.steps is None, lambda: "waits for the deferred end of the round before", op)
    agent.clock.join(deferred.clock)


def while_(agent: Agent, op: Op) -> Steps:
    """Execute a `while` for the wave `agent`: the body as long as its register flag is not zero."""
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
    """Return the execution of the block of an `if` that its condition selects; None if there is no such block."""
    if evaluated(op.attrs["when"], agent.values):
        return agent.run(op.blocks[0])
    return agent.run(op.blocks[1]) if len(op.blocks) == 2 else None


def share_of(worker: int, workers: int, total: int, schedule: str, seed: int) -> list[int]:
    """Return the numbers of the tasks, of `total`, that worker number `worker` of `workers` executes, in order. `seed`
    decides the owners if `schedule` is "dynamic".

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
    """Execute a `tasks` loop for the wave `agent`: the tasks of its worker. If tasks allocate shared memory, the waves
    synchronise after each task.
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
    """Return the task numbers in the worker's rows of the table operand; negative entries are skipped. Raise a fault if
    the table names a task twice, or one of `total` or beyond.
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
    """Return a number that is the same for tasks which one worker executes, however many workers there are.

    `number` is the task's number of `total`, `outside` the class of the task around the loop, `table` the identity of a
    task table. Strided, tasks with the same number in any strided loops share a class; contiguous, only in loops with
    equally many tasks; of a table, only with the same table; dynamic, only in the same loop for other roles of the
    workgroup.
    """
    same_loop = {"contiguous": (total,), "dynamic": (agent.deals,), "table": (total, table)}.get(schedule, ())
    classes = agent.worker.classes
    return classes.setdefault((outside, schedule, number, *same_loop), len(classes))


def _enter_task(agent: Agent, task: int, point: dict[str, int]) -> dict[str, int]:
    """Set the agent's current task to class number `task` and return `point`, the values of the loop variables."""
    agent.clock.task = task
    return point


def _pingpong(agent: Agent, op: Op, own_tasks: list[tuple[int, dict[str, int]]], synchronises: bool) -> Steps:
    """Execute a ping-pong loop for the wave `agent`: two halves of the role's waves alternate between `own_tasks`,
    pairs (task class, loop variables). Bodies run in task order; an end overlaps with the next body. `synchronises`:
    waves synchronise after each task.
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
    """Raise a ProgramError: a `role` is valid only on the outermost level, where the worker handles it."""
    raise ProgramError(f"{at_line(op)}: roles stand on the outermost level of a program", op.loc)


def barrier(agent: Agent, op: Op) -> Steps:
    """Execute a `barrier` for the wave `agent`: wait for all waves of its group (the workgroup, or a role)."""
    yield None
    yield from agent.meet(op)


def edge(agent: Agent, op: Op) -> Steps | None:
    """Do nothing: an `edge` constrains code generation only."""
    return None


# -- channels -----------------------------------------------------------------------------------------------


def channel(agent: Agent, op: Op) -> Steps | None:
    """Execute a `channel` for the wave `agent`: bind its result to the channel of the worker, or of the role that
    declares it. The first wave creates it for all.
    """
    key = ("channel", id(op), agent.group.key)
    channel_state = agent.worker.shared.get(key)
    if channel_state is None:
        channel_state = agent.worker.shared[key] = Channel(op, numbers((op.attrs["stages"],), "stages")[0])
    agent.handles[op.results[0]] = channel_state
    return None


def acquire(agent: Agent, op: Op) -> Steps:
    """Execute an `acquire` for the wave `agent`: wait until the stage of its next fill is free, and take it."""
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
    """Return the text, for a deadlock report, why the stage of `ring` for fill `number` is not free."""
    previous_fill = ring.fill(number - ring.stages)
    state = f"{len(previous_fill.released)} of {previous_fill.consumers or '?'} waves have released it"
    return f"waits for stage {number % ring.stages} of %{ring.name} to be free: of fill {previous_fill.number}, {state}"


def _bind_stage(agent: Agent, op: Op, ring: Channel, fill: Fill, side: str) -> None:
    """Bind the results of `op` to the tensors of the stage of `fill`, which the wave holds as `side`, "producer" or
    "consumer".
    """
    hold = Hold(ring, fill, agent.wave, side, op)
    for value, tensor in zip(op.results, ring.views(fill.number, hold, agent), strict=True):
        agent.handles[value] = tensor


def _require_role(agent: Agent, op: Op, ring: Channel, side: str) -> None:
    """Raise a ProtocolFault if the role that executes `op` is not the `side` ("producer" or "consumer") of the channel
    `ring`.
    """
    expected_role = ring.op.attrs[side]
    if agent.role and agent.role != expected_role:
        raise ProtocolFault(
            f"{at_line(op)} in role {agent.role}: the {side} of %{ring.name} is {expected_role}", op.loc
        )


def commit(agent: Agent, op: Op) -> Steps:
    """Execute a `commit` for the wave `agent`: hand on the oldest fill that it acquired and has not committed."""
    yield None
    ring: Channel = agent.handles[op.operands[0]]
    _require_role(agent, op, ring, "producer")
    fill = ring.given_back(op, agent)
    if fill is None:
        raise ProtocolFault(f"{at_line(op)}: nothing of %{ring.name} was acquired that could be committed", op.loc)
    fill.committed.add(agent.wave)
    fill.knows.append(agent.clock.now())


def wait(agent: Agent, op: Op) -> Steps:
    """Execute a `wait` for the wave `agent`: wait until its next fill is full, and take it."""
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
    """Return the text, for a deadlock report, why `fill` of the channel `ring` is not full."""
    state = f"{len(fill.committed)} of {fill.producers or '?'} waves have committed it"
    return f"waits for fill {fill.number} of %{ring.name}: {state}"


def release(agent: Agent, op: Op) -> Steps:
    """Execute a `release` for the wave `agent`: give back the oldest fill that it waited for and has not released."""
    yield None
    ring: Channel = agent.handles[op.operands[0]]
    _require_role(agent, op, ring, "consumer")
    fill = ring.given_back(op, agent)
    if fill is None:
        raise ProtocolFault(f"{at_line(op)}: nothing of %{ring.name} was waited for that could be released", op.loc)
    fill.released.add(agent.wave)
    fill.freed.append(agent.clock.now())
    ring.ever_released = True
