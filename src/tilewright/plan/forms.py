"""What the passes read off a plan for a contraction: by tiles, vectors or lanes; and the plan that a form is.

A plan says more than every machine can do; a form is the part that one strategy takes. Reading refuses, by name, what
the strategy does not do.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from tilewright.algebra.expr import Symbol
from tilewright.errors import ArgumentError
from tilewright.ir.dtypes import DType
from tilewright.machine import MultiplyAtom, OpaqueOperand
from tilewright.plan.contraction import Contraction, size
from tilewright.plan.plan import Axis, Cut, Digit, Placed, Plan
from tilewright.plan.sliding import halo_of, lane_digit

ROWS, COLUMNS, DEPTH, LANES = "rows", "columns", "depth", "lanes"
STAGES = ("place", "lines", "panel")


@dataclass(frozen=True)
class Step:
    """A loop of the depth: over pieces of a digit, kept as a loop or written out."""

    digit: str
    size: int
    written: bool


@dataclass(frozen=True)
class TileForm:
    """A contraction by tile products.

    `rows` and `columns` are those of a block of sums; `stage` says where rows are read: in place, from staged lines, or
    from a panel; `strip` is what a task takes of the rows (lines, or rows where they have one digit), `task_columns`
    what it takes of the columns; `order` is that of the two loops; `streams` names the factor that is not kept.
    """

    atom: MultiplyAtom
    rows: int
    columns: int
    stage: str
    strip: int
    task_columns: int
    order: tuple[str, str]
    steps: tuple[Step, ...]
    streams: str
    overlap: str
    tasks: tuple[str, ...]
    schedule: str

    @property
    def depth(self) -> int:
        """The depth of one product."""
        return self.atom.shape[2]

    @property
    def group(self) -> int:
        """Neighbours of the depth that the packed factor keeps together."""
        return self.depth // self.atom.shape[0]

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a block of sums."""
        return self.rows, self.columns


@dataclass(frozen=True)
class VectorForm:
    """A contraction by vectors of columns: `rows` numbers of a line times `columns` are summed in registers.

    `strip` is what a task takes of the rows: lines, or rows where they have one digit.
    """

    atom: MultiplyAtom
    rows: int
    columns: int
    strip: int
    task_columns: int
    order: tuple[str, str]
    steps: tuple[Step, ...]
    streams: str
    tasks: tuple[str, ...]
    schedule: str

    @property
    def lanes(self) -> int:
        """Columns of one vector."""
        return self.atom.shape[1]

    @property
    def group(self) -> int:
        """Neighbours of the depth that one product takes."""
        return self.atom.shape[2]

    @property
    def block(self) -> tuple[int, int]:
        """Rows and columns of a block of sums."""
        return self.rows, self.columns


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
class LaneForm:
    """A contraction by vectors along a digit that both factors and the result keep.

    `rows` of a line times `width` neighbours of the digit are summed in registers; `strip` is what a task takes of a
    line, `task_width` what it takes of the digit. Columns, several filters for a neighbour, are gone over one by one.
    """

    atom: LaneUnit
    rows: int
    width: int
    strip: int
    task_width: int
    steps: tuple[Step, ...]
    tasks: tuple[str, ...]
    schedule: str

    @property
    def vectors(self) -> int:
        """Vectors of a block along the lanes."""
        return self.width // self.atom.lanes

    @property
    def block(self) -> tuple[int, int]:
        """Rows and neighbours of a block of sums."""
        return self.rows, self.width


Form = TileForm | VectorForm | LaneForm


def up(n: int, step: int) -> int:
    """The multiple of `step` from n on."""
    return -(-n // step) * step


# -- from a form ------------------------------------------------------------------------------------------


def plan_of(c: Contraction, form: Form) -> Plan:
    """The plan that a form is, for a contraction."""
    if isinstance(form, LaneForm):
        return _plan_of_lanes(c, form)
    (column,) = c.columns
    axes = [_single(d) for d in (*c.batch, *c.rows[:-2])]
    tiles = isinstance(form, TileForm)
    axes.append(Axis(ROWS, _row_digits(c, form), _row_cuts(c, form)))
    across = Digit(column.name, size(column), up(size(column), form.columns))
    cuts = (Cut("task", form.task_columns), Cut("loop", form.columns), Cut("unit", form.atom.shape[1]))
    axes.append(Axis(COLUMNS, (across,), cuts))
    steps = [Cut("unit" if s.written else "loop", s.size, s.digit) for s in form.steps]
    chunk = form.depth if isinstance(form, TileForm) else form.group
    walked = [Digit(d.name, size(d), up(size(d), chunk) if d is c.depth[-1] else size(d)) for d in c.depth]
    axes.append(Axis(DEPTH, tuple(walked), tuple(steps)))
    staged = isinstance(form, TileForm) and form.stage != "place"
    hints = {name: "stream" if form.streams in (name, "both") else "keep" for name in ("a", "b")}
    placed = (
        Placed(
            c.a.name,
            "task" if staged else None,
            form.stage if isinstance(form, TileForm) and staged else "",
            hints["a"],
        ),
        Placed(c.b.name, "bind", "", hints["b"]),
    )
    return Plan(
        tuple(axes),
        form.tasks,
        (*form.order, DEPTH),
        placed,
        form.atom.name,
        form.schedule,
        form.overlap if tiles and isinstance(form, TileForm) else "none",
    )


def _plan_of_lanes(c: Contraction, form: LaneForm) -> Plan:
    digit = kept_digit(c)
    unit = form.atom.lanes
    along = (Cut("task", form.task_width), Cut("loop", form.width), Cut("unit", unit))
    down = (Cut("task", form.strip), Cut("loop", form.rows), Cut("unit", 1))
    axes = [_single(d) for d in lane_singles(c)]
    axes.append(Axis(LANES, (Digit(digit.name, size(digit), up(size(digit), unit)),), along))
    axes.append(Axis(ROWS, (_whole(c.rows[-1]),), down))
    axes.append(Axis(COLUMNS, tuple(map(_whole, c.columns)), (Cut("loop", 1),)))
    steps = tuple(Cut("unit" if s.written else "loop", s.size, s.digit) for s in form.steps)
    axes.append(Axis(DEPTH, tuple(map(_whole, c.depth)), steps))
    placed = (Placed(c.a.name, None, ""), Placed(c.b.name, "bind", ""))
    order = (ROWS, LANES, COLUMNS, DEPTH)
    return Plan(tuple(axes), form.tasks, order, placed, form.atom.name, form.schedule)


def kept_digit(c: Contraction) -> Symbol:
    """The digit that vectors run along, of a contraction that has one."""
    found = lane_digit(c)
    assert found is not None
    return found


def lane_singles(c: Contraction) -> list[Symbol]:
    """The digits whose every number is a task of its own, by lanes: the rest of the batch, all rows but the last."""
    return [*(d for d in c.batch if d is not lane_digit(c)), *c.rows[:-1]]


def _whole(digit: Symbol) -> Digit:
    return Digit(digit.name, size(digit), size(digit))


def _single(digit: Symbol) -> Axis:
    return Axis(digit.name, (_whole(digit),), (Cut("task", 1),))


def _row_digits(c: Contraction, form: TileForm | VectorForm) -> tuple[Digit, ...]:
    *lines, last = c.rows[-2:]
    walked = size(last)
    if isinstance(form, TileForm) and form.stage == "lines":
        halo = halo_of(c)
        assert halo is not None
        walked = halo.line(c.a.shape[halo.column_dim])
    return (*(Digit(d.name, size(d), size(d)) for d in lines), Digit(last.name, size(last), walked))


def _row_cuts(c: Contraction, form: TileForm | VectorForm) -> tuple[Cut, ...]:
    lines = c.rows[-2].name if len(c.rows) > 1 else None
    inner: tuple[Cut, ...] = (Cut("loop", form.rows), Cut("unit", form.atom.shape[0]))
    if lines is not None and isinstance(form, VectorForm):  # a block of sums stays within a line
        inner = (Cut("loop", 1, lines), *inner)
    return (Cut("task", form.strip, lines), *inner)


# -- from a plan ------------------------------------------------------------------------------------------


def form_of(c: Contraction, plan: Plan, atom: MultiplyAtom | LaneUnit) -> Form:
    """The form that a plan means for a contraction; raises where no strategy does what it says."""
    if isinstance(atom, LaneUnit):
        return _form_by_lanes(c, plan, atom)
    tiles = isinstance(atom.c, OpaqueOperand)
    singles = [*c.batch, *c.rows[:-2]]
    _same(plan, singles, {ROWS: c.rows[-2:], COLUMNS: c.columns, DEPTH: c.depth}, (ROWS, COLUMNS))
    rows, columns, depth = (plan.axis(name) for name in (ROWS, COLUMNS, DEPTH))
    row_task, row_loop = _shape(rows, atom.shape[0], within_lines=not tiles and len(c.rows) > 1)
    column_task, column_loop = _shape(columns, atom.shape[1])
    order = tuple(name for name in plan.order if name != DEPTH)
    if sorted(order) != [COLUMNS, ROWS] or plan.order[-1] != DEPTH:
        raise ArgumentError(
            f"plan: order {', '.join(plan.order)}: rows and columns in either order, then depth; sums stay in registers"
        )
    steps = _steps(c, depth)
    a, b = plan.operand(c.a.name), _packed(c, plan)
    if "bypass" in (a.hint, b.hint):
        raise ArgumentError("plan: factors are read more than once: keep or stream")
    streams = (
        "both" if a.hint == b.hint == "stream" else "a" if a.hint == "stream" else "b" if b.hint == "stream" else "none"
    )
    common = (order[0], order[1])
    form: Form
    if tiles:
        form = TileForm(
            atom, row_loop.size, column_loop.size, _stage(c, a), row_task.size, column_task.size, common, steps,
            streams, plan.overlap, plan.tasks, plan.schedule,
        )  # fmt: skip
        return _meant(c, plan, form)
    if a.at is not None:
        raise ArgumentError(f"plan: {c.a.name} staged at {a.at}: vectors read the rows in place")
    if plan.overlap != "none":
        raise ArgumentError("plan: overlap is for sums in tile registers; vectors are stored as they are")
    form = VectorForm(
        atom, row_loop.size, column_loop.size, row_task.size, column_task.size, common, steps, streams, plan.tasks,
        plan.schedule,
    )  # fmt: skip
    return _meant(c, plan, form)


def _form_by_lanes(c: Contraction, plan: Plan, atom: LaneUnit) -> LaneForm:
    axes = {LANES: (kept_digit(c),), ROWS: c.rows[-1:], COLUMNS: c.columns, DEPTH: c.depth}
    _same(plan, lane_singles(c), axes, (LANES, ROWS))
    task, loop = _shape(plan.axis(LANES), atom.lanes)
    row_task, row_loop = _shape(plan.axis(ROWS), 1)
    _packed(c, plan)
    if plan.operand(c.a.name).at is not None:
        raise ArgumentError(f"plan: {plan.operand(c.a.name)}: vectors along the lanes read the rows in place")
    if plan.overlap != "none":
        raise ArgumentError("plan: overlap is for sums in tile registers; lanes are stored as they are")
    steps = _steps(c, plan.axis(DEPTH))
    form = LaneForm(atom, row_loop.size, loop.size, row_task.size, task.size, steps, plan.tasks, plan.schedule)
    _meant(c, plan, form)
    return form


def _steps(c: Contraction, depth: Axis) -> tuple[Step, ...]:
    """The steps that the cuts of the depth are."""
    if any(x.role == "task" for x in depth.cuts):
        raise ArgumentError("plan: tasks over the depth would add to one result; it has loop and unit cuts")
    return tuple(Step(x.digit or c.depth[-1].name, x.size, x.role == "unit") for x in depth.cuts)


def _packed(c: Contraction, plan: Plan) -> Placed:
    """Where the columns' factor lies."""
    found = plan.operand(c.b.name)
    if found.at != "bind":
        raise ArgumentError(f"plan: {c.b.name} is packed at bind; other places are not done for the columns' factor")
    return found


def _meant(c: Contraction, plan: Plan, form: Form) -> Form:
    """The form, if it is all that the plan says."""
    for said, done in zip_longest(plan.lines(), plan_of(c, form).lines(), fillvalue="nothing"):
        if said != done:
            raise ArgumentError(f"plan: `{said}` is not done here; it would be `{done}`")
    return form


def _same(plan: Plan, singles: list[Symbol], axes: dict[str, tuple[Symbol, ...]], shared: tuple[str, ...]) -> None:
    """Refuses a plan whose axes are not those of the contraction: single digits, and then `axes`.

    Tasks go over the single digits and the `shared` axes.
    """
    wanted = {d.name: (d,) for d in singles} | axes
    if [a.name for a in plan.axes] != list(wanted):
        raise ArgumentError(
            f"plan: its axes are {', '.join(a.name for a in plan.axes)}; here they are {', '.join(wanted)}"
        )
    for axis in plan.axes:
        said = [(d.name, d.extent) for d in axis.digits]
        here = [(d.name, size(d)) for d in wanted[axis.name]]
        if said != here:
            raise ArgumentError(
                f"plan: axis {axis.name} = {', '.join(f'{n} {e}' for n, e in said)}; here it is "
                f"{', '.join(f'{n} {e}' for n, e in here)}"
            )
        for cut in axis.cuts:
            if cut.digit is not None and cut.digit not in dict(here):
                raise ArgumentError(f"plan: {cut}: axis {axis.name} has no digit {cut.digit}")
    every = [*(d.name for d in singles), *shared]
    if sorted(plan.tasks) != sorted(every):
        raise ArgumentError(f"plan: tasks {', '.join(plan.tasks)}; here tasks go over {', '.join(every)}, in any order")
    for name in (d.name for d in singles):
        if plan.axis(name).cuts != (Cut("task", 1),):
            cuts = ", ".join(map(str, plan.axis(name).cuts)) or "whole"
            raise ArgumentError(f"plan: axis {name}: {cuts}: here it takes `task 1`, each of its numbers a task")


def _shape(axis: Axis, atom: int, within_lines: bool = False) -> tuple[Cut, Cut]:
    """The cuts by task and by the innermost loop."""
    roles = [c.role for c in axis.cuts]
    wanted = ["task", *(["loop"] if within_lines else []), "loop", "unit"]
    if roles != wanted:
        raise ArgumentError(
            f"plan: axis {axis.name} has the cuts {', '.join(roles)}; here it takes {', '.join(wanted)}"
        )
    task, loop, unit = axis.cuts[0], axis.cuts[-2], axis.cuts[-1]
    if unit.size != atom:
        raise ArgumentError(f"plan: axis {axis.name}: {unit}: the last cut leaves what the atom takes, {atom}")
    if loop.size % unit.size:
        raise ArgumentError(f"plan: axis {axis.name}: {loop} is no multiple of {unit}")
    return task, loop


def _stage(c: Contraction, a: Placed) -> str:
    if a.at is None:
        return "place"
    if a.at != "task":
        raise ArgumentError(f"plan: {c.a.name} staged at {a.at}: rows are staged at task")
    if a.form not in STAGES[1:]:
        raise ArgumentError(f"plan: {c.a.name} staged as {a.form}; there are {' and '.join(STAGES[1:])}")
    return a.form
