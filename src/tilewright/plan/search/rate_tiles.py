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

    A class is a set of dimensions with the same role (such as M or K) in every MMA; `o` (an Orientation) has them.
    `axes` has the plan's axis of each program dimension, `units` are the plan's `mma` statements. `batch` is the number
    of GEMMs per tile (blocks of a block-diagonal B). `taps` are the names of the filter-tap axes of a plan with halo
    tiles: each tap is one iteration, even if a pipeline stage has several.
    """

    def __init__(
        self, o: Orientation, axes: PlanAxes, units: list[ProductUnit], batch: int, taps: Collection[str] = ()
    ):
        self.o, self.facts, self.axes, self.batch, self.taps = o, o.facts, axes, batch, taps
        self.columns = [line.rows if line.transposed else line.columns for line in units]

    def tiles(self) -> tuple[AxisTile, ...]:
        """Return the AxisTiles that the plan gives, one per class of dimensions (same role in all MMAs)."""
        return tuple(self._tile(c) for c in self.o.classes)

    def _tile(self, c: DimClass) -> AxisTile:
        """Return the AxisTile that the plan gives to `c`, a class of dimensions (same role in all MMAs).

        The first case that applies decides:

        - a batch class with several GEMMs per tile: a grid tile of that many;
        - a box (rectangle) in the plan: the grid tile of the box;
        - a class that the grid cannot split: a loop tile if the plan loops over it and not only over K steps within it,
          else all of `c`;
        - M or N with a loop: a loop tile, and the number of workgroups that share `c`;
        - a class that the grid splits: a grid tile;
        - else all of `c`.
        """
        owners = program_dims_of(self.facts, c.dims)
        loops = {d: n for d in owners if (n := self.axes.loop(d)) is not None}
        if c.is_batch and c.is_parallel and self.batch > 1:
            box = tuple((d, self.batch if d == c.dims[-1] else 1) for d in c.dims)
            return AxisTile(GRID, self.batch, box, BOX, c.extent // self.batch)
        boxed = [d for d in owners if self.axes.digit_sizes(d, "task")]
        if boxed:
            return self._halo_box(c, boxed[0])
        if not c.is_parallel:
            return (
                self._loop_tile(c, owners, loops)
                if loops and not self._is_whole_between_mmas(c, loops)
                else self._whole_tile(c)
            )
        blocks = self.batch if COLUMNS in c.roles else 1
        tasks = {d: max(1, n // blocks) for d in owners if (n := self.axes.task(d)) is not None}
        if not loops or not {ROWS, COLUMNS} & set(c.roles):
            return self._split_tile(c, owners, tasks, GRID) if tasks else self._whole_tile(c)
        block = self._split_tile(c, owners, tasks | loops, LOOP)
        shared = prod(ceil(tasks.get(d, self._extent(d)) / n) for d, n in loops.items())
        return AxisTile(LOOP, block.size, block.box, block.fold, shared, max(1, ceil(block.count / shared)))

    def _is_whole_between_mmas(self, c: DimClass, loops: dict[Expr, int]) -> bool:
        """True if a workgroup holds all of `c` between two MMAs, so that `loops` are only K steps of the second MMA.

        `c` is a class of dimensions (same role in all MMAs), and `loops` has the plan's loop tiles along it, in
        elements. False unless `c` is N of one MMA and K of another. A loop tile as wide as an MMA's tile along N is a
        loop around both MMAs, and gives False; narrower ones are K steps.
        """
        columns = {n for role, n in zip(c.roles, self.columns, strict=True) if role == COLUMNS}
        return DEPTH in c.roles and bool(columns) and not columns & set(loops.values())

    def _whole_tile(self, c: DimClass) -> AxisTile:
        """Return the AxisTile with all elements of the class `c` of dimensions: neither grid nor loop splits it."""
        return AxisTile(WHOLE, c.extent, tuple((d, self.facts.extents[d]) for d in c.dims))

    def _extent(self, d: Expr) -> int:
        """Return the number of elements of the program dimension `d` in the whole problem.

        If `d` was split into digits (mixed-radix parts), it is the product of their extents.
        """
        return self.facts.size(n for n in self.facts.digit_names(d) if n in self.facts.extents)

    def _halo_box(self, c: DimClass, d: Expr) -> AxisTile:
        """Return the grid AxisTile of the class `c` for which the plan gives a box: a rectangle over the digits of `d`.

        Digits are the mixed-radix parts of `d`, such as image, row and column. If the plan does not split a digit, the
        box has one element of it. If the plan pads some digit of `d`, so that rows run on from line to line, the box
        has all elements of such a digit instead.
        """
        task_sizes, extents = self.axes.digit_sizes(d, "task"), self.facts.extents
        runs_on = any(digit.padded_extent != digit.extent for digit in self.axes.axes[d].digits)
        box = tuple((n, task_sizes.get(n, extents[n] if runs_on else 1)) for n in c.dims)
        return AxisTile(GRID, prod(n for _, n in box), box, BOX, prod(ceil(extents[d] / n) for d, n in box))

    def _split_tile(self, c: DimClass, owners: list[Expr], sizes: dict[Expr, int], level: str) -> AxisTile:
        """Return the AxisTile of the class `c` of dimensions at `level` (GRID or LOOP), with the extents in `sizes`.

        `owners` are the program dimensions of `c`; `sizes` maps them to elements per tile, 1 if missing. With one owner
        the tile is a run (contiguous flat indices), with several it is a box (rectangle).
        """
        facts, size = self.facts, prod(sizes.get(d, 1) for d in owners)
        if len(owners) == 1:
            return AxisTile(level, size, filled_box(facts, c.dims, size, up=True), RUN, ceil(c.extent / size))
        box: dict[str, int] = {}
        for d in owners:
            digits = tuple(n for n in c.dims if n in self.facts.digit_names(d))
            box |= dict(filled_box(facts, digits, sizes.get(d, 1), up=True))
        return AxisTile(
            level, size, tuple((n, box[n]) for n in c.dims), BOX, prod(ceil(facts.extents[n] / box[n]) for n in c.dims)
        )

    def _loop_tile(self, c: DimClass, owners: list[Expr], loops: dict[Expr, int]) -> AxisTile:
        """Return the loop AxisTile of the class `c` of dimensions; its count is the number of iterations per workgroup.

        `owners` are the program dimensions of `c`; `loops` maps them to elements per iteration. An owner without a loop
        has all of its elements in an iteration, an axis of filter taps has one. If the program needs several passes
        over `c`, the iterations of all passes count.
        """
        taps = {d for d in owners if d in self.axes.axes and self.axes.axes[d].name in self.taps}
        sizes = {d: 1 if d in taps else loops.get(d, self._extent(d)) for d in owners}
        tile = self._split_tile(c, owners, sizes, LOOP)
        passes = 1 if set(c.roles) <= {DEPTH} else max(self.facts.passes[d] for d in c.dims)
        return AxisTile(LOOP, tile.size, tile.box, tile.fold, tile.count * passes)


def program_dims_of(facts: Facts, dims: tuple[str, ...]) -> list[Expr]:
    """Return the program dimensions to which the names `dims` belong, in the program's order.

    A name is that of a program dimension, or of a digit (mixed-radix part) of one: (row, column) of an image dimension
    M give [M]. `facts` is the analysed program.
    """
    return [d for d in facts.order if set(facts.digit_names(d)) & set(dims)]
