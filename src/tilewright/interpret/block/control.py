"""Loops, branches, tasks, channels and barriers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from random import Random
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const
from tilewright.check.lifetimes import uses_task_memory
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
    """The values of the loop variables, the last one fastest; limits may depend on the ones before."""
    if not ranges:
        yield {}
        return
    loop, *rest = ranges
    lo, hi = (evaluated(e, agent.values) for e in (loop.lo, loop.hi))
    for value in range(int(lo), int(hi), loop.step):
        agent.values[loop.symbol.name] = value
        for further in points(agent, tuple(rest)):
            yield {loop.symbol.name: value, **further}


def for_(agent: Agent, op: Op) -> Steps:
    """The body for each value of the loop variables; `finally` at the end of each, perhaps deferred."""
    first = op.attrs["ranges"][0]
    lo, hi = (evaluated(e, agent.values) for e in (first.lo, first.hi))
    agent.worker.budget.require(-(-(int(hi) - int(lo)) // first.step), "rounds", op)
    yield from _rounds(agent, op, points(agent, op.attrs["ranges"]))


def _rounds(agent: Agent, op: Op, rounds: Iterable[dict[str, int]], meets: tuple[bool, ...] = (False, False)) -> Steps:
    """The rounds of a loop, one after another; a deferred end runs beside the round that follows.

    `meets` says of the body and of the end whether the waves meet when they are through with it.
    """
    late: Agent | None = None
    deferred = op.attrs.get("overlap") == "defer"
    for point in rounds:
        agent.worker.budget.spend(op)
        agent.values |= point
        yield from agent.run(op.blocks[0])
        if deferred:
            if meets[0]:
                yield from agent.meet(op)
            if late is not None:
                yield from _join(agent, late, op)
            late = _defer(agent, op, meets[1])
            continue
        if len(op.blocks) == 2:
            yield from agent.run(op.blocks[1])
        if any(meets):
            yield from agent.meet(op)
    for loop in op.attrs["ranges"]:
        agent.values.pop(loop.symbol.name, None)
    if late is not None:
        yield from _join(agent, late, op)


def _defer(agent: Agent, op: Op, meets: bool) -> Agent:
    """The end of a round as an agent of its own: it runs beside the next round, on a copy of the registers."""
    late = Agent(agent.worker, agent.group, agent.wave, agent.role, agent.clock.fork())
    late.clock.parts = list(agent.clock.parts)
    late.values, late.deals = dict(agent.values), agent.deals
    late.handles = {v: h.snapshot() if hasattr(h, "snapshot") else h for v, h in agent.handles.items()}
    late.steps = _to_the_end(late, op, meets)
    agent.worker.start(late)
    return late


def _to_the_end(late: Agent, op: Op, meets: bool) -> Steps:
    yield from late.run(op.blocks[1])
    if meets:
        yield from late.meet(op, "deferred")
    late.steps = None


def _join(agent: Agent, late: Agent, op: Op) -> Steps:
    yield Waiting(lambda: late.steps is None, lambda: "waits for the deferred end of the round before", op)
    agent.clock.join(late.clock)


def while_(agent: Agent, op: Op) -> Steps:
    """The body as long as the number is not zero."""
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
    """One of two blocks."""
    if evaluated(op.attrs["when"], agent.values):
        return agent.run(op.blocks[0])
    return agent.run(op.blocks[1]) if len(op.blocks) == 2 else None


def share_of(worker: int, workers: int, total: int, schedule: str, seed: int) -> list[int]:
    """The numbers of the tasks that a worker does, in its order.

    >>> share_of(1, 3, 8, "strided", 0), share_of(1, 3, 8, "contiguous", 0)
    ([1, 4, 7], [3, 4, 5])
    """
    if schedule == "contiguous":
        part = -(-total // workers)
        return list(range(worker * part, min(total, (worker + 1) * part)))
    if schedule == "dynamic":  # whoever is free takes the next: any worker may
        chance = Random(seed)
        owner = [chance.randrange(workers) for _ in range(total)]
        return [t for t in range(total) if owner[t] == worker]
    return list(range(worker, total, workers))


def tasks(agent: Agent, op: Op) -> Steps:
    """The worker's share of all tasks. Where they have shared memory of their own, the waves meet after each task."""
    ranges = op.attrs["ranges"]
    for r in ranges:
        if not isinstance(r.lo, Const) or not isinstance(r.hi, Const):
            raise ProgramError(f"{at_line(op)}: the limits of tasks are numbers once parameters are bound", op.loc)
    names = [r.symbol.name for r in ranges]
    count = prod(max(0, -(-(r.hi.value - r.lo.value) // r.step)) for r in ranges)
    agent.worker.budget.require(count, "tasks", op)
    every = list(product(*(range(r.lo.value, r.hi.value, r.step) for r in ranges)))
    worker, schedule = agent.worker, op.attrs.get("schedule", "strided")
    agent.deals += schedule == "dynamic"
    if schedule == "table":
        mine = _dealt(agent, op, len(every))
    else:
        mine = share_of(worker.number, worker.workers, len(every), schedule, worker.seed + agent.deals)
    outside = agent.clock.task
    table = id(op.operands[0]) if op.operands else 0
    found = [
        (_task(agent, schedule, len(every), t, outside, table), dict(zip(names, every[t], strict=True))) for t in mine
    ]
    meets = worker.task_memory.get(id(op))
    if meets is None:
        meets = worker.task_memory[id(op)] = uses_task_memory(op)
    if "turn" in op.attrs:  # of the loop level: every second one
        found = found[int(evaluated(op.attrs["turn"], agent.values)) :: 2]
    if op.attrs.get("overlap") == "pingpong":
        yield from _pingpong(agent, op, found, any(meets))
    else:
        yield from _rounds(agent, op, (_at_task(agent, task, point) for task, point in found), meets)
    agent.clock.task = outside


def _dealt(agent: Agent, op: Op, total: int) -> list[int]:
    """The tasks of the worker's rows of a table, one after another; a negative entry is none."""
    table = agent.handles[op.operands[0]]
    entries = load(table, grid(table.shape), op, agent.clock)
    named = entries[entries >= 0]
    if named.size and named.max() >= total:
        raise OutOfBoundsFault(f"{at_line(op)}: the table names task {named.max()}; there are {total}", op.loc)
    numbers_, counts = np.unique(named, return_counts=True)
    if (counts > 1).any():
        raise ProtocolFault(f"{at_line(op)}: the table names task {numbers_[counts > 1][0]} more than once", op.loc)
    mine = entries[agent.worker.number :: agent.worker.workers].reshape(-1)
    return [int(t) for t in mine if t >= 0]


def _task(agent: Agent, schedule: str, total: int, number: int, outside: int, table: int) -> int:
    """A number for a task, the same for tasks that one worker does however many there are.

    Of a table that is any task of the same number, of the same table. Strided, that is the task of the same number in
    any other strided loop. Contiguous, the loops must have equally many tasks. Whoever is free takes the next dynamic
    task: only other roles of the workgroup have a part in it.
    """
    alike = {"contiguous": (total,), "dynamic": (agent.deals,), "table": (total, table)}.get(schedule, ())
    known = agent.worker.classes
    return known.setdefault((outside, schedule, number, *alike), len(known))


def _at_task(agent: Agent, task: int, point: dict[str, int]) -> dict[str, int]:
    """The agent comes to a task; gives its point."""
    agent.clock.task = task
    return point


def _pingpong(agent: Agent, op: Op, found: list[tuple[int, dict[str, int]]], meets: bool) -> Steps:
    """Two halves of the role's waves take tasks in turn; bodies run in order of tasks, ends beside the next body."""
    worker, whole = agent.worker, agent.group
    if whole.waves % 2:
        raise ProgramError(f"{at_line(op)}: pingpong needs an even number of waves, not {whole.waves}", op.loc)
    half = whole.waves // 2
    side, place = divmod(agent.wave, half)
    visit = worker.visit(("turns", id(op), agent.group.key, agent.wave))
    done: list[list[np.ndarray[Any, Any]]] = worker.turns.setdefault((id(op), visit), [[] for _ in found])
    before = agent.wave
    agent.group, agent.wave = worker.group((whole.key, id(op), side), half), place
    for number, (task, point) in enumerate(found):
        if number % 2 != side:
            continue
        agent.values |= _at_task(agent, task, point)
        if number:
            last = done[number - 1]
            yield Waiting(lambda last=last: len(last) == half, lambda: "waits for its turn", op)  # type: ignore[misc]
            for known in last:
                agent.clock.meet(known)
        yield from agent.run(op.blocks[0])
        done[number].append(agent.clock.now())
        if len(op.blocks) == 2:
            yield from agent.run(op.blocks[1])
        if meets:
            yield from agent.meet(op)
        for name in point:
            agent.values.pop(name, None)
    agent.group, agent.wave = whole, before


def role(agent: Agent, op: Op) -> Steps:
    """A role stands on the outermost level, where the worker sees to it."""
    raise ProgramError(f"{at_line(op)}: roles stand on the outermost level of a program", op.loc)


def barrier(agent: Agent, op: Op) -> Steps:
    """All waves of the group meet."""
    yield None
    yield from agent.meet(op)


def edge(agent: Agent, op: Op) -> Steps | None:
    """Says when arithmetic is done, not what comes of it."""
    return None


# -- channels -----------------------------------------------------------------------------------------------


def channel(agent: Agent, op: Op) -> Steps | None:
    """A channel: one for the worker, or for the group of a role that declares it."""
    key = ("channel", id(op), agent.group.key)
    found = agent.worker.shared.get(key)
    if found is None:
        found = agent.worker.shared[key] = Channel(op, numbers((op.attrs["stages"],), "stages")[0])
    agent.handles[op.results[0]] = found
    return None


def acquire(agent: Agent, op: Op) -> Steps:
    """Takes the next fill, when its stage is free."""
    found: Channel = agent.handles[op.operands[0]]
    _require_role(agent, op, found, "producer")
    number = found.next_of(op, agent)
    yield Waiting(
        lambda: all(each.may_acquire(number) for each in channels_of(agent, found)),
        lambda: _not_free(found, number),
        op,
    )
    fill = found.fill(number)
    if number >= found.stages:
        for each in channels_of(agent, found):
            for known in each.fill(number - found.stages).freed:
                agent.clock.meet(known)
    found.begin(fill, agent)
    fill.acquired[agent.wave] = op, agent.clock.stamp
    fill.producers = agent.group.waves
    found.take(op, agent)
    _hand_out(agent, op, found, fill, "producer")


def _not_free(found: Channel, number: int) -> str:
    before = found.fill(number - found.stages)
    state = f"{len(before.released)} of {before.consumers or '?'} waves have released it"
    return f"waits for stage {number % found.stages} of %{found.name} to be free: of fill {before.number}, {state}"


def _hand_out(agent: Agent, op: Op, found: Channel, fill: Fill, side: str) -> None:
    hold = Hold(found, fill, agent.wave, side, op)
    for value, tensor in zip(op.results, found.views(fill.number, hold, agent), strict=True):
        agent.handles[value] = tensor


def _require_role(agent: Agent, op: Op, found: Channel, side: str) -> None:
    named = found.op.attrs[side]
    if agent.role and agent.role != named:
        raise ProtocolFault(f"{at_line(op)} in role {agent.role}: the {side} of %{found.name} is {named}", op.loc)


def commit(agent: Agent, op: Op) -> Steps:
    """The oldest fill that the wave took and has not committed."""
    yield None
    found: Channel = agent.handles[op.operands[0]]
    _require_role(agent, op, found, "producer")
    fill = found.given_back(op, agent)
    if fill is None:
        raise ProtocolFault(f"{at_line(op)}: nothing of %{found.name} was acquired that could be committed", op.loc)
    fill.committed.add(agent.wave)
    fill.knows.append(agent.clock.now())


def wait(agent: Agent, op: Op) -> Steps:
    """Takes the next fill, when it is full."""
    found: Channel = agent.handles[op.operands[0]]
    _require_role(agent, op, found, "consumer")
    number = found.next_of(op, agent)
    if number >= found.stages and not found.fill(number - found.stages).full:
        raise ProtocolFault(
            f"{at_line(op)} waits for fill {number} of %{found.name} while fill {number - found.stages} of that stage "
            "is not there yet: a barrier tells neighbouring phases apart, not these",
            op.loc,
        )
    fill = found.fill(number)
    yield Waiting(lambda: fill.full, lambda: _not_full(found, fill), op)
    for known in fill.knows:
        agent.clock.meet(known)
    fill.waited[agent.wave] = op, agent.clock.stamp
    fill.consumers = agent.group.waves
    found.take(op, agent)
    _hand_out(agent, op, found, fill, "consumer")


def _not_full(found: Channel, fill: Fill) -> str:
    state = f"{len(fill.committed)} of {fill.producers or '?'} waves have committed it"
    return f"waits for fill {fill.number} of %{found.name}: {state}"


def release(agent: Agent, op: Op) -> Steps:
    """The oldest fill that the wave waited for and has not released."""
    yield None
    found: Channel = agent.handles[op.operands[0]]
    _require_role(agent, op, found, "consumer")
    fill = found.given_back(op, agent)
    if fill is None:
        raise ProtocolFault(f"{at_line(op)}: nothing of %{found.name} was waited for that could be released", op.loc)
    fill.released.add(agent.wave)
    fill.freed.append(agent.clock.now())
    found.ever_released = True
