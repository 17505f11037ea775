"""Which part of each dimension is current at a place of a program, and what symbols mean there.

tasks t_M in 0..4 {                     M is 1250*t_M to 1250*t_M + 1249
  for k in 0..8 { ... }                 K is 64*k to 64*k + 63
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution, number_or
from tilewright.check.inside import holds, shown
from tilewright.errors import ExecutionError, ProgramError
from tilewright.ir.core import Op
from tilewright.ir.printer import op_text
from tilewright.passes.places import Size
from tilewright.passes.tile.opened import CLOSED, OpenSizes
from tilewright.passes.tile.values import Part, Parts, Tile, most, rewritten

_WHOLE = ("cumsum", "topk")
_LINES = ("reshape", "extract", "debug_log")


class TileScope:
    """The current part of each dimension, and what symbols stand for: numbers, expressions, or what data say.

    `symbols` say what sizes are: numbers, or expressions of those that are `opened`.

    >>> m = symbol("M", 0, None)
    >>> scope = TileScope({m: 5000})
    >>> with scope.at(m, (as_expr(1250), 1250)):
    ...     print(scope.part(m), scope.size(m))
    (<1250>, 1250) 5000
    >>> scope.part(m)
    (<0>, 5000)
    """

    def __init__(self, symbols: Mapping[Symbol, Size], opened: OpenSizes = CLOSED):
        self.opened = opened
        self.symbols: dict[Symbol, Expr | int] = dict(symbols)
        self.numbers = Substitution(self.symbols)
        """Gives an expression of sizes as far as these are known."""
        self.parts: Parts = {}
        self.bound: dict[Symbol, Tile] = {}
        """Symbols that set_symbol gave a value."""
        self.masks: list[Tile] = []
        """The conditions of the conditionals around."""
        self.facts: list[Expr] = []
        """What is never negative here: the conditions of the branches around say so."""
        self.walking: set[Symbol] = set()
        """The axes of the while loops around."""
        self.ends: dict[Expr, Tile] = {}
        """Dimensions that end where data say: a number of i64."""
        self.bases: dict[Expr, Tile] = {}
        """Axes of loops that data move: where the current tile starts, a number of i64."""
        self.past: dict[Expr, Size] = {}
        """Axes of loops whose last tile goes past the end, and where that is: all tiles have the same width; and
        dimensions of which a task in roles has all, and more."""
        self.unseen: dict[Expr, Op | None] = {}
        """Of these, axes past whose end nothing changes what a loop carries: since one of its operations gives -inf
        there, or, None, since a selection of the program does."""
        self.reach: dict[Expr, int] = {}
        """Dimensions whose parts lie outside them in some workgroups: one past the last coordinate."""
        self._coordinates: dict[tuple[Expr, Size], Symbol] = {}
        """By dimension, and how wide its tiles are in a loop that data move."""

    # -- what holds inside of something -------------------------------------------------------------------

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Within it, what set_symbol says stays inside."""
        bound, ends = dict(self.bound), dict(self.ends)
        try:
            yield
        finally:
            self.bound, self.ends = bound, ends

    @contextmanager
    def at(self, dim: Expr, part: Part) -> Iterator[None]:
        """Within it, this part of a dimension is current."""
        before = self.parts.get(dim)
        self.parts[dim] = part
        yield
        if before is None:
            del self.parts[dim]
        else:
            self.parts[dim] = before

    @contextmanager
    def given(self, condition: Expr) -> Iterator[None]:
        """Within it, a condition on loops and workgroups is known to hold."""
        facts = self.facts
        self.facts = [*facts, *holds(condition)]
        yield
        self.facts = facts

    def means(self, symbols: Mapping[Symbol, Expr | int]) -> None:
        """Makes symbols stand for numbers, or for expressions of workgroup ids."""
        self.symbols = dict(symbols)
        self.numbers = Substitution(self.symbols)

    # -- sizes --------------------------------------------------------------------------------------------

    def is_inside(self, e: Expr, size: Size) -> bool:
        """Whether a coordinate is shown to lie in 0..size-1."""
        return self.holds(e) and self.holds(size - 1 - e)

    def holds(self, e: Expr) -> bool:
        """Whether an expression is shown to be never negative, by ranges or by the branches around."""
        return e.lo >= 0 or (e >= 0) is as_expr(1) or (bool(self.opened) and shown(e, self.facts))

    def size(self, e: Expr) -> Size:
        """An expression of sizes: a number, or an expression of those that a call tells."""
        found = self.numbers(e)
        known = isinstance(found, Const) or found.symbols <= self.opened.symbols
        if not known or not e.symbols.isdisjoint(self.bound):
            raise ProgramError(f"{e} has no value before the program runs; natively it must have one")
        return number_or(found)

    def number(self, e: Expr) -> int:
        """An expression of sizes that must be a number."""
        found = self.size(e)
        if isinstance(found, Expr):
            named = ", ".join(sorted(s.name for s in e.symbols if self.numbers(s).symbols)) or str(e)
            raise ProgramError(f"{e} must be a number here; {named} is dynamic, and only a call tells it")
        return found

    def expr(self, e: Expr) -> Expr:
        """The expression with sizes as numbers; symbols that set_symbol bound stay."""
        if not self.bound:
            return self.numbers(e)
        return Substitution({s: n for s, n in self.symbols.items() if s not in self.bound})(e)

    # -- parts and coordinates ----------------------------------------------------------------------------

    def coordinate(self, dim: Expr) -> Symbol:
        """The symbol of a dimension's coordinate."""
        walked = 1 if dim in self.walking else self.parts[dim][1] if dim in self.bases else 0
        found = self._coordinates.get((dim, walked))
        if found is None:
            if walked:
                found = self._coordinates[dim, walked] = symbol(f"at_{len(self._coordinates)}", 0, walked - 1)
                return found
            if isinstance(dim, Symbol) and dim in self.bound and dim not in self.reach:
                raise ProgramError(f"set_symbol gives the dimension {dim} a size at run time, which is not native yet")
            name = f"at_{len(self._coordinates)}"
            if dim in self.reach or not dim.symbols.isdisjoint(self.reach):
                found = symbol(name, 0, self.reach[dim] - 1 if dim in self.reach else None)
            else:
                size = self.size(dim)
                found = symbol(name, 0, max(1, size) - 1 if isinstance(size, int) else size - 1)
            self._coordinates[dim, walked] = found
        return found

    def part(self, dim: Expr) -> Part:
        """The current part of a dimension."""
        if dim in self.walking:  # one coordinate; which one, only data tell
            return as_expr(0), 1
        found = self.parts.get(dim)
        if found is not None:
            return found
        cut = [s for s in dim.symbols if s in self.parts]
        if not cut:
            return as_expr(0), self.size(dim)
        (s,) = cut
        first, width = self.parts[s]
        known: dict[Symbol, Expr | int] = dict(self.symbols)
        begin = Substitution({**known, s: first})(dim)
        size = Substitution({**known, s: first + width})(dim) - begin
        if not isinstance(size, Const) and not (isinstance(width, Expr) and shown(size)):
            raise ProgramError(f"the width of {dim} depends on the place: a tile of {s} does not divide it evenly")
        return begin, number_or(size)

    def is_known(self, dim: Expr) -> bool:
        """Whether the current part of a dimension has a width before the program runs."""
        if dim in self.walking or dim in self.parts:
            return True
        found = self.numbers(dim)
        return dim.symbols.isdisjoint(self.bound) and (isinstance(found, Const) or found.symbols <= self.opened.symbols)

    def width(self, dim: Expr) -> int:
        """How wide the current part of a dimension is at most."""
        return most(self.part(dim)[1])

    def images(self, dims: tuple[Expr, ...], parts: Parts, over: tuple[Symbol, ...]) -> Substitution:
        """Coordinates as expressions of the axes of an operation over these parts."""
        return Substitution({self.coordinate(d): parts[d][0] + i for d, i in zip(dims, over, strict=True)})

    def digits(self, tile: Tile, flat: Expr) -> dict[Symbol, Expr]:
        """The coordinates of an element, from its number within the tile."""
        images: dict[Symbol, Expr] = {}
        step = prod(tile.sizes)
        for place, d in enumerate(tile.dims):
            start, width = tile.parts[d]
            step //= max(1, width)
            digit = flat // max(1, step)
            images[self.coordinate(d)] = start + (digit % max(1, width) if place else digit)
        return images

    def conform(self, tile: Tile, dims: tuple[Expr, ...], op: Op) -> Tile:
        """The tile over other dimensions: those left out or added must be one coordinate wide here."""
        if set(tile.dims) == set(dims):
            return tile
        gone = [d for d in tile.dims if d not in dims]
        parts = {d: part for d, part in tile.parts.items() if d not in gone}
        parts |= {d: self.part(d) for d in dims if d not in parts}
        for d in (*gone, *(d for d in dims if d not in tile.dims)):
            width = tile.parts[d][1] if d in gone else parts[d][1]
            if width != 1:
                how = "left out" if d in gone else "added"
                raise ExecutionError(f"{op.name}: {d} is {how}, but is {width} wide here", op.loc)
        images = Substitution({self.coordinate(d): tile.parts[d][0] for d in gone})
        wide = None if tile.wide is None else (tile.wide[0], rewritten(tile.wide[1], images))
        found = tuple(d for d in tile.dims if d in dims) + tuple(d for d in dims if d not in tile.dims)
        return Tile(tile.dtype, found, parts, rewritten(tile.formula, images), wide)

    def refuse_moved(self, op: Op) -> None:
        """Raises for operations along a dimension that data end, which would see elements that do not count."""
        moved = {*self.ends, *self.bases}
        if not moved:
            return
        dims = {d for v in op.operands for d in getattr(v.type, "dims", ())}
        along = {op.attrs["dim"]} if op.name in _WHOLE else dims if op.name in _LINES else set()
        for d in along & moved:
            raise ProgramError(
                f"{op_text(op)}: along {d}, which ends where data say, this has no native form yet", op.loc
            )
