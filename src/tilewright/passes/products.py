"""Mma: atoms on registers, or loops with the same meaning where the machine lacks the atom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_rules import all_of
from tilewright.ir.core import Op, Value
from tilewright.ir.formula import Formula
from tilewright.ir.printer import op_text
from tilewright.machine import MultiplyAtom, RegisterOperand
from tilewright.passes.elementwise import from_memory, in_memory, load, never
from tilewright.passes.loop_lowering import LoopLowering
from tilewright.passes.places import PlacedMemory, PlacedView, Where, nearest
from tilewright.passes.storage import Fragments, Tiles, Vectors

Registers = Mapping[Any, Value]
Step: TypeAlias = "int | Expr"
"""The first index of a step along k: a number if steps are unrolled, an expression of a loop's variable if not."""
UNROLLED = 4096
"""Products that are written out; more are a loop over k."""


def mma(low: LoopLowering, op: Op) -> None:
    """Lower `mma`: C += A * B by atoms on registers, or by loops of the same meaning, which `slow` notes."""
    assert low.machine is not None
    atom = low.machine.multiply_atom(op.attrs["atom"])
    c, a, b = (low.handles[v] for v in op.operands)
    skip = bool(op.attrs.get("skip"))
    whole = (Tiles, Fragments)  # registers that hold matrices
    if not isinstance(a, whole):  # vectors of A are read element by element, from memory
        a = in_memory(low, a)
    here = low.available(atom)
    if not here:
        low.slow[atom.name] = (
            f"{low.here.name} has no {atom.name}: its products run as loops of the same meaning, much slower"
        )
    if here and isinstance(c, whole) and isinstance(a, whole) and isinstance(b, whole):
        _matrices(low, atom, c.registers, a.registers, b.registers)
    elif here and isinstance(c, Vectors) and _is_vector_atom(atom, c) and _whole_steps(low, atom, a):
        _vectors(low, atom, c, a, in_memory(low, b), skip)
    else:
        if here:
            low.slow[op_text(op)] = (
                f"{op_text(op)}: {atom.name} does not take its operands as stored (or its registers were too few); "
                "it runs as loops with the same meaning, much slower"
            )
        _loops(low, c, in_memory(low, a), in_memory(low, b), skip)


def _matrices(low: LoopLowering, atom: MultiplyAtom, c: Registers, a: Registers, b: Registers) -> None:
    """Emit the atoms for registers that each hold a small matrix; `c[i, j]`, `a[i, k]` and `b[k, j]` are registers."""
    depth = max(k for _, k in a) + 1
    for k in range(depth):
        for (i, j), value in c.items():
            low.emit("atom", (value, a[i, k], b[k, j]), atom=atom.name)


def _is_vector_atom(atom: MultiplyAtom, c: Vectors) -> bool:
    """True if the atom multiplies an element (or group along k) of A, the same in all lanes, with a vector of B."""
    return atom.shape[0] == 1 and isinstance(atom.c, RegisterOperand) and atom.c.lanes == c.lanes


def _whole_steps(low: LoopLowering, atom: MultiplyAtom, a: PlacedMemory | PlacedView) -> bool:
    """True if the elements of A that an instruction takes have a constant stride, and all or none are in bounds."""
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


@dataclass
class _Row:
    """A row of A for one step of k: where its elements lie, whether they are there, when they are multiplied."""

    row: int
    wheres: list[Where]
    there: Expr | None
    when: Expr | None


def _vectors(
    low: LoopLowering,
    atom: MultiplyAtom,
    c: Vectors,
    a: PlacedMemory | PlacedView,
    b: PlacedMemory | PlacedView,
    skip: bool,
) -> None:
    """Emit the MMA by vector atoms: for each step of k, load vectors of B once, then multiply each element of A with
    them.
    """
    depth = atom.shape[2]
    starts = range(0, a.extents[1], depth)
    if len(starts) * len(c.registers) > UNROLLED:
        with low.loop("k", 0, len(starts)) as step:
            _single_step(low, atom, c, b, depth * step, _rows_of_step(low, c, a, depth * step, depth, skip), skip)
        return
    steps = {k: _rows_of_step(low, c, a, k, depth, skip) for k in starts}
    first = 0
    while first < len(starts):
        left = min(atom.picks, len(starts) - first)
        chunk = list(starts[first : first + (1 << left.bit_length() - 1)])  # what one load brings
        first += len(chunk)
        if len(chunk) > 1 and _are_contiguous([steps[k] for k in chunk]):
            _steps_of_one_load(low, atom, c, b, chunk, steps[chunk[0]], skip)
            continue
        for k in chunk:
            _single_step(low, atom, c, b, k, steps[k], skip)


def _rows_of_step(
    low: LoopLowering, c: Vectors, a: PlacedMemory | PlacedView, k: Step, depth: int, skip: bool
) -> list[_Row]:
    """Return the rows of A for the step of k that begins at `k`, without those that are always out of bounds."""
    rows = []
    for i in sorted({key[0] for key in c.registers}):
        wheres = [a.at((as_expr(i), as_expr(k + d))) for d in range(depth)]
        conditions = dict.fromkeys(x for w in wheres for x in w.conditions)
        if any(never(w) for w in wheres):
            continue  # out of bounds: nothing to multiply
        when = all_of(*conditions) if conditions else None
        always = _clamped_places(low, a, i, k, depth) if skip and conditions else None
        # what is not multiplied may be any element
        rows.append(_Row(i, wheres, when, when) if always is None else _Row(i, always, None, when))
    return rows


def _single_step(
    low: LoopLowering,
    atom: MultiplyAtom,
    c: Vectors,
    b: PlacedMemory | PlacedView,
    k: Step,
    rows: list[_Row],
    skip: bool,
) -> None:
    """Emit one step of k, each element of A loaded just before its products: few registers are live."""
    if not rows:
        return
    columns = {j: _column(low, atom, c, b, k, j) for j in _blocks(c)}
    for row in rows:
        element = _element(low, atom, row.wheres, row.there)
        with _when_in_bounds(low, row, skip):
            _row(low, atom, c, row.row, element, columns)


@contextmanager
def _when_in_bounds(low: LoopLowering, row: _Row, skip: bool) -> Iterator[None]:
    """Emit what is written within under the row's bounds condition, if `skip` asks for that."""
    if row.when is not None and skip:
        with low.when(row.when):
            yield
    else:
        yield


AHEAD = 2
"""Rows whose elements of A are loaded before the products of a row: loads stand between products, never in a row."""


def _steps_of_one_load(
    low: LoopLowering,
    atom: MultiplyAtom,
    c: Vectors,
    b: PlacedMemory | PlacedView,
    chunk: list[int],
    rows: list[_Row],
    skip: bool,
) -> None:
    """Emit several steps of k: one load brings a row's elements of A for all steps, and each product picks its own."""
    depth = atom.shape[2]
    held: dict[int, Value] = {}

    def bring(number: int) -> None:
        if number < len(rows):
            held[number] = _load_run(low, atom, rows[number], len(chunk) * depth)

    for number in range(AHEAD):
        bring(number)
    columns = {j: _column(low, atom, c, b, chunk[0], j) for j in _blocks(c)}
    for step, k in enumerate(chunk):
        following: dict[int, Value] = {}
        left = _blocks(c) if step + 1 < len(chunk) else []
        for number, row in enumerate(rows):
            if step == 0:
                bring(number + AHEAD)
            with _when_in_bounds(low, row, skip):
                _row(low, atom, c, row.row, _pick(low, atom, held[number], step), columns)
            if left:
                j = left.pop(0)
                following[j] = _column(low, atom, c, b, k + depth, j)
        following |= {j: _column(low, atom, c, b, k + depth, j) for j in left}
        columns = following


def _are_contiguous(steps: list[list[_Row]]) -> bool:
    """True if each row's elements of A for all steps are contiguous in memory, and all or none are in bounds."""
    rows = [[x.row for x in step] for step in steps]
    if not rows[0] or any(other != rows[0] for other in rows):
        return False
    for of_row in zip(*steps, strict=True):
        places = [where for step in of_row for where in step.wheres]
        if any((x.when, x.there) != (of_row[0].when, of_row[0].there) for x in of_row):
            return False
        if any(where.offset - places[0].offset is not as_expr(n) for n, where in enumerate(places)):
            return False
    return True


def _load_run(low: LoopLowering, atom: MultiplyAtom, row: _Row, count: int) -> Value:
    """Return a register with `count` neighbouring elements of a row of A."""
    first, lane = row.wheres[0], low.axis("d", count)
    value = low.register(atom.a.dtype, count)
    conditions = () if row.there is None else first.conditions
    load(low, value, (lane,), Where(first.buffer, first.offset + lane, conditions), 0)
    return value


def _pick(low: LoopLowering, atom: MultiplyAtom, held: Value, step: int) -> Value:
    """Return a register with element (or group along k) number `step` of `held`, repeated in all lanes."""
    _, lanes, depth = atom.shape
    lane = low.axis("l", lanes * depth)
    value = low.register(atom.a.dtype, lanes * depth)
    low.emit("shuffle", (value, held), over=(lane,), at=(step * depth + lane % depth,))
    return value


def _blocks(c: Vectors) -> list[int]:
    """Return the column blocks (vectors) that the accumulator has, in order."""
    return sorted({key[1] for key in c.registers})


def _column(low: LoopLowering, atom: MultiplyAtom, c: Vectors, b: PlacedMemory | PlacedView, k: Step, j: int) -> Value:
    """Return a register with a vector of B; each lane has its neighbours along k."""
    depth, lanes = atom.shape[2], c.lanes
    lane = low.axis("l", lanes * depth)
    value = low.register(b.dtype, lanes * depth)
    load(low, value, (lane,), b.at((k + lane % depth, lanes * j + lane // depth)), 0)
    _prefetch(low, b, k, j, (depth, lanes, len(_blocks(c))))
    return value


def _prefetch(low: LoopLowering, b: PlacedMemory | PlacedView, k: Step, j: int, sizes: tuple[int, int, int]) -> None:
    """Emit the prefetch of a line of packed B that later steps of k load, where vector `j` of this step begins a line.

    `sizes` are the elements of a step along k, the lanes along N, and the vectors of a step. B is packed where the next
    step's vectors follow this step's in memory; a view of one step does not tell. The line lies as far ahead as the
    machine says. After the last steps it is one of the next column of tiles, or none of B's: a hint reads nothing.
    """
    depth, lanes, vectors = sizes
    limits, item = low.here.limits, b.dtype.numpy.itemsize
    if not limits.prefetch_bytes or j * lanes * depth * item % limits.line_bytes or b.extents[0] < 2 * depth:
        return
    first, second = (b.at((as_expr(step), as_expr(0))) for step in (0, depth))
    if second.offset - first.offset is as_expr(vectors * lanes * depth) and not first.conditions:
        here = b.at((as_expr(k), as_expr(lanes * j)))
        low.emit("prefetch", (here.buffer,), at=(here.offset + limits.prefetch_bytes // item,))


def _clamped_places(low: LoopLowering, a: PlacedMemory | PlacedView, i: int, k: Step, depth: int) -> list[Where] | None:
    """Return places clamped into bounds for elements of A, so that they can be read without a condition.

    None if no size is open, if the tensor may be empty, or if the clamped places have no constant stride.
    """
    if not low.open:
        return None
    clamped = [nearest(a, (as_expr(i), as_expr(k + d))) for d in range(depth)]
    places = [w for w in clamped if w is not None]
    if len(places) < depth:
        return None
    first = places[0].offset
    step = places[min(1, depth - 1)].offset - first
    return places if all(w.offset - first is d * step for d, w in enumerate(places)) else None


def _row(low: LoopLowering, atom: MultiplyAtom, c: Vectors, i: int, element: Value, columns: dict[int, Value]) -> None:
    """Emit the atoms of row `i`: its element of A with every vector of B."""
    for j, column in columns.items():
        low.emit("atom", (c.registers[i, j], element, column), atom=atom.name)


def _element(low: LoopLowering, atom: MultiplyAtom, wheres: list[Where], when: Expr | None) -> Value:
    """Return a register with the element (or pair, or four) of A that all lanes share."""
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


def _loops(low: LoopLowering, c: Any, a: PlacedMemory | PlacedView, b: PlacedMemory | PlacedView, skip: bool) -> None:
    """Emit C += A * B as loops over rows, vectors of columns, and k."""
    held = in_memory(low, c)
    kind = held.dtype
    rows, columns = held.extents
    lanes = max(1, low.vector_bytes // kind.numpy.itemsize)
    product = Formula("mul", tuple(Formula.cast(kind, Formula.operand(n)) for n in (2, 3)))
    formula = Formula("add", (Formula.operand(1), product))
    with low.loop("i", 0, rows) as i:
        for start, count in low.vectors(columns, lanes):
            lane = low.axis("l", count)
            total, left, right = (low.register(t, count) for t in (kind, a.dtype, b.dtype))
            where = held.at((i, start + lane))
            load(low, total, (lane,), where, 0)
            with low.loop("k", 0, a.extents[1]) as k:
                factor = a.at((i, k))
                with _when_inside(low, factor, skip):
                    load(low, left, (lane,), factor, 0)
                    load(low, right, (lane,), b.at((k, start + lane)), 0)
                    low.emit("compute", (total, total, left, right), formula=formula)
            low.emit("store", (total, where.buffer), over=(lane,), at=(where.offset,))
    from_memory(low, held, c)


@contextmanager
def _when_inside(low: LoopLowering, factor: Where, skip: bool) -> Iterator[None]:
    """Emit what is written within under the bounds condition of A's element, if `skip` asks for that."""
    if skip and factor.conditions:
        with low.when(all_of(*factor.conditions)):
            yield
    else:
        yield
