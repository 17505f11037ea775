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
loop stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilewright.algebra.expr import ONE, Const, Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.check.inside import shown
from tilewright.ir.attrs import Range, kind_of
from tilewright.ir.core import Block, Op, Program, Value, building, walk_block
from tilewright.ir.tensors import RegisterType
from tilewright.ir.verifier import verify

_EARLY = ("alloc", "fill", "wait", "view", "let", "mma", "release")
"""What stands before a product, and right behind it."""


def products_ahead(program: Program) -> Program:
    """The program with the loops changed, in place, that have two products or more."""
    with building():
        names = {v.name for op in program.walk() for v in op.results}
        for op in list(program.walk()):
            for block in op.blocks:
                for loop in [x for x in block.ops if x.name == "for"]:
                    made = _Rotation(loop, names).run()
                    if made is not None:
                        place = block.ops.index(loop)
                        block.ops[place : place + 1] = made
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
    def __init__(self, loop: Op, names: set[str | None]):
        self.loop, self.names = loop, names
        self.roots: dict[Value, Value] = {}
        for op in loop.blocks[0].ops:
            for result in op.results:
                inner = op.operands[0] if op.name == "view" else result
                self.roots[result] = self.roots.get(inner, inner)

    def run(self) -> list[Op] | None:
        """The operations that take the loop's place; None where it stays."""
        ranges: tuple[Range, ...] = self.loop.attrs["ranges"]
        if len(ranges) != 1 or self.loop.attrs.get("unroll") or self.loop.attrs.get("peel") or ranges[0].step != 1:
            return None
        (loop,) = ranges
        parts = self._parts()
        if parts is None or not shown(loop.hi - loop.lo - 1):
            return None
        made = list(parts.held)
        made += self._again([*parts.first, *parts.rest], {loop.symbol: loop.lo})
        following = Range.of(loop.symbol.name, loop.lo + 1, loop.hi)
        if loop.hi - loop.lo is not ONE:
            now, before = {loop.symbol: following.symbol}, {loop.symbol: following.symbol - 1}
            values: dict[Value, Value] = {}
            body = self._again(parts.first, now, values)
            body += self._again(parts.last, before)
            touched = {v for op in parts.last for v in op.operands}
            wait = next((n for n, op in enumerate(parts.rest) if touched & set(_touched(op))), len(parts.rest))
            body += self._again(parts.rest[:wait], now, values)
            body += self._again(parts.release, before)
            body += self._again(parts.rest[wait:], now, values)
            attrs = {**self.loop.attrs, "ranges": (following,)}
            made.append(Op(self.loop.spec, (), attrs, (), (Block((), body),), self.loop.loc))
        return made + self._again([*parts.last, *parts.release], {loop.symbol: loop.hi - 1})

    def _parts(self) -> _Parts | None:
        """The body's parts; None where they cannot pass each other."""
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
        if any({sums, left, stage} & set(_touched(op)) for op in ops[products[-1] + 1 :] if op not in release):
            return None
        count = 0
        while count < len(others) and others[count].name in _EARLY:
            count += 1
        first = others[:count]
        if not any(op.name == "mma" for op in first) or any({sums, left} & set(_touched(op)) for op in first):
            return None
        if any({stage} & set(_touched(op)) for op in others):
            return None
        return _Parts(first, others[count:], last, release, held)

    def _again(
        self, ops: Iterable[Op], meanings: Mapping[Symbol, Expr], values: dict[Value, Value] | None = None
    ) -> list[Op]:
        """The operations with another meaning of the loop's variable, on values of their own."""
        images, known = Substitution(dict(meanings)), {} if values is None else values
        found: list[Op] = []
        for op in ops:
            attrs = {n: kind_of(op.spec.attrs[n]).mapped(v, images) for n, v in op.attrs.items() if n != "over"}
            attrs |= {n: v for n, v in op.attrs.items() if n == "over"}
            attrs = {n: attrs[n] for n in op.attrs}
            blocks = [self._again(b.ops, meanings, known) for b in op.blocks]
            if op.name == "if" and isinstance(attrs["when"], Const):
                found += blocks[0] if attrs["when"].value else blocks[1] if len(blocks) > 1 else []
                continue
            new = Op(op.spec, tuple(known.get(v, v) for v in op.operands), attrs, (), (), op.loc)
            new.results = tuple(Value(r.type, self._fresh(r.name)) for r in op.results)
            new.blocks = tuple(Block((), b) for b in blocks)
            known |= zip(op.results, new.results, strict=True)
            found.append(new)
        return found

    def _fresh(self, name: str | None) -> str | None:
        if name is None:
            return None
        count, found = 1, name
        while found in self.names:
            count += 1
            found = f"{name}_{count}"
        self.names.add(found)
        return found


def _touched(op: Op) -> Iterable[Value]:
    """The values that an operation, and those inside it, take."""
    yield from op.operands
    for block in op.blocks:
        for inner in walk_block(block):
            yield from inner.operands
