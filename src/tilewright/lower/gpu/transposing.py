"""Transposing maps and copies: the source is contiguous along another axis than the target, and goes through a tile in
shared memory.

Lanes load vectors along the source's axis and store them to shared memory as columns; then they load rows and store
vectors along the target's axis. On both sides a lane moves 16 bytes, or as many as rows are aligned to, and adjacent
lanes move adjacent vectors. A swizzle permutes the vectors of a row by the row's number, so that columns are spread
over all banks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from tilewright.algebra import Swizzle
from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.analysis.thread_layout import Dim, Dims, Turn, box
from tilewright.ir.core import Op, Value
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import TensorType
from tilewright.lower.gpu.distributed import Window, first_lane_conditions
from tilewright.lower.gpu.register_tensors import conjunction
from tilewright.lower.gpu.wave_lowering import WaveLowering


@dataclass(frozen=True)
class TransposeTile:
    """A tile of a transposing copy: the distribution of its two axes over lanes (`slow`, and `fast` in vectors), the
    number of vectors that each lane has along each axis (`vectors`), and the index of the first of these in a lane
    (`first_vectors`).
    """

    slow: Dim
    fast: Dim
    vectors: tuple[int, int]
    first_vectors: tuple[Expr, Expr]

    @classmethod
    def of(
        cls, low: WaveLowering, extents: tuple[int, int], sides: tuple[int, int], width: int, at: tuple[Expr, Expr]
    ) -> TransposeTile:
        """Return the TransposeTile with index `at` (row of tiles, column of tiles) of a matrix with these `extents`
        (rows, columns). `sides` is (rows, columns) of a tile. The elements of a tile are divided among the lanes of all
        waves, in vectors of `width` elements along a row.
        """
        threads = low.lanes * low.group.waves
        threads_per_row = min(threads, sides[1] // width)
        threads_per_column = min(threads // threads_per_row, sides[0])
        vectors = sides[0] // threads_per_column, sides[1] // (width * threads_per_row)
        slow, fast = Dim(extents[0], 1, threads_per_column, threads_per_row), Dim(extents[1], width, threads_per_row, 1)
        return cls(slow, fast, vectors, (at[0] * vectors[0], at[1] * vectors[1]))

    def window(self, first_vectors: tuple[Expr, Expr]) -> Window:
        """Return a Window (the elements handled at once) of this tile's size. Along axis `a` (0 slow, 1 fast) it begins
        at vector number first_vectors[a] of each lane.
        """
        dims = tuple(
            replace(d, extent=n * d.width * d.threads)
            for d, n in zip((self.slow, self.fast), self.vectors, strict=True)
        )
        return Window(dims, (self.slow, self.fast), first_vectors, self.may_overrun)

    def coordinates(self, low: WaveLowering, lane: Symbol, v: Symbol) -> tuple[Expr, Expr, list[Expr]]:
        """Return (row, column, bounds conditions) of value number `v` of lane `lane` in the matrix, as expressions of
        these two symbols. The list of conditions is empty if the element is always in bounds.
        """
        place_of = self.window(self.first_vectors).coordinates(low, lane, v)
        conditions = [c for _, c in place_of.values() if c is not None]
        return place_of[self.slow][0], place_of[self.fast][0], conditions

    def coordinates_in_tile(self, low: WaveLowering, lane: Symbol, v: Symbol) -> tuple[Expr, Expr]:
        """Return (row, column) of value number `v` of lane `lane` within the tile, as expressions of these two symbols:
        the row is the index along the slow axis, the column the one along the fast axis.
        """
        place_of = self.window((as_expr(0), as_expr(0))).coordinates(low, lane, v)
        return place_of[self.slow][0], place_of[self.fast][0]

    @property
    def may_overrun(self) -> bool:
        """True if this size of a tile does not divide an axis of the matrix: the last tiles then extend past the end of
        the axis.
        """
        return any(d.vectors % n for d, n in zip((self.slow, self.fast), self.vectors, strict=True))

    @property
    def values(self) -> int:
        """The number of elements of the tile that each lane has, elements past the end of the matrix included."""
        return self.window(self.first_vectors).values

    @property
    def dims(self) -> Dims:
        """The two axes of the matrix, (slow, fast), with their distribution over lanes."""
        return self.slow, self.fast


def lower_transposed(low: WaveLowering, op: Op) -> None:
    """Lower `op`, a map or copy from a source that is contiguous along another axis than its target: emit loops over
    tiles, each of which is transposed in shared memory.
    """
    turn = low.frames.transposes[op]
    extents = tuple(int(e) for e in box(op))
    size = op.operands[turn.operand].type.dtype.numpy.itemsize
    side = low.target.lane_access.transposed_bytes // size
    sides = {axis: min(side, 1 << (extents[axis] - 1).bit_length()) for axis in (turn.source, turn.target)}
    with _tile_loops(low, extents, sides) as at:
        _emit_tile(low, op, turn, extents, sides, at)


@contextmanager
def _tile_loops(low: WaveLowering, extents: tuple[int, ...], sides: dict[int, int]) -> Iterator[list[Expr]]:
    """Emit one loop for each axis of `extents` around the operations written within this context, and yield the list of
    their variables: the index of a tile along each axis. `sides` is {axis: extent of a tile}; other axes have tiles of
    1 element.
    """
    with ExitStack() as stack:
        yield [stack.enter_context(low.loop("tile", 0, -(-n // sides.get(axis, 1)))) for axis, n in enumerate(extents)]


def _emit_tile(
    low: WaveLowering, op: Op, turn: Turn, extents: tuple[int, ...], sides: dict[int, int], at: list[Expr]
) -> None:
    """Emit the transposing map or copy `op` for one tile: load it in vectors along the source's axis, store it to
    shared memory, load it in vectors along the target's axis, compute, and store. `turn` names the transposed operand
    and the two axes. `extents` are those of all axes, `sides` is {axis: extent of a tile}, `at` is the tile's index
    along each axis.
    """
    source, target = turn.source, turn.target
    transposed_operand = op.operands[turn.operand]
    size = transposed_operand.type.dtype.numpy.itemsize
    max_width = low.target.lane_access.vector_bytes // size
    rows, columns = (extents[axis] for axis in (target, source))
    wide, high = sides[source], sides[target]

    def coordinates(s: Expr, t: Expr) -> tuple[Expr, ...]:
        return tuple(s if axis == source else t if axis == target else e for axis, e in enumerate(at))

    bits = min(low.target.shared_memory.swizzle_bits, max(0, (high // max_width).bit_length() - 1))
    swizzle = Swizzle(bits, max_width.bit_length() - 1, high.bit_length() - 1) if bits and high >= max_width else None
    kind = TensorType("shared", transposed_operand.type.dtype, (as_expr(wide * high),), None, swizzle)
    scratch = low.hoist((op, "transposed"), kind, "turned")
    # in: vectors along the source's axis, stored as columns of the tile
    other_axis = low.axis("beside", rows)
    # elements of a register's size are loaded in vectors only from aligned offsets
    any_alignment = size < low.target.register_file.word_bytes
    width = _width(
        columns,
        wide,
        max_width
        if any_alignment
        else _alignment(low, transposed_operand, coordinates(as_expr(0), other_axis), max_width),
    )
    tile_in = TransposeTile.of(low, (rows, columns), (high, wide), width, (at[target], at[source]))
    lane, v = low.axes(tile_in.values)
    t, s, conditions = tile_in.coordinates(low, lane, v)
    loaded = _load_values(
        low, transposed_operand, coordinates(s, t), conditions, lane, v, tile_in.values, op.attrs.get("otherwise")
    )
    t, s = tile_in.coordinates_in_tile(low, lane, v)
    condition = conjunction(first_lane_conditions(low, tile_in.dims, lane))
    attrs: dict[str, Any] = {} if condition is None else {"when": condition}
    low.emit("store", (loaded, scratch), over=(lane, v), at=(s * high + t,), **attrs)
    low.sync_waves()
    # out: rows of the tile, as vectors along the target's axis
    target_operand = 1 if op.name == "copy" else 0
    target_value = op.operands[target_operand]
    other_axis = low.axis("beside", columns)
    width = _width(rows, high, _alignment(low, target_value, coordinates(other_axis, as_expr(0)), max_width))
    tile_out = TransposeTile.of(low, (columns, rows), (wide, high), width, (at[source], at[target]))
    lane, v = low.axes(tile_out.values)
    s, t = tile_out.coordinates_in_tile(low, lane, v)
    transposed_values = low.fragment(transposed_operand.type.dtype, tile_out.values)
    low.emit("load", (transposed_values, scratch), over=(lane, v), at=(s * high + t,))
    s, t, conditions = tile_out.coordinates(low, lane, v)
    where = coordinates(s, t)
    operands = [
        transposed_values
        if place == turn.operand
        else _load_values(low, value, where, conditions, lane, v, tile_out.values, None)
        for place, value in enumerate(op.operands)
        if place != target_operand  # a map may also read what it writes
    ]
    result = operands[0]
    if op.name == "map":
        result = low.fragment(target_value.type.dtype, tile_out.values)
        with low.means(dict(zip(op.attrs.get("over", ()), where, strict=False))):
            formula: Formula = op.attrs["formula"].mapped(low.expr)
        low.emit("compute", (result, *operands), over=(lane, v), formula=formula)
    memory = low.handles[target_value]
    address = memory.at(where)
    first_conditions = first_lane_conditions(low, tile_out.dims, lane)
    sources = (v for place, v in enumerate(op.operands) if place not in (turn.operand, target_operand))
    if first_conditions and any(low.frames.root(v) is low.frames.root(target_value) for v in sources):
        low.sync_waves()
    condition = conjunction((*conditions, *first_conditions, *address.conditions))
    attrs = {} if condition is None else {"when": condition}
    low.emit("store", (result, address.buffer), over=(lane, v), at=(address.offset,), **attrs)
    low.note_stored(memory)
    low.sync_waves()


def _width(extent: int, tile_extent: int, max_width: int) -> int:
    """Return the number of contiguous elements that a lane moves at once: the smaller of `max_width` and `tile_extent`,
    halved until it divides `extent`. Both are powers of two.

        >>> _width(40, 64, 16)
        8
    """
    width = min(max_width, tile_extent)
    while extent % width:
        width //= 2
    return width


def _alignment(low: WaveLowering, value: Value, row: tuple[Expr, ...], max_width: int) -> int:
    """Return the number of elements, at most `max_width`, to which all rows of the tensor `value` are known to be
    aligned: the greatest common divisor of `max_width` and the offsets of rows. `row` are the coordinates of a row's
    first element, as expressions.
    """
    return gcd(low.handles[value].at(row).offset.multiple, max_width)


def _load_values(
    low: WaveLowering,
    value: Value,
    at: tuple[Expr, ...],
    in_bounds: list[Expr],
    lane: Symbol,
    v: Symbol,
    count: int,
    otherwise: float | None,
) -> Value:
    """Emit the load of a new fragment of `count` values per lane from the tensor `value`, at the coordinates `at`;
    return it. `at` are expressions of the symbols `lane` and `v` (index of a lane's value). Lanes in which one of the
    conditions `in_bounds` fails get `otherwise` (None: 0).
    """
    memory = low.handles[value]
    where = memory.at(at)
    condition = conjunction((*in_bounds, *where.conditions))
    loaded = low.fragment(memory.dtype, count)
    attrs: dict[str, Any] = {} if condition is None else {"when": condition, "otherwise": otherwise or 0}
    low.emit("load", (loaded, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    return loaded
