"""Splits a loop over K with several accumulators into several loops, if an MMA outside needs only some of them.

    %acc, %low = iterate ... axis=(K) {        %low = iterate ... axis=(K) { ... }       mma of %x and %a
      mma of %x and %w, mma of %x and %a }     %acc = iterate ... axis=(K) { ... }       mma of %x and %w
    %y = mma %low, %b, %acc                    %y = mma %low, %b, %acc

In one loop, a task that has some columns of %acc would compute all of %low for itself. Accumulators that no MMA has as
operands, or that all feed the same MMAs, stay in one loop, which reads their common operands once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from tilewright.ir.core import Block, Op, Program, Value, building
from tilewright.ir.verifier import verify
from tilewright.plan.general import only_adds
from tilewright.rewrite.rewriter import needed


def with_separate_accumulators(program: Program, free: Collection[Op]) -> tuple[Program, Collection[Op]]:
    """Split K loops with several accumulators in two; return (new program, counterparts of the loops `free` in it).

    The first loop computes the accumulators from which operand A or B of a later MMA is computed, the second computes
    the others. A loop is split only if it is in `free`, just adds MMAs, and has accumulators for both loops. Both
    results are returned unchanged if no loop is split. `free` holds the loops that give the same result for every tile
    size.
    """
    users = program.users()
    loops = [op for op in program.body.ops if op in free and only_adds(op) and len(op.results) > 1]
    feeding_results = {op: [n for n, r in enumerate(op.results) if _feeds_product(r, users)] for op in loops}
    split_loops = {op: places for op, places in feeding_results.items() if 0 < len(places) < len(op.results)}
    if not split_loops:
        return program, free
    ops: list[Op] = []
    loops_of: dict[Op, tuple[Op, ...]] = {}
    with building():
        for op in program.body.ops:
            other_results = [n for n in range(len(op.results)) if n not in split_loops.get(op, ())]
            loops_of[op] = (
                (_loop_of_results(op, split_loops[op]), _loop_of_results(op, other_results))
                if op in split_loops
                else (op,)
            )
            ops += loops_of[op]
        rewritten = replace(program, body=Block(program.body.args, ops))
        verify(rewritten)
    return rewritten, tuple(loop for op in free for loop in loops_of.get(op, (op,)))


def _feeds_product(value: Value, users: Mapping[Value, list[Op]]) -> bool:
    """True if operand A or B of some MMA is `value`, or is computed from it.

    `users` is {value: list of the operations that use it}.
    """
    visited: set[Value] = set()
    pending = [value]
    while pending:
        current = pending.pop()
        for user in users.get(current, ()):
            if user.name == "mma" and current in user.operands[:2]:
                return True
            pending += [r for r in user.results if r not in visited]
            visited |= set(user.results)
    return False


def _loop_of_results(loop: Op, places: list[int]) -> Op:
    """Return a loop like `loop` that computes only the results with the numbers in `places`, such as [0, 2].

    Its results are the same `Value` objects as those of `loop`.
    """
    (body,) = loop.blocks
    end = body.ops[-1]
    makers = {r: op for op in body.ops for r in op.results}
    inside = {x for n in places for x in needed(makers[end.operands[n]], makers)}
    body_ops = [op for op in body.ops if op in inside]
    ends = Op(end.spec, tuple(end.operands[n] for n in places), dict(end.attrs), loc=end.loc)
    args = tuple(body.args[n] for n in places)
    starts, results = (tuple(values[n] for n in places) for values in (loop.operands, loop.results))
    return Op(loop.spec, starts, dict(loop.attrs), results, (Block(args, [*body_ops, ends]),), loop.loc)
