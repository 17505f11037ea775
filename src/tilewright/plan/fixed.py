"""The author's constraints on a plan: task tiles along M and N, and the loop tile along K."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Program
from tilewright.plan.contraction import Contraction


@dataclass(frozen=True)
class StatedTiles:
    """Tile sizes in elements that the author's constraints give: a task's M and N, and the K loop.

    None means that the planner chooses.
    """

    rows: int | None = None
    columns: int | None = None
    depth: int | None = None


FREE = StatedTiles()


def stated_tiles(program: Program, contraction: Contraction, sizes: Mapping[Symbol, int]) -> StatedTiles:
    """Return the tile sizes that the author's constraints give a contraction: a task's M and N, and the K loop.

    A field of the result is None if no constraint gives it a number. `sizes` maps size symbols to numbers.
    """
    tasks, loops = tiles_of(program, sizes)
    rows, columns, depth = contraction.dims

    def task(dims: tuple[str, ...], extent: int) -> int | None:
        """Return the workgroup tile of M or N in elements, at most `extent`; None if no constraint gives it.

        `dims` are the program's dimensions of M or N, `extent` is the product of their extents. None too if there are
        several dimensions, or none.
        """
        widths = [tasks[d] for d in dims if d in tasks]
        return min(widths[0], extent) if len(dims) == 1 and widths else None

    return StatedTiles(
        task(rows, contraction.extent(contraction.rows)),
        task(columns, contraction.extent(contraction.columns)),
        loops.get(depth),
    )


def wave_parts(program: Program, sizes: Mapping[Symbol, int]) -> dict[str, int]:
    """Return how the author's wave constraints split a workgroup's tile: {dimension: number of waves along it}.

    A workgroup tile of 128 with a wave tile of 32 gives 4. A dimension without a workgroup tile is left out, and so is
    one whose wave tile is no positive number. `sizes` maps size symbols to numbers.
    """
    images, (workgroups, _) = Substitution(dict(sizes)), tiles_of(program, sizes)
    parts = {}
    for constraint in program.records:
        if constraint.name == "wave" and (dim := str(constraint.attrs["dim"])) in workgroups:
            tile = images(constraint.attrs["tile"])
            if isinstance(tile, Const) and tile.value > 0:
                parts[dim] = -(-workgroups[dim] // tile.value)
    return parts


def tiles_of(program: Program, sizes: Mapping[Symbol, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return (workgroup tiles, loop tiles) that the author's constraints give, each {dimension name: elements}.

    A tile that evaluates to no positive number is left out. If several constraints name a dimension, the last one
    counts. `sizes` maps size symbols to numbers.
    """
    images = Substitution(dict(sizes))
    tiles: dict[str, dict[str, int]] = {"workgroup": {}, "tiling": {}}
    for constraint in program.records:
        tile = constraint.attrs.get("tile")
        if constraint.name in tiles and tile is not None:
            number = images(tile)
            if isinstance(number, Const) and number.value > 0:
                tiles[constraint.name][str(constraint.attrs["dim"])] = number.value
    return tiles["workgroup"], tiles["tiling"]
