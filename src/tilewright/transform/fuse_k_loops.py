"""Fusion of consecutive K loops over the same steps into one loop, which loads their common operands once.

    for e in 0..64 {                             for e in 0..64 {
      copy %x_view -> %slab; copy %w_view ...      copy %x_view -> %slab
      mma %sums += %slab * %slab_1                 copy %w_view -> %slab_1
    }                                              mma %sums += %slab * %slab_1
    for e_1 in 0..64 {                             copy %u_view -> %slab_3
      copy %x_view_1 -> %slab_2 ...                mma %sums_1 += %slab * %slab_3
      mma %sums_1 += %slab_2 * %slab_3           }
    }

Two loops are fused if they only copy operands to shared memory or to registers and multiply, and if neither needs a
result of the other. Loads that are dropped are removed from the map of loads that is returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

from tilewright.algebra.expr_use import Substitution
from tilewright.ir.attrs import kind_of
from tilewright.ir.core import Block, Op, Program, Value, building
from tilewright.ir.tensors import RegisterType
from tilewright.ir.verifier import verify

_BODY = {"view", "copy", "barrier", "mma"}
_WRITES = {"copy", "mma"}
_BETWEEN = {"alloc", "fill", "let"}


def with_joint_loops(program: Program, loads: Mapping[Op, str]) -> tuple[Program, dict[Op, str]]:
    """Fuse consecutive K loops of a block program, in place, if both load the same tile: the fused loop loads it once.
    `loads` is {copy from an argument to shared memory: `ring`, `halo` or `start`}; loops with other loads than `ring`
    are not fused. Return (the program, `loads` of the changed program).
    """
    left = dict(loads)
    with building():
        for block in [program.body, *(b for op in program.walk() for b in op.blocks)]:
            while _join_first_pair(block, left):
                pass
        verify(program)
    return program, left


def _join_first_pair(block: Block, loads: dict[Op, str]) -> bool:
    """Fuse, in place, the first two consecutive loops of `block` that can be fused and load the same tile, and return
    True. Return False if there are none. Operations between the two loops then come before the fused loop. `loads`,
    {copy to shared memory: its kind}, is updated: copies of the second loop are replaced by their clones in the fused
    loop, or removed.
    """
    loops = [n for n, op in enumerate(block.ops) if op.name == "for"]
    for first, second in pairwise(loops):
        one, two, between = block.ops[first], block.ops[second], block.ops[first + 1 : second]
        moves = all(op.name in _BETWEEN and _used(one).isdisjoint(op.operands) for op in between)
        if not moves or not _can_join(one, two, loads):
            continue
        body, tiles, copies = _joint_body(one, two)
        if not tiles:
            continue
        for old, new in copies.items():
            kind = loads.pop(old, None)
            loads |= {} if new is None or kind is None else {new: kind}
        between = [op for op in between if op.name != "alloc" or op.result not in tiles]
        joint = Op(one.spec, one.operands, one.attrs, one.results, (body,), one.loc)
        block.ops[first : second + 1] = [*between, joint]
        return True
    return False


def _can_join(one: Op, two: Op, loads: Mapping[Op, str]) -> bool:
    """True if the loops `one` and `two` can be fused.

    Each has one range, and the two are equal but for the loop variable. The other attributes are equal. The bodies
    contain only views, loads of operands, barriers and MMAs. Neither loop uses what the other writes, except registers
    that both load before they use them. `loads` is {load to shared memory: its kind}; those in the two loops must be of
    the kind `ring`.
    """
    if any(len(loop.blocks) != 1 or len(loop.attrs["ranges"]) != 1 for loop in (one, two)):
        return False
    inside = [*one.blocks[0].ops, *two.blocks[0].ops]
    if any(op.name not in _BODY or (op.name == "copy" and not _is_load(op, loads)) for op in inside):
        return False
    (steps,), (others,) = (loop.attrs["ranges"] for loop in (one, two))
    if replace(others, symbol=steps.symbol) != steps or {**one.attrs, "ranges": ()} != {**two.attrs, "ranges": ()}:
        return False
    views = {r for op in inside if op.name == "view" for r in op.results}
    if views & (_written(one) | _written(two)):
        return False
    loaded = _loaded_registers(one) & _loaded_registers(two)
    return (_written(one) - loaded).isdisjoint(_used(two)) and (_written(two) - loaded).isdisjoint(_used(one))


def _is_load(copy: Op, loads: Mapping[Op, str]) -> bool:
    """True if `copy` is a load to shared memory of the kind `ring`, or if its target is in registers.

    `loads` is {load to shared memory: its kind}.
    """
    return loads.get(copy) == "ring" or isinstance(copy.operands[1].type, RegisterType)


def _loaded_registers(loop: Op) -> set[Value]:
    """Return the registers of operands to which one copy in a loop's body loads, before all that reads them."""
    ops = loop.blocks[0].ops
    first_use = {v: op for op in reversed(ops) for v in op.operands}
    copies = [op for op in ops if op.name == "copy" and isinstance(op.operands[1].type, RegisterType)]
    targets = [op.operands[1] for op in copies]
    return {v for v, op in zip(targets, copies, strict=True) if first_use[v] is op and targets.count(v) == 1}


def _joint_body(one: Op, two: Op) -> tuple[Block, set[Value], dict[Op, Op | None]]:
    """Return (body, dropped, copies) for the fusion of the loops `one` and `two`. `body` has the operations of `one`,
    then those of `two`, without the views and copies of `two` that repeat one of `one`.

    A copy repeats another if it copies the same elements to a tile of the same type. `dropped` are the tiles of `two`
    that such copies fill. `copies` is {copy of `two`: its clone in `body`, or None if it is left out}.
    """
    (body,), (other,) = one.blocks, two.blocks
    (steps,), (others,) = (loop.attrs["ranges"] for loop in (one, two))
    images = Substitution({others.symbol: steps.symbol})
    values: dict[Value, Value] = {}
    ops, dropped, copies = list(body.ops), set[Value](), dict[Op, Op | None]()
    views = {op.result: op for op in body.ops if op.name == "view"}
    for op in other.ops:
        attrs = {name: kind_of(op.spec.attrs[name].rstrip("?")).mapped(x, images) for name, x in op.attrs.items()}
        operands = tuple(values.get(v, v) for v in op.operands)
        new = Op(op.spec, operands, attrs, op.results, (), op.loc)
        if op.name == "view":
            same = next((v for v, x in views.items() if x.operands == operands and x.attrs == attrs), None)
            if same is not None:
                values[op.result] = same
                continue
        elif op.name == "copy":
            twin = next((x for x in body.ops if x.name == "copy" and _copies_alike(x, new)), None)
            copies[op] = new if twin is None else None
            if twin is not None:
                values[op.operands[1]] = twin.operands[1]
                dropped.add(op.operands[1])
                continue
        ops.append(new)
    return Block(body.args, ops), dropped, copies


def _copies_alike(one: Op, two: Op) -> bool:
    """True if the copies `one` and `two` have the same source and attributes, and targets of the same type."""
    return (
        one.operands[0] is two.operands[0] and one.attrs == two.attrs and one.operands[1].type == two.operands[1].type
    )


def _written(loop: Op) -> set[Value]:
    """Return the targets of the copies (tiles) and of the MMAs (accumulators) in the body of `loop`."""
    return {op.operands[1] if op.name == "copy" else op.operands[0] for op in loop.blocks[0].ops if op.name in _WRITES}


def _used(loop: Op) -> set[Value]:
    """Return the operands of all operations in the body of `loop`, the targets of copies and the accumulators of MMAs
    included.
    """
    return {v for op in loop.blocks[0].ops for v in op.operands}
