"""Gather, scatter, atomic: places that are data, one element at a time."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.algebra.expr import Expr, Symbol
from tilewright.algebra.expr_rules import all_of
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Value
from tilewright.passes.elementwise import from_memory, in_memory, load, store
from tilewright.passes.loop_lowering import LoopLowering
from tilewright.passes.places import Where


def _elements(low: LoopLowering, op: Op, body: Callable[[tuple[Expr, ...], Where], None]) -> None:
    """Emit loops over the elements of a tile; `body` gets an element's coordinates and the place that index tensors
    give.
    """
    memory = in_memory(low, low.handles[op.operands[1]])
    indices = [in_memory(low, low.handles[v]) for v in op.operands[2:]]
    over = op.attrs["over"]
    shape = tuple(low.expr(s.upper + 1) for s in over)

    def nest(known: tuple[Expr, ...]) -> None:
        if len(known) < len(shape):
            with low.loop("i", 0, shape[len(known)]) as i:
                nest((*known, i))
            return
        meanings: dict[Symbol, Expr] = dict(zip(over, known, strict=True))
        for (name, at), source in zip(op.attrs.get("where", ()), indices, strict=True):
            images = Substitution({**low.meaning, **meanings})
            where = source.at(tuple(images(e) for e in at))
            index_value = low.unlimited("d")
            low.emit("fetch", (where.buffer,), symbol=index_value, at=(where.offset,))
            meanings[name] = index_value
        images = Substitution({**low.meaning, **meanings})
        coordinates, conditions = [], []
        for (e, loose), size in zip(op.attrs["at"], memory.shape, strict=True):
            c = images(e)
            if loose:
                conditions += [c >= 0, c < size]
            coordinates.append(c)
        inner = memory.at(tuple(coordinates))
        body(known, Where(inner.buffer, inner.offset, (*conditions, *inner.conditions)))

    nest(())


def gather(low: LoopLowering, op: Op) -> None:
    """Lower `gather`: load elements at places that are data; an element that is out of bounds is the `otherwise`
    number.
    """
    goal = low.handles[op.operands[0]]
    held = in_memory(low, goal)
    value: Value = low.register(held.dtype)

    def body(known: tuple[Expr, ...], where: Where) -> None:
        load(low, value, (), where, op.attrs.get("otherwise", 0))
        store(low, value, (), held.at(known), False)

    _elements(low, op, body)
    from_memory(low, held, goal)


def scatter(low: LoopLowering, op: Op) -> None:
    """Lower `scatter`: store elements at places that are data."""
    held = in_memory(low, low.handles[op.operands[0]])
    value: Value = low.register(held.dtype)

    def body(known: tuple[Expr, ...], where: Where) -> None:
        load(low, value, (), held.at(known), 0)
        store(low, value, (), where, False)

    _elements(low, op, body)


def atomic(low: LoopLowering, op: Op) -> None:
    """Lower `atomic`: combine elements into places that are data, while other workers may do the same."""
    held = in_memory(low, low.handles[op.operands[0]])
    value: Value = low.register(held.dtype)

    def body(known: tuple[Expr, ...], where: Where) -> None:
        load(low, value, (), held.at(known), 0)
        when = all_of(*where.conditions) if where.conditions else None
        low.emit("atomic", (value, where.buffer), how=op.attrs["how"], at=(where.offset,), when=when)

    _elements(low, op, body)
