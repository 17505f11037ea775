"""MMAs on CPUs: atoms on registers, or loops with the same meaning if the machine lacks the atom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.algebra.expr import Expr, as_expr
from tilewright.algebra.expr_rules import all_of
from tilewright.analysis.flat_memory import PlacedMemory, PlacedView, TensorAddress, nearest
from tilewright.ir.core import Op, Value
from tilewright.ir.formula import Formula
from tilewright.ir.printer import op_text
from tilewright.lower.cpu.elementwise import from_memory, in_memory, is_out_of_bounds, load
from tilewright.lower.cpu.register_forms import Fragments, Tiles, Vectors
from tilewright.lower.loop_lowering import LoopLowering
from tilewright.machine import MultiplyAtom, RegisterOperand

Registers = Mapping[Any, Value]
Step: TypeAlias = "int | Expr"
"""The first index of a K step: a number if steps are unrolled, an expression of the loop variable if not."""
UNROLLED = 4096
"""The most atoms of one MMA that are unrolled; more become a loop over K."""


def mma(low: LoopLowering, op: Op) -> None:
    """Lower `mma` on a CPU: emit C += A * B.

    The MMA atom is emitted if the machine has it and if C, A and B are in matrix registers of the atom, or if the atom
    multiplies one element of A with vectors of B and C. Otherwise scalar loops are emitted, and the reason is noted in
    `low.slow`. With the attribute `skip`, elements of A that are out of bounds are left out of the sum.
    """
    assert low.machine is not None
    atom = low.machine.multiply_atom(op.attrs["atom"])
    c, a, b = (low.handles[v] for v in op.operands)
    skip = bool(op.attrs.get("skip"))
    matrix_registers = (Tiles, Fragments)  # registers that hold matrices
    if not isinstance(a, matrix_registers):  # elements of A are read from memory one by one
        a = in_memory(low, a)
    has_atom = low.available(atom)
    if not has_atom:
        low.slow[atom.name] = (
            f"{low.here.name} has no {atom.name}: its products run as loops of the same meaning, much slower"
        )
    if (
        has_atom
        and isinstance(c, matrix_registers)
        and isinstance(a, matrix_registers)
        and isinstance(b, matrix_registers)
    ):
        _emit_matrix_atoms(low, atom, c.registers, a.registers, b.registers)
    elif has_atom and isinstance(c, Vectors) and _is_vector_atom(atom, c) and _whole_steps(low, atom, a):
        _emit_vector_atoms(low, atom, c, a, in_memory(low, b), skip)
    else:
        if has_atom:
            low.slow[op_text(op)] = (
                f"{op_text(op)}: {atom.name} does not take its operands as stored (or its registers were too few); "
                "it runs as loops with the same meaning, much slower"
            )
        _loops(low, c, in_memory(low, a), in_memory(low, b), skip)


def _emit_matrix_atoms(low: LoopLowering, atom: MultiplyAtom, c: Registers, a: Registers, b: Registers) -> None:
    """Emit C += A * B: one atom for each register of C and each K step. Each register holds a small matrix. `c` is {(i,
    j): register}, `a` is {(i, k): register}, and `b` is {(k, j): register}.
    """
    depth = max(k for _, k in a) + 1
    for k in range(depth):
        for (i, j), value in c.items():
            low.emit("atom", (value, a[i, k], b[k, j]), atom=atom.name)


def _is_vector_atom(atom: MultiplyAtom, c: Vectors) -> bool:
    """True if the atom multiplies one element of A (or a group of elements along K), repeated in all lanes, with a
    vector of B, and the atom's vectors have as many lanes as the registers of the accumulator `c`.
    """
    return atom.shape[0] == 1 and isinstance(atom.c, RegisterOperand) and atom.c.lanes == c.lanes


def _whole_steps(low: LoopLowering, atom: MultiplyAtom, a: PlacedMemory | PlacedView) -> bool:
    """True if one load can read all elements of a row of A (`a`) that one instruction of the atom takes along K: they
    have a constant stride and the same bounds conditions. Always true if the instruction takes one element.
    """
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
    """A row of A for one K step: the addresses of its elements, the condition under which they can be loaded
    (`loadable`), and the one under which they are multiplied (`when`); None: always.
    """

    row: int
    wheres: list[TensorAddress]
    loadable: Expr | None
    when: Expr | None


def _emit_vector_atoms(
    low: LoopLowering,
    atom: MultiplyAtom,
    c: Vectors,
    a: PlacedMemory | PlacedView,
    b: PlacedMemory | PlacedView,
    skip: bool,
) -> None:
    """Emit C += A * B by vector atoms. In each K step, the vectors of `b` are loaded once, and each element of `a` is
    multiplied with all of them and added to the registers of `c`.

    K is unrolled up to 4096 atoms; more become a loop over K. With `skip`, elements of A out of bounds are not
    multiplied.
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
        chunk = list(
            starts[first : first + (1 << left.bit_length() - 1)]
        )  # the K steps whose elements of A one load brings
        first += len(chunk)
        if len(chunk) > 1 and _are_contiguous([steps[k] for k in chunk]):
            _steps_of_one_load(low, atom, c, b, chunk, steps[chunk[0]], skip)
            continue
        for k in chunk:
            _single_step(low, atom, c, b, k, steps[k], skip)


def _rows_of_step(
    low: LoopLowering, c: Vectors, a: PlacedMemory | PlacedView, k: Step, depth: int, skip: bool
) -> list[_Row]:
    """Return the rows of A for one K step, in ascending order. Each row of the accumulator `c` gives one: the addresses
    and bounds conditions of `depth` elements of `a`, from index `k` on. A row is left out if one of these elements is
    always out of bounds.

    `skip` says that the caller multiplies a row only if all of these elements are in bounds. The elements are then
    loaded without a condition if their addresses can be clamped into bounds.
    """
    rows = []
    for i in sorted({key[0] for key in c.registers}):
        wheres = [a.at((as_expr(i), as_expr(k + d))) for d in range(depth)]
        conditions = dict.fromkeys(x for w in wheres for x in w.conditions)
        if any(is_out_of_bounds(w) for w in wheres):
            continue  # nothing to multiply
        when = all_of(*conditions) if conditions else None
        always = _clamped_addresses(low, a, i, k, depth) if skip and conditions else None
        # an element that is not multiplied may be any element of A
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
    """Emit the atoms of the K step that begins at index `k`. Load the vectors of `b`; then, for each of `rows` (rows of
    A), load an element and multiply it with all of these vectors, into the accumulator `c`. With `skip`, rows out of
    bounds are not multiplied. Nothing is emitted if `rows` is empty.
    """
    if not rows:
        return
    columns = {j: _load_column_block(low, atom, c, b, k, j) for j in _column_blocks(c)}
    for row in rows:
        element = _load_element(low, atom, row.wheres, row.loadable)
        with _when_in_bounds(low, row, skip):
            _emit_row(low, atom, c, row.row, element, columns)


@contextmanager
def _when_in_bounds(low: LoopLowering, row: _Row, skip: bool) -> Iterator[None]:
    """Emit the operations written within this context under the bounds condition of `row`, if it has one and `skip` is
    set; otherwise without a condition.
    """
    if row.when is not None and skip:
        with low.when(row.when):
            yield
    else:
        yield


AHEAD = 2
"""How many rows ahead elements of A are loaded, so that loads are interleaved with atoms."""


def _steps_of_one_load(
    low: LoopLowering,
    atom: MultiplyAtom,
    c: Vectors,
    b: PlacedMemory | PlacedView,
    chunk: list[int],
    rows: list[_Row],
    skip: bool,
) -> None:
    """Emit the atoms of several K steps, into the accumulator `c`. `chunk` lists the first K index of each step, and
    `rows` are the rows of A in the first step.

    In each row, the elements of A of all steps are contiguous: one load reads them, and a shuffle repeats those of one
    step in all lanes. The vectors of `b` are loaded for each step. With `skip`, rows out of bounds are not multiplied.
    """
    depth = atom.shape[2]
    loaded: dict[int, Value] = {}

    def load_row(number: int) -> None:
        if number < len(rows):
            loaded[number] = _load_run(low, atom, rows[number], len(chunk) * depth)

    for number in range(AHEAD):
        load_row(number)
    columns = {j: _load_column_block(low, atom, c, b, chunk[0], j) for j in _column_blocks(c)}
    for step, k in enumerate(chunk):
        following: dict[int, Value] = {}
        columns_to_load = _column_blocks(c) if step + 1 < len(chunk) else []
        for number, row in enumerate(rows):
            if step == 0:
                load_row(number + AHEAD)
            with _when_in_bounds(low, row, skip):
                _emit_row(low, atom, c, row.row, _repeated_element(low, atom, loaded[number], step), columns)
            if columns_to_load:
                j = columns_to_load.pop(0)
                following[j] = _load_column_block(low, atom, c, b, k + depth, j)
        following |= {j: _load_column_block(low, atom, c, b, k + depth, j) for j in columns_to_load}
        columns = following


def _are_contiguous(steps: list[list[_Row]]) -> bool:
    """True if, in each row of A, the elements of all K steps are contiguous in memory, in the order of the steps, and
    have the same bounds conditions. `steps` lists the rows of each step. False if a step has other rows than the first
    step, or if the first has none.
    """
    rows = [[x.row for x in step] for step in steps]
    if not rows[0] or any(other != rows[0] for other in rows):
        return False
    for of_row in zip(*steps, strict=True):
        places = [where for step in of_row for where in step.wheres]
        if any((x.when, x.loadable) != (of_row[0].when, of_row[0].loadable) for x in of_row):
            return False
        if any(where.offset - places[0].offset is not as_expr(n) for n, where in enumerate(places)):
            return False
    return True


def _load_run(low: LoopLowering, atom: MultiplyAtom, row: _Row, count: int) -> Value:
    """Emit the load of `count` contiguous elements of A into a new register, from the first address of `row` on; return
    the register. The load has the bounds conditions of this address, or none if `row.loadable` is None.
    """
    first, lane = row.wheres[0], low.axis("d", count)
    value = low.register(atom.a.dtype, count)
    conditions = () if row.loadable is None else first.conditions
    load(low, value, (lane,), TensorAddress(first.buffer, first.offset + lane, conditions), 0)
    return value


def _repeated_element(low: LoopLowering, atom: MultiplyAtom, loaded: Value, step: int) -> Value:
    """Emit a shuffle that repeats element number `step` of the register `loaded` in all lanes of a new register; return
    the new register. If the atom takes a group of elements along K, group number `step` is repeated.
    """
    _, lanes, depth = atom.shape
    lane = low.axis("l", lanes * depth)
    value = low.register(atom.a.dtype, lanes * depth)
    low.emit("shuffle", (value, loaded), over=(lane,), at=(step * depth + lane % depth,))
    return value


def _column_blocks(c: Vectors) -> list[int]:
    """Return the sorted indices of the blocks of columns in the accumulator `c`; a block is as wide as one vector."""
    return sorted({key[1] for key in c.registers})


def _load_column_block(
    low: LoopLowering, atom: MultiplyAtom, c: Vectors, b: PlacedMemory | PlacedView, k: Step, j: int
) -> Value:
    """Emit the load of block `j` of the columns of `b` for the K step that begins at index `k`; return the new
    register. A block is as wide as a vector of the accumulator `c`. The register has the elements of one column along K
    next to each other. A prefetch for a later step may be emitted too.
    """
    depth, lanes = atom.shape[2], c.lanes
    lane = low.axis("l", lanes * depth)
    value = low.register(b.dtype, lanes * depth)
    load(low, value, (lane,), b.at((k + lane % depth, lanes * j + lane // depth)), 0)
    _prefetch(low, b, k, j, (depth, lanes, len(_column_blocks(c))))
    return value


def _prefetch(low: LoopLowering, b: PlacedMemory | PlacedView, k: Step, j: int, sizes: tuple[int, int, int]) -> None:
    """Emit a prefetch of memory of `b` that a later K step loads. `k` and `j` are the K index and the column block that
    are loaded now. `sizes` is (elements of a step along K, lanes along N, vectors of a step). The machine says how far
    ahead to prefetch (`limits.prefetch_bytes`); the address may be past the end of `b`.

    Nothing is emitted if the machine has no prefetch, if the vector does not begin a cache line, if `b` has only one K
    step, or if the vectors of consecutive steps do not follow each other in memory.
    """
    depth, lanes, vectors = sizes
    limits, item = low.here.limits, b.dtype.numpy.itemsize
    if not limits.prefetch_bytes or j * lanes * depth * item % limits.line_bytes or b.extents[0] < 2 * depth:
        return
    first, second = (b.at((as_expr(step), as_expr(0))) for step in (0, depth))
    if second.offset - first.offset is as_expr(vectors * lanes * depth) and not first.conditions:
        address = b.at((as_expr(k), as_expr(lanes * j)))
        low.emit("prefetch", (address.buffer,), at=(address.offset + limits.prefetch_bytes // item,))


def _clamped_addresses(
    low: LoopLowering, a: PlacedMemory | PlacedView, i: int, k: Step, depth: int
) -> list[TensorAddress] | None:
    """Return the addresses of `depth` elements of A, in row `i` from K index `k` on, with coordinates clamped into
    bounds: the elements can be loaded without a condition. Return None if all sizes are constant, if A may be empty, or
    if the addresses have no constant stride.
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


def _emit_row(
    low: LoopLowering, atom: MultiplyAtom, c: Vectors, i: int, element: Value, columns: dict[int, Value]
) -> None:
    """Emit the atoms of row `i` of the accumulator `c`: multiply the register `element` (an element of A in all lanes)
    with every vector of B. `columns` is {index of a block of columns: register}.
    """
    for j, column in columns.items():
        low.emit("atom", (c.registers[i, j], element, column), atom=atom.name)


def _load_element(low: LoopLowering, atom: MultiplyAtom, addresses: list[TensorAddress], when: Expr | None) -> Value:
    """Emit the load of the elements of A at `addresses` (one, or a group along K with a constant stride) into a new
    register, and return it. The load has the bounds conditions of the first address; a group has none if `when` is
    None.
    """
    depth = len(addresses)
    value = low.register(atom.a.dtype, *(() if depth == 1 else (depth,)))
    if depth == 1:
        load(low, value, (), addresses[0], 0)
        return value
    lane = low.axis("d", depth)
    step = addresses[1].offset - addresses[0].offset
    run_address = TensorAddress(
        addresses[0].buffer, addresses[0].offset + step * lane, addresses[0].conditions if when is not None else ()
    )
    load(low, value, (lane,), run_address, 0)
    return value


def _loops(low: LoopLowering, c: Any, a: PlacedMemory | PlacedView, b: PlacedMemory | PlacedView, skip: bool) -> None:
    """Emit C += A * B (`c`, `a`, `b`) as loops over rows, vectors of columns, and K, without any atom. With `skip`,
    elements of `a` out of bounds are left out of the sum.
    """
    memory = in_memory(low, c)
    dtype = memory.dtype
    rows, columns = memory.extents
    lanes = max(1, low.vector_bytes // dtype.numpy.itemsize)
    product = Formula("mul", tuple(Formula.cast(dtype, Formula.operand(n)) for n in (2, 3)))
    formula = Formula("add", (Formula.operand(1), product))
    with low.loop("i", 0, rows) as i:
        for start, count in low.vectors(columns, lanes):
            lane = low.axis("l", count)
            total, left, right = (low.register(t, count) for t in (dtype, a.dtype, b.dtype))
            where = memory.at((i, start + lane))
            load(low, total, (lane,), where, 0)
            with low.loop("k", 0, a.extents[1]) as k:
                element_of_a = a.at((i, k))
                with _when_inside(low, element_of_a, skip):
                    load(low, left, (lane,), element_of_a, 0)
                    load(low, right, (lane,), b.at((k, start + lane)), 0)
                    low.emit("compute", (total, total, left, right), formula=formula)
            low.emit("store", (total, where.buffer), over=(lane,), at=(where.offset,))
    from_memory(low, memory, c)


@contextmanager
def _when_inside(low: LoopLowering, address: TensorAddress, skip: bool) -> Iterator[None]:
    """Emit the operations written within this context under the bounds conditions of `address`, an element of A, if it
    has any and `skip` is set; otherwise without a condition.
    """
    if skip and address.conditions:
        with low.when(all_of(*address.conditions)):
            yield
    else:
        yield
