"""A block program that passes fill in, part by part."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tilewright.ir.dtypes import DType
from tilewright.passes.contraction.text import argument, batch_tasks, extent
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.forms import COLUMNS, ROWS, TileForm, up


@dataclass(frozen=True)
class Packing:
    """A program that packs, the packed tensor's shape, and its element type."""

    text: str
    shape: tuple[int, ...]
    dtype: DType


@dataclass
class Round:
    """A loop over blocks of sums: how many rows a block has, which row is its first, and the loops around it."""

    rows: int
    start: Any
    """The first row of a block, within the last row digit or within what is staged."""
    loops: list[str]
    """The loops of its own, outermost first, if any; what is done in a round stands in the last."""
    only: str | None = None
    """The condition under which a task does this at all."""
    deferred: bool = False
    body: list[str] = field(default_factory=list)
    ending: list[str] = field(default_factory=list)


@dataclass
class Draft:
    """The program of a contraction's form so far: tasks, what a task stages and holds, its rounds."""

    c: Contraction
    form: TileForm
    machine: str
    packing: Packing
    tasks: list[str] = field(default_factory=list)
    staged: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    loops: list[str] = field(default_factory=list)
    """The loops around all rounds, outermost first."""
    rounds: list[Round] = field(default_factory=list)
    rows_view: Callable[[Any, Round], str] | None = None
    """The view of a block's rows for a chunk of the depth."""

    @property
    def blocks(self) -> int:
        """Blocks of columns in all."""
        return up(size(self.c.columns[0]), self.form.columns) // self.form.columns

    @property
    def columns_range(self) -> str:
        """The loop over a task's blocks of columns."""
        per = self.form.task_columns // self.form.columns
        if per >= self.blocks:
            return f"f in 0..{self.blocks}"
        return f"f in {per}*part..min({per}*(part + 1), {self.blocks})"

    def task_ranges(self, rows: str | None) -> list[str]:
        """The loops of the tasks in the plan's order; `rows` is that over strips, if there is more than one."""
        per = self.form.task_columns // self.form.columns
        parts = -(-self.blocks // per)
        ranges: dict[str, str | None] = dict(zip((d.name for d in self.c.batch), batch_tasks(self.c), strict=True))
        ranges |= {d.name: f"{d.name} in 0..{extent(self.c, d)}" for d in self.c.rows[:-2]}
        ranges |= {ROWS: rows, COLUMNS: f"part in 0..{parts}" if parts > 1 else None}
        found = [ranges[name] for name in self.form.tasks]
        return [r for r in found if r is not None] or ["all in 0..1"]

    def __str__(self) -> str:
        c, packed = self.c, self.packing
        arguments = [argument("in", c.a), f"%packed_: in global {packed.dtype} ({', '.join(map(str, packed.shape))})"]
        arguments += [argument("in", e) for e in c.extras if e.name != c.a.name]
        arguments.append(argument("out", c.out))
        schedule = " schedule contiguous" if self.form.schedule == "contiguous" else ""
        lines = [f"block {c.name}({', '.join(arguments)})", f"  machine {self.machine}"]
        if c.parameters:
            lines.append("  param " + ", ".join(f"{s.name} in {s.lo}..{int(s.hi) + 1}" for s in c.parameters))
        lines.append("{")
        lines.append(f"  tasks {', '.join(self.tasks)}{schedule} {{")
        lines += ["    " + line for line in (*self.staged, *self.held)]
        numbers = count()
        inner = [line for r in self.rounds for line in self._round(r, numbers)]
        lines += ["    " + line for line in nested(self.loops, inner)]
        return "\n".join([*lines, "  }", "}"]) + "\n"

    def _round(self, r: Round, numbers: Iterator[int]) -> list[str]:
        lines = _own_names(self._done(r), next(numbers))
        return lines if r.only is None else nested([f"if ({r.only})"], lines)

    def _done(self, r: Round) -> list[str]:
        """What is done in a round, within its loops."""
        if r.deferred:
            lines = [f"{r.loops[-1]} overlap defer {{", *("  " + line for line in r.body)]
            lines += ["} finally {", *("  " + line for line in r.ending), "}"]
            return nested(r.loops[:-1], lines)
        return nested(r.loops, [*r.body, *r.ending])


def _own_names(lines: list[str], number: int) -> list[str]:
    """The lines with names of their own for what they define, from the second round on."""
    if number == 0:
        return lines
    defined = {found[1] for line in lines if (found := re.match(r" *(%\w+) = ", line))}
    pattern = re.compile("|".join(rf"{re.escape(name)}\b" for name in sorted(defined)) or "(?!)")
    return [pattern.sub(lambda found: f"{found[0]}{number}", line) for line in lines]


def nested(loops: list[str], body: list[str]) -> list[str]:
    """A body within loops, the first outermost."""
    for loop in reversed(loops):
        body = [f"{loop} {{", *("  " + line for line in body), "}"]
    return body
