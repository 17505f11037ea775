"""Interpret mma, map, reduce, scan, broadcast and convert_layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import ProgramError
from tilewright.interpret.block.clocks import Clock
from tilewright.interpret.block.formulas import compute
from tilewright.interpret.block.memory import at_line, overlapping, require_no_overlap
from tilewright.interpret.block.moving import idle, load, part, share, store
from tilewright.interpret.block.registers import Registers
from tilewright.interpret.block.worker import Agent, Steps
from tilewright.ir.core import Op
from tilewright.ir.formula import Formula

Array = np.ndarray[Any, np.dtype[Any]]


def mma(agent: Agent, op: Op) -> Steps:
    """Execute an `mma` for the wave `agent`: add to the part of C that it holds the product of the rows of A and
    columns of B that this part needs. Yields once, so that other waves may run before.
    """
    yield None
    c, a, b = (agent.handles[v] for v in op.operands)
    held = c.mine
    (rows, row_of), (columns, column_of) = c.rows_and_columns
    k_extent = a.shape[1]
    otherwise = 0 if op.attrs.get("skip") else None
    k = np.arange(k_extent)
    a_values = _operand_values(agent, op, a, rows[:, None], k[None, :], otherwise)
    b_values = _operand_values(agent, op, b, k[:, None], columns[None, :], otherwise)
    machine = agent.worker.machine
    atom = None if machine is None else machine.multiply.get(op.attrs["atom"])
    if atom is not None:
        a_values, b_values = atom.taken(a_values), atom.taken(b_values)
    wide = np.float64 if op.operands[0].type.dtype.is_float else np.int64
    with np.errstate(all="ignore"):
        product = a_values.astype(wide) @ b_values.astype(wide)
        if otherwise is not None and not (np.isfinite(a_values).all() and np.isfinite(b_values).all()):
            in_bounds = (_in_bounds(a, rows[:, None], k[None, :], op), _in_bounds(b, k[:, None], columns[None, :], op))
            product = _product_in_bounds(a_values.astype(wide), b_values.astype(wide), *in_bounds)
        total = c.read(held, op).astype(wide) + product[row_of, column_of]
        c.write(held, total.astype(c.data.dtype))


def _in_bounds(operand: Any, rows: Array, columns: Array, op: Op) -> Array:
    """Return for each (row, column) of the operand True if it is in bounds of its tensor."""
    shape = np.broadcast_shapes(rows.shape, columns.shape)
    in_bounds = None if isinstance(operand, Registers) else operand.locate((rows, columns), op)[2]
    return np.ones(shape, bool) if in_bounds is None else np.broadcast_to(np.asarray(in_bounds), shape)


def _product_in_bounds(left: Array, right: Array, left_in_bounds: Array, right_in_bounds: Array) -> Array:
    """Return the matrix product of only those elements that are in bounds. They cannot be replaced by zeros, since zero
    times infinity is not zero.
    """
    total = np.zeros((left.shape[0], right.shape[1]), left.dtype)
    for k in range(left.shape[1]):
        both_in_bounds = left_in_bounds[:, k, None] & right_in_bounds[None, k, :]
        total += np.where(both_in_bounds, left[:, k, None] * right[None, k, :], 0)
    return total


def _operand_values(agent: Agent, op: Op, operand: Any, rows: Array, columns: Array, otherwise: Any) -> Array:
    """Return the values of an `mma` operand at these rows and columns; `otherwise` replaces elements out of bounds.
    Raise a ProgramError if the operand is in registers and the wave does not hold an element.
    """
    if not isinstance(operand, Registers):
        return load(operand, (rows, columns), op, agent.clock, otherwise)
    values, known = operand.table(op)
    flat = rows * operand.shape[1] + columns
    if not known[flat].all():
        raise ProgramError(
            f"{at_line(op)}: this wave does not hold the part of %{operand.name} that it multiplies", op.loc
        )
    elements: Array = values[flat]
    return elements


def map_(agent: Agent, op: Op) -> Steps:
    """Execute a `map` for the wave `agent`: set its elements of the target to the formula's values. A wave's elements
    are those it holds in registers, of target or sources; else a share of the memory.
    """
    yield None
    target = agent.handles[op.operands[0]]
    sources = [agent.handles[v] for v in op.operands]
    if isinstance(target, Registers):
        held = target.mine
        coordinates = target.coordinates(held)
        lanes, _ = np.nonzero(held)
        ids = target.ids[held]
    else:
        register_source = next((s for s in sources[1:] if isinstance(s, Registers)), None)
        if register_source is not None:  # whoever holds an element in registers stores it
            held = register_source.mine & register_source.first
            coordinates = register_source.coordinates(held)
            lanes, _ = np.nonzero(held)
            ids = register_source.ids[held]
            shape = ids.shape
        elif idle(agent, target.shape):
            return
        else:
            coordinates = share(agent, target.shape)
            shape = np.broadcast_shapes(*(np.shape(c) for c in coordinates))
            lanes = ids = np.zeros(0, np.int64)

    loaded: dict[int, Any] = {}

    def leaf(f: Formula) -> Any:
        """Return (the wave's values of the operand that `f` names, their element type)."""
        if f.value not in loaded:
            source = sources[f.value]
            if isinstance(source, Registers):
                loaded[f.value] = source.at_lanes(lanes, ids, op)
            else:
                loaded[f.value] = load(source, coordinates, op, clock)
        return loaded[f.value], op.operands[f.value].type.dtype

    names = {s.name: c for s, c in zip(op.attrs.get("over", ()), coordinates, strict=False)}
    element_type = op.operands[0].type.dtype
    if not isinstance(target, Registers):
        for source in sources[1:]:
            if not isinstance(source, Registers):
                require_no_overlap(target, coordinates, source, coordinates, op)
    with part(agent, *sources) as clock:
        values = compute(op.attrs["formula"], leaf, element_type, {**agent.values, **names})
        if isinstance(target, Registers):
            target.write(held, np.broadcast_to(values, ids.shape))
        else:
            store(target, coordinates, np.broadcast_to(values, shape), op, clock)


# -- reductions and scans --------------------------------------------------------------------------------


def _sources(agent: Agent, op: Op) -> Steps:
    """Return the source operands of the reduction or scan `op` as whole arrays. If a source overlaps a target in
    memory, wait until all waves have read it.

    For that wait, a wave reads as an actor of its own, so that only the reads of this operation are ordered before its
    writes, and nothing else.
    """
    half = len(op.operands) // 2
    handles = [agent.handles[v] for v in op.operands]
    memory = [[h for h in part if not isinstance(h, Registers)] for part in (handles[:half], handles[half:])]
    in_place = agent.group.waves > 1 and any(overlapping(s, t, op) for s in memory[0] for t in memory[1])
    reader = agent.clock.fork() if in_place else agent.clock
    arrays: list[Array] = []
    for source in handles[:half]:
        arrays.append((yield from _whole_array(agent, op, source, reader)))
    if in_place:
        reader.end()
        for stamp in (yield from agent.exchange(op, reader.stamp, "read")):
            agent.clock.learn(stamp)
    return arrays


def _whole_array(agent: Agent, op: Op, source: Any, clock: Clock) -> Steps:
    """Return `source` as a whole array. If it is in registers, the waves exchange what they hold; raise a ProgramError
    if no wave holds some element.
    """
    if not isinstance(source, Registers):
        return load(source, tuple(np.indices(source.shape)), op, clock)
    values, known = source.table(op)
    if agent.group.waves > 1:
        exchanged = yield from agent.exchange(op, (values, known))
        values, known = values.copy(), known.copy()
        for other, holds in exchanged:
            values[holds] = other[holds]
            known |= holds
    if not known.all():
        raise ProgramError(f"{at_line(op)}: no wave of the group holds all of %{source.name}", op.loc)
    return values.reshape(source.shape)


def _put(agent: Agent, op: Op, target: Any, values: Array, clock: Clock) -> None:
    """Write the array `values` to `target`: each wave the elements that it holds in registers, or its share of the
    memory.
    """
    if isinstance(target, Registers):
        held = target.mine
        target.write(held, values[target.coordinates(held)] if target.shape else values)
    elif not idle(agent, target.shape):
        coordinates = share(agent, target.shape)
        store(target, coordinates, values[coordinates] if target.shape else values, op, clock)


_FUNCTIONS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _combine(op: Op, left: tuple[Array, ...], right: tuple[Array, ...]) -> tuple[Array, ...]:
    """Combine two tuples of arrays, one array for each source of `op`, by the combining function of the reduction or
    scan.
    """
    function = op.attrs["with"]
    if isinstance(function, str):
        return (_FUNCTIONS[function](left[0], right[0]),)
    kinds = [op.operands[i].type.dtype for i in range(len(left))]

    def leaf(f: Formula) -> Any:
        """Return (the array of the argument that `f` names, its element type): a0 is the first of `left`, b0 the first
        of `right`.
        """
        number = int(f.value[1:])
        return (left if f.value[0] == "a" else right)[number], kinds[number]

    return tuple(compute(f, leaf, kind) for f, kind in zip(function, kinds, strict=True))


def _in_accumulator_type(op: Op, values: list[Array]) -> list[Array]:
    """Return `values` in the type in which `op` carries them: sums and products in the accumulator type, others
    unchanged.
    """
    if op.attrs["with"] in ("sum", "prod"):
        return [values[0].astype(op.operands[0].type.dtype.accumulator.numpy)]
    return values


def reduce(agent: Agent, op: Op) -> Steps:
    """Execute a `reduce` for the wave `agent`: combine elements along a dimension, from the first on. `accumulate`
    starts from the target's values.
    """
    yield None
    count = len(op.operands) // 2
    along = op.attrs["along"]
    sources: list[Array] = yield from _sources(agent, op)
    arrays = [np.moveaxis(v, along, 0) for v in _in_accumulator_type(op, sources)]
    targets = [agent.handles[value] for value in op.operands[count:]]
    with part(agent, *targets) as clock, np.errstate(all="ignore"):
        total = tuple(v[0] for v in arrays)
        for i in range(1, arrays[0].shape[0]):
            total = _combine(op, total, tuple(v[i] for v in arrays))
        if op.attrs.get("accumulate"):
            previous = []
            for target in targets:
                previous.append((yield from _target_values(agent, op, target, clock)))
            total = _combine(op, tuple(_in_accumulator_type(op, previous)), total)
        for value, target, result in zip(op.operands[count:], targets, total, strict=True):
            _put(agent, op, target, np.asarray(result).astype(value.type.dtype.numpy), clock)


def _target_values(agent: Agent, op: Op, target: Any, clock: Clock) -> Steps:
    """Return the values of `target` before the reduction, at full shape; of memory, only the elements of this wave's
    share are valid.
    """
    if isinstance(target, Registers):
        return (yield from _whole_array(agent, op, target, clock))
    if idle(agent, target.shape):
        return np.zeros((), op.operands[0].type.dtype.numpy)
    coordinates = share(agent, target.shape)
    loaded = load(target, coordinates, op, clock)
    values = np.zeros(target.shape, loaded.dtype)
    values[coordinates] = loaded
    return values


def scan(agent: Agent, op: Op) -> Steps:
    """Execute a `scan` for the wave `agent`: store the running combination along a dimension. With `exclusive`, an
    element's own value is left out.
    """
    yield None
    count = len(op.operands) // 2
    along = op.attrs["along"]
    sources: list[Array] = yield from _sources(agent, op)
    arrays = [np.moveaxis(v, along, 0) for v in _in_accumulator_type(op, sources)]
    with np.errstate(all="ignore"):
        steps = [tuple(v[0] for v in arrays)]
        for i in range(1, arrays[0].shape[0]):
            steps.append(_combine(op, steps[-1], tuple(v[i] for v in arrays)))
        if op.attrs.get("exclusive"):
            steps = [(np.full_like(steps[0][0], _identity(op)),), *steps[:-1]]
    targets = [agent.handles[value] for value in op.operands[count:]]
    with part(agent, *targets) as clock:
        for number, (value, target) in enumerate(zip(op.operands[count:], targets, strict=True)):
            result = np.moveaxis(np.stack([s[number] for s in steps]), 0, along)
            _put(agent, op, target, result.astype(value.type.dtype.numpy), clock)


def _identity(op: Op) -> Any:
    """Return the identity of the scan's combining function: 0 for sum, 1 for prod, the least value for max, the
    greatest for min.
    """
    kind = op.operands[0].type.dtype
    if op.attrs["with"] in ("sum", "prod"):
        return 0 if op.attrs["with"] == "sum" else 1
    if kind.is_float:
        return -np.inf if op.attrs["with"] == "max" else np.inf
    limits = np.iinfo(kind.numpy)
    return limits.min if op.attrs["with"] == "max" else limits.max


def broadcast(agent: Agent, op: Op) -> Steps:
    """Execute a `broadcast` for the wave `agent`: repeat the source along a dimension. Registers are set from registers
    of the same lane.
    """
    yield None
    source, target = (agent.handles[v] for v in op.operands)
    along = op.attrs["along"]
    if isinstance(target, Registers):
        held = target.mine
        coordinates = target.coordinates(held)
        source_coordinates = coordinates[:along] + coordinates[along + 1 :]
        if isinstance(source, Registers):
            lanes, _ = np.nonzero(held)
            ids = (
                np.ravel_multi_index(source_coordinates, source.shape)
                if source.shape
                else np.zeros(lanes.shape, np.int64)
            )
            target.write(held, source.at_lanes(lanes, np.asarray(ids), op))
        else:
            target.write(held, load(source, source_coordinates, op, agent.clock))
        return
    if isinstance(source, Registers):
        raise ProgramError(f"{at_line(op)}: broadcast from registers goes to registers; copy afterwards", op.loc)
    coordinates = share(agent, target.shape)
    source_coordinates = coordinates[:along] + coordinates[along + 1 :]
    shape = np.broadcast_shapes(*(np.shape(c) for c in coordinates))
    require_no_overlap(target, coordinates, source, source_coordinates, op)
    with part(agent, target) as clock:
        store(target, coordinates, np.broadcast_to(load(source, source_coordinates, op, clock), shape), op, clock)


def convert_layout(agent: Agent, op: Op) -> Steps:
    """Execute a `convert_layout` for the wave `agent`: the waves exchange their registers, and each stores the elements
    of its target distribution.
    """
    yield None
    source, target = (agent.handles[v] for v in op.operands)
    values = yield from _whole_array(agent, op, source, agent.clock)
    _put(agent, op, target, values, agent.clock)
