"""Channels of a role to itself, `apart`: groups of waves hand their own parts over, and none waits for another.

Results wait in a stage until copies that go on by themselves have taken them. That is so where every group of waves
writes rows of its own, and a copy can be cut so that each part takes just what one group wrote; elsewhere, and for a
channel that stands outside of its role, all waves meet as in any channel.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from tilewright.algebra.expr import Const, Symbol
from tilewright.ir.core import Block, Op, Value
from tilewright.ir.tensors import RegisterType, numbers
from tilewright.passes.waves.waves import Waves


def groups_apart(low: Waves, channel: Op, groups: int) -> bool:
    """True if each of `groups` groups of a role's waves hands over just what it wrote, without waiting for the others.

    Then a copy out is split along its first dimension, one part for each group.
    """
    role = next((op for op in low.roles if op.attrs["name"] == low.role), None)
    if role is None or channel in low.program.body.ops or low.group.halves > 1 or low.group.waves % groups:
        return False
    wrote: list[Any] | None = None
    for op, known in _unrolled_ops(low, role.blocks[0], frozenset()):
        stages = [v for v in op.operands if _is_in_stage(low, v, channel)]
        if not stages or op.name in ("view", "commit", "release"):
            continue
        if len(channel.operands) > 1 or not all(_is_known(low, v, known) for v in _looked_at(op)):
            return False
        if stages == [op.operands[0 if op.name == "map" else 1]]:
            wrote = _written(low, op, stages[0], groups)
            if wrote is None:
                return False
        elif (
            op.name != "copy"
            or "by" not in op.attrs
            or wrote is None
            or not _can_split_copy(low, op.operands[0], wrote)
        ):
            return False
    return wrote is not None


def _looked_at(op: Op) -> tuple[Value, ...]:
    """Return the operands whose places count: the source of a bulk copy out, all operands of any other operation."""
    return op.operands[:1] if op.name == "copy" and "by" in op.attrs else op.operands


def _is_in_stage(low: Waves, value: Value, channel: Op) -> bool:
    """True if a value lies in a stage of the channel."""
    maker = low.chain.made.get(low.chain.root(value))
    return maker is not None and maker.name in ("acquire", "wait") and maker.operands[0] is channel.results[0]


def _unrolled_ops(low: Waves, block: Block, known: frozenset[Symbol]) -> Iterator[tuple[Op, frozenset[Symbol]]]:
    """Yield (operation, known loop variables) of a block and of blocks in it, for every iteration of unrolled loops."""
    for op in block.ops:
        yield op, known
        ranges = op.attrs.get("ranges", ()) if op.attrs.get("unroll") else ()
        limits = [(low.expr(r.lo), low.expr(r.hi)) for r in ranges]
        if not all(isinstance(e, Const) for pair in limits for e in pair):
            ranges, limits = (), []
        names = [r.symbol.name for r in ranges]
        before = {name: low.chain.values[name] for name in names}
        counts = [range(int(lo), int(hi), r.step) for r, (lo, hi) in zip(ranges, limits, strict=True)]
        try:
            for point in product(*counts):
                low.chain.values |= zip(names, point, strict=True)
                for inner in op.blocks:
                    yield from _unrolled_ops(low, inner, known | {r.symbol for r in ranges})
        finally:
            low.chain.values |= before


def _is_known(low: Waves, value: Value, known: frozenset[Symbol]) -> bool:
    """True if the places of a view in a stage or in registers depend only on variables of unrolled loops."""
    op = low.chain.made.get(value)
    while op is not None and op.name in ("view", "bitcast"):
        if op.name == "view" and any(low.expr(e).symbols - known - {*op.attrs["over"]} for e, _ in op.attrs["at"]):
            return False
        op = low.chain.made.get(op.operands[0])
    return True


def _written(low: Waves, op: Op, stage: Value, groups: int) -> list[Any] | None:
    """Return the places in a stage that each group writes; None if groups write the same elements.

    None too if no register tensor is written, as lanes then take elements of memory in turn.
    """
    held = next((v for v in op.operands if isinstance(v.type, RegisterType)), None)
    elements = None if held is None else low.chain.registers(held, low.target)
    if elements is None or len(elements) != low.lanes * low.group.waves:
        return None
    shape = numbers(stage.type.shape, stage.type)
    _, places = low.chain.offsets(stage, np.unravel_index(elements, shape, order="F"))
    places_of_group = [np.unique(part) for part in np.split(places, groups)]
    return places_of_group if sum(map(len, places_of_group)) == len(np.unique(places)) else None


def _can_split_copy(low: Waves, source: Value, wrote: list[Any]) -> bool:
    """True if the parts of a copy, split along its first dimension, each take what one group wrote, from an aligned
    place.
    """
    shape = numbers(source.type.shape, source.type)
    kind, places = low.chain.offsets(source, tuple(np.indices(shape)))
    if shape[0] % len(wrote):
        return False
    unit = low.target.spaces["shared"].alignment // kind.dtype.numpy.itemsize
    parts = np.split(places, len(wrote))
    return all(
        int(part.min()) % unit == 0 and np.isin(part, group_places).all()
        for part, group_places in zip(parts, wrote, strict=True)
    )
