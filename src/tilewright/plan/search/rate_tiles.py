"""Turn the axes of a given plan into the tiles of a kernel with MMA atoms."""

from __future__ import annotations

from collections.abc import Collection
from math import ceil, prod

from tilewright.algebra.expr import Expr
from tilewright.plan.facts import Facts
from tilewright.plan.schedule import ProductUnit
from tilewright.plan.search.axes import COLUMNS, DEPTH, ROWS, DimClass
from tilewright.plan.search.orientation import Orientation
from tilewright.plan.search.plan_axes import PlanAxes
from tilewright.plan.search.tiles import BOX, GRID, LOOP, RUN, WHOLE, AxisTile, filled_box


class PlanTiles:
    """The tiles that a plan gives to the dimension classes of an orientation.

    `units` are the plan's lines of the products. `batch` is the number of diagonal blocks in a tile. Beside halo tiles,
    `taps` are the axes whose steps are separate iterations, even if a stage has several.
    """

    def __init__(
        self, o: Orientation, axes: PlanAxes, units: list[ProductUnit], batch: int, taps: Collection[str] = ()
    ):
        self.o, self.facts, self.axes, self.batch, self.taps = o, o.facts, axes, batch, taps
        self.columns = [line.rows if line.transposed else line.columns for line in units]

    def tiles(self) -> tuple[AxisTile, ...]:
        """Return the tile of every axis of the schedule (class of dimensions with the same role in all MMAs)."""
        return tuple(self._tile(c) for c in self.o.classes)

    def _tile(self, c: DimClass) -> AxisTile:
        """Return the tile that the plan gives to the class `c` of dimensions (those with the same role in all MMAs)."""
        owners = owners_of(self.facts, c.dims)
        loops = {d: n for d in owners if (n := self.axes.loop(d)) is not None}
        if c.is_batch and c.is_parallel and self.batch > 1:
            box = tuple((d, self.batch if d == c.dims[-1] else 1) for d in c.dims)
            return AxisTile(GRID, self.batch, box, BOX, c.extent // self.batch)
        boxed = [d for d in owners if self.axes.digit_sizes(d, "task")]
        if boxed:
            return self._halo_box(c, boxed[0])
        if not c.is_parallel:
            return self._stepped(c, owners, loops) if loops and not self._is_held(c, loops) else self._whole(c)
        blocks = self.batch if COLUMNS in c.roles else 1
        tasks = {d: max(1, n // blocks) for d in owners if (n := self.axes.task(d)) is not None}
        if not loops or not {ROWS, COLUMNS} & set(c.roles):
            return self._cut(c, owners, tasks, GRID) if tasks else self._whole(c)
        block = self._cut(c, owners, tasks | loops, LOOP)
        shared = prod(ceil(tasks.get(d, self._extent(d)) / n) for d, n in loops.items())
        return AxisTile(LOOP, block.size, block.box, block.fold, shared, max(1, ceil(block.count / shared)))

    def _is_held(self, c: DimClass, loops: dict[Expr, int]) -> bool:
        """True if `loops` are K steps along a dimension of which an accumulator before has all columns."""
        columns = {n for role, n in zip(c.roles, self.columns, strict=True) if role == COLUMNS}
        return DEPTH in c.roles and bool(columns) and not columns & set(loops.values())

    def _whole(self, c: DimClass) -> AxisTile:
        """Return the tile of the class `c` of dimensions that has its whole extent: no grid or loop splits it."""
        return AxisTile(WHOLE, c.extent, tuple((d, self.facts.extents[d]) for d in c.dims))

    def _extent(self, d: Expr) -> int:
        """Return the extent of a program dimension, in elements: the product of its digits' (sub-indices') extents."""
        return self.facts.size(n for n in self._digits(d) if n in self.facts.extents)

    def _digits(self, d: Expr) -> tuple[str, ...]:
        """Return the names of the digits (sub-indices) that a program dimension
        was split into; its own name if it was not.
        """
        return self.facts.digits.get(str(d), (str(d),))

    def _halo_box(self, c: DimClass, d: Expr) -> AxisTile:
        """Return the grid tile of the class `c` of dimensions: a box (rectangle) of the digits
        (sub-indices) of `d`, as the plan splits it.

        Digits that the plan does not split have one element, or all of them if some digit is padded in the plan.
        """
        task_sizes, extents = self.axes.digit_sizes(d, "task"), self.facts.extents
        runs_on = any(digit.walked != digit.extent for digit in self.axes.axes[d].digits)
        box = tuple((n, task_sizes.get(n, extents[n] if runs_on else 1)) for n in c.dims)
        return AxisTile(GRID, prod(n for _, n in box), box, BOX, prod(ceil(extents[d] / n) for d, n in box))

    def _cut(self, c: DimClass, owners: list[Expr], sizes: dict[Expr, int], level: str) -> AxisTile:
        """Return the tile of the class `c` of dimensions at a level, with the extent in `sizes`
        (default 1) along each program dimension.

        With one dimension in `owners` it is a run (contiguous flat indices), with several a box (rectangle of
        sub-indices).
        """
        facts, size = self.facts, prod(sizes.get(d, 1) for d in owners)
        if len(owners) == 1:
            return AxisTile(level, size, filled_box(facts, c.dims, size, up=True), RUN, ceil(c.extent / size))
        box: dict[str, int] = {}
        for d in owners:
            digits = tuple(n for n in c.dims if n in self._digits(d))
            box |= dict(filled_box(facts, digits, sizes.get(d, 1), up=True))
        return AxisTile(
            level, size, tuple((n, box[n]) for n in c.dims), BOX, prod(ceil(facts.extents[n] / box[n]) for n in c.dims)
        )

    def _stepped(self, c: DimClass, owners: list[Expr], loops: dict[Expr, int]) -> AxisTile:
        """Return the loop tile of the class `c` of dimensions, with the loop tile sizes
        `loops` of its program dimensions `owners`.

        Dimensions without a loop are whole. Its count is the iterations over all passes of a task.
        """
        taps = {d for d in owners if d in self.axes.axes and self.axes.axes[d].name in self.taps}
        sizes = {d: 1 if d in taps else loops.get(d, self._extent(d)) for d in owners}
        tile = self._cut(c, owners, sizes, LOOP)
        passes = 1 if set(c.roles) <= {DEPTH} else max(self.facts.passes[d] for d in c.dims)
        return AxisTile(LOOP, tile.size, tile.box, tile.fold, tile.count * passes)


def owners_of(facts: Facts, dims: tuple[str, ...]) -> list[Expr]:
    """Return the program dimensions of which any of the canonical dimensions `dims` is a digit (sub-index)."""
    return [d for d in facts.order if set(facts.digits.get(str(d), (str(d),))) & set(dims)]
