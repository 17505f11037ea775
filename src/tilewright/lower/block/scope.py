"""The current part of each dimension at a point of the program, and the values of symbols there.

tasks t_M in 0..4 {                     M is 1250*t_M to 1250*t_M + 1249
  for k in 0..8 { ... }                 K is 64*k to 64*k + 63
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution, number_or
from tilewright.analysis.flat_memory import Size
from tilewright.analysis.in_bounds import facts_if_true, is_proved
from tilewright.errors import ExecutionError, ProgramError
from tilewright.ir.core import Op
from tilewright.ir.printer import op_text
from tilewright.ir.tile import SCANS
from tilewright.lower.block.lazy_tiles import Part, Parts, Tile, most, rewritten
from tilewright.lower.block.symbolic_shapes import CLOSED, OpenSizes

_WHOLE = (*SCANS, "topk")
_LINES = ("reshape", "extract", "debug_log")


class TileScope:
    """The current part of each dimension, and the values of symbols: numbers, expressions, or tiles (set by
    set_symbol).

    `symbols` maps sizes to numbers, or to expressions of the open sizes `opened`, which are known only at the call.

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
        """The substitution of sizes by their values."""
        self.parts: Parts = {}
        self.bound: dict[Symbol, Tile] = {}
        """{symbol that set_symbol gave a value: the value}."""
        self.masks: list[Tile] = []
        """The conditions of the conditionals around the current operation, outermost first."""
        self.facts: list[Expr] = []
        """Expressions that are >= 0 because of the conditions of the branches around."""
        self.walking: set[Symbol] = set()
        """The axes of the while loops around."""
        self.ends: dict[Expr, Tile] = {}
        """{dimension whose end is data: its end, as i64}."""
        self.bases: dict[Expr, Tile] = {}
        """{axis of a loop with a data-dependent start: start of the current tile, as i64}."""
        self.past: dict[Expr, Size] = {}
        """{axis of a loop whose last tile is padded: its end}; also dimensions that a task of a pipeline has all of,
        with padding."""
        self.unseen: dict[Expr, Op | None] = {}
        """{axis in `past` past whose end nothing changes the carried values: the operation whose result is masked with
        -inf there}; None: a select of the program gives -inf there."""
        self.reach: dict[Expr, int] = {}
        """{dimension whose part goes past its end in some workgroups: one more than the largest index}."""
        self._coordinates: dict[tuple[Expr, Size], Symbol] = {}
        """Coordinate symbols, by dimension and by its tile's extent in a loop with a data-dependent start (else 0)."""

    # -- what holds inside of something -------------------------------------------------------------------

    @contextmanager
    def nested(self) -> Iterator[None]:
        """Context manager: at its end, also after an error, symbols and data-dependent ends of dimensions have their
        former values again if set_symbol changed them within it.
        """
        bound, ends = dict(self.bound), dict(self.ends)
        try:
            yield
        finally:
            self.bound, self.ends = bound, ends

    @contextmanager
    def at(self, dim: Expr, part: Part) -> Iterator[None]:
        """Context manager: within it, `part`, (first index, extent), is the current part of the dimension `dim`; at its
        end, `dim` has its former part again.
        """
        before = self.parts.get(dim)
        self.parts[dim] = part
        yield
        if before is None:
            del self.parts[dim]
        else:
            self.parts[dim] = before

    @contextmanager
    def given(self, condition: Expr) -> Iterator[None]:
        """Context manager: within it, proofs take `condition` as true. `condition` is an expression of loop variables,
        workgroup ids and sizes.
        """
        facts = self.facts
        self.facts = [*facts, *facts_if_true(condition)]
        yield
        self.facts = facts

    def set_values(self, symbols: Mapping[Symbol, Expr | int]) -> None:
        """Set the values of all symbols to `symbols`, {symbol: a number, or an expression of workgroup ids}; former
        values are dropped.
        """
        self.symbols = dict(symbols)
        self.numbers = Substitution(self.symbols)

    # -- sizes --------------------------------------------------------------------------------------------

    def is_inside(self, e: Expr, size: Size) -> bool:
        """True if the coordinate `e` is proved to lie in 0..size-1, for all values of its symbols; False if no proof is
        found.
        """
        return self.holds(e) and self.holds(size - 1 - e)

    def holds(self, e: Expr) -> bool:
        """True if `e` >= 0 is proved for all values of its symbols; False if no proof is found.

        A proof uses the ranges of the symbols. In a program with open sizes (known only at the call), it also uses the
        conditions of the branches around the current operation.
        """
        return e.lo >= 0 or (e >= 0) is as_expr(1) or (bool(self.opened) and is_proved(e, self.facts))

    def size(self, e: Expr) -> Size:
        """Return the value of `e`, an expression of sizes: an int, or an expression of open sizes (known only at the
        call).

        Raise a ProgramError if `e` depends on anything else, such as workgroup ids or symbols that set_symbol sets.
        """
        value = self.numbers(e)
        known = isinstance(value, Const) or value.symbols <= self.opened.symbols
        if not known or not e.symbols.isdisjoint(self.bound):
            raise ProgramError(f"{e} has no value before the program runs; natively it must have one")
        return number_or(value)

    def number(self, e: Expr) -> int:
        """Return the value of `e`, an expression of sizes, as an int.

        Raise a ProgramError if `e` depends on open sizes (known only at the call), or on anything that is no size.
        """
        value = self.size(e)
        if isinstance(value, Expr):
            named = ", ".join(sorted(s.name for s in e.symbols if self.numbers(s).symbols)) or str(e)
            raise ProgramError(f"{e} must be a number here; {named} is dynamic, and only a call tells it")
        return value

    def expr(self, e: Expr) -> Expr:
        """Return `e` with sizes and other symbols replaced by their known values (`self.symbols`); symbols that
        set_symbol set stay.
        """
        if not self.bound:
            return self.numbers(e)
        return Substitution({s: n for s, n in self.symbols.items() if s not in self.bound})(e)

    # -- parts and coordinates ----------------------------------------------------------------------------

    def coordinate(self, dim: Expr) -> Symbol:
        """Return the symbol that stands for the index along the dimension `dim` in formulas; the first call creates it.

        Its range is 0..size-1, with three exceptions. In a loop along `dim` with a data-dependent start, the index
        counts from the start of the loop's current tile, and the range is that of the tile. For the axis of a while
        loop, the range is 0..0. If some workgroups go past the end of `dim`, the range goes as far as they do
        (`self.reach`), or has no upper bound if only a symbol of the expression `dim` is in `self.reach`. Raise a
        ProgramError if set_symbol gave `dim` its size, and `self.reach` does not have `dim`.
        """
        tile_extent = 1 if dim in self.walking else self.parts[dim][1] if dim in self.bases else 0
        coordinate = self._coordinates.get((dim, tile_extent))
        if coordinate is None:
            if tile_extent:
                coordinate = self._coordinates[dim, tile_extent] = symbol(
                    f"at_{len(self._coordinates)}", 0, tile_extent - 1
                )
                return coordinate
            if isinstance(dim, Symbol) and dim in self.bound and dim not in self.reach:
                raise ProgramError(f"set_symbol gives the dimension {dim} a size at run time, which is not native yet")
            name = f"at_{len(self._coordinates)}"
            if dim in self.reach or not dim.symbols.isdisjoint(self.reach):
                coordinate = symbol(name, 0, self.reach[dim] - 1 if dim in self.reach else None)
            else:
                size = self.size(dim)
                coordinate = symbol(name, 0, max(1, size) - 1 if isinstance(size, int) else size - 1)
            self._coordinates[dim, tile_extent] = coordinate
        return coordinate

    def part(self, dim: Expr) -> Part:
        """Return (first index, extent), the part of `dim` that is computed now: as the tasks and loops around set it,
        else (0, size of `dim`).

        The axis of a while loop has (0, 1). For an expression such as 2*K, the part follows from that of K: (32, 16)
        gives (64, 32). Raise a ProgramError if the extent of an expression is not the same in every tile of K, or if
        tasks and loops split two of its symbols.
        """
        if dim in self.walking:  # one index, which depends on data
            return as_expr(0), 1
        part = self.parts.get(dim)
        if part is not None:
            return part
        cut = [s for s in dim.symbols if s in self.parts]
        if not cut:
            return as_expr(0), self.size(dim)
        if len(cut) > 1:
            raise ProgramError(f"{dim} is split by parts of {' and '.join(s.name for s in sorted(cut, key=str))}")
        (s,) = cut
        first, width = self.parts[s]
        known: dict[Symbol, Expr | int] = dict(self.symbols)
        begin = Substitution({**known, s: first})(dim)
        size = Substitution({**known, s: first + width})(dim) - begin
        if not isinstance(size, Const) and not (isinstance(width, Expr) and is_proved(size)):
            raise ProgramError(f"the extent of {dim} is not the same in every tile of {s}")
        return begin, number_or(size)

    def is_known(self, dim: Expr) -> bool:
        """True if the extent of the current part of `dim` is known at launch.

        It is known if tasks or loops set the part, and for the axis of a while loop, where it is 1. Otherwise the part
        is the whole dimension: True if its size is a number or an expression of open sizes (known only at the call),
        False if it depends on workgroup ids or on a value that set_symbol sets.
        """
        if dim in self.walking or dim in self.parts:
            return True
        value = self.numbers(dim)
        return dim.symbols.isdisjoint(self.bound) and (isinstance(value, Const) or value.symbols <= self.opened.symbols)

    def width(self, dim: Expr) -> int:
        """Return the extent of the current part of the dimension `dim` as an int; of an extent known only at the call,
        the largest value.
        """
        return most(self.part(dim)[1])

    def images(self, dims: tuple[Expr, ...], parts: Parts, over: tuple[Symbol, ...]) -> Substitution:
        """Return a substitution: the coordinate symbol of dims[n] becomes (first index of its part) + over[n].

        `parts` is {dimension: (first index, extent)}; `over` has an iterator for each of the dimensions `dims`.
        """
        return Substitution({self.coordinate(d): parts[d][0] + i for d, i in zip(dims, over, strict=True)})

    def digits(self, tile: Tile, flat: Expr) -> dict[Symbol, Expr]:
        """Return {coordinate symbol of a dimension: index} of the element of `tile` with the row-major number `flat` in
        the tile.

        In a tile of 4 x 6 elements from index (0, 12) on: {row: flat // 6, column: 12 + flat % 6}. Extents must be
        numbers.
        """
        images: dict[Symbol, Expr] = {}
        step = prod(tile.sizes)
        for place, d in enumerate(tile.dims):
            start, width = tile.parts[d]
            step //= max(1, width)
            digit = flat // max(1, step)
            images[self.coordinate(d)] = start + (digit % max(1, width) if place else digit)
        return images

    def conform(self, tile: Tile, dims: tuple[Expr, ...], op: Op) -> Tile:
        """Return `tile` with exactly the dimensions `dims`: further ones are dropped, missing ones are added behind the
        others.

        A tile that has exactly these dimensions is returned unchanged, in whatever order it has them. A dimension that
        is dropped or added must have extent 1 here; otherwise raise an ExecutionError that names `op`.
        """
        if set(tile.dims) == set(dims):
            return tile
        dropped = [d for d in tile.dims if d not in dims]
        parts = {d: part for d, part in tile.parts.items() if d not in dropped}
        parts |= {d: self.part(d) for d in dims if d not in parts}
        for d in (*dropped, *(d for d in dims if d not in tile.dims)):
            width = tile.parts[d][1] if d in dropped else parts[d][1]
            if width != 1:
                change = "left out" if d in dropped else "added"
                raise ExecutionError(f"{op.name}: {d} is {change}, but is {width} wide here", op.loc)
        images = Substitution({self.coordinate(d): tile.parts[d][0] for d in dropped})
        wide = None if tile.wide is None else (tile.wide[0], rewritten(tile.wide[1], images))
        conformed = tuple(d for d in tile.dims if d in dims) + tuple(d for d in dims if d not in tile.dims)
        return Tile(tile.dtype, conformed, parts, rewritten(tile.formula, images), wide)

    def refuse_data_dependent(self, op: Op) -> None:
        """Raise a ProgramError if `op` needs all elements along a dimension with a data-dependent start or end.

        The operations that do are scans and topk along that dimension, and reshape, extract or debug_log of a tile that
        has it.
        """
        moved = {*self.ends, *self.bases}
        if not moved:
            return
        dims = {d for v in op.operands for d in getattr(v.type, "dims", ())}
        along = {op.attrs["dim"]} if op.name in _WHOLE else dims if op.name in _LINES else set()
        for d in along & moved:
            raise ProgramError(
                f"{op_text(op)}: along {d}, which ends where data say, this has no native form yet", op.loc
            )
