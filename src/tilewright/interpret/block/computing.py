"""Interpret mma, map, reduce, scan, broadcast and convert_layout."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.errors import ProgramError
from tilewright.interpret.block.clocks import Clock
from tilewright.interpret.block.formulas import compute
from tilewright.interpret.block.holding import product_of, without_dimension
from tilewright.interpret.block.memory import at_line, grid, overlapping, require_no_overlap
from tilewright.interpret.block.moving import access_clock, idle, load, share, store
from tilewright.interpret.block.places import Coordinates
from tilewright.interpret.block.registers import Registers
from tilewright.interpret.block.worker import Agent, Steps
from tilewright.ir.core import Op
from tilewright.ir.formula import Formula

Array = np.ndarray[Any, np.dtype[Any]]


def mma(agent: Agent, op: Op) -> Steps:
    """Execute `op`, an `mma` (C += A*B, with operands C, A and B), for the wave `agent`: update the elements of C that
    the wave holds in registers.

    The product is computed in f64 or i64, after A and B are rounded as the atom does (f32 to tf32, for instance). With
    the attribute `skip`, products with an element out of bounds are left out; without `skip`, raise an OutOfBoundsFault
    for such an element. The generator yields once at first, so that other waves may run.
    """
    yield None
    c, a, b = (agent.handles[v] for v in op.operands)
    part = product_of(c.holding, a.shape[1])
    otherwise = 0 if op.attrs.get("skip") else None
    a_values = _operand_values(agent, op, a, part.left, otherwise)
    b_values = _operand_values(agent, op, b, part.right, otherwise)
    machine = agent.worker.machine
    atom = None if machine is None else machine.multiply.get(op.attrs["atom"])
    if atom is not None:
        a_values, b_values = atom.rounded(a_values), atom.rounded(b_values)
    wide = np.float64 if op.operands[0].type.dtype.is_float else np.int64
    with np.errstate(all="ignore"):
        product = a_values.astype(wide) @ b_values.astype(wide)
        if otherwise is not None and not (np.isfinite(a_values).all() and np.isfinite(b_values).all()):
            in_bounds = _in_bounds(a, part.left, op), _in_bounds(b, part.right, op)
            product = _product_in_bounds(a_values.astype(wide), b_values.astype(wide), *in_bounds)
        total = c.read(c.mine, op).astype(wide) + product.take(part.results)
        c.write(c.mine, total.astype(c.data.dtype))


def _in_bounds(operand: Any, coordinates: Coordinates, op: Op) -> Array:
    """Return a bool array: True for each of the `coordinates` at which `operand`, a matrix, has an element in bounds.

    An element of a view of memory is in bounds if it lies in the tensor that is viewed. In registers, all elements are
    in bounds. `op` is named in error messages.
    """
    in_bounds = None if isinstance(operand, Registers) else operand.locate(coordinates, op)[2]
    if in_bounds is None:
        return np.ones(coordinates.shape, bool)
    return np.broadcast_to(np.asarray(in_bounds), coordinates.shape)


def _product_in_bounds(left: Array, right: Array, left_in_bounds: Array, right_in_bounds: Array) -> Array:
    """Return the matrix product of `left` and `right`, without the terms in which an element is out of bounds.

    The masks `left_in_bounds` and `right_in_bounds` have the shapes of the matrices. Replacing elements by zeros would
    be wrong: zero times infinity is not zero.
    """
    total = np.zeros((left.shape[0], right.shape[1]), left.dtype)
    for k in range(left.shape[1]):
        both_in_bounds = left_in_bounds[:, k, None] & right_in_bounds[None, k, :]
        total += np.where(both_in_bounds, left[:, k, None] * right[None, k, :], 0)
    return total


def _operand_values(agent: Agent, op: Op, operand: Any, coordinates: Coordinates, otherwise: Any) -> Array:
    """Return the elements of `operand`, a matrix in memory or registers, at `coordinates`. `op` is the `mma`.

    In memory, elements out of bounds become `otherwise`; if that is None, raise an OutOfBoundsFault. In registers,
    raise a ProgramError if the wave `agent` does not hold an element.
    """
    if not isinstance(operand, Registers):
        return load(operand, coordinates, op, agent.clock, otherwise)
    elements = operand.matrix(coordinates, op)
    if elements is None:
        raise ProgramError(
            f"{at_line(op)}: this wave does not hold the part of %{operand.name} that it multiplies", op.loc
        )
    return elements


def map_(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `map`, for the wave `agent`: set elements of the target, operand 0, to the values of the formula.

    If the target is in registers, the wave sets the elements that it holds. If only a source is in registers, the wave
    sets the elements that it owns of the first such source (each element is owned by one register). If all tensors are
    in memory, it sets the elements that `share` gives it. Raise a RaceFault if an element of memory is written that is
    read for another element. The generator yields once at first, so that other waves may run.
    """
    yield None
    target = agent.handles[op.operands[0]]
    sources = [agent.handles[v] for v in op.operands]
    if isinstance(target, Registers):
        held = target.mine
        coordinates = held.coordinates
    else:
        register_source = next((s for s in sources[1:] if isinstance(s, Registers)), None)
        if register_source is not None:  # whoever holds an element in registers stores it
            held = register_source.owned
            coordinates = held.coordinates
            shape = held.ids.shape
        elif idle(agent, target.shape):
            return
        else:
            coordinates = share(agent, target.shape)
            shape = np.broadcast_shapes(*(np.shape(c) for c in coordinates))

    loaded: dict[int, Any] = {}

    def leaf(f: Formula) -> Any:
        """Return (values, element type) of operand number `f.value` at the elements that the wave sets. `f` is an
        operand leaf of the formula. Each operand is loaded once.
        """
        if f.value not in loaded:
            source = sources[f.value]
            if isinstance(source, Registers):
                loaded[f.value] = source.at_lanes(held, op)
            else:
                loaded[f.value] = load(source, coordinates, op, clock)
        return loaded[f.value], op.operands[f.value].type.dtype

    names = {s.name: c for s, c in zip(op.attrs.get("over", ()), coordinates, strict=False)}
    element_type = op.operands[0].type.dtype
    if not isinstance(target, Registers):
        for source in sources[1:]:
            if not isinstance(source, Registers):
                require_no_overlap(target, coordinates, source, coordinates, op)
    with access_clock(agent, *sources) as clock:
        values = compute(op.attrs["formula"], leaf, element_type, {**agent.values, **names})
        if isinstance(target, Registers):
            target.write(held, np.broadcast_to(values, held.ids.shape))
        else:
            store(target, coordinates, np.broadcast_to(values, shape), op, clock)


# -- reductions and scans --------------------------------------------------------------------------------


def _sources(agent: Agent, op: Op) -> Steps:
    """Read the source operands of `op`, a reduction or scan, for the wave `agent`. A generator that yields where the
    wave must wait for other waves, and returns a list of whole arrays.

    If a source overlaps a target in memory, also wait until all waves have read the sources, so that no wave writes a
    target before. This wait orders only these reads before the writes, and no other accesses.
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
    """Return the tensor `source`, an operand of `op`, as a whole array. A generator that yields where the wave `agent`
    must wait.

    From memory, the tensor is loaded under the vector clock `clock`. In registers, the waves of the group exchange the
    elements that they hold; raise a ProgramError if no wave holds some element.
    """
    if not isinstance(source, Registers):
        return load(source, grid(source.shape), op, clock)
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
    """Write elements of the array `values` to `target`, which has the same shape, for the wave `agent` and the
    operation `op`.

    In registers, they are the elements that the wave holds. In memory, they are the elements that `share` gives the
    wave, written under the vector clock `clock`.
    """
    if isinstance(target, Registers):
        held = target.mine
        target.write(held, values.reshape(-1)[held.ids] if target.shape else values)
    elif not idle(agent, target.shape):
        coordinates = share(agent, target.shape)
        store(target, coordinates, values[coordinates] if target.shape else values, op, clock)


_FUNCTIONS: dict[str, Any] = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}


def _combine(op: Op, left: tuple[Array, ...], right: tuple[Array, ...]) -> tuple[Array, ...]:
    """Return `left` combined with `right` elementwise by the combining function of `op`, a reduction or scan.

    `left`, `right` and the result are tuples with one array for each source of `op`.
    """
    function = op.attrs["with"]
    if isinstance(function, str):
        return (_FUNCTIONS[function](left[0], right[0]),)
    kinds = [op.operands[i].type.dtype for i in range(len(left))]

    def leaf(f: Formula) -> Any:
        """Return (array, element type) of the formula's argument `f`: a0 is the first array of `left`, b0 the first
        array of `right`.
        """
        number = int(f.value[1:])
        return (left if f.value[0] == "a" else right)[number], kinds[number]

    return tuple(compute(f, leaf, kind) for f, kind in zip(function, kinds, strict=True))


def _combine_all(op: Op, arrays: list[Array]) -> tuple[Array, ...]:
    """Return `arrays` reduced along their first dimension, in order, by the combining function of `op`.

    `arrays` has one array for each source of `op`. The result is a tuple with one array for each source, without the
    first dimension.
    """
    function = op.attrs["with"]
    if not isinstance(function, str):
        total = tuple(v[0] for v in arrays)
        for i in range(1, arrays[0].shape[0]):
            total = _combine(op, total, tuple(v[i] for v in arrays))
        return total
    (values,) = arrays
    if function in ("sum", "prod"):  # numpy's `accumulate` goes by entries in order, too; its `reduce` does not
        return (_FUNCTIONS[function].accumulate(values, axis=0, dtype=values.dtype)[-1],)
    combine, combined = _FUNCTIONS[function], values[0]
    for entry in values[1:]:
        combined = combine(combined, entry)
    return (combined,)


def _in_accumulator_type(op: Op, values: list[Array]) -> list[Array]:
    """Return `values`, arrays of the sources of `op`, converted to the type in which `op` adds or multiplies.

    For sum and prod, which have one source, this is the accumulator type of the element type (f16 -> f32). For other
    combining functions, return `values`.
    """
    if op.attrs["with"] in ("sum", "prod"):
        return [values[0].astype(op.operands[0].type.dtype.accumulator.numpy)]
    return values


def reduce(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `reduce`, for the wave `agent`: combine the sources' elements along a dimension, from the first
    to the last.

    With the attribute `accumulate`, the target's old values are combined first. Each wave writes its elements of the
    targets. The generator yields once at first, so that other waves may run.
    """
    yield None
    count = len(op.operands) // 2
    along = op.attrs["along"]
    sources: list[Array] = yield from _sources(agent, op)
    arrays = [np.moveaxis(v, along, 0) for v in _in_accumulator_type(op, sources)]
    targets = [agent.handles[value] for value in op.operands[count:]]
    with access_clock(agent, *targets) as clock, np.errstate(all="ignore"):
        total = _combine_all(op, arrays)
        if op.attrs.get("accumulate"):
            previous = []
            for target in targets:
                previous.append((yield from _target_values(agent, op, target, clock)))
            total = _combine(op, tuple(_in_accumulator_type(op, previous)), total)
        for value, target, result in zip(op.operands[count:], targets, total, strict=True):
            _put(agent, op, target, np.asarray(result).astype(value.type.dtype.numpy), clock)


def _target_values(agent: Agent, op: Op, target: Any, clock: Clock) -> Steps:
    """Return the values that `target` has before the reduction `op`, as an array of the shape of `target`. A generator
    that yields where the wave `agent` must wait.

    For a target in registers, all elements are valid: the waves exchange them. For a target in memory, only the
    elements that `share` gives the wave are valid, loaded under the vector clock `clock`; for a wave without elements,
    return a single 0.
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
    """Execute `op`, a `scan`, for the wave `agent`: compute the running combination of the sources along a dimension.

    With the attribute `exclusive`, an element is not part of its own result: sum of [1, 2, 3] -> [0, 1, 3]. Each wave
    writes its elements of the targets. The generator yields once at first, so that other waves may run.
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
    with access_clock(agent, *targets) as clock:
        for number, (value, target) in enumerate(zip(op.operands[count:], targets, strict=True)):
            result = np.moveaxis(np.stack([s[number] for s in steps]), 0, along)
            _put(agent, op, target, result.astype(value.type.dtype.numpy), clock)


def _identity(op: Op) -> Any:
    """Return the neutral element of the combining function of `op`: 0 for sum, 1 for prod.

    For max it is the least value of the element type, for min the greatest (-inf or inf for floats).
    """
    kind = op.operands[0].type.dtype
    if op.attrs["with"] in ("sum", "prod"):
        return 0 if op.attrs["with"] == "sum" else 1
    if kind.is_float:
        return -np.inf if op.attrs["with"] == "max" else np.inf
    limits = np.iinfo(kind.numpy)
    return limits.min if op.attrs["with"] == "max" else limits.max


def broadcast(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `broadcast`, for the wave `agent`: repeat the source, operand 0, along one new dimension of the
    target, operand 1.

    Registers are set from registers of the same lane, or from memory. Memory is set from memory only: raise a
    ProgramError for a source in registers. The generator yields once at first, so that other waves may run.
    """
    yield None
    source, target = (agent.handles[v] for v in op.operands)
    along = op.attrs["along"]
    if isinstance(target, Registers):
        held = target.mine
        repeated = without_dimension(held, along, source.shape)
        if isinstance(source, Registers):
            target.write(held, source.at_lanes(repeated, op))
        else:
            target.write(held, load(source, repeated.coordinates, op, agent.clock))
        return
    if isinstance(source, Registers):
        raise ProgramError(f"{at_line(op)}: broadcast from registers goes to registers; copy afterwards", op.loc)
    coordinates = share(agent, target.shape)
    source_coordinates = coordinates[:along] + coordinates[along + 1 :]
    shape = np.broadcast_shapes(*(np.shape(c) for c in coordinates))
    require_no_overlap(target, coordinates, source, source_coordinates, op)
    with access_clock(agent, target) as clock:
        store(target, coordinates, np.broadcast_to(load(source, source_coordinates, op, clock), shape), op, clock)


def convert_layout(agent: Agent, op: Op) -> Steps:
    """Execute `op`, a `convert_layout`, for the wave `agent`: redistribute a tensor from one register layout to
    another.

    The waves exchange all elements, and each wave stores the elements that it holds in the target. The generator yields
    once at first, so that other waves may run.
    """
    yield None
    source, target = (agent.handles[v] for v in op.operands)
    values = yield from _whole_array(agent, op, source, agent.clock)
    _put(agent, op, target, values, agent.clock)
