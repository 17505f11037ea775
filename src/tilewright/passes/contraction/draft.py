"""A block program that passes fill in, part by part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tilewright.passes.contraction.text import argument, batch_tasks
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.forms import COLUMNS, ROWS, Form, up


@dataclass
class Round:
    """A loop over blocks of sums: how many rows a block has, which row is its first, and the loops around it."""

    rows: int
    start: Any
    """The first row of a block, within the last row digit or within what is staged."""
    loops: list[str]
    """The loops, outermost first; what is done in a round stands in the last."""
    only: str | None = None
    """The condition under which a task does this at all."""
    deferred: bool = False
    body: list[str] = field(default_factory=list)
    ending: list[str] = field(default_factory=list)
    sums: str = "%sums_"


@dataclass
class Draft:
    """The program of a contraction's form so far: tasks, what a task stages and holds, its rounds."""

    c: Contraction
    form: Form
    machine: str
    packed: tuple[int, ...]
    tasks: list[str] = field(default_factory=list)
    staged: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
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
        ranges |= {d.name: f"{d.name} in 0..{size(d)}" for d in self.c.rows[:-2]}
        ranges |= {ROWS: rows, COLUMNS: f"part in 0..{parts}" if parts > 1 else None}
        found = [ranges[name] for name in self.form.tasks]
        return [r for r in found if r is not None] or ["all in 0..1"]

    def __str__(self) -> str:
        c = self.c
        arguments = [argument("in", c.a), f"%packed_: in global {c.b.dtype} ({', '.join(map(str, self.packed))})"]
        arguments += [argument("in", e) for e in c.extras if e.name != c.a.name]
        arguments.append(argument("out", c.out))
        schedule = " schedule contiguous" if self.form.schedule == "contiguous" else ""
        lines = [f"block {c.name}({', '.join(arguments)})", f"  machine {self.machine}", "{"]
        lines.append(f"  tasks {', '.join(self.tasks)}{schedule} {{")
        lines += ["    " + line for line in (*self.staged, *self.held)]
        for r in self.rounds:
            lines += ["    " + line for line in self._round(r)]
        return "\n".join([*lines, "  }", "}"]) + "\n"

    def _round(self, r: Round) -> list[str]:
        body = [*r.body, *([] if r.deferred else r.ending)]
        lines = [f"{r.loops[-1]}{' overlap defer' if r.deferred else ''} {{", *("  " + line for line in body)]
        if r.deferred:
            lines += ["} finally {", *("  " + line for line in r.ending)]
        lines.append("}")
        for loop in reversed(r.loops[:-1]):
            lines = [f"{loop} {{", *("  " + line for line in lines), "}"]
        if r.only is not None:
            lines = [f"if ({r.only}) {{", *("  " + line for line in lines), "}"]
        return lines
