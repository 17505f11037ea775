"""Which of an author's constraints a chosen plan does not follow, and why: one line each, for `explain()`."""

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
from tilewright.plan.contraction import Contraction
from tilewright.plan.fixed import wave_parts
from tilewright.plan.general import words_for
from tilewright.plan.microkernel import axes_in, names_of
from tilewright.plan.schedule import Axis, Schedule

ONE_WORKER = "a workgroup is one worker here"


@dataclass(frozen=True)
class Followed:
    """A program, the plan chosen for it on a machine, and the sizes it was planned for.

    `axes` are the plan's names of dimensions; `is_grid` says that tasks are part of the program's meaning.
    """

    program: Program
    plan: Schedule
    machine: Machine
    sizes: Mapping[Symbol, int]
    axes: Mapping[str, str]
    is_grid: bool = False

    def notes(self) -> tuple[str, ...]:
        """A line for each constraint, and each argument of one, that the plan does not follow."""
        notes: list[str] = []
        for record in self.program.records:
            notes += _NOTES[record.name](self, record) if record.name in _NOTES else ()
        return tuple(dict.fromkeys(notes))

    def number(self, e: Expr | None) -> int | None:
        """The value of an expression; None where a symbol of it has none yet."""
        value = None if e is None else Substitution(dict(self.sizes))(e)
        return value.value if isinstance(value, Const) else None

    def text(self, e: Expr) -> str:
        """An expression as its number, or as it is written."""
        number = self.number(e)
        return str(e if number is None else number)

    def axis(self, dim: Expr) -> Axis | None:
        """The axis of a dimension, in the plan of the first program that has one."""
        name = self.axes.get(str(dim), str(dim))
        plan: Schedule | None = self.plan
        while plan is not None:
            axis = next((axis for axis in plan.axes if axis.name == name), None)
            if axis is not None:
                return axis
            plan = plan.then
        return None

    @property
    def waves(self) -> int:
        """How many waves compute a task."""
        roles = self.plan.pipeline
        if roles is None:
            return self.plan.waves
        return roles.consumer[0] // 2 if roles.pingpong else roles.consumer[0]

    def shared(self) -> dict[str, int] | None:
        """In how many parts waves share each dimension of a task, those in one part left out; None: not said."""
        if self.machine.waves == 1 or self.waves == 1:
            return {}
        if self.plan.pipeline is None or not self.plan.products or self.plan.products[0].atom is None:
            return None
        product = self.plan.products[0]
        columns = product.rows if product.transposed else product.columns
        op, atom = names_of(self.program).get(product.name), self.machine.multiply.get(product.atom or "")
        axes = "" if op is None else axes_in(op, numbers_of(self.sizes))
        if isinstance(axes, str) or atom is None or columns > atom.shape[1]:
            return None
        return {str(axes.n if product.transposed else axes.m): self.waves}


def not_followed(
    program: Program,
    plan: Schedule,
    machine: Machine,
    sizes: Mapping[Symbol, int],
    contraction: Contraction | None = None,
    is_grid: bool = False,
) -> tuple[str, ...]:
    """A line for each constraint of a program that a plan does not follow, with the reason."""
    if contraction is None:
        axes = words_for(dict.fromkeys(str(r.attrs["dim"]) for r in program.records if "dim" in r.attrs))
    else:
        rows, columns, depth = contraction.dims
        single = [(dims[0], name) for dims, name in ((rows, ROWS), (columns, COLUMNS)) if len(dims) == 1]
        axes = {**dict(single), depth: DEPTH}
    return Followed(program, plan, machine, sizes, axes, is_grid).notes()


def _extent(axis: Axis) -> int:
    return prod(digit.extent for digit in axis.digits)


def _workgroup(on: Followed, record: Op) -> Iterator[str]:
    """The tile of a workgroup: what a task has of the dimension."""
    tile = on.number(record.attrs["tile"])
    if tile is None or on.is_grid:
        return
    name = f"the constraint's workgroup tile of {record.attrs['dim']}, {tile}, is left aside"
    axis = on.axis(record.attrs["dim"])
    if axis is None:
        yield f"{name}: the plan has no axis of {record.attrs['dim']}"
        return
    cuts = [c for c in axis.splits if c.level == "task"]
    boxes = {c.digit: c.size for c in cuts if c.digit is not None}
    whole = _extent(axis)
    taken = prod(boxes.get(d.name, d.extent) for d in axis.digits) if boxes else cuts[0].size if cuts else whole
    if min(tile, whole) != min(taken, whole):
        yield f"{name}: a task has {min(taken, whole)} of {whole}, as `{axis}` says"


def _tiling(on: Followed, record: Op) -> Iterator[str]:
    """The tile of a loop: how far a loop of the plan goes."""
    tile = on.number(record.attrs.get("tile"))
    axis = on.axis(record.attrs["dim"])
    if tile is None:
        return
    name = f"the constraint's loop tile of {record.attrs['dim']}, {tile}, is left aside"
    if axis is None:
        yield f"{name}: the plan has no axis of {record.attrs['dim']}"
    elif tile < _extent(axis) and all(cut.size != tile for cut in axis.splits if cut.level != "task"):
        yield f"{name}: no loop of `{axis}` goes so far"


def _wave(on: Followed, record: Op) -> Iterator[str]:
    """The tile of a wave: in how many parts waves share what a workgroup has of the dimension."""
    dim = record.attrs["dim"]
    wanted, parts = wave_parts(on.program, on.sizes).get(str(dim)), on.shared()
    if wanted is not None and parts is not None and parts.get(str(dim), 1) == wanted:
        return
    if on.machine.waves == 1:
        why = ONE_WORKER
    elif parts is None:
        why = f"the plan says how its {on.waves} waves share a task"
    else:
        shared = ", ".join(f"{n} along {d}" for d, n in parts.items()) or "one wave does a task"
        why = f"the plan's waves are {shared}" if parts else shared
    yield f"the constraint on waves of {dim} is left aside: {why}"


def _hardware(on: Followed, record: Op) -> Iterator[str]:
    """The waves, threads, instructions and registers that the constraint names."""
    attrs, machine = record.attrs, on.machine
    if (threads := attrs.get("threads")) is not None and threads != machine.lanes:
        why = ONE_WORKER if machine.waves == 1 else f"a wave has {machine.lanes} lanes here"
        yield f"the constraint's threads_per_wave {threads} is left aside: {why}"
    if "waves" in attrs:
        wanted = [on.number(e) for e in attrs["waves"]]
        if None in wanted or prod(n or 0 for n in wanted) != (1 if machine.waves == 1 else on.waves):
            why = ONE_WORKER if machine.waves == 1 else f"{on.waves} waves compute a task of the plan"
            yield f"the constraint's waves_per_block ({', '.join(map(on.text, attrs['waves']))}) is left aside: {why}"
    if "mma" in attrs:
        yield f"the constraint's {attrs['mma']} is left aside: atoms are this machine's own"
    if "vectors" in attrs:
        said = ", ".join(f"{dim} {on.text(size)}" for dim, size in attrs["vectors"])
        yield f"the constraint's vector_shapes {said} are left aside: what a register holds follows from the plan"
    if "cluster" in attrs and any(on.number(e) != 1 for e in attrs["cluster"]):
        said = ", ".join(map(on.text, attrs["cluster"]))
        yield f"the constraint's workgroups_per_cluster ({said}) is left aside: plans have no clusters"
    if "load_bits" in attrs:
        yield (
            f"the constraint's max_bits_per_load {attrs['load_bits']} is left aside: how wide a load is follows from "
            "the plan"
        )
    if "service" in attrs:
        yield f"the constraint's n_service_waves {attrs['service']} is left aside: the plan says which waves load"


def _elements(on: Followed, record: Op) -> Iterator[str]:
    """How many elements a thread has of a read, a write or an index."""
    why = ONE_WORKER if on.machine.waves == 1 else "what a lane reads and writes at a time follows from the plan"
    what = f"{record.attrs['what']} of {record.attrs['of']}"
    yield f"elements_per_thread {on.text(record.attrs['count'])} of the {what} is left aside: {why}"


_NOTES = {"workgroup": _workgroup, "tiling": _tiling, "wave": _wave, "hardware": _hardware, "elements": _elements}
