"""Channels of a role to itself (`apart`): groups of waves that hand over their own part of a stage independently.

Results wait in a stage until bulk copies have read them. Groups of waves need not wait for each other if each group
writes rows of its own, and if the copy can be split so that each part reads just the elements that one group wrote.
Otherwise, and for a channel that is declared outside of its role, all waves synchronise as in any channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const, Symbol
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.tensors import RegisterType, numbers
from tilewright.lower.gpu.wave_lowering import WaveLowering


def groups_are_independent(low: WaveLowering, channel: Op, groups: int) -> bool:
    """True if each of `groups` equal groups of the current role's waves can use the stages of a channel without waiting
    for the other groups. `channel` is the operation that makes the channel.

    A stage is split along its first dimension into one part for each group. Parts are read only by asynchronous copies,
    and each copy reads only elements that the same group wrote, at constant coordinates. False also for a channel
    declared outside of the role, a channel of several tensors, a ping-pong role, waves that `groups` does not divide,
    and a channel that no operation writes.
    """
    role = next((op for op in low.roles if op.attrs["name"] == low.role), None)
    if role is None or channel in low.program.body.ops or low.group.halves > 1 or low.group.waves % groups:
        return False
    written_offsets: list[Any] | None = None
    for op, constant_symbols in _unrolled_ops(low, role.blocks[0], frozenset()):
        stages = [v for v in op.operands if _is_in_stage(low, v, channel)]
        if not stages or op.name in ("view", "commit", "release"):
            continue
        if len(channel.operands) > 1 or not all(
            _has_constant_coordinates(low, v, constant_symbols) for v in _operands_to_check(op)
        ):
            return False
        if stages == [op.operands[0 if op.name == "map" else 1]]:
            written_offsets = _offsets_written(low, op, stages[0], groups)
            if written_offsets is None:
                return False
        elif (
            op.name != "copy"
            or "by" not in op.attrs
            or written_offsets is None
            or not _can_split_copy(low, op.operands[0], written_offsets)
        ):
            return False
    return written_offsets is not None


def _operands_to_check(op: Op) -> tuple[Value, ...]:
    """Return the operands of `op` that must have constant coordinates: the source of an asynchronous copy (one with the
    attribute `by`), all operands of any other operation.
    """
    return op.operands[:1] if op.name == "copy" and "by" in op.attrs else op.operands


def _is_in_stage(low: WaveLowering, value: Value, channel: Op) -> bool:
    """True if `value` is a stage of the channel that the operation `channel` makes, or a view of such a stage."""
    maker = low.chain.makers.get(low.chain.root(value))
    return maker is not None and maker.name in ("acquire", "wait") and maker.operands[0] is channel.results[0]


def _unrolled_ops(
    low: WaveLowering, block: Block, constant_symbols: frozenset[Symbol]
) -> Iterator[tuple[Op, frozenset[Symbol]]]:
    """Yield (operation, constant symbols) for each operation of `block` and of the blocks inside it. The constant
    symbols are `constant_symbols` and the variables of the unrolled loops around the operation.

    Operations in unrolled loops are yielded once for each iteration; meanwhile `low.chain.values` has the numbers of
    the iteration for the loop variables.
    """
    for op in block.ops:
        yield op, constant_symbols
        ranges = op.attrs.get("ranges", ()) if op.attrs.get("unroll") else ()
        limits = [(low.expr(r.lo), low.expr(r.hi)) for r in ranges]
        if not all(isinstance(e, Const) for pair in limits for e in pair):
            ranges, limits = (), []
        names = [r.symbol.name for r in ranges]
        outer_values = {name: low.chain.values[name] for name in names}
        counts = [range(int(lo), int(hi), r.step) for r, (lo, hi) in zip(ranges, limits, strict=True)]
        try:
            for point in product(*counts):
                low.chain.values |= zip(names, point, strict=True)
                for inner in op.blocks:
                    yield from _unrolled_ops(low, inner, constant_symbols | {r.symbol for r in ranges})
        finally:
            low.chain.values |= outer_values


def _has_constant_coordinates(low: WaveLowering, value: Value, constant_symbols: frozenset[Symbol]) -> bool:
    """True if the coordinates of the view `value`, and of the views below it, depend only on the axes of these views
    and on `constant_symbols`. True also if `value` is no view.
    """
    op = low.chain.makers.get(value)
    while op is not None and op.name in ("view", "bitcast"):
        if op.name == "view" and any(
            low.expr(e).symbols - constant_symbols - {*op.attrs["over"]} for e, _ in op.attrs["at"]
        ):
            return False
        op = low.chain.makers.get(op.operands[0])
    return True


def _offsets_written(low: WaveLowering, op: Op, stage: Value, groups: int) -> list[Any] | None:
    """Return, for each of `groups` equal groups of waves, an array of the offsets of the elements of `stage` that the
    group writes in `op`, which stores a register tensor to `stage`. Return None if two groups write the same element,
    or if `op` has no register tensor with a known layout over all waves of the role.
    """
    register_tensor = next((v for v in op.operands if isinstance(v.type, RegisterType)), None)
    elements = None if register_tensor is None else low.chain.registers(register_tensor, low.target)
    if elements is None or len(elements) != low.lanes * low.group.waves:
        return None
    shape = numbers(stage.type.shape, stage.type)
    _, offsets = low.chain.offsets(stage, np.unravel_index(elements, shape, order="F"))
    offsets_of_group = [np.unique(part) for part in np.split(offsets, groups)]
    return offsets_of_group if sum(map(len, offsets_of_group)) == len(np.unique(offsets)) else None


def _can_split_copy(low: WaveLowering, source: Value, written_offsets: list[Any]) -> bool:
    """True if a copy of `source` can be split along its first dimension into one part for each group of waves. Each
    part must read only elements that its group wrote, and begin at an aligned offset. `written_offsets` has an array
    for each group: the offsets of the elements that it wrote.
    """
    shape = numbers(source.type.shape, source.type)
    kind, offsets = low.chain.offsets(source, tuple(np.indices(shape)))
    if shape[0] % len(written_offsets):
        return False
    unit = low.target.spaces["shared"].alignment // kind.dtype.numpy.itemsize
    parts = np.split(offsets, len(written_offsets))
    return all(
        int(part.min()) % unit == 0 and np.isin(part, group_places).all()
        for part, group_places in zip(parts, written_offsets, strict=True)
    )
