"""Interpret a whole block program on arrays."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np

from tilewright.check.cluster import cluster_of, shared_channels
from tilewright.errors import ArgumentError, NotWrittenFault
from tilewright.interpret.block import computing, control, moving, multicast
from tilewright.interpret.block.accesses import Sharing
from tilewright.interpret.block.memory import Buffer, TensorMemory
from tilewright.interpret.block.worker import Budget, Cluster, Worker
from tilewright.ir.core import Program, Value
from tilewright.ir.tensors import TensorType, numbers
from tilewright.limits import BUFFER, STEPS, WORKERS, shown
from tilewright.machine import Machine

Array = np.ndarray[Any, np.dtype[Any]]

HANDLERS: dict[str, Any] = {
    "alloc": moving.alloc,
    "view": moving.view,
    "bitcast": moving.bitcast,
    "let": moving.let,
    "fill": moving.fill,
    "copy": multicast.copy,
    "gather": moving.gather,
    "scatter": moving.scatter,
    "atomic": moving.atomic,
    "debug_log": moving.debug_log,
    "mma": computing.mma,
    "map": computing.map_,
    "reduce": computing.reduce,
    "scan": computing.scan,
    "broadcast": computing.broadcast,
    "convert_layout": computing.convert_layout,
    "for": control.for_,
    "while": control.while_,
    "if": control.if_,
    "tasks": control.tasks,
    "role": control.role,
    "barrier": control.barrier,
    "edge": control.edge,
    "channel": control.channel,
    "acquire": control.acquire,
    "commit": control.commit,
    "wait": control.wait,
    "release": control.release,
}


def interpret(
    program: Program,
    arrays: Mapping[str, Array],
    machine: Machine | None = None,
    *,
    workers: int = 1,
    seed: int = 0,
    steps: int = STEPS.most,
    handlers: Mapping[str, Any] = HANDLERS,
) -> list[tuple[str, Array]]:
    """Run `program`, of which all parameters are bound, on `arrays`, {argument name: array}; outputs are written in
    place.

    Return a list of the (label, array) pairs that `debug_log` recorded. `workers` workgroups share the tasks, in an
    order that `seed` decides. `workers` is rounded up to whole clusters, and is 1 for a program without tasks.
    `machine` defines the atoms, and `handlers` is {operation name: function that executes the operation for a wave}.
    After `steps` operations and loop iterations, raise an ExecutionError.

    Raise an `InterpreterFault` for a race, a deadlock, a read of uninitialised memory, an access out of bounds, a
    channel used out of order, or an output that is not written completely; an ArgumentError for wrong arguments.
    """
    has_tasks = any(op.name == "tasks" for op in program.walk())
    bound: dict[Value, TensorMemory] = {}
    for arg in program.args:
        bound[arg] = TensorMemory.whole(_buffer(arg, arrays, has_tasks), arg.type)
    if not has_tasks:
        workers = 1
    if not 1 <= workers <= WORKERS.most:
        raise ArgumentError(f"workers={shown(workers)}: at least one is needed, and {WORKERS.rule}")
    budget = Budget(steps)
    classes: dict[Any, int] = {}
    cluster_size = cluster_of(program)
    workers = -(-workers // cluster_size) * cluster_size
    order = list(range(workers // cluster_size))
    Random(seed).shuffle(order)
    logs: list[tuple[str, Array]] = []
    for cluster_number in order:
        cluster = Cluster(seed * 1000003 + cluster_number * cluster_size, shared_channels(program))
        for rank in range(cluster_size):
            worker_number = cluster_number * cluster_size + rank
            Worker(program, machine, bound, worker_number, workers, seed, handlers, classes, budget, cluster)
        cluster.run()
        logs += [log for worker in cluster.workers for log in worker.logs]
    for arg in program.args:
        _copy_back(arg, bound[arg], arrays)
    return logs


def _buffer(arg: Value, arrays: Mapping[str, Array], has_tasks: bool) -> Buffer:
    """Return a new buffer for the argument `arg`, filled with a copy of its array; `arrays` is {argument name: array}.

    Raise an ArgumentError if the array is missing or has another shape or type, and LimitExceeded if it is too large.
    With `has_tasks`, the buffer of a written argument records accesses by task, to find races.
    """
    kind: TensorType = arg.type
    name = arg.name or "argument"
    if name not in arrays:
        raise ArgumentError(f"the argument {name} is missing")
    array = np.asarray(arrays[name])
    shape = numbers(kind.shape, name)
    if array.shape != shape or array.dtype != kind.dtype.numpy:
        raise ArgumentError(
            f"{name} is {array.dtype} of shape {array.shape}; the program takes {kind.dtype} of shape {shape}"
        )
    BUFFER.check(kind.cosize(), f"%{name}: {kind}")
    data = np.zeros(max(kind.cosize(), 0), kind.dtype.numpy)
    data[_element_offsets(kind)] = array
    buffer = Buffer(f"%{name}", data, "global", kind.role in ("in", "inout"))
    if has_tasks and kind.role != "in":
        buffer.sharing = Sharing(data.size)
    return buffer


def _element_offsets(kind: TensorType) -> Any:
    """Return an array with the offset in memory, in elements, of each element of a tensor of type `kind`, by strides
    and swizzle.
    """
    shape, steps = numbers(kind.shape, kind), numbers(kind.steps, kind)
    offsets: Any = np.zeros(shape, np.int64)
    if not offsets.size:  # of any extents beside the one that is 0
        return offsets
    for coordinate, step in zip(np.ogrid[tuple(slice(0, n) for n in shape)], steps, strict=True):
        offsets = offsets + coordinate * step
    return kind.swizzle(offsets) if kind.swizzle is not None else offsets


def _copy_back(arg: Value, tensor: TensorMemory, arrays: Mapping[str, Array]) -> None:
    """Copy the buffer of `tensor`, the memory of the argument `arg`, back to its array; `arrays` is {argument name:
    array}.

    Do nothing for an `in` argument. Raise a NotWrittenFault if an `out` argument was not written completely.
    """
    kind: TensorType = arg.type
    if kind.role == "in":
        return
    offsets = _element_offsets(kind)
    written = tensor.buffer.initialised[offsets]
    if kind.role == "out" and not written.all():
        first = tuple(int(i) for i in np.argwhere(~written)[0])  # () of a single number
        raise NotWrittenFault(
            f"{written.size - int(written.sum())} of {written.size} elements of %{arg.name}, an output, were never "
            f"written; the first is {first}"
        )
    target = arrays[arg.name or ""]
    target[...] = tensor.buffer.data[offsets]
