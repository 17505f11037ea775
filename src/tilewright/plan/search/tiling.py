"""One choice of tiles: the extent of tasks and iterations along every dimension, and the loops around each value.

A task is one workgroup's tile of the grid. A class is a set of dimensions with the same role (such as M or K) in every
MMA; it has one tile. A phase is a loop nest: a value is computed in the loops over the dimensions that it has, reduces
or carries from one iteration to the next.
"""

from __future__ import annotations

from functools import cached_property
from math import prod

from tilewright.plan.facts import Dims, ValueFacts
from tilewright.plan.search.axes import COLUMNS, DEPTH, ROWS, DimClass
from tilewright.plan.search.orientation import Orientation
from tilewright.plan.search.tiles import CLUSTER, GRID, LOOP, WHOLE, AxisTile

Loops = frozenset[int]
"""The loops of a phase (loop nest): each is the index of the class of dimensions that it iterates over."""


class Tiling:
    """One choice of tiles: an AxisTile for each class of dimensions (same role, such as M or K, in every MMA).

    `o` (an Orientation) has the classes and the MMAs. `groups` is (wave groups along the rows of a workgroup's tile,
    wave groups along its columns), which become `down` and `across`. `looped` are the indices of the classes that a
    loop iterates over, `tasks` is the number of workgroups.
    """

    def __init__(self, o: Orientation, tiles: tuple[AxisTile, ...], groups: tuple[int, int]):
        self.o, self.facts, self.machine, self.tiles = o, o.facts, o.machine, tiles
        self.down, self.across = groups
        self.looped = frozenset(n for n, tile in enumerate(tiles) if tile.level == LOOP)
        self.tasks = prod(tile.count if tile.level in (GRID, CLUSTER) else tile.tasks for tile in tiles)
        self._spans: dict[Dims, int] = {}
        self._loops: dict[Dims, Loops] = {}

    @property
    def groups(self) -> int:
        """The number of wave groups (such as warpgroups) that compute one workgroup's tile together."""
        return self.down * self.across

    @cached_property
    def size(self) -> dict[str, int]:
        """{dimension: number of elements of this tiling's tile along it}.

        It is the extent of one iteration if a loop iterates over the dimension, else of a workgroup's tile. A program
        dimension that was split into digits (mixed-radix parts) has one entry per digit.
        """
        return {dim: n for tile in self.tiles for dim, n in tile.box}

    @cached_property
    def batch(self) -> int:
        """The number of GEMMs of a batch per tile; if more than 1, they run as one with a block-diagonal B."""
        pairs = zip(self.tiles, self.o.classes, strict=True)
        return prod(tile.size for tile, c in pairs if tile.level == GRID and c.is_batch)

    def span(self, dims: Dims) -> int:
        """Return the number of elements of the tile of a value with the dimensions `dims`.

        It is the product of the tile sizes of all classes (dimensions of one role) that have any of `dims`; a class
        counts with all of its dimensions. The tile is that of one iteration if a loop iterates over the class, else
        that of a workgroup.
        """
        if dims not in self._spans:
            class_indices = {self.o.class_of[d] for d in dims}
            self._spans[dims] = prod(self.tiles[n].size for n in class_indices)
        return self._spans[dims]

    def phase(self, n: ValueFacts) -> Loops:
        """Return the loop nest in which the value `n` is computed, as a set of loops; empty if it is in no loop.

        It has the loops over dimensions that the value has, reduces or carries from one iteration to the next. A loop
        is given as the index of its class of dimensions (same role in every MMA).
        """
        return self.loops_over(n.dims | n.reduces | n.carried)

    def loops_over(self, dims: Dims) -> Loops:
        """Return the set of loops that iterate over any of the dimensions `dims`; empty if no loop does.

        A loop is given as the index of its class of dimensions (same role in every MMA).
        """
        if dims not in self._loops:
            self._loops[dims] = frozenset(self.o.class_of[d] for d in dims) & self.looped
        return self._loops[dims]

    def trips(self, loops: Loops) -> int:
        """Return how often a workgroup runs the body of a loop nest: the product of the trip counts of `loops`.

        A loop is given as the index of its class of dimensions (same role in every MMA). The result is 1 if `loops` is
        empty.
        """
        return prod(self.tiles[n].count for n in loops)

    @cached_property
    def linking_dims(self) -> frozenset[str]:
        """The names of looped dimensions that are N of one MMA and K of another, as in attention."""
        loops = (self.o.classes[n] for n in self.looped)
        return frozenset(d for c in loops if {COLUMNS, DEPTH} <= set(c.roles) for d in c.dims)

    def tile_of(self, dim: str) -> AxisTile:
        """Return the AxisTile (level and extents) of `dim`; dimensions of the same role in every MMA share one."""
        return self.tiles[self.o.class_of[dim]]

    def steps_between(self, dims: Dims, slab: int) -> int:
        """Return the number of K steps of the second of two MMAs, along a dimension that is N of the first; else 1.

        A workgroup holds all of that dimension in the first MMA's accumulator. The second MMA loads its B one step of
        `slab` elements (a row of shared memory) at a time: 256 elements in steps of 64 -> 4. The result is 1 if `dims`
        has no such dimension, if the program itself loops over it, if `slab` does not divide it, or if one step covers
        it.
        """
        for c, tile in self.pairs():
            is_between = (
                {COLUMNS, DEPTH} <= set(c.roles) and set(c.dims) & dims and not set(c.dims) & self.facts.loops.keys()
            )
            if tile.level == WHOLE and is_between and c.extent > slab and c.extent % slab == 0:
                return c.extent // slab
        return 1

    @cached_property
    def cuts_both(self) -> bool:
        """True if the grid splits M and N of all MMAs, and each of these dimensions has the same role in every MMA."""
        tiles_of_c = [(set(c.roles), tile) for c, tile in self.pairs() if {ROWS, COLUMNS} & set(c.roles)]
        return all(tile.level == GRID and len(roles) == 1 for roles, tile in tiles_of_c)

    def pairs(self) -> tuple[tuple[DimClass, AxisTile], ...]:
        """Return pairs (DimClass, its AxisTile): each class of dimensions (same role in all MMAs) with its tile."""
        return self._pairs

    @cached_property
    def _pairs(self) -> tuple[tuple[DimClass, AxisTile], ...]:
        """The pairs (DimClass, its AxisTile) of all classes of dimensions, computed once."""
        return tuple(zip(self.o.classes, self.tiles, strict=True))
