"""The size of a blocking's kernel on a CPU: instructions of its code, and bytes that a task stages."""

from __future__ import annotations

from math import prod

from tilewright.machine import Machine
from tilewright.plan.blocking import Blocking, round_up
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.lanes import peeled_blocks
from tilewright.plan.model import element_bytes
from tilewright.plan.schedule import Split
from tilewright.plan.task_shape import TaskShape, columns_of, task_shape

BESIDE = 300
"""The approximate number of instructions of a kernel outside of its accumulator tiles."""


def why_too_large(space: Contraction, blocking: Blocking, machine: Machine) -> str | None:
    """Return text: why a blocking stages too many bytes per task, or has too many instructions; else None.

    `space` is the contraction, `blocking` its tile sizes and staging; a task is one core's tile. The bytes must fit the
    machine's shared memory, or twice its L2 cache if the machine states no size of shared memory. The instructions must
    not exceed the machine's limit for one kernel.
    """
    limits = machine.limits
    room = machine.spaces["shared"].bytes or 2 * limits.l2_bytes
    scratch = scratch_bytes(space, blocking)
    if scratch > room:
        return f"a task stages {scratch >> 10} KB; there is room for {room >> 10} KB"
    count = instruction_count(space, blocking)
    if count > limits.instructions:
        return f"about {count} instructions are written out; the budget is {limits.instructions}"
    return None


def scratch_bytes(space: Contraction, blocking: Blocking) -> int:
    """Return the bytes of scratch memory of a task: staged A and an accumulator tile; 0 without tile registers.

    A task is one core's tile. `space` is the contraction, `blocking` its tile sizes and staging.
    """
    if not blocking.in_tiles:
        return 0
    return task_shape(space, blocking).staged_bytes + blocking.rows * blocking.columns * element_bytes(space.sum_dtype)


def instruction_count(space: Contraction, blocking: Blocking) -> int:
    """Return the estimated number of instructions in the code of a blocking, unrolled K steps included.

    `space` is the contraction; `blocking` has the tile sizes, and says which splits of K are unrolled.
    """
    if blocking.in_tiles:
        return _tile_instructions(space, blocking)
    shape = task_shape(space, blocking)
    return (
        _lane_instructions(space, blocking, shape)
        if blocking.by_lanes
        else _vector_instructions(space, blocking, shape)
    )


def _tile_instructions(space: Contraction, blocking: Blocking) -> int:
    """Return the estimated number of instructions with tile registers: loads and MMAs of the unrolled K steps.

    `space` is the contraction, `blocking` its tile sizes and splits of K. If the outermost split of K is a loop, its
    body counts twice: the first iteration has code of its own, which also stores the accumulator tile before it.
    """
    rows, columns = blocking.rows // blocking.atom.shape[0], blocking.vectors
    unrolled = prod(_step_count(space, s, blocking) for s in blocking.steps if s.is_unrolled)
    copies = 1 if blocking.steps[0].is_unrolled else 2
    return int(unrolled * (rows * columns + rows + columns) * copies * 1.3 + 500)


def _step_count(space: Contraction, split: Split, blocking: Blocking) -> int:
    """Return the number of copies of the body in the code for one unrolled `split` of K: the number of its iterations.

    K has several digits (mixed-radix parts), such as filter taps and channels. For a digit other than the last, it is
    the digit's extent. For the last it is the number of atoms along K: in one tile of the loop around it, if `blocking`
    splits the digit twice, else in the whole digit. `space` is the contraction.
    """
    last, depth = space.depth[-1], blocking.atom.shape[2]
    if split.digit != last.name:
        return size(space.summed(split.digit))
    outer = next((x.size for x in blocking.steps if x.digit == last.name and x is not split), None)
    return (outer or round_up(size(last), depth)) // depth


def _vector_instructions(space: Contraction, blocking: Blocking, shape: TaskShape) -> int:
    """Return the estimated number of instructions with vectors along N.

    `space` is the contraction, `blocking` its tile sizes and splits of K, `shape` the accumulator tiles of a task. If A
    has bounds checks, up to two accumulator tiles at the ends of a line have code of their own, with all filter taps
    that the checks depend on unrolled. A ragged tile has code of its own too.
    """
    group, vectors = blocking.atom.shape[2], blocking.vectors
    inner = edges = 1
    for s in blocking.steps:
        if s.digit == space.depth[-1].name:
            unroll = 1 if s.is_unrolled else s.size // group
            inner, edges = inner * unroll, edges * unroll
            continue
        digit = space.summed(s.digit)
        inner *= size(digit) if s.is_unrolled else 1
        edges *= size(digit) if s.is_unrolled or digit in space.coupled else 1
    written = [(blocking.rows, inner)] if shape.blocks else []
    if space.a.conditions:
        written = [(blocking.rows, edges)] * min(shape.blocks, 2) + [(blocking.rows, inner)] * (shape.blocks > 2)
    if shape.tail:
        written.append((shape.tail, edges))
    return int(sum(rows * (vectors + 1) * count for rows, count in written) * 1.1 + BESIDE)


def _lane_instructions(space: Contraction, blocking: Blocking, shape: TaskShape) -> int:
    """Return the estimated length of the code, in instructions, for a contraction with a digit (mixed-radix part) that
    A, B and the result share, as in a depthwise convolution. Vectors run along this digit.

    `space` is the contraction, `blocking` its tile sizes and splits of K, `shape` the accumulator tiles of a task. The
    code is longer with unrolled filter taps and with peeled accumulator tiles; none is peeled if tasks split image
    lines. The last tile along the digit may be narrower, with code of its own.
    """
    unrolled = prod(size(space.summed(s.digit)) for s in blocking.steps if s.is_unrolled)
    peeled = 0 if shape.row_tasks > 1 else sum(peeled_blocks(space, blocking.rows))
    rows = (peeled + (shape.blocks > peeled)) * blocking.rows + shape.tail
    extent, narrow = columns_of(space, blocking), space.a.dtype is not space.sum_dtype
    rest = extent % blocking.columns // blocking.atom.shape[1]
    vectors = (blocking.vectors if extent >= blocking.columns else 0) + rest
    return int(rows * vectors * (unrolled * (2 + narrow) + 3) + BESIDE)
