"""What an author's constraints fix of a plan: how much a task takes of rows and columns, how deep a loop goes."""

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
    """Numbers that a plan must have; None: free."""

    rows: int | None = None
    columns: int | None = None
    depth: int | None = None

    def tasks(
        self, c: Contraction, block: tuple[int, int], down: int, wanted: Collection[int], parts: Collection[int]
    ) -> Iterator[tuple[int, int, tuple[str, str]]]:
        """(what a task takes of the rows, what of the columns, the order of its blocks), for blocks of sums of so many
        rows and columns, so many `down`: as many tasks along rows and columns as `wanted` and `parts` say.
        """
        rows, columns = block
        for strip in self._strips(c, rows, down, wanted):
            for task_columns in self._task_columns(columns, -(-size(c.columns[0]) // columns), parts):
                for order in ORDERS[: 1 if task_columns == columns else 2]:
                    yield strip, task_columns, order

    def _strips(self, c: Contraction, rows: int, down: int, wanted: Collection[int]) -> list[int]:
        """What a task may take of the rows: lines, or rows in whole blocks."""
        single = len(c.rows) == 1
        if self.rows is None:
            whole, unit = (down, rows) if single else (size(c.rows[-2]), 1)
            return sorted({-(-whole // count) * unit for count in wanted if count <= whole})
        step = rows if single else size(c.rows[-1])
        return [self.rows if single else self.rows // step] if self.rows % step == 0 else []

    def _task_columns(self, columns: int, blocks: int, parts: Collection[int]) -> list[int]:
        """What a task may take of the columns, in whole blocks."""
        if self.columns is None:
            return sorted({-(-blocks // n) * columns for n in parts if n <= blocks})
        return [self.columns] if self.columns % columns == 0 else []


FREE = Fixed()


def fixed_by(program: Program, c: Contraction, sizes: Mapping[Symbol, int]) -> Fixed:
    """What the constraints of a program fix of its contraction; what has no number yet fixes nothing."""
    tasks, loops = tiles_of(program, sizes)
    rows, columns, depth = c.dims

    def task(dims: tuple[str, ...], extent: int) -> int | None:
        found = [tasks[d] for d in dims if d in tasks]
        return min(found[0], extent) if len(dims) == 1 and found else None

    return Fixed(task(rows, c.extent(c.rows)), task(columns, c.extent(c.columns)), loops.get(depth))


def wave_parts(program: Program, sizes: Mapping[Symbol, int]) -> dict[str, int]:
    """In how many parts the constraints have waves share what a workgroup has of each dimension, where numbers say."""
    images, (workgroups, _) = Substitution(dict(sizes)), tiles_of(program, sizes)
    parts = {}
    for record in program.records:
        if record.name == "wave" and (dim := str(record.attrs["dim"])) in workgroups:
            tile = images(record.attrs["tile"])
            if isinstance(tile, Const) and tile.value > 0:
                parts[dim] = -(-workgroups[dim] // tile.value)
    return parts


def tiles_of(program: Program, sizes: Mapping[Symbol, int]) -> tuple[dict[str, int], dict[str, int]]:
    """The tile sizes that a program's constraints give: of workgroups, and of loops, by dimension."""
    images = Substitution(dict(sizes))
    found: dict[str, dict[str, int]] = {"workgroup": {}, "tiling": {}}
    for record in program.records:
        tile = record.attrs.get("tile")
        if record.name in found and tile is not None:
            number = images(tile)
            if isinstance(number, Const) and number.value > 0:
                found[record.name][str(record.attrs["dim"])] = number.value
    return found["workgroup"], found["tiling"]
