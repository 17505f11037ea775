"""Products ahead: the first product of a round is started before the last one of the round before.

Products that go on by themselves then run while what lies between products is computed.

    for k in 0..5 {                        mma %s = q * k(0)
      mma %s = q * k                       ... %p from %s
      ... %p from %s, %acc scaled          for k in 1..5 {
      mma %acc += %p * v                     mma %s = q * k
    }                                        mma %acc += %p * v        that of the round before
                                             ... %p from %s, %acc scaled
                                           }
                                           mma %acc += %p * v

Both orders do the same as long as the operations that move past each other touch nothing in common; where they do, the
loop stays as it is. A branch that is taken from some round on, as where a mask begins, makes two loops of it. Half of
what %p is rounded from is computed before the last product is waited for, where that takes long: an edge says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.algebra.expr import ONE, AtLeastZero, Const, Expr, Symbol, index
from tilewright.algebra.expr_rules import maximum, minimum
from tilewright.algebra.expr_use import Substitution, linear_form
from tilewright.check.inside import shown
from tilewright.ir.attrs import Range, kind_of
from tilewright.ir.core import Block, Op, Program, Value, building, walk_block
from tilewright.ir.dtypes import f32
from tilewright.ir.tensors import RegisterType, numbers
from tilewright.ir.verifier import verify
from tilewright.machine import Machine
from tilewright.passes.inserting import Inserting

_EARLY = ("alloc", "fill", "wait", "view", "let", "mma", "release")
"""Operations that may be moved with the first product: they stand before it, or right behind it."""


def products_ahead(program: Program, machine: Machine, turns: bool = False) -> Program:
    """Return the program with its loops of two or more MMAs software-pipelined, in place: the first MMA of iteration
    i+1 is issued before the last MMA of iteration i.

    Loops that cannot be rotated stay. With `turns`, groups of waves start the MMAs of an iteration one after the other.
    """
    with building():
        new = Inserting(program)
        for op in list(program.walk()):
            for block in op.blocks:
                for loop in [x for x in block.ops if x.name == "for"]:
                    rotated = _Rotation(loop, new, machine, turns).run()
                    if rotated is not None:
                        place = block.ops.index(loop)
                        block.ops[place : place + 1] = rotated
        verify(program)
    return program


@dataclass
class _Parts:
    """A body: what ends in the first product, what follows it, and the last product with what only it needs."""

    first: list[Op]
    rest: list[Op]
    last: list[Op]
    release: list[Op]
    held: list[Op]
    """Registers that the last product reads: they are made before the loop."""


class _Rotation:
    """Rotates (software-pipelines) one loop with several MMAs."""

    def __init__(self, loop: Op, new: Inserting, machine: Machine, turns: bool):
        self.loop, self.new, self.machine, self.turns = loop, new, machine, turns
        self.taken: dict[Op, bool] = {}
        """Branches of which it is known, in the rounds that are written, whether they are taken."""
        self.roots: dict[Value, Value] = {}
        for op in loop.blocks[0].ops:
            for result in op.results:
                inner = op.operands[0] if op.name == "view" else result
                self.roots[result] = self.roots.get(inner, inner)

    def run(self) -> list[Op] | None:
        """Return the operations that take the loop's place: a prologue, the rotated loop, an epilogue; None if the loop
        stays.
        """
        ranges: tuple[Range, ...] = self.loop.attrs["ranges"]
        if len(ranges) != 1 or self.loop.attrs.get("unroll") or self.loop.attrs.get("peel") or ranges[0].step != 1:
            return None
        (loop,) = ranges
        parts = self._parts()
        if parts is None or not shown(loop.hi - loop.lo - 1):
            return None
        ops = list(parts.held)
        ops += self._clone_ops([*parts.first, *parts.rest], {loop.symbol: loop.lo})
        if loop.hi - loop.lo is not ONE:
            ops += self._rotated_loops(parts, Range.of(loop.symbol.name, loop.lo + 1, loop.hi))
        return ops + self._clone_ops([*parts.last, *parts.release], {loop.symbol: loop.hi - 1})

    def _rotated_loops(self, parts: _Parts, following: Range) -> list[Op]:
        """Return the loops over the iterations after the first: one, or two if a branch is taken from some iteration
        on.

        The first of the two loops is without the branch; the second does what the branch does, without a test.
        """
        (loop,) = self.loop.attrs["ranges"]
        branch = _late_branch(parts.rest, loop.symbol)
        if branch is None:
            return [self._rotated_loop(parts, following, {})]
        op, first = branch
        middle = minimum(maximum(first, following.lo), following.hi)
        cut = (following.lo, middle, False), (middle, following.hi, True)
        return [self._rotated_loop(parts, Range.of(loop.symbol.name, lo, hi), {op: taken}) for lo, hi, taken in cut]

    def _rotated_loop(self, parts: _Parts, rounds: Range, taken: dict[Op, bool]) -> Op:
        """Return the rotated loop over `rounds`; `taken` maps branches whose condition is known there to True if they
        are taken.
        """
        (loop,) = self.loop.attrs["ranges"]
        now, before = {loop.symbol: rounds.symbol}, {loop.symbol: rounds.symbol - 1}
        values: dict[Value, Value] = {}
        self.taken = taken
        body = self._clone_ops(parts.first, now, values)
        body += self._clone_ops(parts.last, before)
        touched = {v for op in parts.last for v in op.operands}
        wait = next((n for n, op in enumerate(parts.rest) if touched & set(_operands_within(op))), len(parts.rest))
        made_of = _source_of_a(parts, wait) if self._takes_long(parts.last[-1]) else None
        making = [n for n, op in enumerate(parts.rest[:wait]) if op.name == "map" and op.operands[0] is made_of]
        early = making[-1] + 1 if making else wait
        body += self._clone_ops(parts.rest[:early], now, values)
        body += [] if made_of is None else self._edge(values[made_of])
        body += self._clone_ops(parts.rest[early:wait], now, values)
        body += self._clone_ops(parts.release, before)
        body += self._clone_ops(parts.rest[wait:], now, values)
        self.taken = {}
        attrs = {**self.loop.attrs, "ranges": (rounds,)} | ({"overlap": "turns"} if self.turns else {})
        return Op(self.loop.spec, (), attrs, (), (Block((), body),), self.loop.loc)

    def _parts(self) -> _Parts | None:
        """Return the _Parts of the loop's body; None if operations that would pass each other touch the same values."""
        ops = self.loop.blocks[0].ops
        products = [n for n, op in enumerate(ops) if op.name == "mma"]
        inside = [op for op in ops for b in op.blocks for op in walk_block(b)]
        if len(products) < 2 or any(op.name in ("for", "mma", "wait", "barrier") for op in inside):
            return None
        product = ops[products[-1]]
        stage = self.roots.get(product.operands[2])
        wait = next((op for op in ops if op.name == "wait" and stage in op.results), None)
        if wait is None or len(wait.results) > 1:
            return None
        last = [wait, *(op for op in ops if op.name == "view" and self.roots[op.result] is stage), product]
        release = [op for op in ops if op.name == "release" and op.operands == wait.operands]
        sums, left = product.operands[0], self.roots.get(product.operands[1], product.operands[1])
        others = [op for op in ops if op not in last and op not in release]
        held = [op for op in others if op.name == "alloc" and op.result is left]
        others = [op for op in others if op not in held]
        if not isinstance(left.type, RegisterType) or not held or len(release) != 1 or product.operands[1] is not left:
            return None
        if any({sums, left, stage} & set(_operands_within(op)) for op in ops[products[-1] + 1 :] if op not in release):
            return None
        count = 0
        while count < len(others) and others[count].name in _EARLY:
            count += 1
        first = others[:count]
        if not any(op.name == "mma" for op in first) or any({sums, left} & set(_operands_within(op)) for op in first):
            return None
        if any({stage} & set(_operands_within(op)) for op in others):
            return None
        return _Parts(first, others[count:], last, release, held)

    def _takes_long(self, product: Op) -> bool:
        """True if an MMA takes at least as many cycles as lanes take to evaluate a function of every element of its A.

        Then half of the next A is computed before the MMA is waited for, an order that assemblers do not find.
        """
        atom, limits = self.machine.multiply_atom(product.attrs["atom"]), self.machine.limits
        rows, deep = numbers(product.operands[1].type.shape, "mma")
        return rows / atom.shape[0] * deep / atom.shape[2] * atom.cycles >= rows * deep / limits.function_rate

    def _edge(self, value: Value) -> list[Op]:
        """Return a view of the left half of `value` and an `edge`: code before it computes this half, other code comes
        after.
        """
        rows, columns = value.type.shape
        over = (index("i0", rows), index("i1", columns // 2))
        half = self.new.op("view", (value,), "early", over=over, at=tuple((e, False) for e in over))
        return [half, self.new.op("edge", (half.result,))]

    def _clone_ops(
        self, ops: Iterable[Op], meanings: Mapping[Symbol, Expr], values: dict[Value, Value] | None = None
    ) -> list[Op]:
        """Return clones of `ops` with symbols replaced by `meanings`; `values` maps results to their clones, and is
        extended.

        A branch whose condition is known is replaced by the operations of the block that is taken.
        """
        images, known = Substitution(dict(meanings)), {} if values is None else values
        clones: list[Op] = []
        for op in ops:
            attrs = {n: kind_of(op.spec.attrs[n]).mapped(v, images) for n, v in op.attrs.items() if n != "over"}
            attrs |= {n: v for n, v in op.attrs.items() if n == "over"}
            attrs = {n: attrs[n] for n in op.attrs}
            blocks = [self._clone_ops(b.ops, meanings, known) for b in op.blocks]
            if op in self.taken or (op.name == "if" and isinstance(attrs["when"], Const)):
                taken = self.taken[op] if op in self.taken else attrs["when"].value
                clones += blocks[0] if taken else blocks[1] if len(blocks) > 1 else []
                continue
            new = Op(op.spec, tuple(known.get(v, v) for v in op.operands), attrs, (), (), op.loc)
            new.results = tuple(Value(r.type, self.new.fresh(r.name)) for r in op.results)
            new.blocks = tuple(Block((), b) for b in blocks)
            known |= zip(op.results, new.results, strict=True)
            clones.append(new)
        return clones


def _late_branch(ops: list[Op], round_: Symbol) -> tuple[Op, Expr] | None:
    """Return (the only branch that depends on the iteration, the iteration from which on it is taken); None if there is
    none.

    None too if the condition is not linear in `round_` with a positive factor, or if the branch has an else block.
    """
    branches = [op for op in ops if op.name == "if" and round_ in op.attrs["when"].symbols]
    when = branches[0].attrs["when"] if len(branches) == 1 else None
    form = linear_form(when.operand, [round_]) if isinstance(when, AtLeastZero) else None
    step = None if form is None else form[0].get(round_)
    if form is None or not isinstance(step, Const) or step.value < 1 or len(branches[0].blocks) > 1:
        return None
    return branches[0], -(form[1] // step.value)


def _source_of_a(parts: _Parts, wait: int) -> Value | None:
    """Return the f32 value that A of the last MMA is rounded from, if it is computed before operation `wait` of the
    rest.

    None if there is no such value, or several.
    """
    left = next(op.result for op in parts.held)
    making = [op for op in parts.rest[wait:] if op.name == "map" and op.operands[0] is left]
    computed = {op.operands[0] for op in parts.rest[:wait] if op.name == "map"}
    sources = [v for op in making for v in op.operands[1:] if v in computed and _has_halves(v)]
    return sources[0] if len(sources) == 1 else None


def _has_halves(value: Value) -> bool:
    """True if a value is a matrix of f32 in registers with an even number of columns, so that it has halves."""
    kind = value.type
    if not isinstance(kind, RegisterType) or kind.dtype is not f32 or len(kind.shape) != 2:
        return False
    return isinstance(kind.shape[1], Const) and kind.shape[1].value % 2 == 0


def _operands_within(op: Op) -> Iterable[Value]:
    """Yield the operands of an operation and of all operations inside it."""
    yield from op.operands
    for block in op.blocks:
        for inner in walk_block(block):
            yield from inner.operands
