"""What an author's constraints fix of a plan: how much a task takes of rows and columns, how deep a loop goes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tilewright.algebra.expr import Const, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Program
from tilewright.machine import Machine
from tilewright.plan.contraction import Contraction, size


@dataclass(frozen=True)
class Fixed:
    """Numbers that a plan must have; None: free."""

    rows: int | None = None
    columns: int | None = None
    depth: int | None = None

    def strips(self, c: Contraction, rows: int, free: list[int]) -> list[int]:
        """What a task may take of the rows: lines, or rows in whole blocks."""
        if self.rows is None:
            return free
        step = rows if len(c.rows) == 1 else size(c.rows[-1])
        return [self.rows if len(c.rows) == 1 else self.rows // step] if self.rows % step == 0 else []

    def task_columns(self, columns: int, blocks: int, parts: Collection[int]) -> list[int]:
        """What a task may take of the columns, in whole blocks."""
        if self.columns is None:
            return sorted({-(-blocks // n) * columns for n in parts if n <= blocks})
        return [self.columns] if self.columns % columns == 0 else []

    def __str__(self) -> str:
        said = {"task of rows": self.rows, "task of columns": self.columns, "loop of depth": self.depth}
        return ", ".join(f"{name} {n}" for name, n in said.items() if n is not None)


FREE = Fixed()


def fixed_by(program: Program, c: Contraction, sizes: Mapping[Symbol, int]) -> Fixed:
    """What the constraints of a program fix of its contraction; what has no number yet fixes nothing."""
    tasks, loops = tiles_of(program, sizes)
    rows, columns, depth = c.dims

    def task(dims: tuple[str, ...], extent: int) -> int | None:
        found = [tasks[d] for d in dims if d in tasks]
        return min(found[0], extent) if len(dims) == 1 and found else None

    return Fixed(task(rows, c.extent(c.rows)), task(columns, c.extent(c.columns)), loops.get(depth))


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


def left_aside(program: Program, machine: Machine) -> tuple[str, ...]:
    """What constraints say that this machine does not do: parts of waves where there is one, atoms it does not have."""
    notes = []
    for record in program.records:
        if record.name == "wave" and machine.waves == 1:
            notes.append(
                f"the constraint on waves of {record.attrs['dim']} is left aside: a workgroup is one worker here"
            )
        elif record.name == "hardware" and "mma" in record.attrs:
            notes.append(f"the constraint's {record.attrs['mma']} is left aside: atoms are this machine's own")
    return tuple(notes)
