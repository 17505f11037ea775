"""Mma: atoms on registers, or loops with the same meaning where the machine lacks the atom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tilewright.algebra.expr import Const, Expr, as_expr
from tilewright.algebra.expr_rules import all_of
from tilewright.ir.core import Op, Value
from tilewright.ir.formula import Formula
from tilewright.ir.printer import op_text
from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.passes.elementwise import from_memory, in_memory, load
from tilewright.passes.places import Memory, MemoryView, Where, nearest
from tilewright.passes.storage import Tiles, Vectors

if TYPE_CHECKING:
    from tilewright.passes.lower import Lowering


def mma(low: Lowering, op: Op) -> None:
    """The product of matrices is added."""
    assert low.machine is not None
    atom = low.machine.multiply_atom(op.attrs["atom"])
    c, a, b = (low.handles[v] for v in op.operands)
    if not isinstance(a, Tiles):  # vectors of A are read number by number, from memory
        a = in_memory(low, a)
    skip = bool(op.attrs.get("skip"))
    here = low.available(atom)
    if not here:
        low.slow[atom.name] = f"this CPU has no {atom.name}: its products run as loops of the same meaning, much slower"
    if here and isinstance(c, Tiles) and isinstance(a, Tiles) and isinstance(b, Tiles):
        _tiles(low, atom, c, a, b)
    elif here and isinstance(c, Vectors) and _is_vector_atom(atom, c) and _whole_steps(low, atom, a):
        _vectors(low, atom, c, a, in_memory(low, b), skip)
    else:
        if here:
            low.slow[op_text(op)] = (
                f"{op_text(op)}: {atom.name} does not take its factors as they lie (or its registers were too few); "
                "it runs as loops with the same meaning, much slower"
            )
        _loops(low, c, in_memory(low, a), in_memory(low, b), skip)


def _tiles(low: Lowering, atom: MultiplyAtom, c: Tiles, a: Tiles, b: Tiles) -> None:
    depth = max(k for _, k in a.registers) + 1
    for k in range(depth):
        for (i, j), value in c.registers.items():
            low.emit("atom", (value, a.registers[i, k], b.registers[k, j]), atom=atom.name)


def _is_vector_atom(atom: MultiplyAtom, c: Vectors) -> bool:
    """One row times a few rows of a vector: A is the same in all lanes."""
    return atom.shape[0] == 1 and isinstance(atom.c, RegisterOperand) and atom.c.lanes == c.lanes


def _whole_steps(low: Lowering, atom: MultiplyAtom, a: Memory | MemoryView) -> bool:
    """Whether the numbers of A that one instruction takes are all there or all outside, and at a constant stride."""
    depth = atom.shape[2]
    if depth == 1:
        return True
    row, step = low.axis("i", a.extents[0]), low.axis("k", a.extents[1] // depth)
    wheres = [a.at((row, depth * step + d)) for d in range(depth)]
    first = wheres[0]
    stride = wheres[1].offset - first.offset
    return all(
        w.conditions == first.conditions and (w.offset - first.offset) is d * stride for d, w in enumerate(wheres)
    )


def _vectors(
    low: Lowering, atom: MultiplyAtom, c: Vectors, a: Memory | MemoryView, b: Memory | MemoryView, skip: bool
) -> None:
    """For each step of k: vectors of B once, then each number of A times all of them."""
    depth, lanes = atom.shape[2], c.lanes
    rows = sorted({key[0] for key in c.registers})
    blocks = sorted({key[1] for key in c.registers})
    for k in range(0, a.extents[1], depth):
        factors: list[tuple[int, list[Where], Expr | None, Expr | None]] = []
        for i in rows:
            wheres = [a.at((as_expr(i), as_expr(k + d))) for d in range(depth)]
            conditions = dict.fromkeys(x for w in wheres for x in w.conditions)
            if any(isinstance(x, Const) and not x.value for x in conditions):
                continue  # outside: nothing to multiply
            when = all_of(*conditions) if conditions else None
            always = _always_there(low, a, i, k, depth) if skip and conditions else None
            # what is not multiplied may be any number
            factors.append((i, wheres, when, when) if always is None else (i, always, None, when))
        if not factors:
            continue
        columns = {}
        for j in blocks:
            lane = low.axis("l", lanes * depth)
            where = b.at((k + lane % depth, lanes * j + lane // depth))
            columns[j] = low.register(b.dtype, lanes * depth)
            load(low, columns[j], (lane,), where, 0)
        for i, wheres, there, when in factors:  # a number is loaded just before its products: few registers at a time
            number = _number(low, atom, wheres, there)
            if when is not None and skip:
                with low.when(when):
                    _row(low, atom, c, i, blocks, number, columns)
            else:
                _row(low, atom, c, i, blocks, number, columns)


def _always_there(low: Lowering, a: Memory | MemoryView, i: int, k: int, depth: int) -> list[Where] | None:
    """Places that can be read whether or not the numbers of A are there; where sizes are open, edges are common."""
    if not low.open:
        return None
    found = [nearest(a, (as_expr(i), as_expr(k + d))) for d in range(depth)]
    places = [w for w in found if w is not None]
    if len(places) < depth:
        return None
    first = places[0].offset
    step = places[min(1, depth - 1)].offset - first
    return places if all(w.offset - first is d * step for d, w in enumerate(places)) else None


def _row(
    low: Lowering, atom: MultiplyAtom, c: Vectors, i: int, blocks: list[int], number: Value, columns: dict[int, Value]
) -> None:
    for j in blocks:
        low.emit("atom", (c.registers[i, j], number, columns[j]), atom=atom.name)


def _number(low: Lowering, atom: MultiplyAtom, wheres: list[Where], when: Expr | None) -> Value:
    """The number (or pair, or four) of A that all lanes share."""
    depth = len(wheres)
    value = low.register(atom.a.dtype, *(() if depth == 1 else (depth,)))
    if depth == 1:
        load(low, value, (), wheres[0], 0)
        return value
    lane = low.axis("d", depth)
    step = wheres[1].offset - wheres[0].offset
    where = Where(wheres[0].buffer, wheres[0].offset + step * lane, wheres[0].conditions if when is not None else ())
    load(low, value, (lane,), where, 0)
    return value


def _loops(low: Lowering, c: Any, a: Memory | MemoryView, b: Memory | MemoryView, skip: bool) -> None:
    """C += A * B by loops: rows, vectors of columns, k."""
    held = in_memory(low, c)
    kind = held.dtype
    rows, columns = held.extents
    lanes = max(1, low.vector_bytes // kind.numpy.itemsize)
    with low.loop("i", 0, rows) as i:
        for start in range(0, columns, lanes):
            count = min(lanes, columns - start)
            lane = low.axis("l", count)
            total, left, right = (low.register(t, count) for t in (kind, a.dtype, b.dtype))
            where = held.at((i, start + lane))
            load(low, total, (lane,), where, 0)
            product = Formula("mul", tuple(Formula.cast(kind, Formula.operand(n)) for n in (2, 3)))
            formula = Formula("add", (Formula.operand(1), product))
            with low.loop("k", 0, a.extents[1]) as k:
                factor = a.at((i, k))
                with _unless_outside(low, factor, skip):
                    load(low, left, (lane,), factor, 0)
                    load(low, right, (lane,), b.at((k, start + lane)), 0)
                    low.emit("compute", (total, total, left, right), formula=formula)
            low.emit("store", (total, where.buffer), over=(lane,), at=(where.offset,))
    from_memory(low, held, c)


@contextmanager
def _unless_outside(low: Lowering, factor: Where, skip: bool) -> Iterator[None]:
    """What is written within is left out where the factor lies outside, if that was asked for."""
    if skip and factor.conditions:
        with low.when(all_of(*factor.conditions)):
            yield
    else:
        yield
