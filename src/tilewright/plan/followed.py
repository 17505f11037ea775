"""List the author's constraints that a chosen plan does not follow, with reasons: one line each, for `explain()`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tilewright.algebra.expr import Const, Expr, Symbol
from tilewright.algebra.expr_use import Substitution
from tilewright.ir.core import Op, Program
from tilewright.machine import Machine
from tilewright.plan.blocking import COLUMNS, DEPTH, ROWS
from tilewright.plan.boxes import numbers_of
from tilewright.plan.fixed import wave_parts
from tilewright.plan.general import words_for
from tilewright.plan.microkernel import axes_in, mmas_by_name
from tilewright.plan.schedule import Axis, Schedule

ONE_WORKER = "a workgroup is one worker here"


@dataclass(frozen=True)
class Followed:
    """A program, its plan on a machine, and the sizes of the plan, to find the author's constraints that it ignores.

    `axes` maps dimensions to their names in the plan. `is_grid` says that workgroup tiles are part of the program's
    meaning.
    """

    program: Program
    plan: Schedule
    machine: Machine
    sizes: Mapping[Symbol, int]
    axes: Mapping[str, str]
    is_grid: bool = False

    def notes(self) -> tuple[str, ...]:
        """Return a tuple of texts: a line for each constraint of the author that this plan does not follow.

        A constraint on hardware may give several lines, one for each argument. Equal lines are returned once. The
        result is () if the plan follows all constraints.
        """
        notes: list[str] = []
        for constraint in self.program.records:
            notes += _NOTES[constraint.name](self, constraint) if constraint.name in _NOTES else ()
        return tuple(dict.fromkeys(notes))

    def number(self, e: Expr | None) -> int | None:
        """Return the value of `e`, an expression of sizes; None if `e` is None or a symbol of it has no number."""
        value = None if e is None else Substitution(dict(self.sizes))(e)
        return value.value if isinstance(value, Const) else None

    def text(self, e: Expr) -> str:
        """Return an expression of sizes as text: the number it evaluates to; `e` itself if a symbol has no number."""
        number = self.number(e)
        return str(e if number is None else number)

    def axis(self, dim: Expr) -> Axis | None:
        """Return the plan's Axis (splits into tasks and loops) of dimension `dim`; None if the plan has none.

        If the plan is for several kernels, it is the axis of the first kernel that has one. If the plan splits `dim`
        into parts (split-K), it is the axis of the elements of one part.
        """
        name = self.axes.get(str(dim), str(dim))
        if self.plan.parts is not None and self.plan.parts[0] == name:
            name = f"{name}_part"
        plan: Schedule | None = self.plan
        while plan is not None:
            axis = next((axis for axis in plan.axes if axis.name == name), None)
            if axis is not None:
                return axis
            plan = plan.then
        return None

    @property
    def waves(self) -> int:
        """The number of waves that compute one task (one workgroup's tile) of this plan.

        With a pipeline it is the number of consumer waves, or half of that number if two halves alternate (ping-pong).
        Otherwise it is the number in the plan's statement `waves`.
        """
        pipeline = self.plan.pipeline
        if pipeline is None:
            return self.plan.waves
        return pipeline.consumer[0] // 2 if pipeline.pingpong else pipeline.consumer[0]

    def wave_splits(self) -> dict[str, int] | None:
        """Return how waves split one task (workgroup's tile): {dimension: number of waves along it}; {} for one wave.

        None if the plan does not determine it: it has no pipeline, no MMA with an atom, or its first accumulator tile
        has more columns than the atom. Otherwise all waves split the dimension of the atom's rows, which is M, or N if
        the MMA is transposed.
        """
        if self.machine.waves == 1 or self.waves == 1:
            return {}
        if self.plan.pipeline is None or not self.plan.products or self.plan.products[0].atom is None:
            return None
        product = self.plan.products[0]
        columns = product.rows if product.transposed else product.columns
        op, atom = mmas_by_name(self.program).get(product.name), self.machine.multiply.get(product.atom or "")
        axes = "" if op is None else axes_in(op, numbers_of(self.sizes))
        if isinstance(axes, str) or atom is None or columns > atom.shape[1]:
            return None
        return {str(axes.n if product.transposed else axes.m): self.waves}


def not_followed(
    program: Program,
    plan: Schedule,
    machine: Machine,
    sizes: Mapping[Symbol, int],
    dims: tuple[tuple[str, ...], tuple[str, ...], str] | None = None,
    is_grid: bool = False,
) -> tuple[str, ...]:
    """Return a tuple of texts: a line, with the reason, for each constraint of the author that `plan` does not follow.

    It is () if the plan follows all. `sizes` maps size symbols to the numbers that the plan was made for. With
    `is_grid`, workgroup tiles are part of the program's meaning, so that every plan follows them. `dims` is for plans
    whose axes are rows, columns and depth: (the program's dimensions of M, its dimensions of N, its last dimension of
    K). For other plans it is None.
    """
    if dims is None:
        axes = words_for(dict.fromkeys(str(r.attrs["dim"]) for r in program.records if "dim" in r.attrs))
    else:
        rows, columns, depth = dims
        single = [
            (dims_of_axis[0], name)
            for dims_of_axis, name in ((rows, ROWS), (columns, COLUMNS))
            if len(dims_of_axis) == 1
        ]
        axes = {**dict(single), depth: DEPTH}
    return Followed(program, plan, machine, sizes, axes, is_grid).notes()


def _extent(axis: Axis) -> int:
    """Return the extent of an axis in elements: the product of the extents of its digits (mixed-radix parts)."""
    return prod(digit.extent for digit in axis.digits)


def _workgroup_notes(followed: Followed, constraint: Op) -> Iterator[str]:
    """Yield a note (text for the author) if the plan does not have the workgroup tile that `constraint` states.

    A plan without an axis of the constraint's dimension gets a note too. A tile that evaluates to no number gets none,
    nor does a grid program (its plan always has these tiles). `followed` has the program and its plan.
    """
    tile = followed.number(constraint.attrs["tile"])
    if tile is None or followed.is_grid:
        return
    name = f"the constraint's workgroup tile of {constraint.attrs['dim']}, {tile}, is left aside"
    axis = followed.axis(constraint.attrs["dim"])
    if axis is None:
        yield f"{name}: the plan has no axis of {constraint.attrs['dim']}"
        return
    task_splits = [c for c in axis.splits if c.level == "task"]
    boxes = {c.digit: c.size for c in task_splits if c.digit is not None}
    whole = _extent(axis)
    task_width = (
        prod(boxes.get(d.name, d.extent) for d in axis.digits)
        if boxes
        else task_splits[0].size
        if task_splits
        else whole
    )
    if min(tile, whole) != min(task_width, whole):
        yield f"{name}: a task has {min(task_width, whole)} of {whole}, as `{axis}` says"


def _tiling_notes(followed: Followed, constraint: Op) -> Iterator[str]:
    """Yield a note (text for the author) if no loop of the plan has the loop tile that `constraint` states.

    A plan without an axis of the constraint's dimension gets a note too. A tile that evaluates to no number gets none.
    Nor does one that covers the whole axis, unless the plan splits K into parts. `followed` has the program and its
    plan.
    """
    tile = followed.number(constraint.attrs.get("tile"))
    axis = followed.axis(constraint.attrs["dim"])
    if tile is None:
        return
    name = f"the constraint's loop tile of {constraint.attrs['dim']}, {tile}, is left aside"
    if axis is None:
        yield f"{name}: the plan has no axis of {constraint.attrs['dim']}"
    elif (tile < _extent(axis) or followed.plan.parts is not None) and all(
        cut.size != tile for cut in axis.splits if cut.level != "task"
    ):
        yield f"{name}: no loop of `{axis}` has that tile"


def _wave_notes(followed: Followed, constraint: Op) -> Iterator[str]:
    """Yield a note (text for the author) unless the plan's waves split a task as `constraint` states.

    A task is one workgroup's tile. In three cases the two cannot be compared, and a note is yielded too: the plan does
    not determine how waves split a task; the constraint's tile evaluates to no number; or its dimension has no
    workgroup tile. `followed` has the program and its plan.
    """
    dim = constraint.attrs["dim"]
    wanted_parts, parts = wave_parts(followed.program, followed.sizes).get(str(dim)), followed.wave_splits()
    if wanted_parts is not None and parts is not None and parts.get(str(dim), 1) == wanted_parts:
        return
    if followed.machine.waves == 1:
        why = ONE_WORKER
    elif parts is None:
        why = f"the plan says how its {followed.waves} waves share a task"
    else:
        shared = ", ".join(f"{n} along {d}" for d, n in parts.items()) or "one wave does a task"
        why = f"the plan's waves are {shared}" if parts else shared
    yield f"the constraint on waves of {dim} is left aside: {why}"


def _hardware_notes(followed: Followed, constraint: Op) -> Iterator[str]:
    """Yield a note (text for the author) for each argument of the hardware `constraint` that the plan does not follow.

    The arguments are the number of lanes of a wave, waves, MMA instruction, vector shapes, clusters, load width and
    service waves. An MMA instruction, vector shapes, load width and service waves are never followed. `followed` has
    the program and its plan.
    """
    attrs, machine = constraint.attrs, followed.machine
    if (threads := attrs.get("threads")) is not None and threads != machine.lanes:
        why = ONE_WORKER if machine.waves == 1 else f"a wave has {machine.lanes} lanes here"
        yield f"the constraint's threads_per_wave {threads} is left aside: {why}"
    if "waves" in attrs:
        wanted = [followed.number(e) for e in attrs["waves"]]
        if None in wanted or prod(n or 0 for n in wanted) != (1 if machine.waves == 1 else followed.waves):
            why = ONE_WORKER if machine.waves == 1 else f"{followed.waves} waves compute a task of the plan"
            stated = ", ".join(map(followed.text, attrs["waves"]))
            yield f"the constraint's waves_per_block ({stated}) is left aside: {why}"
    if "mma" in attrs:
        yield f"the constraint's {attrs['mma']} is left aside: atoms are this machine's own"
    if "vectors" in attrs:
        stated = ", ".join(f"{dim} {followed.text(size)}" for dim, size in attrs["vectors"])
        yield f"the constraint's vector_shapes {stated} are left aside: what a register holds follows from the plan"
    if "cluster" in attrs and any(followed.number(e) != 1 for e in attrs["cluster"]):
        stated = ", ".join(map(followed.text, attrs["cluster"]))
        yield f"the constraint's workgroups_per_cluster ({stated}) is left aside: plans have no clusters"
    if "load_bits" in attrs:
        yield (
            f"the constraint's max_bits_per_load {attrs['load_bits']} is left aside: how wide a load is follows from "
            "the plan"
        )
    if "service" in attrs:
        yield f"the constraint's n_service_waves {attrs['service']} is left aside: the plan says which waves load"


def _elements_notes(followed: Followed, constraint: Op) -> Iterator[str]:
    """Yield one note (text for the author): no plan follows `constraint`, a number of elements per thread.

    The constraint is for a read, a write or an index. `followed` has the program and its plan.
    """
    why = ONE_WORKER if followed.machine.waves == 1 else "what a lane reads and writes at a time follows from the plan"
    what = f"{constraint.attrs['what']} of {constraint.attrs['of']}"
    yield f"elements_per_thread {followed.text(constraint.attrs['count'])} of the {what} is left aside: {why}"


_NOTES = {
    "workgroup": _workgroup_notes,
    "tiling": _tiling_notes,
    "wave": _wave_notes,
    "hardware": _hardware_notes,
    "elements": _elements_notes,
}
