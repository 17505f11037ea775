"""Splits a program into two kernels with a value in memory between them, if that value does not fit registers.

    %h = mma %x, %w1, ...                      first                     second
    %a = ... of %h, element by element         %h = mma ...              %a = read %between
    %y = mma %a, %w2, ...                      write %a, %between        %y = mma %a, %w2, ...

The value in memory is computed element by element from an MMA, and the rest of the program uses nothing else of that
MMA. `split kernel after mma2` says which MMA is the last of the first kernel. Of several such values, the narrowest is
taken, then the last. In a loop, it must not depend on carried values: the first program then computes it for all tiles
at once. The second program may be split again.

An operand that is computed by reductions, such as rows that are normalised before an MMA, goes through memory if the
plan says `split kernel before mma`; so does a reduction that the epilogue of the MMA uses, such as lengths of rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod

from tilewright.algebra.expr import Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Block, Op, Program, TileType, Value, building
from tilewright.ir.tile import REDUCTIONS, TILE
from tilewright.plan.computed import GIVEN, SIMPLE
from tilewright.plan.facts.loops import SAME_ELEMENTS
from tilewright.plan.microkernel import mmas_by_name
from tilewright.plan.search.partition import BETWEEN
from tilewright.rewrite.rewriter import Replacement, TwoPrograms, memory_between, needed, two_programs, within


def split_after_mma(program: Program, sizes: Mapping[Symbol, int], name: str) -> TwoPrograms | str:
    """Return the program as a TwoPrograms, with a value between them in memory; or text: why there is no such value.

    The first kernel has the MMAs up to the one called `name`, and writes a value computed from them. The second kernel
    reads it. Of several values, take the one with the fewest bits per element; of equal ones, the last. `sizes` is
    {dimension: extent}.
    """
    by_last_mma: dict[str, list[tuple[Op, list[Op]]]] = {}
    products = mmas_by_name(program)
    for op, ops in (candidate for block in _blocks(program) for candidate in _candidates(program, block)):
        inside = {x for outer in ops for x in (outer, *within(outer))}
        names = [mma_name for mma_name, product in products.items() if product in inside]
        if names == list(products)[: len(names)]:
            by_last_mma.setdefault(names[-1], []).append((op, ops))
    if not by_last_mma:
        return "nothing that is computed from a product is all that the rest needs of it"
    if name not in by_last_mma:
        allowed = ", ".join(f"`split kernel after {other}`" for other in sorted(by_last_mma))
        return f"no value computed from {name} is all that the rest needs of it; allowed: {allowed}"
    with building():
        op, ops = min(reversed(by_last_mma[name]), key=lambda x: x[0].result.type.dtype.bits)
        memory = memory_between(program, BETWEEN, op.result)
        read = Op(TILE.ops["read"], (memory,), {}, (Value(op.result.type, op.result.name),), loc=op.loc)
        rest = Replacement.by_last(op, [read])
        return two_programs(program, ("before", ops), {op.result: memory}, rest, sizes, {})


def split_before_mma(program: Program, sizes: Mapping[Symbol, int], name: str) -> TwoPrograms | str:
    """Return the program as a TwoPrograms, with a reduced value between them in memory; or text: why there is no such
    value.

    The first kernel computes and writes the value, and the second reads it for the MMA called `name`. The value is an
    operand of that MMA that is computed from reductions. Without such an operand, it is the smallest reduction that the
    MMA's epilogue uses. It must not depend on an MMA. `sizes` is {dimension: extent}.
    """
    product = mmas_by_name(program).get(name)
    if product is None:
        return f"the products are {', '.join(mmas_by_name(program))}"
    block = next((b for b in _blocks(program) if product in b.ops), None)
    if block is None:
        return f"{name} lies in a loop within a loop"
    order = [*([] if block is program.body else program.body.ops), *block.ops]
    makers = {r: op for op in order for r in op.results}
    operands = [op for value in product.operands[:2] if (op := _maker(value, makers)) is not None]
    reduced = [op for op in operands if any(x.name in REDUCTIONS for x in needed(op, makers))]
    for op in reduced or _reductions_beside(program, product, sizes):
        inside = _needed(op, makers, set(program.args), REDUCTIONS)
        if inside is None or any(map(_multiplies, inside)):
            continue
        with building():
            memory = memory_between(program, BETWEEN, op.result)
            read = Op(TILE.ops["read"], (memory,), {}, (Value(op.result.type, op.result.name),), loc=op.loc)
            ops = [x for x in order if x in inside]
            rest = Replacement.by_last(op, [read])
            return two_programs(program, ("before", ops), {op.result: memory}, rest, sizes, {})
    return f"neither an operand nor the epilogue of {name} needs a reduction that depends on no product"


def _maker(value: Value, makers: Mapping[Value, Op]) -> Op | None:
    """Return the operation that computes the elements of `value`; broadcasts and permutes are looked through.

    `makers` is {value: operation that computes it}. None if it has no such operation.
    """
    op = makers.get(value)
    while op is not None and op.name in SAME_ELEMENTS:
        op = makers.get(op.operands[0])
    return op


def _reductions_beside(program: Program, product: Op, sizes: Mapping[Symbol, int]) -> list[Op]:
    """Return a list with the reduction that the epilogue of the MMA `product` uses; of several, the one with the fewest
    bits.

    An operation that depends on `product` must also depend on the reduction. The reduction must not depend on an MMA,
    nor give a scalar. Of equally large ones, take the first. The list is empty if there is none, or if the MMA is in a
    loop. `sizes` is {size symbol: extent}.
    """
    ops, makers, numbers = program.body.ops, program.makers(), Substitution(sizes)
    if product not in ops:
        return []
    behind = {op: needed(op, makers) for op in ops}
    used = {x for op in ops if op is not product and product in behind[op] for x in behind[op]}

    def size(op: Op) -> int:
        """Return the number of bits of the result of `op`."""
        bits: int = op.result.type.dtype.bits
        return prod(int(numbers(d)) for d in op.result.type.dims) * bits

    reductions = (op for op in ops if op.name in REDUCTIONS and op.result.type.dims and op in used)
    return sorted((op for op in reductions if not any(map(_multiplies, behind[op]))), key=size)[:1]


def _blocks(program: Program) -> Iterator[Block]:
    """Yield the blocks in which `program` may be split: its body, and the bodies of its outermost loops without a
    start.
    """
    yield program.body
    for op in program.body.ops:
        if op.name == "iterate" and not op.attrs.get("start"):
            yield from op.blocks


def _candidates(program: Program, block: Block) -> Iterator[tuple[Op, list[Op]]]:
    """Yield (operation of `block`, list of all operations that it depends on) for each value that could go through
    memory.

    The value is the operation's only result. It must be computed elementwise from an MMA of which the rest of the
    program uses nothing else, and must not depend on carried values. A reduction, MMA or loop must use it later. The
    list includes the operation itself, and has the order of the program.
    """
    outer_ops = [] if block is program.body else program.body.ops
    order = [*outer_ops, *block.ops]
    makers = {r: op for op in order for r in op.results}
    users = program.users()
    for op in block.ops:
        if len(op.results) != 1 or not isinstance(op.result.type, TileType) or not op.result.type.dims:
            continue
        inside = _needed(op, makers, set(program.args))
        if inside is None or not any(_multiplies(x) for x in inside):
            continue
        dependent = _dependent(inside, order)
        if any(x.name not in SIMPLE and not _multiplies(x) for x in dependent):
            continue
        has_other_users = any(
            u not in inside for x in dependent if x is not op for r in x.results for u in users.get(r, ())
        )
        if not has_other_users and _feeds_reduction(op, users, inside):
            yield op, [x for x in order if x in inside]


def _needed(op: Op, makers: Mapping[Value, Op], arguments: set[Value], more: Collection[str] = ()) -> set[Op] | None:
    """Return the set of `op` and all operations that it depends on; None if it needs an operation that is not allowed.

    Allowed are reads, MMAs, loops, elementwise operations and the names in `more`. None also if it depends on a value
    that a surrounding loop carries. `makers` is {value: operation that computes it}; `arguments` are those of the
    program.
    """
    ops = needed(op, makers)
    known = arguments | {r for x in ops for r in x.results} | {a for x in ops for b in x.blocks for a in b.args}
    are_allowed = all(x.name in (*SIMPLE, *GIVEN, *more, "read", "mma", "iterate", "yield") for x in ops)
    return ops if are_allowed and all(v in known for x in ops for v in x.operands) else None


def _multiplies(op: Op) -> bool:
    """True if the operation `op` is an MMA, or has one in its blocks."""
    return op.name == "mma" or any(x.name == "mma" for x in within(op))


def _dependent(needed: set[Op], order: list[Op]) -> list[Op]:
    """Return the operations of `needed` that are MMAs (or loops with MMAs), or that depend on one, in the order of
    `order`.
    """
    dependent: list[Op] = []
    values: set[Value] = set()
    for op in order:
        if op in needed and (_multiplies(op) or not values.isdisjoint(op.operands)):
            dependent.append(op)
            values |= set(op.results)
    return dependent


def _feeds_reduction(op: Op, users: Mapping[Value, list[Op]], inside: set[Op]) -> bool:
    """True if a reduction, an MMA or a loop outside of `inside` uses the result of `op`, directly or through other
    operations.

    False if only an elementwise epilogue follows. `users` is {value: list of the operations that use it}.
    """
    visited: set[Value] = set()
    pending = [op.result]
    while pending:
        value = pending.pop()
        if value in visited:
            continue
        visited.add(value)
        for user in users.get(value, ()):
            if user.name in (*REDUCTIONS, "mma", "iterate") and user not in inside:
                return True
            pending += user.results
    return False
