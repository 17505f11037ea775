"""The numbers that the plan of a contraction says: what candidates are ranked by, and what a given plan means.

A plan says more than is done for contractions. Reading refuses, by name, what is not; and what is read must give the
same plan back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.algebra.expr import Symbol
from tilewright.ir.dtypes import DType
from tilewright.machine import MultiplyAtom, OpaqueOperand
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.schedule import Axis, Digit, Schedule, Split, ValuePlacement
from tilewright.plan.sliding import halo_of, lane_digit

ROWS, COLUMNS, DEPTH, LANES = "rows", "columns", "depth", "lanes"
STAGES = ("strip", "panel")
BY_LANES = (ROWS, LANES, COLUMNS)
"""The order of loops over blocks by lanes."""


@dataclass(frozen=True)
class LaneUnit:
    """What multiplies by lanes: no atom of a machine, but its arithmetic on vectors of a type, in all lanes at once.

    A plan names it as its atom, by the type: `atom lanes.f32`.
    """

    dtype: DType
    lanes: int
    cycles: float

    @property
    def name(self) -> str:
        """As a plan names it."""
        return f"{LANES}.{self.dtype}"

    @property
    def shape(self) -> tuple[int, int, int]:
        """What one operation takes: of the rows, of the digit along the lanes, of the depth."""
        return 1, self.lanes, 1


@dataclass(frozen=True)
class Blocking:
    """A contraction in blocks of `rows` x `columns` sums in registers: tiles, vectors of columns, or vectors of
    neighbours along a digit that both factors and the result keep, which are its columns then.

    `strip` is what a task takes of the rows (lines, or rows where they have one digit, or of a line by lanes),
    `task_columns` what it takes of the columns; `order` is that of the loops over blocks; `steps` are the cuts of the
    depth; `stage` says from where tiles read rows: in place (""), from staged lines, or from a panel; `streams` names
    the factors, a and b, that are not kept.
    """

    atom: MultiplyAtom | LaneUnit
    rows: int
    columns: int
    strip: int
    task_columns: int
    order: tuple[str, ...]
    steps: tuple[Split, ...]
    tasks: tuple[str, ...]
    schedule: str
    stage: str = ""
    streams: str = ""
    overlap: str = "none"
    singles: tuple[tuple[str, int], ...] = ()
    """Digits of which a task takes more than one, of those whose every number is a task of its own otherwise."""

    @property
    def in_tiles(self) -> bool:
        """Whether sums are in tile registers."""
        return isinstance(self.atom, MultiplyAtom) and isinstance(self.atom.c, OpaqueOperand)

    @property
    def by_lanes(self) -> bool:
        """Whether vectors lie along a digit that both factors keep."""
        return isinstance(self.atom, LaneUnit)

    @property
    def vectors(self) -> int:
        """Vectors, or tiles, side by side in a block."""
        return self.columns // self.atom.shape[1]


def up(n: int, step: int) -> int:
    """The multiple of `step` from n on."""
    return -(-n // step) * step


def kept_digit(c: Contraction) -> Symbol:
    """The digit that vectors run along, of a contraction that has one."""
    found = lane_digit(c)
    assert found is not None
    return found


def single_digits(c: Contraction, by_lanes: bool) -> list[Symbol]:
    """The digits whose every number is a task of its own: of the batch, and of the rows all but a line, or two."""
    return [*(d for d in c.batch if not by_lanes or d is not lane_digit(c)), *c.rows[: -1 if by_lanes else -2]]


def axes_in_order(c: Contraction, by_lanes: bool) -> dict[str, tuple[Symbol, ...]]:
    """The digits of each axis of a plan, in its order, beside single ones; tasks go over the first two."""
    lanes = {LANES: (kept_digit(c),)} if by_lanes else {}
    return {**lanes, ROWS: c.rows[-1:] if by_lanes else c.rows[-2:], COLUMNS: c.columns, DEPTH: c.depth}


def plan_of(c: Contraction, s: Blocking) -> Schedule:
    """The plan that says these numbers of a contraction."""
    (m, n, k), axes = s.atom.shape, axes_in_order(c, s.by_lanes)
    across, last = (LANES, kept_digit(c)) if s.by_lanes else (COLUMNS, c.columns[0])
    walked = {last: up(size(last), n if s.by_lanes else s.columns), c.depth[-1]: up(size(c.depth[-1]), k)}
    if s.stage == "strip" and (halo := halo_of(c)) is not None:
        walked[c.rows[-1]] = halo.pitch
    lines = axes[ROWS][0].name if len(axes[ROWS]) > 1 else None
    within = (
        (Split("loop", 1, lines),) if lines is not None and not s.in_tiles else ()
    )  # blocks of sums end with a line
    cuts = {
        COLUMNS: (Split("loop", 1),),
        ROWS: (Split("task", s.strip, lines), *within, Split("loop", s.rows), Split("unit", m)),
        across: (Split("task", s.task_columns), Split("loop", s.columns), Split("unit", n)),
        DEPTH: s.steps,
    }
    taken = dict(s.singles)
    made = [
        Axis(d.name, (Digit(d.name, size(d), size(d)),), (Split("task", taken.get(d.name, 1)),))
        for d in single_digits(c, s.by_lanes)
    ]
    for name, digits in axes.items():
        made.append(Axis(name, tuple(Digit(d.name, size(d), walked.get(d, size(d))) for d in digits), cuts[name]))
    a, b = ("stream" if name in s.streams else "keep" for name in "ab")
    placed = (
        ValuePlacement(c.a.name, "task" if s.stage else None, s.stage, a),
        ValuePlacement(c.b.name, "bind", "packed", b),
    )
    return Schedule(tuple(made), s.tasks, (*s.order, DEPTH), placed, s.atom.name, s.schedule, s.overlap)


def blocking_of(c: Contraction, plan: Schedule, atom: MultiplyAtom | LaneUnit) -> Blocking:
    """The numbers that a plan says of a contraction; lanes have one order of loops, and no hints."""
    lanes = isinstance(atom, LaneUnit)
    rows, columns = (plan.axis(name).splits for name in (ROWS, LANES if lanes else COLUMNS))
    steps = tuple(replace(x, digit=x.digit or c.depth[-1].name) for x in plan.axis(DEPTH).splits)
    a, b = plan.operand(c.a.name), plan.operand(c.b.name)
    singles = [(d.name, min(plan.axis(d.name).splits[0].size, size(d))) for d in single_digits(c, lanes)]
    return Blocking(
        atom,
        rows[-2].size,
        columns[-2].size,
        rows[0].size,
        columns[0].size,
        BY_LANES if lanes else tuple(name for name in plan.loops if name != DEPTH),
        steps,
        plan.grid,
        plan.order,
        a.form if a.at is not None else "",
        "".join(name for name, operand in (("a", a), ("b", b)) if operand.hint == "stream" and not lanes),
        plan.overlap,
        tuple((name, width) for name, width in singles if width > 1),
    )
