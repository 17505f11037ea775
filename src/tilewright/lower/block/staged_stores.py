"""Stores accumulators through shared memory: registers are written to shared tiles, which bulk copies store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from tilewright.algebra import Swizzle
from tilewright.algebra.expr import ONE, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.errors import ProgramError
from tilewright.ir.core import Value
from tilewright.ir.formula import Formula
from tilewright.lower.block.accesses import marked
from tilewright.lower.block.lazy_tiles import Tile, load, loads, most, rewritten
from tilewright.lower.block.lowering import Lowering
from tilewright.lower.block.scope import TileScope
from tilewright.lower.block.stores import Write
from tilewright.lower.block.writer import extent, split
from tilewright.machine import CopyAtom, Machine
from tilewright.plan.model import element_bytes


def through_shared(low: Lowering, write: Write) -> bool:
    """Emit the store of an accumulator in registers through shared memory, some columns at a time; return True. Return
    False if this is not possible.

    `write` is the write of the accumulator, perhaps after an elementwise epilogue. If its formula loads several
    register tensors, code is emitted that stores the result in one first, and `write.formula` is changed to load that
    one.

    It is not possible in these cases: the formula loads no register tensor with M and N; the write has a further
    dimension of extent above 1; the machine has no bulk store; no tiles in shared memory cover the accumulator exactly;
    rows of memory are columns of the accumulator, whose rows run on from image line to image line. Raise a ProgramError
    if it is not proved that padding past the end of a dimension is out of bounds of the written argument.
    """
    _check_overhang(low.scope, write)
    sums = {each.tensor for each in loads(write.formula) if each.tensor in low.storage.sums}
    if not sums:
        return False
    if len(sums) > 1:  # such as an accumulator that is divided by a value of its row
        stored = low.storage.stored(Tile(write.dtype, write.dims, write.parts, write.formula), name="made")
        write.formula = stored.formula
        sums = {each.tensor for each in loads(stored.formula) if each.tensor in low.storage.sums}
    if len(sums) != 1:
        return False
    (held,) = sums
    if len(low.storage.sums[held]) != 2:
        return False
    m, n = low.storage.sums[held]
    atom = low.machine.bulk_store
    if atom is None or any(write.parts[d][1] > 1 for d in set(write.dims) - {m, n}):
        return False
    last = write.access.at[-1].symbols if write.access.at else frozenset()
    if low.scope.coordinate(m) in last and low.scope.coordinate(n) not in last:
        return _transposed(low, write, atom, held)
    return _in_rows(low, write, atom, held)


def swizzle_of(atom: CopyAtom, row: int, size: int, machine: Machine) -> Swizzle | None:
    """Return the swizzle of a shared tile that the bulk copy `atom` reads or writes; None if a row is one chunk of the
    atom.

    The tile has rows of `row` bytes, and elements of `size` bytes.
    """
    bits = (row // atom.chunk).bit_length() - 1
    if bits == 0:
        return None
    return Swizzle(bits, (atom.chunk // size).bit_length() - 1, machine.shared_memory.swizzle_bits)


def _in_rows(low: Lowering, write: Write, atom: CopyAtom, held: Value) -> bool:
    """Emit the store of the accumulator `held` by the bulk copy `atom`, for memory whose rows are rows of the
    accumulator.

    `write` is the write of the accumulator's elements. A shared tile has all rows and some columns; if several groups
    of waves split the columns, some of each group. Columns that no row length of `atom` divides go through several
    tiles, of different widths. Return True; or False, with nothing emitted, if no row lengths of `atom` add up to the
    columns.
    """
    n = low.storage.sums[held][1]
    groups_along_n = 1 if low.writer.fragment_layout is None else low.writer.fragment_layout.waves[1]
    columns, size = most(write.parts[n][1]) // groups_along_n, element_bytes(write.dtype)
    pieces, first = atom.row_pieces(columns * size), 0
    for row, count in pieces:
        _store_columns(low, write, atom, held, range(first, first + count * row // size, row // size))
        first += count * row // size
    return bool(pieces)


def _store_columns(low: Lowering, write: Write, atom: CopyAtom, held: Value, places: range) -> None:
    """Emit the store of some columns of the accumulator `held` by the bulk copy `atom`, through one shared tile.

    `places` has the first column of each store; a store has as many columns as the step of `places`. If several groups
    of waves split the accumulator's columns, a store has these columns of each group. `write` is the write of the
    accumulator's elements.
    """
    w = low.writer
    m, n = low.storage.sums[held]
    groups_along_n = 1 if w.fragment_layout is None else w.fragment_layout.waves[1]
    rows, columns, size = most(write.parts[m][1]), most(write.parts[n][1]) // groups_along_n, element_bytes(write.dtype)
    shape = (groups_along_n, rows, places.step)[groups_along_n == 1 :]
    tile = w.alloc(write.dtype, shape, "result", swizzle_of(atom, places.step * size, size, low.machine))
    with w.loop("j", len(places), unroll=True) as j:
        *group, i, c = over = w.axes(shape)
        first = places.start + places.step * j
        place = sum(columns * g for g in group) + first + c
        part = load(w.columns(held, over, i, place), *over)
        w.map(tile, over, _with_loads_replaced(write.formula, held, part), _images(low.scope, write, {m: i, n: place}))
        with w.loop("g", groups_along_n, unroll=True) as side:
            i, c = w.axes((rows, places.step))
            images = _images(low.scope, write, {m: i, n: columns * side + first + c})
            _copy_out(low, write, (i, c), images, tile, [*([side] if group else []), i, c])


def _transposed(low: Lowering, write: Write, atom: CopyAtom, held: Value) -> bool:
    """Emit the store of the accumulator `held` by the bulk copy `atom`, for memory whose rows are columns of the
    accumulator.

    The store goes through a shared tile with some columns of the accumulator, each cut into pieces as long as a row of
    shared memory. `write` is the write of the accumulator's elements. Return True; or False, with nothing emitted, if
    no such tile divides the accumulator, or if a task's rows run on from image line to image line.
    """
    w = low.writer
    m, n = low.storage.sums[held]
    rows, columns, size = most(write.parts[m][1]), most(write.parts[n][1]), element_bytes(write.dtype)
    row = next((x for x in atom.rows if rows * size % x == 0), None)
    if row is None or low.bound.walk is not None:  # a row of shared memory would hold no whole image lines
        return False
    slab_rows = row // size
    unit = 1 << low.machine.shared_memory.swizzle_bits
    count = next((x for x in range(min(columns, slab_rows) // unit * unit, 0, -unit) if columns % x == 0), None)
    if count is None:
        return False
    tile = w.alloc(
        write.dtype, (rows // slab_rows, count, slab_rows), "result", swizzle_of(atom, row, size, low.machine)
    )
    with w.loop("j", columns // count, unroll=True) as j:
        i, c = w.axes((rows, count))
        goal = w.view(tile, (i, c), [(i // slab_rows, False), (c, False), (i % slab_rows, False)])
        images = _images(low.scope, write, {m: i, n: count * j + c})
        part = load(w.columns(held, (i, c), i, count * j + c), i, c)
        w.map(goal, (i, c), _with_loads_replaced(write.formula, held, part), images)
        with w.loop("s", rows // slab_rows, unroll=True) as s:
            c, i = w.axes((count, slab_rows))
            _copy_out(
                low, write, (c, i), _images(low.scope, write, {m: slab_rows * s + i, n: count * j + c}), tile, [s, c, i]
            )
    return True


def _images(scope: TileScope, write: Write, moved: Mapping[Expr, Expr]) -> Substitution:
    """Return the substitution that replaces the coordinate symbol of each dimension d by the first index of the part
    that `write` writes along d, plus moved[d].

    `moved` is {dimension: index within the written part}; a missing index is 0.
    """
    return Substitution({scope.coordinate(d): part[0] + moved.get(d, as_expr(0)) for d, part in write.parts.items()})


def _copy_out(
    low: Lowering, write: Write, over: tuple[Symbol, Symbol], images: Substitution, tile: Value, at: Sequence[Expr]
) -> None:
    """Emit the bulk copy of the shared `tile` to the written argument; elements out of bounds are not stored.

    `over` are the iterators along the rows and columns of memory, `images` replaces the write's coordinate symbols by
    expressions of `over`, and `at` are the coordinates in the tile. If a task's rows run on from image line to image
    line, each image is copied separately, without the padding behind its last line. The copy is added to
    `low.storage.shared_stores`.
    """
    coordinates = [images(e) for e in write.access.at]
    walk, w = low.bound.walk, low.writer
    with ExitStack() as loops:
        axes: tuple[Symbol, ...] = over
        moved = Substitution({})
        if walk is not None:
            i, c = over
            count, each = low.bound.image_rows
            image = loops.enter_context(w.loop("g", count, unroll=True))
            line, place, column = w.axes((walk.lines, walk.pitch, extent(c)))
            axes = line, place, column
            moved = Substitution({i: each * image + walk.pitch * line + place, c: column})
        places = [moved(e) for e in coordinates]
        axes, digits = split(axes, places)
        goal = w.view(write.access.tensor, axes, [(digits(e), mark) for e, mark in marked(places, write.access.shape)])
        source = w.view(tile, axes, [(digits(moved(e)), False) for e in at])
        low.storage.shared_stores.append(w.emit("copy", (source, goal)))


def _with_loads_replaced(formula: Formula, tensor: Value, other: Formula) -> Formula:
    """Return `formula` with `other` in place of every load from `tensor`."""
    return rewritten(formula, lambda e: e, lambda each: other if each.tensor is tensor else load(each.tensor, *each.at))


def _check_overhang(scope: TileScope, write: Write) -> None:
    """Raise a ProgramError unless it is proved that elements past the end of each dimension are out of bounds of the
    written argument.

    Tasks at the edge compute such elements as padding, which must not be stored. A dimension whose size is a whole
    number of tiles has none.
    """
    for d in write.dims:
        width, extent = write.parts[d][1], scope.size(d)
        if as_expr(extent % width) is as_expr(0):
            continue
        past: dict[Expr, Expr] = {scope.coordinate(d): symbol("past", extent)}
        images = Substitution(past)
        if not any((images(e) >= n) is ONE for e, n in zip(write.access.at, write.access.shape, strict=True)):
            raise ProgramError(
                f"padding past the end of {d} cannot be proved to be out of bounds of the written argument"
            )
