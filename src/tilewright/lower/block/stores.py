"""Writes and atomics: the part of the tile that is written, its coordinates in memory, and the conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import mul
from typing import Any

from tilewright.algebra.expr import Const, Expr, Symbol, as_expr, symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.analysis.flat_memory import Size
from tilewright.errors import ProgramError
from tilewright.ir import dtypes
from tilewright.ir import tile_formulas as formulas
from tilewright.ir.core import Op, Value
from tilewright.ir.formula import Formula
from tilewright.ir.tile_formulas import converted
from tilewright.lower.block import dynamic_bounds
from tilewright.lower.block.accesses import access_of, bounds_marks, with_data
from tilewright.lower.block.lazy_tiles import Load, Part, Tile, inner_part, load
from tilewright.lower.block.lowering import Lowering


def bounds_of(low: Lowering, op: Op, dims: tuple[Expr, ...]) -> Formula | None:
    """Return the conditions of the attribute `bounds` of the access `op`, joined by `and_`, as a formula; None if all
    always hold.

    `dims` are the dimensions of the accessed tile. A condition is "index < limit", for an entry (dimension, limit) of
    `bounds` whose dimension is among `dims`.
    """
    conjunction: Formula | None = None
    for condition in conditions_of(low, op, dims):
        if not (isinstance(condition, Const) and condition.value):
            one = condition if isinstance(condition, Formula) else Formula("index", (), condition)
            conjunction = one if conjunction is None else Formula("and_", (_truth(conjunction), _truth(one)))
    return conjunction


def _truth(formula: Formula) -> Formula:
    """Return the formula with a cast to bool around it."""
    return Formula.cast(dtypes.bool_, formula)


def conditions_of(low: Lowering, op: Op, dims: tuple[Expr, ...]) -> Iterator[Expr | Formula]:
    """Yield the condition "index < limit" for each entry (dimension, limit) of `op`'s attribute `bounds` whose
    dimension is among `dims`.

    A condition is an expression of coordinates, 1 where it holds. If its index or limit depends on data, it is a
    formula that loads these data, and run-time checks of symbols that set_symbol set are emitted.
    """
    for dim, bound in op.attrs.get("bounds", ()):
        if dim not in dims:
            continue
        data: dict[Symbol, Load] = {}
        limit = with_data(low, low.scope.expr(bound), data, dims, op)
        condition = dynamic_bounds.coordinate(low.storage, dim, data) < limit
        values = {s: Formula.cast(dtypes.i64, load(at.tensor, *at.at)) for s, at in data.items()}
        yield Formula("ne", (formulas.of_expr(condition, values), Formula.number(0))) if data else condition


class Write:
    """A write or an atomic: the part of the tile that is written, its coordinates in memory, and the conditions.

    `parts` maps dimensions to (first index, extent). `over` are iterators, one for each dimension of the tile. `at` are
    the memory coordinates, as expressions of these iterators; `marks` says of each coordinate whether it may be out of
    bounds. `where` has the loads on which coordinates depend. If `empty` is True, nothing is written, and only `parts`
    and `sizes` (the extents) are set.
    """

    def __init__(self, low: Lowering, op: Op):
        source, target, *extra = op.operands
        tile = low.storage.env[source]
        if "at" not in op.attrs:
            tile = low.scope.conform(tile, target.type.dims, op)
        self.low, self.op, self.dims = low, op, tile.dims
        self.parts = {d: self._part(tile, d) for d in tile.dims}
        self.sizes = tuple(self.parts[d][1] for d in tile.dims)
        self.empty = 0 in self.sizes or 0 in low.arguments.shapes[target]
        if self.empty:
            return
        self.access = access_of(low, op, target, tile.dims, tuple(extra))
        self.formula = converted(tile.formula, tile.dtype, target.type.dtype)
        self.dtype = target.type.dtype
        self.over, self.images = low.storage.axes(self.dims, self.parts)
        self.marks = list(bounds_marks(low.scope, self.access, self.images))
        self.at = [self.images(e) for e in self.access.at]
        self.where = dict(self.access.data)
        self._restrict()

    def _part(self, tile: Tile, dim: Expr) -> Part:
        """Return the (first index, extent) along `dim` that is written: the tile's part or the current part, whichever
        lies within the other.

        The current part is that of the loops, tasks or workgroup around. If the tile is one number everywhere, the
        current part is written. Raise a ProgramError if neither part lies within the other.
        """
        current = self.low.scope.part(dim)
        return current if tile.filled else inner_part(dim, tile.parts[dim], current)

    def _restrict(self) -> None:
        """Change this write's coordinates so that elements that a condition excludes are not written.

        Conditions are the limits in the attribute `bounds`, the masks of enclosing conditionals, and data-dependent
        ends of dimensions. If one is false, the first coordinate `self.at[0]` becomes -1; `self.marks[0]` is set, as
        this coordinate may be out of bounds. For a condition on data, code is emitted that stores its values, and
        `self.where` gets {new symbol: load of the value}. Nothing changes without conditions, or if all are constantly
        true. Otherwise raise a ProgramError if the memory has no dimension.
        """
        low = self.low
        conditions: list[Expr] = []
        formulas_: list[Formula] = []
        for condition in conditions_of(low, self.op, self.dims):
            if isinstance(condition, Formula):
                formulas_.append(condition)
            else:
                conditions.append(self.images(condition))
        for mask in low.scope.masks:
            formulas_.append(dynamic_bounds.squeezed(low, mask, self.dims, "the condition", self.op).formula)
        formulas_ += [inside for d in self.dims if (inside := dynamic_bounds.in_range(low.scope, d)) is not None]
        for formula in formulas_:
            tile = Tile(dtypes.i32, self.dims, self.parts, Formula.cast(dtypes.i32, _truth(formula)))
            _, condition_load = low.storage.load_of(tile)
            s = symbol(low.writer.fresh("d"))
            self.where[s] = condition_load
            conditions.append(s)
        holds = [c for c in conditions if not (isinstance(c, Const) and c.value)]
        if not holds:
            return
        if not self.at:
            raise ProgramError(f"{self.op.name} of a single number under a condition has no native form yet")
        self.at[0] = reduce(mul, holds) * (self.at[0] + 1) - 1
        self.marks[0] = True

    def places(self) -> tuple[tuple[Expr, bool], ...]:
        """Return a tuple of (coordinate, may_leave), one for each dimension of the memory that is written.

        `may_leave` is True if the coordinate may be out of bounds.
        """
        return tuple(zip(self.at, self.marks, strict=True))

    def target(self) -> Value:
        """Emit a view of the written elements of memory, over the iterators of the write, and return the view.

        Elements of the tile past the end of a dimension must not be stored, even if memory goes on there. If the tile
        may pass such an end, the result is a view of a view that ends with the dimension (or with each image line of
        the task).
        """
        w, low = self.low.writer, self.low
        past = [d for d in self.dims if _is_past(low, d)]
        if not past:
            return w.view(self.access.tensor, self.over, self.places())
        walks = {d: walk for d, walk in low.task.walks.items() if self._has_coordinate_along(d)}
        sizes: list[Size] = []
        for d, n in zip(self.dims, self.sizes, strict=True):
            walk = walks.get(d)
            sizes += (walk.lines, walk.length) if walk is not None else (low.scope.size(d) if d in past else n,)
        exact_axes = w.axes(sizes)
        numbers = iter(exact_axes)
        known: dict[Expr, Expr] = {}
        at: list[tuple[Expr, bool]] = []
        for d, i in zip(self.dims, self.over, strict=True):
            first = self.parts[d][0]
            if (walk := walks.get(d)) is not None:
                begin = low.task.begins[d]
                known[d] = begin + walk.pitch * next(numbers) + next(numbers)
                row = first - begin + i
                at += [(row // walk.pitch, True), (row % walk.pitch, walk.pitch > walk.length)]
            else:
                known[d] = next(numbers) + (0 if d in past else first)
                at.append((first + i, True) if d in past else (i, False))
        images = Substitution({low.scope.coordinate(d): e for d, e in known.items()})
        marks = bounds_marks(low.scope, self.access, images)
        exact_view = w.view(self.access.tensor, exact_axes, list(zip(map(images, self.access.at), marks, strict=True)))
        return w.view(exact_view, self.over, at)

    def _has_coordinate_along(self, dim: Expr) -> bool:
        """True if a memory coordinate of this write depends on the index along the dimension `dim`."""
        return any(self.low.scope.coordinate(dim) in e.symbols for e in self.access.at)

    def attrs(self, over: tuple[Symbol, ...], images: Callable[[Expr], Expr] = lambda e: e) -> dict[str, Any]:
        """Return the attributes of a scatter, gather or atomic of the written elements: {"over": ..., "where": ...,
        "at": ...}.

        "over" is `over`, the operation's iterators. "at" is ((memory coordinate, True if it may be out of bounds),
        ...). "where" is ((symbol in coordinates, position of its value in the tensor that holds it), ...), or None if
        there are no such symbols. `images` is applied to every coordinate; it maps the write's own iterators to
        expressions of `over`.
        """
        where = ((s, tuple(images(self.images(e)) for e in f.at)) for s, f in self.where.items())
        at = tuple((images(e), mark) for e, mark in self.places())
        return {"over": over, "where": tuple(where) or None, "at": at}

    def memory(self) -> tuple[Value, ...]:
        """Return the memory operands of a scatter, gather or atomic: the tensor that is written, then for each symbol
        in "where" of `attrs` the tensor that holds its value.
        """
        return self.access.tensor, *(f.tensor for f in self.where.values())

    def tile(self) -> Value:
        """Return a view of the elements to write, over the iterators of the write.

        Code that computes them into a new tensor is emitted first, unless the tile is a plain load of the memory's
        type.
        """
        _, source = self.low.storage.load_of(Tile(self.dtype, self.dims, self.parts, self.formula))
        return self.low.writer.viewed(source, self.over, self.images)


def _is_past(low: Lowering, dim: Expr) -> bool:
    """True if the current block of the dimension `dim` may go past the end of the dimension, or past the end of an
    image line (if the rows of a task run on from line to line). False only if this is known to be impossible.
    """
    if dim in low.task.overhanging or dim in low.task.walks:
        return True
    if dim not in low.bound.padded:
        return False
    first, width = low.scope.part(dim)
    return not low.scope.holds(as_expr(low.scope.size(dim)) - first - width)
