"""Arithmetic: mma, map, reduce, scan, broadcast, convert_layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import ProgramError
from tilewright.interpret.block.clocks import Clock
from tilewright.interpret.block.formulas import compute
from tilewright.interpret.block.memory import at_line, overlapping, require_apart
from tilewright.interpret.block.moving import idle, load, part, share, store
from tilewright.interpret.block.registers import Registers
from tilewright.interpret.block.worker import Agent, Steps
from tilewright.ir.core import Op
from tilewright.ir.formula import Formula

Array = np.ndarray[Any, np.dtype[Any]]


def mma(agent: Agent, op: Op) -> Steps:
    """The wave's part of C grows by the product of the rows of A and the columns of B that it takes."""
    yield None
    c, a, b = (agent.handles[v] for v in op.operands)
    chosen = c.mine
    (some_rows, row_of), (some_columns, column_of) = c.rows_and_columns
    depth = a.shape[1]
    otherwise = 0 if op.attrs.get("skip") else None
    k = np.arange(depth)
    left = _factor(agent, op, a, some_rows[:, None], k[None, :], otherwise)
    right = _factor(agent, op, b, k[:, None], some_columns[None, :], otherwise)
    machine = agent.worker.machine
    atom = None if machine is None else machine.multiply.get(op.attrs["atom"])
    if atom is not None:
        left, right = atom.taken(left), atom.taken(right)
    wide = np.float64 if op.operands[0].type.dtype.is_float else np.int64
    with np.errstate(all="ignore"):
        product = left.astype(wide) @ right.astype(wide)
        if otherwise is not None and not (np.isfinite(left).all() and np.isfinite(right).all()):
            there = (_inside(a, some_rows[:, None], k[None, :], op), _inside(b, k[:, None], some_columns[None, :], op))
            product = _leaving_out(left.astype(wide), right.astype(wide), *there)
        total = c.read(chosen, op).astype(wide) + product[row_of, column_of]
        c.write(chosen, total.astype(c.data.dtype))


def _inside(factor: Any, rows: Array, columns: Array, op: Op) -> Array:
    """Which elements of a factor lie in its tensor."""
    shape = np.broadcast_shapes(rows.shape, columns.shape)
    inside = None if isinstance(factor, Registers) else factor.locate((rows, columns), op)[2]
    return np.ones(shape, bool) if inside is None else np.broadcast_to(np.asarray(inside), shape)


def _leaving_out(left: Array, right: Array, left_there: Array, right_there: Array) -> Array:
    """The product without what lies outside: zero times infinity would not be nothing."""
    total = np.zeros((left.shape[0], right.shape[1]), left.dtype)
    for k in range(left.shape[1]):
        counts = left_there[:, k, None] & right_there[None, k, :]
        total += np.where(counts, left[:, k, None] * right[None, k, :], 0)
    return total


def _factor(agent: Agent, op: Op, factor: Any, rows: Array, columns: Array, otherwise: Any) -> Array:
    if not isinstance(factor, Registers):
        return load(factor, (rows, columns), op, agent.clock, otherwise)
    values, known = factor.table(op)
    flat = rows * factor.shape[1] + columns
    if not known[flat].all():
        raise ProgramError(
            f"{at_line(op)}: this wave does not hold the part of %{factor.name} that it multiplies", op.loc
        )
    found: Array = values[flat]
    return found


def map_(agent: Agent, op: Op) -> Steps:
    """Element by element."""
    yield None
    target = agent.handles[op.operands[0]]
    sources = [agent.handles[v] for v in op.operands]
    if isinstance(target, Registers):
        chosen = target.mine
        at = target.coordinates(chosen)
        lanes, _ = np.nonzero(chosen)
        ids = target.ids[chosen]
    else:
        holder = next((s for s in sources[1:] if isinstance(s, Registers)), None)
        if holder is not None:  # whoever holds an element in registers stores it
            chosen = holder.mine & holder.first
            at = holder.coordinates(chosen)
            lanes, _ = np.nonzero(chosen)
            ids = holder.ids[chosen]
            shape = ids.shape
        elif idle(agent, target.shape):
            return
        else:
            at = share(agent, target.shape)
            shape = np.broadcast_shapes(*(np.shape(c) for c in at))
            lanes = ids = np.zeros(0, np.int64)

    found: dict[int, Any] = {}

    def leaf(f: Formula) -> Any:
        if f.value not in found:
            source = sources[f.value]
            if isinstance(source, Registers):
                found[f.value] = source.at_lanes(lanes, ids, op)
            else:
                found[f.value] = load(source, at, op, clock)
        return found[f.value], op.operands[f.value].type.dtype

    names = {s.name: c for s, c in zip(op.attrs.get("over", ()), at, strict=False)}
    to = op.operands[0].type.dtype
    if not isinstance(target, Registers):
        for source in sources[1:]:
            if not isinstance(source, Registers):
                require_apart(target, at, source, at, op)
    with part(agent, *sources) as clock:
        values = compute(op.attrs["formula"], leaf, to, {**agent.values, **names})
        if isinstance(target, Registers):
            target.write(chosen, np.broadcast_to(values, ids.shape))
        else:
            store(target, at, np.broadcast_to(values, shape), op, clock)


# -- along a dimension ----------------------------------------------------------------------------------


def _sources(agent: Agent, op: Op) -> Steps:
    """The sources, each as one array. All waves have read them before one writes to a target that lies in one of them.

    For that a wave reads as an actor of its own, which the others wait for: that orders the reads of this operation
    before its writes, and nothing else.
    """
    half = len(op.operands) // 2
    handles = [agent.handles[v] for v in op.operands]
    memory = [[h for h in part if not isinstance(h, Registers)] for part in (handles[:half], handles[half:])]
    in_place = agent.group.waves > 1 and any(overlapping(s, t, op) for s in memory[0] for t in memory[1])
    reader = agent.clock.fork() if in_place else agent.clock
    found: list[Array] = []
    for source in handles[:half]:
        found.append((yield from _whole(agent, op, source, reader)))
    if in_place:
        reader.end()
        for stamp in (yield from agent.exchange(op, reader.stamp, "read")):
            agent.clock.learn(stamp)
    return found


def _whole(agent: Agent, op: Op, source: Any, clock: Clock) -> Steps:
    """A source as one array; waves exchange their registers where one needs what another holds."""
    if not isinstance(source, Registers):
        return load(source, tuple(np.indices(source.shape)), op, clock)
    values, known = source.table(op)
    if agent.group.waves > 1:
        parts = yield from agent.exchange(op, (values, known))
        values, known = values.copy(), known.copy()
        for other, has in parts:
            values[has] = other[has]
            known |= has
    if not known.all():
        raise ProgramError(f"{at_line(op)}: no wave of the group holds all of %{source.name}", op.loc)
    return values.reshape(source.shape)


def _put(agent: Agent, op: Op, target: Any, values: Array, clock: Clock) -> None:
    """The target becomes the values: registers each in their place, memory shared out among the waves."""
    if isinstance(target, Registers):
        chosen = target.mine
        target.write(chosen, values[target.coordinates(chosen)] if target.shape else values)
    elif not idle(agent, target.shape):
        at = share(agent, target.shape)
        store(target, at, values[at] if target.shape else values, op, clock)


_FUNCTIONS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _combine(op: Op, left: tuple[Array, ...], right: tuple[Array, ...]) -> tuple[Array, ...]:
    """The combining function on tuples of arrays."""
    how = op.attrs["with"]
    if isinstance(how, str):
        return (_FUNCTIONS[how](left[0], right[0]),)
    kinds = [op.operands[i].type.dtype for i in range(len(left))]

    def leaf(f: Formula) -> Any:
        place = int(f.value[1:])
        return (left if f.value[0] == "a" else right)[place], kinds[place]

    return tuple(compute(f, leaf, kind) for f, kind in zip(how, kinds, strict=True))


def _carried(op: Op, values: list[Array]) -> list[Array]:
    """Sums and products of narrow types are carried in a wider one."""
    if op.attrs["with"] in ("sum", "prod"):
        return [values[0].astype(op.operands[0].type.dtype.accumulator.numpy)]
    return values


def reduce(agent: Agent, op: Op) -> Steps:
    """Combines along a dimension, from the first element on; `accumulate` starts from the target's value."""
    yield None
    half = len(op.operands) // 2
    along = op.attrs["along"]
    sources: list[Array] = yield from _sources(agent, op)
    arrays = [np.moveaxis(v, along, 0) for v in _carried(op, sources)]
    targets = [agent.handles[value] for value in op.operands[half:]]
    with part(agent, *targets) as clock, np.errstate(all="ignore"):
        total = tuple(v[0] for v in arrays)
        for i in range(1, arrays[0].shape[0]):
            total = _combine(op, total, tuple(v[i] for v in arrays))
        if op.attrs.get("accumulate"):
            before = []
            for target in targets:
                before.append((yield from _before(agent, op, target, clock)))
            total = _combine(op, tuple(_carried(op, before)), total)
        for value, target, result in zip(op.operands[half:], targets, total, strict=True):
            _put(agent, op, target, np.asarray(result).astype(value.type.dtype.numpy), clock)


def _before(agent: Agent, op: Op, target: Any, clock: Clock) -> Steps:
    """The target's values before the operation: of memory, those that this wave will write."""
    if isinstance(target, Registers):
        return (yield from _whole(agent, op, target, clock))
    if idle(agent, target.shape):
        return np.zeros((), op.operands[0].type.dtype.numpy)
    at = share(agent, target.shape)
    found = load(target, at, op, clock)
    values = np.zeros(target.shape, found.dtype)
    values[at] = found
    return values


def scan(agent: Agent, op: Op) -> Steps:
    """Running combination along a dimension; `exclusive` leaves the element itself out."""
    yield None
    half = len(op.operands) // 2
    along = op.attrs["along"]
    sources: list[Array] = yield from _sources(agent, op)
    arrays = [np.moveaxis(v, along, 0) for v in _carried(op, sources)]
    with np.errstate(all="ignore"):
        steps = [tuple(v[0] for v in arrays)]
        for i in range(1, arrays[0].shape[0]):
            steps.append(_combine(op, steps[-1], tuple(v[i] for v in arrays)))
        if op.attrs.get("exclusive"):
            steps = [(np.full_like(steps[0][0], _identity(op)),), *steps[:-1]]
    targets = [agent.handles[value] for value in op.operands[half:]]
    with part(agent, *targets) as clock:
        for place, (value, target) in enumerate(zip(op.operands[half:], targets, strict=True)):
            result = np.moveaxis(np.stack([s[place] for s in steps]), 0, along)
            _put(agent, op, target, result.astype(value.type.dtype.numpy), clock)


def _identity(op: Op) -> Any:
    kind = op.operands[0].type.dtype
    if op.attrs["with"] in ("sum", "prod"):
        return 0 if op.attrs["with"] == "sum" else 1
    if kind.is_float:
        return -np.inf if op.attrs["with"] == "max" else np.inf
    limits = np.iinfo(kind.numpy)
    return limits.min if op.attrs["with"] == "max" else limits.max


def broadcast(agent: Agent, op: Op) -> Steps:
    """Repeats along a dimension; each lane from what it holds."""
    yield None
    source, target = (agent.handles[v] for v in op.operands)
    along = op.attrs["along"]
    if isinstance(target, Registers):
        chosen = target.mine
        at = target.coordinates(chosen)
        inner = at[:along] + at[along + 1 :]
        if isinstance(source, Registers):
            lanes, _ = np.nonzero(chosen)
            ids = np.ravel_multi_index(inner, source.shape) if source.shape else np.zeros(lanes.shape, np.int64)
            target.write(chosen, source.at_lanes(lanes, np.asarray(ids), op))
        else:
            target.write(chosen, load(source, inner, op, agent.clock))
        return
    if isinstance(source, Registers):
        raise ProgramError(f"{at_line(op)}: broadcast from registers goes to registers; copy afterwards", op.loc)
    at = share(agent, target.shape)
    inner = at[:along] + at[along + 1 :]
    shape = np.broadcast_shapes(*(np.shape(c) for c in at))
    require_apart(target, at, source, inner, op)
    with part(agent, target) as clock:
        store(target, at, np.broadcast_to(load(source, inner, op, clock), shape), op, clock)


def convert_layout(agent: Agent, op: Op) -> Steps:
    """From one distribution to another; waves exchange what they hold."""
    yield None
    source, target = (agent.handles[v] for v in op.operands)
    values = yield from _whole(agent, op, source, agent.clock)
    _put(agent, op, target, values, agent.clock)
