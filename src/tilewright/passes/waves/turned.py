"""Maps and copies whose source lies side by side along another axis than their target: a tile at a time is turned.

Lanes load vectors along the source's axis and store them to shared memory as columns; vectors of rows then leave
along the target's axis. Both sides move 16 bytes a lane, or as many as rows are aligned to, neighbours by neighbouring
lanes. A swizzle moves the vectors of a row about by the row's number, so that columns are spread over all banks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

from tilewright.algebra import Swizzle
from tilewright.algebra.expr import Expr, Symbol, as_expr
from tilewright.check.frames import Dim, Dims, Turn, box
from tilewright.ir.core import Op, Value
from tilewright.ir.formula import Formula
from tilewright.ir.tensors import TensorType
from tilewright.passes.waves.framed import Window, first
from tilewright.passes.waves.held import both
from tilewright.passes.waves.waves import Waves


@dataclass(frozen=True)
class TurnedTile:
    """A tile of a transposing copy: the distribution of its two axes with one of them in vectors, and its index."""

    slow: Dim
    fast: Dim
    rounds: tuple[int, int]
    turns: tuple[Expr, Expr]

    @classmethod
    def of(
        cls, low: Waves, extents: tuple[int, int], sides: tuple[int, int], width: int, at: tuple[Expr, Expr]
    ) -> TurnedTile:
        """Return tile number `at` of `sides` rows and columns, with vectors of `width` elements along columns."""
        threads = low.lanes * low.group.waves
        across = min(threads, sides[1] // width)
        down = min(threads // across, sides[0])
        rounds = sides[0] // down, sides[1] // (width * across)
        slow, fast = Dim(extents[0], 1, down, across), Dim(extents[1], width, across, 1)
        return cls(slow, fast, rounds, (at[0] * rounds[0], at[1] * rounds[1]))

    def window(self, turns: tuple[Expr, Expr]) -> Window:
        """Return the Window of a lane's values from these rounds on."""
        dims = tuple(
            replace(d, extent=n * d.width * d.threads) for d, n in zip((self.slow, self.fast), self.rounds, strict=True)
        )
        return Window(dims, (self.slow, self.fast), turns, self.past)

    def places(self, low: Waves, lane: Symbol, v: Symbol) -> tuple[Expr, Expr, list[Expr]]:
        """Return (row, column, conditions that they are in bounds) of a lane's value."""
        place_of = self.window(self.turns).places(low, lane, v)
        conditions = [c for _, c in place_of.values() if c is not None]
        return place_of[self.slow][0], place_of[self.fast][0], conditions

    def inside(self, low: Waves, lane: Symbol, v: Symbol) -> tuple[Expr, Expr]:
        """Return (row, column) of a lane's value within the tile."""
        place_of = self.window((as_expr(0), as_expr(0))).places(low, lane, v)
        return place_of[self.slow][0], place_of[self.fast][0]

    @property
    def past(self) -> bool:
        """True if the last tiles go past the end."""
        return any(d.rounds % n for d, n in zip((self.slow, self.fast), self.rounds, strict=True))

    @property
    def values(self) -> int:
        """The number of values per lane."""
        return self.window(self.turns).values

    @property
    def dims(self) -> Dims:
        """The two distributed axes."""
        return self.slow, self.fast


def write(low: Waves, op: Op) -> None:
    """Lower a transposing map or copy, tile by tile through shared memory."""
    turn = low.frames.turned[op]
    extents = tuple(int(e) for e in box(op))
    size = op.operands[turn.operand].type.dtype.numpy.itemsize
    side = low.target.lane_access.transposed_bytes // size
    sides = {axis: min(side, 1 << (extents[axis] - 1).bit_length()) for axis in (turn.source, turn.target)}
    with _over(low, extents, sides) as at:
        _emit_tile(low, op, turn, extents, sides, at)


@contextmanager
def _over(low: Waves, extents: tuple[int, ...], sides: dict[int, int]) -> Iterator[list[Expr]]:
    """Emit loops over the tiles of two axes, and over all coordinates of the others; yield their variables."""
    with ExitStack() as stack:
        yield [stack.enter_context(low.loop("tile", 0, -(-n // sides.get(axis, 1)))) for axis, n in enumerate(extents)]


def _emit_tile(low: Waves, op: Op, turn: Turn, extents: tuple[int, ...], sides: dict[int, int], at: list[Expr]) -> None:
    """Emit one tile: load it along the source's axis, store it to shared memory, load it transposed, compute and
    store.
    """
    source, target = turn.source, turn.target
    turned = op.operands[turn.operand]
    size = turned.type.dtype.numpy.itemsize
    most = low.target.lane_access.vector_bytes // size
    rows, columns = (extents[axis] for axis in (target, source))
    wide, high = sides[source], sides[target]

    def coordinates(s: Expr, t: Expr) -> tuple[Expr, ...]:
        return tuple(s if axis == source else t if axis == target else e for axis, e in enumerate(at))

    bits = min(low.target.shared_memory.swizzle_bits, max(0, (high // most).bit_length() - 1))
    swizzle = Swizzle(bits, most.bit_length() - 1, high.bit_length() - 1) if bits and high >= most else None
    kind = TensorType("shared", turned.type.dtype, (as_expr(wide * high),), None, swizzle)
    scratch = low.hoist((op, "turned"), kind, "turned")
    # in: columns of the tile, which are rows of what is written
    beside = low.axis("beside", rows)
    # elements of a register's size are loaded so only from multiples of a vector
    anywhere = size < low.target.register_file.word_bytes
    width = _width(columns, wide, most if anywhere else _alignment(low, turned, coordinates(as_expr(0), beside), most))
    into = TurnedTile.of(low, (rows, columns), (high, wide), width, (at[target], at[source]))
    lane, v = low.axes(into.values)
    t, s, conditions = into.places(low, lane, v)
    loaded = _loaded(low, turned, coordinates(s, t), conditions, lane, v, into.values, op.attrs.get("otherwise"))
    t, s = into.inside(low, lane, v)
    condition = both(first(low, into.dims, lane))
    attrs: dict[str, Any] = {} if condition is None else {"when": condition}
    low.emit("store", (loaded, scratch), over=(lane, v), at=(s * high + t,), **attrs)
    low.meet()
    # out: rows
    written = 1 if op.name == "copy" else 0
    goal = op.operands[written]
    beside = low.axis("beside", columns)
    width = _width(rows, high, _alignment(low, goal, coordinates(beside, as_expr(0)), most))
    out = TurnedTile.of(low, (columns, rows), (wide, high), width, (at[source], at[target]))
    lane, v = low.axes(out.values)
    s, t = out.inside(low, lane, v)
    again = low.fragment(turned.type.dtype, out.values)
    low.emit("load", (again, scratch), over=(lane, v), at=(s * high + t,))
    s, t, conditions = out.places(low, lane, v)
    where = coordinates(s, t)
    operands = [
        again if place == turn.operand else _loaded(low, value, where, conditions, lane, v, out.values, None)
        for place, value in enumerate(op.operands)
        if place != written  # a map may also read what it writes
    ]
    result = operands[0]
    if op.name == "map":
        result = low.fragment(goal.type.dtype, out.values)
        with low.means(dict(zip(op.attrs.get("over", ()), where, strict=False))):
            formula: Formula = op.attrs["formula"].mapped(low.expr)
        low.emit("compute", (result, *operands), over=(lane, v), formula=formula)
    memory = low.handles[goal]
    to = memory.at(where)
    condition = both((*conditions, *first(low, out.dims, lane), *to.conditions))
    attrs = {} if condition is None else {"when": condition}
    low.emit("store", (result, to.buffer), over=(lane, v), at=(to.offset,), **attrs)
    low.written(memory)
    low.meet()


def _width(extent: int, side: int, most: int) -> int:
    """Return the number of neighbours that a lane moves at once: at most `most`, a divisor of `extent`."""
    width = min(most, side)
    while extent % width:
        width //= 2
    return width


def _alignment(low: Waves, value: Value, row: tuple[Expr, ...], most: int) -> int:
    """Return the number of elements, at most `most`, of which the offset of every row is a multiple."""
    return gcd(low.handles[value].at(row).offset.multiple, most)


def _loaded(
    low: Waves,
    value: Value,
    at: tuple[Expr, ...],
    there: list[Expr],
    lane: Symbol,
    v: Symbol,
    count: int,
    otherwise: float | None,
) -> Value:
    """Return a fragment with elements of a tensor at the coordinates `at`, where the conditions `there` hold."""
    memory = low.handles[value]
    where = memory.at(at)
    condition = both((*there, *where.conditions))
    loaded = low.fragment(memory.dtype, count)
    attrs: dict[str, Any] = {} if condition is None else {"when": condition, "otherwise": otherwise or 0}
    low.emit("load", (loaded, where.buffer), over=(lane, v), at=(where.offset,), **attrs)
    return loaded
