"""Constraints of the author on a plan: task tiles along M and N, and the loop tile along K."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Program
from tilewright.plan.blocking import COLUMNS, ROWS
from tilewright.plan.contraction import Contraction, size

ORDERS = ((COLUMNS, ROWS), (ROWS, COLUMNS))


@dataclass(frozen=True)
class Fixed:
    """Tile sizes in elements that the author's constraints give: a task's M and N, and the K loop; None: the planner
    chooses.
    """

    rows: int | None = None
    columns: int | None = None
    depth: int | None = None

    def tasks(
        self,
        contraction: Contraction,
        register_tile: tuple[int, int],
        row_blocks: int,
        row_counts: Collection[int],
        column_counts: Collection[int],
    ) -> Iterator[tuple[int, int, tuple[str, str]]]:
        """Yield (extent along M, extent along N, loop order) of every task tile that the author's constraints allow.

        A task is one core's tile; its loops run over register tiles, in the order (outer, inner) of the axes rows and
        columns. A task of one register tile along N has one order only. `register_tile` is (rows, columns) of a
        register tile and `row_blocks` the number of register tiles along M. `row_counts` and `column_counts` are the
        numbers of tasks along M and N to try. The extent along M is in image lines if M has several digits (mixed-radix
        parts), else in rows; the extent along N is in columns.
        """
        rows, columns = register_tile
        for strip in self._row_extents(contraction, rows, row_blocks, row_counts):
            for task_columns in self._column_extents(
                columns, -(-size(contraction.columns[0]) // columns), column_counts
            ):
                for order in ORDERS[: 1 if task_columns == columns else 2]:
                    yield strip, task_columns, order

    def _row_extents(
        self, contraction: Contraction, block_rows: int, row_blocks: int, row_counts: Collection[int]
    ) -> list[int]:
        """Return the extents of a task (one core's tile) along M to try; [] if the author's extent does not fit.

        Extents are in image lines if M has several digits (mixed-radix parts), else in rows. An extent from the author
        is the only one; it must be whole register tiles, or whole image lines. Without it, there is one extent for each
        number of tasks along M in `row_counts`. A register tile has `block_rows` rows, and M has `row_blocks` register
        tiles.
        """
        single = len(contraction.rows) == 1
        if self.rows is None:
            whole, unit = (row_blocks, block_rows) if single else (size(contraction.rows[-2]), 1)
            return sorted({-(-whole // count) * unit for count in row_counts if count <= whole})
        step = block_rows if single else size(contraction.rows[-1])
        return [self.rows if single else self.rows // step] if self.rows % step == 0 else []

    def _column_extents(self, block_columns: int, column_blocks: int, column_counts: Collection[int]) -> list[int]:
        """Return the extents of a task (one core's tile) along N to try, in columns; [] if the author's does not fit.

        An extent from the author is the only one; it must be whole register tiles. Without it, there is one extent for
        each number of tasks along N in `column_counts`. A register tile has `block_columns` columns, and N has
        `column_blocks` register tiles.
        """
        if self.columns is None:
            return sorted({-(-column_blocks // n) * block_columns for n in column_counts if n <= column_blocks})
        return [self.columns] if self.columns % block_columns == 0 else []


FREE = Fixed()


def fixed_by(program: Program, contraction: Contraction, sizes: Mapping[Symbol, int]) -> Fixed:
    """Return Fixed: the tile sizes that the author's constraints give a contraction (task tile of M and N, K step).

    A field is None if no constraint gives it a number. `sizes` maps size symbols to numbers.
    """
    tasks, loops = tiles_of(program, sizes)
    rows, columns, depth = contraction.dims

    def task(dims: tuple[str, ...], extent: int) -> int | None:
        """Return the workgroup tile of M or N in elements, at most `extent`; None if no constraint gives it.

        `dims` are the program's dimensions of M or N, `extent` the product of their extents. It is None too if there
        are several dimensions.
        """
        widths = [tasks[d] for d in dims if d in tasks]
        return min(widths[0], extent) if len(dims) == 1 and widths else None

    return Fixed(
        task(rows, contraction.extent(contraction.rows)),
        task(columns, contraction.extent(contraction.columns)),
        loops.get(depth),
    )


def wave_parts(program: Program, sizes: Mapping[Symbol, int]) -> dict[str, int]:
    """Return how the author's wave constraints split a workgroup's tile: {dimension: number of waves along it}.

    A dimension without a workgroup tile is left out, and so is a wave tile that evaluates to no positive number.
    `sizes` maps size symbols to numbers.
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

    A tile that evaluates to no positive number is left out. `sizes` maps size symbols to numbers.
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
