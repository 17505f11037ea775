"""Loops over K that sum several products as several loops, where a product outside needs some of the sums first.

    %acc, %low = iterate ... axis=(K) {        %low = iterate ... axis=(K) { ... }       mma of %x and %a
      mma of %x and %w, mma of %x and %a }     %acc = iterate ... axis=(K) { ... }       mma of %x and %w
    %y = mma %low, %b, %acc                    %y = mma %low, %b, %acc

In one loop, a task that has some columns of %acc computes all of %low for itself. Sums that no product needs, or that
all feed the same products, stay in one loop, which reads their common operands once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.ir.core import Block, Op, Program, Value, building
from tilewright.ir.verifier import verify
from tilewright.passes.tile.rewriting import needed
from tilewright.plan.general import only_adds


def with_sums_apart(program: Program, free: Collection[Op]) -> tuple[Program, Collection[Op]]:
    """Return the program, and its free loops, with each free loop split whose sums are needed one after the other."""
    users = program.users()
    loops = [op for op in program.body.ops if op in free and only_adds(op) and len(op.results) > 1]
    early = {op: [n for n, r in enumerate(op.results) if _feeds_product(r, users)] for op in loops}
    cut = {op: places for op, places in early.items() if 0 < len(places) < len(op.results)}
    if not cut:
        return program, free
    ops: list[Op] = []
    new: dict[Op, tuple[Op, ...]] = {}
    with building():
        for op in program.body.ops:
            late = [n for n in range(len(op.results)) if n not in cut.get(op, ())]
            new[op] = (_of_sums(op, cut[op]), _of_sums(op, late)) if op in cut else (op,)
            ops += new[op]
        rewritten = replace(program, body=Block(program.body.args, ops))
        verify(rewritten)
    return rewritten, tuple(loop for op in free for loop in new.get(op, (op,)))


def _feeds_product(value: Value, users: Mapping[Value, list[Op]]) -> bool:
    """True if an MMA has an operand, not an accumulator, that is computed from `value`."""
    seen: set[Value] = set()
    left = [value]
    while left:
        now = left.pop()
        for user in users.get(now, ()):
            if user.name == "mma" and now in user.operands[:2]:
                return True
            left += [r for r in user.results if r not in seen]
            seen |= set(user.results)
    return False


def _of_sums(loop: Op, places: list[int]) -> Op:
    """Return a loop that computes only the results of `loop` at `places`, which it takes over."""
    (body,) = loop.blocks
    end = body.ops[-1]
    makers = {r: op for op in body.ops for r in op.results}
    inside = {x for n in places for x in needed(makers[end.operands[n]], makers)}
    kept = [op for op in body.ops if op in inside]
    ends = Op(end.spec, tuple(end.operands[n] for n in places), dict(end.attrs), loc=end.loc)
    args = tuple(body.args[n] for n in places)
    starts, results = (tuple(values[n] for n in places) for values in (loop.operands, loop.results))
    return Op(loop.spec, starts, dict(loop.attrs), results, (Block(args, [*kept, ends]),), loop.loc)
